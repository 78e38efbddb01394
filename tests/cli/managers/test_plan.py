"""``crawlctl manager plan``: a user's class in a separate process, and what it would schedule."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import respx

from tests.cli.cli_support import Crawlctl

SHOPS = """
import sys
from crawler_lifecycle.managers import GeneratorCrawlManager

print("imported")


class Shops(GeneratorCrawlManager):
    name, spider, on_item_error = "shops", "shops", "skip"
    default_max_jobs, loop_mode = 2, 5

    def add_argparser_options(self):
        super().add_argparser_options()
        self.argparser.add_argument("--category", required=True)

    def set_parameters_gen(self):
        yield {"category": self.args.category, "page": 1}
        yield {"category": self.args.category, "page": "1"}
        yield {"page": object()}
        for page in range(2, 10):
            yield {"page": page}


class Slow(GeneratorCrawlManager):
    name, spider, loop_mode = "slow", "shops", 5

    def set_parameters_gen(self):
        import os, time
        for page in range(100):
            yield {"page": page}
            time.sleep(0.1)
        os._exit(4)


class Leaves(GeneratorCrawlManager):
    name, spider = "leaves", "shops"

    def __init__(self):
        import os
        os._exit(3)
"""


ENTRY = {
    "name": "shops",
    "project": "/shops",
    "args": {"category": {}, "page": {"type": "integer"}},
}


@pytest.fixture(autouse=True)
def shops(crawlctl: Crawlctl) -> None:
    Path("shops.py").write_text(SHOPS)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (
            {**ENTRY, "name": "shop"},
            "spider: 'shops' is unknown; no crawler has this name or this spider",
        ),
        (
            {**ENTRY, "args": {"page": {}}},
            "args.category: unknown argument of crawler 'shops'; known: page",
        ),
        (
            {**ENTRY, "args": {"category": {"choices": ["toys"]}, "page": {}}},
            "args.category: 'books'",
        ),
        ({**ENTRY, "args": {**ENTRY["args"], "key": {"required": True}}}, "args.key: missing"),  # type: ignore[dict-item]
    ],
)
def test_a_job_that_no_crawler_accepts_is_told_before_the_manager_starts(
    gateway: respx.MockRouter, crawlctl: Crawlctl, entry: dict[str, object], why: str
) -> None:
    gateway.get("/v1/crawlers").respond(json={"crawlers": [entry]})
    result = crawlctl(
        "manager", "plan", "shops:Shops", "--limit", "3", "-o", "json", "--", "--category", "books"
    )
    assert result.code == 1
    assert "of the jobs cannot be started" in result.err
    assert why in result.err
    assert "would be COMPLETED" not in result.err
    (first, *_) = result.json["jobs"]
    assert (first["what"], first["why"].startswith(why)) == ("refused", True)


def test_without_a_gateway_the_catalogue_is_not_asked(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get("/v1/crawlers").mock(side_effect=httpx.ConnectError("refused"))
    result = crawlctl(
        "manager", "plan", "shops:Shops", "--limit", "3", "-o", "json", "--", "--category", "books"
    )
    assert result.code == 0, result.err
    assert "the catalogue was not checked: " in result.err


def test_what_would_be_scheduled_in_order_and_why_the_rest_is_not(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get("/v1/crawlers").respond(json={"crawlers": [ENTRY]})
    result = crawlctl(
        "manager", "plan", "shops:Shops", "--limit", "3", "-o", "json", "--", "--category", "books"
    )
    assert result.code == 0, result.err
    jobs = result.json["jobs"]
    scheduled = [job for job in jobs if job["what"] == "scheduled"]
    assert [(job["seq"], job["spider_args"]["page"]) for job in scheduled] == [
        (1, "1"),
        (2, "2"),
        (3, "3"),
    ]
    left_out = {job["position"]: job["why"] for job in jobs if job["what"] == "left out"}
    assert set(left_out) == {2, 3}
    assert "is known" in left_out[2]
    assert any(job["what"] == "waits" for job in jobs)
    assert "more would follow" in result.err


def test_a_slow_source_is_read_no_further_than_needed(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get("/v1/crawlers").respond(json={"crawlers": [ENTRY]})
    result = crawlctl("manager", "plan", "shops:Slow", "--limit", "3", "-o", "json")
    assert result.code == 0, result.err
    assert len([job for job in result.json["jobs"] if job["what"] == "scheduled"]) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("shops:Shops",), "--category"),
        (("shops:Nobody",), "no class 'Nobody'"),
        (("nowhere:Shops",), "No module named 'nowhere'"),
        (("shops",), "give module:Class"),
        (("shops:Leaves",), "exit code 3"),
    ],
)
def test_a_class_that_cannot_be_used_is_told_and_nothing_more(
    gateway: respx.MockRouter, crawlctl: Crawlctl, words: tuple[str, ...], said: str
) -> None:
    result = crawlctl("manager", "plan", *words)
    assert result.code == 1
    assert said in result.err


def test_a_script_without_a_main_guard_is_told_about_it(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    Path("shops.py").write_text(SHOPS.replace(", required=True", "") + "\nShops().run()\n")
    result = crawlctl("manager", "plan", "shops:Shops")
    assert (result.code, 'below a line `if __name__ == "__main__":`' in result.err) == (1, True), (
        result.err
    )


def test_what_cannot_be_used_is_not_called_served(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    row = {"plan": "shops", "kind": "module", "served": True, "error": "module shops: SyntaxError"}
    gateway.get("/v1/user-code").respond(json={"user_code": [row]})
    assert crawlctl("manager", "plan").out.splitlines()[1].split()[:3] == ["shops", "-", "no"]
