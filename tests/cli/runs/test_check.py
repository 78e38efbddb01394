"""``crawlctl crawler check`` with a gateway whose crawler follows the contract, or breaks it in one
place.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import respx

from crawler_lifecycle.cli.client import polling
from crawler_lifecycle.runner.contract import NOT_KEPT
from tests.cli.cli_support import Crawlctl

ENTRY: dict[str, Any] = {
    "name": "shop",
    "resumable": True,
    "args": {},
    "limits": {"stop_grace_s": 2},
}
ENTRY |= {"stop_signal": "SIGTERM"}
SHUTDOWN = 'half a line{"crawl_progress": {"pages": 9, "finish_reason": "shutdown"}}\n'
FINISHED: dict[str, Any] = {"status": "COMPLETED", "outcome": "finished", "ended_by": "crawler"}
CANCELLED: dict[str, Any] = {"status": "FAILED", "outcome": "cancelled", "ended_by": "person"}
EXPORT: dict[str, Any] = {
    "attempt": 1,
    "status": "exported",
    "files": 2,
    "bytes": 300,
    "error": None,
}
ALL = [
    "executes",
    "counters",
    "stop",
    "finish reason",
    "resume",
    "continues",
    "end",
    "items",
    "files",
]


@pytest.fixture(autouse=True)
def _a_question_a_second(crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(polling, name, 1.0)


def readings(*pages: int | None) -> list[dict[str, Any]]:
    return [{"pages": count, "items": count} for count in pages]


@dataclass
class Shop:
    """A gateway with one crawler.

    Each request for tasks gets the next reading; the last one repeats.
    """

    entry: dict[str, Any] = field(default_factory=lambda: ENTRY)
    started: bool = True
    counts: list[dict[str, Any]] = field(default_factory=lambda: readings(None, 2, 4, 6))
    by_itself: dict[str, Any] | None = None
    """How the first run ends before it is stopped."""
    stopped: dict[str, Any] | None = field(default_factory=lambda: CANCELLED)
    last: dict[str, Any] = field(
        default_factory=lambda: {"exit_code": 0, "status": "CANCELLED", "pages": 8, "items": 8}
    )
    log: str | None = SHUTDOWN
    again: list[dict[str, Any]] = field(default_factory=lambda: readings(None, 9))
    resumed: bool | None = True
    resumed_end: dict[str, Any] | None = None
    end: dict[str, Any] | None = field(default_factory=lambda: FINISHED)
    items: dict[str, Any] = field(default_factory=lambda: {"items": 3, "notes": []})
    export: dict[str, Any] = field(default_factory=lambda: EXPORT)
    gone_after: int = 100_000
    """The gateway answers so many requests."""
    press_after: int = 100_000
    """Somebody presses Ctrl-C after so many requests."""
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, request.url.path))
        if len(self.asked) == self.press_after:
            raise KeyboardInterrupt
        if len(self.asked) > self.gone_after:
            raise httpx.ConnectError("refused")
        if request.url.path == "/v1/crawlers":
            return httpx.Response(200, json={"crawlers": [self.entry]})
        if request.url.path == "/v1/runs":
            return self._all(request)
        number, what = re.fullmatch(r"/v1/runs/(\d+)/?(.*)", request.url.path).groups()  # type: ignore[union-attr]
        run = self.runs[int(number)]
        if what == "logs":
            problem = {"code": "no_log", "detail": "no log was kept"}
            return (
                httpx.Response(404, json=problem)
                if self.log is None
                else httpx.Response(200, text=self.log)
            )
        if what == "items/stats":
            return httpx.Response(200, json=self.items)
        if what == "tasks":
            return httpx.Response(200, json={"tasks": run["tasks"]})
        if what == "stop":
            run |= {"stop": {"requested_at": "2026-11-20T11:59:00Z"}} | (self.stopped or {})
            run["tasks"][-1] |= self.last if self.stopped and run["attempt"] == 1 else {}
        elif what == "resume":
            run |= {"attempt": 2, "status": "PROCESSING", "outcome": None}
            run["tasks"].append(
                {
                    "task_id": 2,
                    "run_attempt": 2,
                    "started_at": "2026-11-20T11:59:30Z",
                    "resume_note": "said",
                }
            )
        else:
            self._step(run)
        return httpx.Response(202, json=run)

    def _all(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            assert request.url.params["tag"] == "check"
            return httpx.Response(200, json={"runs": list(self.runs.values())})
        body, number = json.loads(request.content), len(self.runs) + 1
        assert (body["tags"], body["limits"]["run_timeout_s"]) == (["check"], 420)
        task = {
            "task_id": 1,
            "run_attempt": 1,
            "started_at": "2026-11-20T11:58:00Z" if self.started else None,
        }
        run = {
            "run_id": number,
            "status": "PROCESSING",
            "attempt": 1,
            "tasks": [task],
            "exports": [self.export],
        }
        self.runs[number] = run | {
            "request_id": request.headers["Idempotency-Key"],
            "waiting": "4 of 4 slots in use",
        }
        return httpx.Response(202, json=self.runs[number])

    def _step(self, run: dict[str, Any]) -> None:
        if run["status"] != "PROCESSING" or not self.started:
            return
        of_run = self.again if run["attempt"] == 2 else self.counts
        read = run["read"] = run.get("read", -1) + 1 if run.get("of") == run["attempt"] else 0
        run["of"] = run["attempt"]
        run["tasks"][-1] |= of_run[min(read, len(of_run) - 1)]
        end = (
            self.resumed_end
            if run["attempt"] == 2
            else self.by_itself
            if run["run_id"] == 1
            else self.end
        )
        if run["attempt"] == 2:
            run["tasks"][-1]["resumed"] = self.resumed
        if end is not None and read >= len(of_run):
            run |= end
            run["tasks"][-1] |= {
                "exit_code": 0,
                "status": "SUCCEEDED" if end is FINISHED else "FAILED",
            }


def check(
    gateway: respx.MockRouter, crawlctl: Crawlctl, shop: Shop, *words: str
) -> tuple[int, Any, str]:
    gateway.route().mock(side_effect=shop.answer)
    result = crawlctl("crawler", "check", "shop", *words, "-o", "json")
    return result.code, result.json if result.out else None, result.err


DEVIATIONS: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "it keeps all": ({}, [], ""),
    "a late poll shows an older reading again": (
        {"counts": readings(None, 4, 9, 4, 6, 6, 6)},
        [],
        "",
    ),
    "it never writes counters": (
        {"counts": readings(None), "last": {"exit_code": 0}},
        ["counters"],
        "no pages and no",
    ),
    "its counters stay": (
        {"counts": readings(None, 2), "last": {"exit_code": 0}},
        ["counters"],
        "stayed at 2 pages",
    ),
    "its counters go back": (
        {"last": {"exit_code": 0, "pages": 1}},
        ["counters"],
        "1 pages, before 6",
    ),
    "it is killed after the grace": (
        {"last": {"exit_code": 137, "exit_signal": 9, "cause": "SIGKILL, exit 137"}, "log": None},
        ["stop", "finish reason"],
        "SIGKILL, exit 137",
    ),
    "it dies by the signal": ({"last": {"exit_code": 13, "cause": "exit 13"}}, ["stop"], "exit 13"),
    "it says finished after the stop": (
        {
            "stopped": FINISHED,
            "last": {"exit_code": 0, "cause": "finished", "ended_at": "2026-11-20T11:59:00.5Z"},
        },
        ["stop"],
        "finished, 0.5 s after the stop",
    ),
    "it has to be forced": (
        {"stopped": CANCELLED | {"outcome": "cancel_timeout", "cause": "then forced"}},
        ["stop"],
        "then forced",
    ),
    "it goes on after the stop": ({"stopped": None}, ["stop"], "still executing"),
    "it prints garbage": (
        {"log": '\x1b[2J{"crawl_progress": {"finish_reason": 7\n'},
        ["finish reason"],
        "finish reason",
    ),
    "it does not resume": ({"resumed": False}, ["resume"], "said"),
    "it does not say if it resumed": (
        {"resumed": None, "again": readings(*range(8, 20))},
        ["resume"],
        "said",
    ),
    "it fails when it is resumed": (
        {
            "resumed_end": {"status": "FAILED", "outcome": "failed", "cause": "exit 1"},
            "resumed": None,
        },
        ["resume"],
        "exit 1",
    ),
    "it begins at 0 again": (
        {"again": readings(None, 0, 2, 12)},
        ["continues"],
        "2 pages, before 8",
    ),
    "it tells no counters again": ({"again": readings(None)}, ["continues"], "none is reported"),
    "it ends without a summary": (
        {
            "end": {
                "status": "FAILED",
                "outcome": "failed",
                "cause": "It ended without a summary (exit 0)",
            }
        },
        ["end"],
        "failed: It ended without a summary",
    ),
    "its items are torn": (
        {"items": {"items": 3, "notes": ["2 lines were not JSON"]}},
        ["items"],
        "2 lines were not JSON",
    ),
    "it told items and left none": (
        {"items": {"items": 0, "notes": []}},
        ["items"],
        "6 were reported",
    ),
    "nothing can be archived": (
        {"export": EXPORT | {"status": "failed", "error": "no bucket"}},
        ["files"],
        "no bucket",
    ),
    "its folder is gone": ({"export": EXPORT | {"status": "empty"}}, ["files"], "empty"),
}


@pytest.mark.parametrize(("shop", "failed", "words"), DEVIATIONS.values(), ids=DEVIATIONS)
def test_what_does_not_hold(
    gateway: respx.MockRouter,
    crawlctl: Crawlctl,
    shop: dict[str, Any],
    failed: list[str],
    words: str,
) -> None:
    fake = Shop(**shop)
    code, document, _ = check(gateway, crawlctl, fake)
    lines = {line["check"]: line for line in document["checks"]}
    assert [name for name, line in lines.items() if line["result"] == "FAILED"] == failed, document
    assert (code, document["summary"]["FAILED"]) == (1 if failed else 0, len(failed))
    assert list(lines) == (ALL if fake.stopped else ALL[:6])
    if failed:
        assert words in lines[failed[0]]["text"]
        assert re.search(r"docs/contract\.md#[a-z]+\)$", lines[failed[0]]["fix"])
    live = [run for run in fake.runs.values() if run["status"] == "PROCESSING"]
    assert all("stop" in run for run in live), "nothing is left without a stop"


SKIPS: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "it ends too fast": ({"by_itself": FINISHED, "counts": readings(2)}, ALL[2:6], "about 20 s"),
    "it cannot resume": ({"entry": ENTRY | {"resumable": False}}, ["resume", "continues"], ""),
    "it does not end in time": ({"end": None}, ["end"], "--limit-s"),
    "it has no items": (
        {"items": {"items": 0, "notes": []}, "counts": [{"pages": n} for n in (1, 2, 3)]},
        ["items"],
        "",
    ),
    "its items are not counted": ({"entry": ENTRY | {"items": False}}, ["items"], ""),
}


@pytest.mark.parametrize(("shop", "skipped", "fix"), SKIPS.values(), ids=SKIPS)
def test_what_is_skipped(
    gateway: respx.MockRouter,
    crawlctl: Crawlctl,
    shop: dict[str, Any],
    skipped: list[str],
    fix: str,
) -> None:
    code, document, _ = check(gateway, crawlctl, Shop(**shop))
    lines = {line["check"]: line for line in document["checks"]}
    assert (code, [name for name, line in lines.items() if line["result"] == "skipped"]) == (
        0,
        skipped,
    ), document
    assert fix in str(lines[skipped[0]]["fix"])


def test_a_file_of_another_crawler_in_the_same_folder(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    shop = Shop(items={"items": 3, "notes": [f"1 files in '.' {NOT_KEPT}"]})
    code, document, _ = check(gateway, crawlctl, shop)
    [line] = [line for line in document["checks"] if line["check"] == "items"]
    assert (code, line["result"], line["text"]) == (
        0,
        "ok",
        f"3 can be read: 1 files in '.' {NOT_KEPT}",
    )


def test_a_task_that_does_not_execute(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    code, document, err = check(gateway, crawlctl, Shop(started=False))
    assert (code, [line["check"] for line in document["checks"]]) == (1, ["executes"])
    assert "4 of 4 slots in use" in document["checks"][0]["text"]
    assert "run 1 was asked to stop" in err


def test_people_read_each_line_with_its_fix(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    shop = Shop(
        resumed=False,
        entry=ENTRY | {"stop_signal": "SIGINT"},
        last={"exit_code": 13, "cause": "a\x1b[2J"},
    )
    gateway.route().mock(side_effect=shop.answer)
    result = crawlctl("crawler", "check", "shop", "--limit-s", "120")
    assert "FAILED   stop         a\\x1b[2J\n" in result.out
    assert "fix: on SIGINT save" in result.out
    assert "ok       files        2 in the archive, 300 bytes" in result.out
    assert "7 ok, 2 FAILED, 0 skipped" in result.err


@pytest.mark.parametrize(
    ("words", "said"), [((), "arguments a, b"), (("-a", "b=1"), "arguments a\n")]
)
def test_missing_arguments_are_named_before_anything_starts(
    gateway: respx.MockRouter, crawlctl: Crawlctl, words: tuple[str, ...], said: str
) -> None:
    args = {
        "a": {"required": True},
        "b": {"required": True},
        "c": {"required": True, "default": "x"},
    }
    shop = Shop(entry=ENTRY | {"args": args})
    code, _, err = check(gateway, crawlctl, shop, *words)
    assert (code, shop.runs) == (2, {})
    assert said in err
    assert "add -a a=…" in err


@pytest.mark.parametrize("limit", ["0", "nan", "1e9"])
def test_a_limit_has_bounds(crawlctl: Crawlctl, limit: str) -> None:
    assert crawlctl("crawler", "check", "shop", "--limit-s", limit).code == 2


@pytest.mark.parametrize("press_after", [3, 6, 12])
def test_ctrl_c_stops_what_executes(
    gateway: respx.MockRouter, crawlctl: Crawlctl, press_after: int
) -> None:
    shop = Shop(press_after=press_after, by_itself=None, counts=readings(None))
    code, _, err = check(gateway, crawlctl, shop)
    assert code == 130
    assert shop.asked[-1] == ("POST", "/v1/runs/1/stop")
    assert "crawlctl wait 1 --for ended" in err


def test_a_gateway_that_goes_away_is_waited_for_and_the_rest_is_said(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    code, _, err = check(gateway, crawlctl, Shop(gone_after=7))
    assert code == 8
    assert "runs may still be executing, for at most 420 s" in err
    assert "crawlctl list --tag check" in err
