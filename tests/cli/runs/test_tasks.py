"""Adding tasks: in pages, under keys that make a repetition harmless, with every wrong line named."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from crawler_lifecycle.cli.runs import tasks
from tests.cli.cli_answers import RUN
from tests.cli.cli_support import Crawlctl

LIVE = RUN | {"tasks": {"RUNNING": 2}}


class Store:
    """What a gateway stores of added tasks: a key always gets the same answer."""

    def __init__(self, router: respx.MockRouter, fail_at: int | None = None) -> None:
        self.known: dict[str, list[dict[str, int]]] = {}
        self.args: list[dict[str, str]] = []
        self.calls = 0
        self.fail_at = fail_at
        router.get("/v1/runs/7").mock(side_effect=self._run)
        router.post("/v1/runs/7/tasks").mock(side_effect=self._add)

    def _run(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=RUN | {"tasks": {"RUNNING": 2 + len(self.args)}})

    def _add(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        if self.calls == self.fail_at:
            raise httpx.ReadTimeout("slow")
        key, body = request.headers["idempotency-key"], json.loads(request.content)
        assert len(key) <= 120
        assert len(body["tasks"]) <= 500
        if key not in self.known:
            first = 2 + len(self.args)
            self.args += [task["args"] for task in body["tasks"]]
            self.known[key] = [
                {"task_id": 100 + n, "index": n} for n in range(first, first + len(body["tasks"]))
            ]
        return httpx.Response(202, json={"run_id": 7, "tasks": self.known[key], "note": None})


def _file(tmp_path: Path, count: int) -> str:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps({"n": str(n)}) + "\n" for n in range(count)))
    return str(file)


def test_one_task(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    store = Store(gateway)
    result = crawlctl("tasks", "add", "7", "-a", "letters=a-f", "-a", "q=x=1", "-o", "json")
    assert result.code == 0, result.err
    assert store.args == [{"letters": "a-f", "q": "x=1"}]
    assert result.json["tasks"] == [{"task_id": 102, "index": 2}]


def test_many_tasks_in_pages(gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path) -> None:
    store = Store(gateway)
    result = crawlctl("ps", "add", "7", "--file", _file(tmp_path, 1201), "-o", "name")
    assert (store.calls, len(store.args)) == (3, 1201)
    assert result.out.splitlines() == [str(100 + n) for n in range(2, 1203)]


def test_a_repeat_adds_nothing_and_says_so(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    store = Store(gateway)
    words = ("tasks", "add", "7", "--file", _file(tmp_path, 600))
    first, second = crawlctl(*words), crawlctl(*words)
    assert len(store.args) == 600
    assert "added before" not in first.err
    assert "600 of them were added earlier" in second.err
    crawlctl(*words, "--request-id", "on purpose")
    assert len(store.args) == 1200


def test_a_failure_half_way_is_mended_by_the_same_command(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    store = Store(gateway, fail_at=2)
    words = ("tasks", "add", "7", "--file", _file(tmp_path, 1201))
    result = crawlctl(*words)
    assert result.code == 8
    assert "500 of 1201 tasks were already added" in result.err
    assert "repeat the command" in result.err
    assert crawlctl(*words).code == 0
    assert store.args == [{"n": str(n)} for n in range(1201)]


def test_tasks_from_standard_input(
    gateway: respx.MockRouter, crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(gateway)
    separator = json.dumps({"a": "x y"}, ensure_ascii=False)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(separator.encode())))
    assert crawlctl("tasks", "add", "7", "--file", "-").code == 0
    assert store.args == [{"a": "x y"}]


@pytest.mark.parametrize(
    ("text", "words", "part"),
    [
        (None, [], "give either -a or --file"),
        ("{}", ["-a", "a=1"], "give either -a or --file"),
        ("", [], "has no tasks"),
        ('{"a": "1"}\n{"a": [1]}', [], ":2 is not an object of strings"),
        ("{}\n\n{", [], ":3 is not valid JSON"),
        ("[]", [], ":1 is not an object of strings"),
    ],
)
def test_what_is_wrong_is_named(
    crawlctl: Crawlctl, tmp_path: Path, text: str | None, words: list[str], part: str
) -> None:
    if text is not None:
        (tmp_path / "t.jsonl").write_text(text)
        words = [*words, "--file", str(tmp_path / "t.jsonl")]
    result = crawlctl("tasks", "add", "7", *words)
    assert result.code == 2
    assert part in result.err


def test_a_run_that_has_ended(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7").respond(json=LIVE)
    gateway.post("/v1/runs/7/tasks").respond(
        409, json={"code": "not_in_this_state", "detail": "Run 7 is COMPLETED"}
    )
    result = crawlctl("tasks", "add", "7", "-a", "a=1")
    assert result.code == 4
    assert "crawlctl describe 7" in result.err


def test_who_may_only_add_can_add(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    store = Store(gateway)
    gateway.get("/v1/runs/7").respond(
        403, json={"code": "forbidden", "detail": "this token adds tasks to run 7 alone"}
    )
    assert crawlctl("tasks", "add", "7", "-a", "a=1").code == 0
    assert store.args == [{"a": "1"}]


def test_the_key_depends_on_run_and_tasks_alone() -> None:
    args: list[dict[str, str]] = [{"a": "1", "b": "2"}]
    same: list[dict[str, Any]] = [{"b": "2", "a": "1"}]
    assert tasks.fingerprint(7, args) == tasks.fingerprint(7, same)
    assert len({tasks.fingerprint(*one) for one in ((7, args), (8, args), (7, args * 2))}) == 3
