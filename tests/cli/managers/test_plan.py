"""``crawlctl manager plan``: a user's class in a process of its own, and what it would schedule."""

from __future__ import annotations

from pathlib import Path

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


@pytest.fixture(autouse=True)
def shops(crawlctl: Crawlctl) -> None:
    Path("shops.py").write_text(SHOPS)


def test_what_would_be_scheduled_in_order_and_why_the_rest_is_not(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    result = crawlctl("manager", "plan", "shops:Shops", "--limit", "3", "-o", "json", "--", "--category", "books")
    assert result.code == 0, result.err
    jobs = result.json["jobs"]
    scheduled = [job for job in jobs if job["what"] == "scheduled"]
    assert [(job["seq"], job["spider_args"]["page"]) for job in scheduled] == [(1, "1"), (2, "2"), (3, "3")]
    left_out = {job["position"]: job["why"] for job in jobs if job["what"] == "left out"}
    assert set(left_out) == {2, 3}
    assert "is known" in left_out[2]
    assert any(job["what"] == "waits" for job in jobs)
    assert "more would follow" in result.err


def test_a_slow_source_is_read_no_further_than_needed(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
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


def test_a_script_without_a_main_guard_is_told_about_it(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    Path("shops.py").write_text(SHOPS.replace(", required=True", "") + "\nShops().run()\n")
    result = crawlctl("manager", "plan", "shops:Shops")
    assert (result.code, 'below a line `if __name__ == "__main__":`' in result.err) == (1, True), result.err


def test_what_cannot_be_used_is_not_called_served(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    row = {"plan": "shops", "kind": "module", "served": True, "error": "module shops: SyntaxError"}
    gateway.get("/v1/plans").respond(json={"plans": [row]})
    assert crawlctl("manager", "plan").out.splitlines()[1].split()[:3] == ["shops", "-", "no"]
