"""Items from files: every line is checked before anything starts, and none is added twice."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.cli.problems import CommandFailed
from crawler_lifecycle.features.managers.cli.items import LINE_MAX, PAGE_MAX, Item, Source, pages
from crawler_lifecycle.features.managers.domain.manager import PAGE_BYTES, PAGE_ITEMS
from tests.cli.cli_answers import MANAGER, MANAGER_ENDED
from tests.cli.cli_support import Crawlctl

SHOPS = {
    "name": "shops",
    "kind": "command",
    "command": ["true"],
    "args": {"domain": {"required": True}, "page": {}},
}
START = ("manager", "start", "--crawler", "shops", "--request-id", "k", "--each")
OPEN = MANAGER | {"status": "INITIALIZING", "note": None}


def take(
    gateway: respx.MockRouter, *, started: bool = True, answers: list[httpx.Response] | None = None
) -> Any:
    """The gateway of a manager that accepts items. Return every page that it received, by key."""
    gateway.get("/v1/crawlers").respond(json={"crawlers": [SHOPS]})
    if started:
        gateway.post("/v1/managers").respond(202, json=OPEN)
    taken: dict[str, Any] = {}

    def page(request: httpx.Request) -> httpx.Response:
        if answers:
            return answers.pop(0)
        body = json.loads(request.content)
        taken[request.headers["Idempotency-Key"]] = body
        return httpx.Response(
            202, json={"manager_id": 3, "jobs": len(body["jobs"]), "new": len(body["jobs"])}
        )

    if started:
        gateway.post("/v1/managers/3/jobs").mock(side_effect=page)
    return taken


def lines(*items: object) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def test_items_go_in_pages_and_the_last_one_seals(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    taken = take(gateway)
    Path("items.jsonl").write_text(
        "\ufeff" + lines(*({"domain": f"d{n}"} for n in range(PAGE_ITEMS + 1))) + "\n"
    )
    result = crawlctl(*START, "items.jsonl")
    assert result.code == 0, result.err
    assert [(key, len(body["jobs"]), body["seal"]) for key, body in taken.items()] == [
        ("k/1", PAGE_ITEMS, False),
        ("k/2", 1, True),
    ]
    assert taken["k/2"]["jobs"] == [{"spider_args": {"domain": f"d{PAGE_ITEMS}"}}]
    assert "501, 501 of them new" in result.out


def test_csv_leaves_out_what_is_empty(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    taken = take(gateway)
    Path("items.csv").write_text('domain,page\r\n"a,\nb",2\r\n\r\nc,\r\n')
    assert crawlctl(*START, "items.csv", "--keep-open").code == 0
    jobs = [{"spider_args": {"domain": "a,\nb", "page": "2"}}, {"spider_args": {"domain": "c"}}]
    assert taken == {"k/1": {"jobs": jobs, "seal": False}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "domain\tpage\na;b,c\t3\n"),
        ("a.csv", "\ufeffdomain;page\r\na;3\r\n"),
        ("a.csv", '"domain";page;"x,y,z,w"\na;3;\n'),
        ("a.csv", "domain, page\na, 3\n"),
        ("a.csv", 'domain,page\n"a", 3\n'),
    ],
)
def test_the_header_decides_what_stands_between_values(
    gateway: respx.MockRouter, crawlctl: Crawlctl, name: str, content: str
) -> None:
    taken = take(gateway)
    Path(name).write_text(content)
    assert crawlctl(*START, name, "--keep-open").code == 0
    domain = "a;b,c" if name == "a.tsv" else "a"
    assert taken["k/1"]["jobs"] == [{"spider_args": {"domain": domain, "page": "3"}}]


def test_a_blank_in_quotes_stays(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    taken = take(gateway)
    Path("a.csv").write_text('domain,page\n" a",3 \n')
    assert crawlctl(*START, "a.csv", "--keep-open").code == 0
    assert taken["k/1"]["jobs"] == [{"spider_args": {"domain": " a", "page": "3 "}}]


@pytest.mark.parametrize(
    ("name", "content", "line", "why"),
    [
        ("a.jsonl", b'{"domain": "a"}\n\n{"domain": }\n', 3, "not valid JSON"),
        ("a.jsonl", b'{"domain": "a"}\n["b"]\n', 2, "not a JSON object"),
        ("a.jsonl", b'{"domain": "a"}\n{"domain": "\xff"}\n', 2, "not valid UTF-8"),
        ("a.jsonl", b'{"domain": "a"}\n{"domain": "b", "domain": "c"}\n', 2, "given twice"),
        ("a.jsonl", b'{"domain": "a"}\n{"domain": NaN}\n', 2, "NaN"),
        (
            "a.jsonl",
            b'{"domain": "a"}\n{"domain": "b", "pgae": "1"}\n',
            2,
            "args.pgae: unknown argument",
        ),
        ("a.jsonl", b'{"domain": "a"}\n{"page": "1"}\n', 2, "args.domain: missing"),
        ("a.jsonl", b'{"domain": "a"}\n' + b"[" * 5000 + b"\n", 2, ""),
        ("a.jsonl", b'{"domain": "a"}\n{"domain": "' + b"x" * LINE_MAX + b'"}\n', 2, "bytes"),
        ("a.csv", b"domain,page\na,1\nb\n", 3, "it has 1 values, but the header has 2 names"),
        ("a.csv", b'domain\na\n"b\n', 3, "not valid CSV"),
        ("a.csv", b"domain\na\n\xff\n", 3, "not valid UTF-8"),
        ("a.csv", b"domain,domain\na,b\n", 1, "the header needs"),
        ("a.csv", b"domian\na\n", 2, "args.domian: unknown argument"),
    ],
)
def test_a_broken_line_is_named_and_nothing_is_started(
    gateway: respx.MockRouter, crawlctl: Crawlctl, name: str, content: bytes, line: int, why: str
) -> None:
    take(gateway, started=False)
    Path(name).write_bytes(content)
    result = crawlctl(*START, name)
    assert result.code == 2
    assert f"{name}, line {line}: " in result.err
    assert why in result.err


def test_a_file_without_items_starts_nothing(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    take(gateway, started=False)
    Path("empty.jsonl").write_text("\n\n")
    assert "has no items" in crawlctl(*START, "empty.jsonl").err


def test_standard_input_is_sent_while_it_comes(
    gateway: respx.MockRouter, crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken line ends the input: the earlier items remain, and the manager is not sealed."""
    taken = take(gateway)
    text = lines(*({"domain": f"d{n}"} for n in range(PAGE_ITEMS * 2))) + "broken\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    result = crawlctl(*START, "-")
    assert result.code == 2
    assert f"standard input, line {PAGE_ITEMS * 2 + 1}: not valid JSON" in result.err
    assert "manager 3 has 500 items and is waiting for more" in result.err
    assert [body["seal"] for body in taken.values()] == [False]


def test_the_first_page_of_standard_input_is_checked_before_the_start(
    gateway: respx.MockRouter, crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(gateway, started=False)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"domain": "a"}\nbroken\n')))
    assert "standard input, line 2" in crawlctl(*START, "-").err


def test_a_page_is_sent_again_under_its_key_until_the_gateway_is_back(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    down = httpx.Response(
        503, json={"code": "store_unavailable", "detail": "the database cannot be reached"}
    )
    taken = take(gateway, answers=[down, down])
    Path("items.jsonl").write_text(lines({"domain": "a"}))
    result = crawlctl(*START, "items.jsonl")
    assert result.code == 0, result.err
    assert list(taken) == ["k/1"]
    assert result.err.count("trying again") == 1


def test_what_the_gateway_refuses_is_told_with_its_line(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    detail = "jobs[1].spider_args.page: 7 is not allowed; give one of 1, 2"
    take(gateway, answers=[httpx.Response(422, json={"code": "invalid_request", "detail": detail})])
    Path("items.jsonl").write_text("\n" + lines({"domain": "a"}, {"domain": "b"}))
    result = crawlctl(*START, "items.jsonl")
    assert result.code == 2
    assert "line 3: spider_args.page: 7 is not allowed" in result.err
    assert "--request-id k" in result.err


def test_items_of_a_manager_that_had_ended_wait_for_its_next_attempt(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    taken = take(gateway)
    gateway.post("/v1/managers").respond(202, json=MANAGER_ENDED | {"note": None})
    goes_on = MANAGER | {"attempt": 2}
    gateway.get("/v1/managers/3").mock(
        side_effect=[
            httpx.Response(200, json=one) for one in (MANAGER_ENDED, MANAGER_ENDED, goes_on)
        ]
    )
    Path("items.jsonl").write_text(lines({"domain": "a"}))
    assert crawlctl(*START, "items.jsonl", "--flow", "nightly-7").code == 0
    assert list(taken) == ["k/1"]


def test_more_items_for_a_live_manager(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    taken = take(gateway, started=True)
    gateway.get("/v1/managers/3").respond(json=MANAGER | {"crawler": "shops"})
    gateway.post("/v1/managers").respond(202, json=OPEN)
    httpx.post("http://gateway.test:8500/v1/managers")
    Path("more.jsonl").write_text(lines({"domain": "a", "page": 2}))
    result = crawlctl(
        "manager",
        "add",
        "3",
        "--each",
        "more.jsonl",
        "--tag",
        "late",
        "--seal",
        "--request-id",
        "m",
    )
    assert result.code == 0, result.err
    assert taken == {
        "m/1": {
            "jobs": [{"spider_args": {"domain": "a", "page": 2}, "tags": ["late"]}],
            "seal": True,
        }
    }


@given(
    st.lists(st.dictionaries(st.text(max_size=20), st.text(max_size=3000), max_size=8), max_size=40)
)
def test_pages_hold_every_item_once_and_fit(found: list[dict[str, str]]) -> None:
    items = [Item(n, args) for n, args in enumerate(found)]
    made = list(pages(items))
    assert [item for page, _ in made for item in page] == items
    assert [last for _, last in made] == [False] * (len(made) - 1) + [True] * bool(made)
    for page, _ in made:
        assert 0 < len(page) <= PAGE_ITEMS
        size = sum(len(json.dumps(item.args)) for item in page)
        assert len(page) == 1 or size <= PAGE_MAX < PAGE_BYTES


@given(st.binary(max_size=300), st.sampled_from(["jsonl", "csv"]))
def test_any_bytes_are_items_or_a_line_that_is_named(content: bytes, form: Any) -> None:
    path = Path("-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        found = Source(path, form, lambda args: None).items()
        try:
            assert all(isinstance(item.args, dict) for item in found)
        except CommandFailed as failure:
            told = failure.what
        else:
            told = "standard input, line "
    assert told.startswith("standard input, line ")
