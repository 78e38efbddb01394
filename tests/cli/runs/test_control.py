"""Verbs that change something or wait: their requests to the gateway, and their exit codes."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.gateway.runs.requests import StartRun
from tests.cli.cli_answers import COMPLETED, FAILED, MANAGER_ENDED, RESUMED, RUN, STOPPED, problem
from tests.cli.cli_support import Crawlctl

ACCEPTED = {"run_id": 7, "workflow_id": "crawl/operations/k", "status": "INITIALIZING"}


def _body(route: respx.Route) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(route.calls.last.request.content)
    return content


def test_start_sends_the_request_and_its_key(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    route = gateway.post("/v1/runs").respond(202, json=ACCEPTED)
    words = [
        "start",
        "operations",
        "-a",
        "letters=a-f",
        "-a",
        "q=x=-1",
        "-a",
        "flag=--gateway",
        "-s",
        "DELAY=0",
    ]
    words += [
        "--max-parallel",
        "3",
        "--trigger",
        "api",
        "--request-id",
        "-o",
        "--tag",
        "night",
        "--priority",
        "1",
    ]
    words += ["--poll-minutes", "0.05,0.1", "--run-timeout", "90"]
    result = crawlctl(*words)
    assert result.code == 0, result.err
    assert _body(route) == {
        "crawler": "operations",
        "trigger": "api",
        "requested_by": _body(route)["requested_by"],
        "args": {"letters": "a-f", "q": "x=-1", "flag": "--gateway"},
        "settings": {"DELAY": "0"},
        "max_parallel_tasks": 3,
        "tags": ["night"],
        "priority": 1,
        "poll_minutes": [0.05, 0.1],
        "limits": {"run_timeout_s": 90.0},
    }
    assert route.calls.last.request.headers["idempotency-key"] == "-o"
    assert "crawlctl wait 7" in result.err


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--run-timeout", "nan", "limits.run_timeout_s: nan"),
        ("--stall-timeout", "1e308", "limits.stall_timeout_s: 1e+308"),
        ("--priority", "9", "priority: 9"),
        ("--max-parallel", "0", "max_parallel_tasks: 0"),
        ("--poll-minutes", "1,inf", "poll_minutes: inf"),
    ],
)
def test_start_refuses_a_number_that_cannot_be_before_it_asks(
    gateway: respx.MockRouter, crawlctl: Crawlctl, option: str, value: str, named: str
) -> None:
    done = crawlctl("start", "plain", option, value)
    assert done.code == Exit.USAGE
    assert f"{named} is not allowed" in done.err
    assert "give a" in done.err


def test_start_without_options_makes_its_own_key(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    route = gateway.post("/v1/runs").respond(202, json=ACCEPTED)
    assert crawlctl("start", "operations", "-o", "name").out == "7\n"
    assert crawlctl("start", "operations", "-o", "name").out == "7\n"
    assert len({call.request.headers["idempotency-key"] for call in route.calls}) == 2


def test_start_in_several_tasks(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    route = gateway.post("/v1/runs").respond(202, json=ACCEPTED)
    crawlctl("start", "operations", "--tasks", "3")
    assert _body(route)["tasks"] == [{"args": {}}] * 3
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"letters": "a-f"}\n\n{"letters": "g-z"}\n')
    crawlctl("start", "operations", "--task-file", str(file))
    assert _body(route)["tasks"] == [{"args": {"letters": "a-f"}}, {"args": {"letters": "g-z"}}]


def test_dry_run_asks_nobody(crawlctl: Crawlctl) -> None:
    result = crawlctl("start", "operations", "-a", "a=1", "--dry-run", "-o", "json")
    assert result.code == 0
    assert result.json["args"] == {"a": "1"}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["start"], "CRAWLER"),
        (["start", "x", "-a", "novalue"], "-a name=value"),
        (["start", "x", "-a", "a=1", "-a", "a=2"], "twice"),
        (["start", "x", "--tasks", "0"], "1 or more"),
        (["start", "x", "--tasks", "2", "--task-file", "f"], "cannot be combined"),
        (["start", "x", "--task-file", "missing.jsonl"], "missing.jsonl"),
        (["start", "x", "--poll-minutes", "soon"], "minutes"),
        (["start", "x", "--surplus"], "--surplus"),
        (["list", "-o", "xml"], "table, wide, json"),
        (["list", "-o"], "-o needs a value"),
        (["wait", "7", "--timeout", "soon"], "90s"),
        (["wait", "seven"], "seven"),
        (["describe"], "describe --help"),
        (["unknown"], "unknown"),
        (["force-stop", "7"], "--yes"),
        (["list", "--gateway", "nowhere"], "http://"),
    ],
)
def test_usage_errors(
    crawlctl: Crawlctl, words: list[str], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    result = crawlctl(*words)
    assert result.code == 2
    assert result.out == ""
    assert part in result.err


@pytest.mark.parametrize(
    ("answer", "code", "parts"),
    [
        (problem(404, "run_not_found", "run 7: there is none"), 3, ["run 7", "crawlctl list"]),
        (
            problem(409, "not_in_this_state", "run 7 has not ended"),
            4,
            ["not ended", "crawlctl describe 7"],
        ),
        (problem(409, "already_completed", "run 7 is COMPLETED"), 4, ["--rerun"]),
        (
            problem(
                422,
                "invalid_request",
                "a: b",
                {"field": "a", "message": "b"},
                {"field": "c", "message": "d"},
            ),
            2,
            ["c: d"],
        ),
        (problem(401, "unauthenticated", "no token"), 9, ["token"]),
        (problem(403, "foreign_host", "Host: not allowed"), 9, ["Host"]),
        (
            problem(429, "quota_reached", "quota live_tasks of token ci: 2 of 2 in use"),
            8,
            ["2 of 2 in use", "again"],
        ),
        (
            problem(409, "quota_reached", "quota live_tasks of token ci: 0 of 0 in use"),
            4,
            ["0 of 0 in use"],
        ),
        (problem(503, "store_unavailable", "the database is away"), 8, ["database"]),
        (problem(500, "internal_error", "a bug"), 1, ["a bug"]),
        (httpx.Response(502, text="<html>bad gateway</html>"), 8, ["HTTP 502"]),
        (
            httpx.Response(200, text="<html>hello</html>"),
            1,
            ["is not a gateway of crawler-lifecycle"],
        ),
        (httpx.ConnectError("refused"), 8, ["crawlctl dev", "--gateway"]),
        (httpx.ReadTimeout("slow"), 8, ["no response within"]),
    ],
)
def test_exit_codes_of_refusals(
    gateway: respx.MockRouter,
    crawlctl: Crawlctl,
    answer: httpx.Response | Exception,
    code: int,
    parts: list[str],
) -> None:
    gateway.post("/v1/runs/7/resume").mock(side_effect=[answer])
    result = crawlctl("resume", "7")
    assert result.code == code
    assert result.out == ""
    assert all(part in result.err for part in parts)


def test_a_lost_answer_names_the_key_to_try_again_with(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.post("/v1/runs").mock(side_effect=httpx.ReadTimeout("slow"))
    result = crawlctl("start", "operations", "--request-id", "k-1")
    assert result.code == 8
    assert "--request-id k-1" in result.err


@pytest.mark.parametrize(
    ("goal", "end", "code"),
    [
        ("completed", COMPLETED, 0),
        ("completed", FAILED, 5),
        ("completed", STOPPED, 6),
        ("ended", FAILED, 0),
        ("ended", STOPPED, 0),
        ("started", RUN, 0),
        ("started", FAILED, 0),
        ("started", FAILED | {"started_at": None}, 5),
    ],
)
def test_wait_tells_the_end_by_its_exit_code(
    gateway: respx.MockRouter, crawlctl: Crawlctl, goal: str, end: dict[str, object], code: int
) -> None:
    gateway.get("/v1/runs/7").mock(
        side_effect=[
            httpx.Response(200, json=RUN | {"status": "INITIALIZING"}),
            httpx.Response(200, json=end),
        ]
    )
    result = crawlctl("wait", "7", "--for", goal, "-o", "json")
    assert result.code == code
    assert result.json["status"] == end["status"]


def test_wait_says_what_it_waits_for(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    """By the polling schedule, the end of a short crawl is known a minute later; without output,
    this looks like a hang.
    """
    waits, later = (
        RUN | {"waiting": f"waiting for {age}: 4 of 4 slots in use"} for age in ("59 s", "1 min")
    )
    polled = RUN | {"waiting": None, "next_poll_at": "2026-11-20T12:03:04.5Z"}
    answers = [
        httpx.Response(200, json=run) for run in (waits, waits, later, polled, polled, COMPLETED)
    ]
    gateway.get("/v1/runs/7").mock(side_effect=answers)
    told = crawlctl("wait", "7").err.splitlines()
    assert [line for line in told if "4 of 4 slots in use" in line] == told[:1]
    assert [line for line in told if "polled next at 12:03:04 UTC" in line] == told[1:2]


def test_wait_gives_up(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7").respond(json=RUN)
    result = crawlctl("wait", "7", "--timeout", "0.05")
    assert result.code == 7
    assert "the run continues" in result.err


def test_wait_outlives_a_restart_of_the_gateway(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get("/v1/runs/7").mock(
        side_effect=[
            httpx.Response(200, json=RUN),
            httpx.ConnectError("refused"),
            httpx.Response(503, text="starting"),
            httpx.Response(200, json=COMPLETED),
        ]
    )
    assert crawlctl("wait", "7").code == 0


def test_wait_without_a_gateway_does_not_wait(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get("/v1/runs/7").mock(side_effect=httpx.ConnectError("refused"))
    assert crawlctl("wait", "7").code == 8


def test_interrupted(crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(gateway: Gateway, path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Gateway, "get", press)
    assert crawlctl("wait", "7").code == 130


def test_start_and_wait(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.post("/v1/runs").respond(202, json=ACCEPTED)
    gateway.get("/v1/runs/7").mock(
        side_effect=[httpx.Response(200, json=RUN), httpx.Response(200, json=STOPPED)]
    )
    result = crawlctl("start", "operations", "--wait", "-o", "json")
    assert result.code == 6
    assert result.json["outcome"] == "cancelled"


def test_stop_several_runs_even_when_one_is_not_there(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.post("/v1/runs/6/stop").mock(
        return_value=problem(404, "run_not_found", "run 6: there is none")
    )
    route = gateway.post("/v1/runs/7/stop").respond(202, json=RUN | {"status": "STOPPING"})
    result = crawlctl("stop", "6", "7", "--reason", "-q", "-o", "name")
    assert result.code == 3
    assert result.out == "7\n"
    assert _body(route)["reason"] == "-q"
    assert _body(route)["force"] is False
    assert _body(route)["request_id"]


def test_force_stop_and_wait_for_the_proof(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    route = gateway.post("/v1/runs/7/stop").respond(202, json=RUN | {"status": "STOPPING"})
    gateway.get("/v1/runs/7").mock(side_effect=[httpx.Response(200, json=STOPPED)])
    result = crawlctl("force-stop", "7", "--yes", "--wait", "-o", "json")
    assert result.code == 0
    assert result.json["status"] == "FAILED"
    assert _body(route)["force"] is True


def test_resume_waits_for_the_new_attempt(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    route = gateway.post("/v1/runs/7/resume").respond(202, json=RESUMED)
    gateway.get("/v1/runs/7").mock(
        side_effect=[
            httpx.Response(200, json=FAILED),
            httpx.Response(200, json=COMPLETED | {"attempt": 2}),
        ]
    )
    assert crawlctl("resume", "7", "--rerun", "--wait").code == 0
    assert _body(route)["rerun"] is True


@pytest.mark.parametrize(
    ("noun", "number", "words", "row"),
    [
        ("run", 7, (), COMPLETED),
        ("manager", 3, ("manager",), MANAGER_ENDED),
        ("graph", "g", ("graph",), {"id": "g", "state": "cancelled", "total": 1}),
    ],
)
@pytest.mark.parametrize("more", [(), ("--wait",)])
def test_a_stop_of_what_had_ended_keeps_no_other_from_it_and_says_so_with_its_exit_code(
    gateway: respx.MockRouter,
    crawlctl: Crawlctl,
    noun: str,
    number: object,
    words: tuple[str, ...],
    row: dict[str, Any],
    more: tuple[str, ...],
) -> None:
    """The exit code is that of docs/cli.md. It is 0 for a run that this stop itself has ended, and
    for the second stop of a live run.
    """
    note = {"note": "It had ended already; nothing was stopped."}
    if more:
        gateway.get(f"/v1/{noun}s/{number}").respond(json=row)
    route = gateway.post(f"/v1/{noun}s/{number}/stop").respond(200, json=row | note)
    result = crawlctl(*words, "stop", str(number), *more)
    assert result.code == Exit.NOT_IN_THIS_STATE
    assert "nothing was stopped" in result.err
    assert f"{noun} {number} has already ended" in result.err
    assert "describe" in result.err
    assert "wait" not in result.err
    route.respond(202, json=row)
    assert crawlctl(*words, "stop", str(number), *more).code == 0
    live = RUN | {"status": "STOPPING"} if noun != "graph" else row | {"state": "executing"}
    route.respond(200, json=row | live)
    assert crawlctl(*words, "stop", str(number), *more).code == 0


def test_every_verb_calls_a_stopped_run_the_same(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.get("/v1/runs/7").mock(side_effect=[httpx.Response(200, json=STOPPED)] * 3)
    gateway.get("/v1/runs").respond(json={"runs": [STOPPED]})
    for path in ("tasks", "corrections"):
        gateway.get(f"/v1/runs/7/{path}").respond(json={path: []})
    gateway.post("/v1/runs").respond(202, json=STOPPED)
    for path in ("stop", "export"):
        gateway.post(f"/v1/runs/7/{path}").respond(200, json=STOPPED)
    for words in (
        ("list",),
        ("wait", "7"),
        ("stop", "7"),
        ("export", "7", "--resend"),
        ("start", "x"),
        ("watch", "7"),
    ):
        result = crawlctl(*words)
        assert "stopped" in result.out, words
        assert "FAILED" not in result.out + result.err, words
    before = httpx.Response(200, json=STOPPED)  # the attempt before the one that is waited for
    gateway.get("/v1/runs/7").mock(
        side_effect=[before, httpx.Response(200, json=COMPLETED | {"attempt": 2})]
    )
    gateway.post("/v1/runs/7/resume").respond(202, json=RESUMED)
    assert "run 7 stopped" in crawlctl("resume", "7", "--wait").err


def test_a_resume_shows_the_attempt_that_was_accepted(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.post("/v1/runs/7/resume").respond(202, json=RESUMED)
    result = crawlctl("resume", "7", "-o", "json")
    assert result.code == 0
    assert (result.json["status"], result.json["attempt"]) == ("INITIALIZING", 2)


def test_a_request_id_in_any_language(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    route = gateway.post("/v1/runs").respond(202, json=ACCEPTED)
    crawlctl("start", "operations", "--request-id", "ночь-1")
    assert _body(route)["request_id"] == "ночь-1"


def test_start_takes_every_field_of_a_request(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    route = gateway.post("/v1/runs").respond(202, json=ACCEPTED)
    words = [
        "start",
        "operations",
        "-a",
        "a=1",
        "-s",
        "DOWNLOAD_DELAY=0",
        "--tasks",
        "2",
        "--max-parallel",
        "1",
    ]
    words += [
        "--trigger",
        "scheduled",
        "--due-at",
        "2026-03-01T12:00:00Z",
        "--flow",
        "--night",
        "--parent",
        "w/1",
    ]
    words += ["--project", "shop-a", "--version", "v1"]
    words += [
        "--site",
        "shop.example",
        "--tag",
        "t",
        "--priority",
        "1",
        "--poll-minutes",
        "1",
        "--by",
        "ada",
        "--cpu",
        "500m",
        "--memory",
        "1Gi",
    ]
    words += ["--pool", "shop-a", "--retries", "0"]
    words += [
        "--run-timeout",
        "none",
        "--stall-timeout",
        "60",
        "--start-timeout",
        "9",
        "--start-check",
        "1",
    ]
    result = crawlctl(*words, "--stop-grace", "5", "--force-stop-after", "none")
    assert result.code == 0, result.err
    body = _body(route)
    assert set(body) == set(StartRun.model_fields) - {"request_id", "run_id"}, (
        "in the header, in a route"
    )
    assert body["retries"] == {"max": 0}
    assert body["resources"] == {"cpu": "500m", "memory": "1Gi"}
    assert set(body["resources"]) == {field.name for field in fields(Resources)}
    assert body["limits"] == {
        **{
            "run_timeout_s": None,
            "stall_timeout_s": 60.0,
            "start_timeout_s": 9.0,
            "start_check_s": 1.0,
        },
        **{"stop_grace_s": 5.0, "force_stop_after_s": None},
    }
    assert set(body["limits"]) == {field.name for field in fields(Limits)}
    assert (body["flow_id"], body["parent"], body["trigger"]) == ("--night", "w/1", "scheduled")


def test_numbers_in_a_file_of_tasks_go_as_they_are(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path
) -> None:
    route = gateway.post("/v1/runs").respond(202, json=ACCEPTED)
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"pages": 10, "delay": 0.5, "images": true}\n')
    assert crawlctl("start", "operations", "--task-file", str(file)).code == 0
    assert _body(route)["tasks"] == [{"args": {"pages": 10, "delay": 0.5, "images": True}}]
    file.write_text('{"pages": [10]}\n')
    assert crawlctl("start", "operations", "--task-file", str(file)).code == Exit.USAGE
