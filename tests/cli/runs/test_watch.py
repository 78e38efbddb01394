"""Watching: what is shown of each change, how it ends, and that pictures are drawn only on
terminals.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import respx

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.runs import watch
from tests.cli.cli_answers import COMPLETED, CORRECTION, FAILED, RESUMED, RUN, STOPPED, TASKS
from tests.cli.cli_harness import Served
from tests.cli.cli_support import GATEWAY, Crawlctl

QUEUED = [TASKS[0] | {"status": "QUEUED", "outcome": None, "reason": "quota"}]
RUNNING = [TASKS[0] | {"status": "RUNNING", "outcome": None}]


def _answers(gateway: respx.MockRouter, runs: list[Any], tasks: list[list[dict[str, Any]]]) -> None:
    def one(answer: Any) -> Any:
        return (
            answer
            if isinstance(answer, httpx.Response | Exception)
            else httpx.Response(200, json=answer)
        )

    gateway.get("/v1/runs/7").mock(side_effect=[one(run) for run in runs])
    gateway.get("/v1/runs/7/tasks").mock(side_effect=[one({"tasks": rows}) for rows in tasks])
    gateway.get("/v1/runs/7/corrections").respond(json={"corrections": []})


def test_a_line_for_each_change_and_none_for_the_rest(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    begin = RUN | {
        "status": "INITIALIZING",
        "stage": "deployment",
        "waiting": "waiting for 3 s: 4 of 4 slots\x1b[2J",
    }
    later = RUN | {"verified_at": "2026-11-20T11:59:59Z", "pages": 9999}
    older = begin | {"waiting": "waiting for 4 s: 4 of 4 slots\x1b[2J"}
    _answers(
        gateway,
        [begin, older, RUN, later, COMPLETED],
        [QUEUED, QUEUED, RUNNING, RUNNING, [TASKS[0]]],
    )
    result = crawlctl("watch", "7")
    assert result.code == 0
    moment = "2026-11-20T12:00:00Z"
    assert result.out.splitlines() == [
        f"{moment} run 7 operations INITIALIZING deployment, waiting for 3 s: 4 of 4 slots\\x1b[2J",
        f"{moment} task 70 (index 0) QUEUED quota",
        f"{moment} run 7 operations PROCESSING reconciliation",
        f"{moment} task 70 (index 0) RUNNING",
        f"{moment} run 7 operations COMPLETED completion finished: All 2 tasks succeeded",
        f"{moment} task 70 (index 0) SUCCEEDED finished",
    ]
    assert "\x1b" not in result.out + result.err


def test_an_orderly_stop_does_not_read_like_an_error(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    stopping = [TASKS[0] | {"status": "STOPPING", "outcome": None, "reason": "Error"}]
    _answers(gateway, [RUN | {"status": "STOPPING"}, STOPPED], [stopping, stopping])
    assert "task 70 (index 0) STOPPING\n" in crawlctl("watch", "7").out


@pytest.mark.parametrize(("end", "code"), [(COMPLETED, 0), (FAILED, 5), (STOPPED, 6)])
@pytest.mark.parametrize("words", [("watch", "7"), ("tasks", "7", "-w")])
def test_the_exit_code_tells_how_the_run_ended(
    gateway: respx.MockRouter,
    crawlctl: Crawlctl,
    words: tuple[str, ...],
    end: dict[str, Any],
    code: int,
) -> None:
    gateway.get("/v1/runs/7").mock(
        side_effect=[httpx.Response(200, json=one) for one in (RUN, end)]
    )
    gateway.get("/v1/runs/7/tasks").respond(json={"tasks": RUNNING})
    if words[0] == "watch":
        gateway.get("/v1/runs/7/corrections").respond(json={"corrections": []})
    assert crawlctl(*words).code == code


def test_start_and_resume_go_on_watching(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.post("/v1/runs").respond(202, json={"run_id": 7})
    _answers(gateway, [COMPLETED], [TASKS])
    assert crawlctl("start", "operations", "--watch").code == 0


def test_a_resumed_run_is_watched_in_its_next_attempt(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gateway.post("/v1/runs/7/resume").respond(202, json=RESUMED)
    second = {"attempt": 2}
    _answers(gateway, [FAILED, RUN | second, COMPLETED | second], [TASKS, TASKS, TASKS])
    result = crawlctl("resume", "7", "--watch")
    assert result.code == 0
    assert "run 7 operations COMPLETED completion attempt 2 finished" in result.out


def test_a_gateway_that_restarts_is_waited_for(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    gone = httpx.ConnectError("refused")
    _answers(gateway, [RUN, gone, gone, COMPLETED], [TASKS, TASKS])
    result = crawlctl("watch", "7")
    assert result.code == 0
    assert result.err.count("trying again") == 1


def test_giving_up(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7").respond(json=RUN)
    gateway.get("/v1/runs/7/tasks").respond(json={"tasks": TASKS})
    gateway.get("/v1/runs/7/corrections").respond(json={"corrections": [CORRECTION]})
    result = crawlctl("watch", "7", "--timeout", "0.05")
    assert result.code == 7
    assert "PROCESSING, reconciliation" in result.err


def test_a_run_that_is_not_there(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7").respond(
        404, json={"code": "run_not_found", "detail": "run 7 does not exist"}
    )
    assert crawlctl("watch", "7").code == 3


def test_interrupted(crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(gateway: Gateway, path: str, **params: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Gateway, "poll", press)
    assert crawlctl("watch", "7").code == 130


def test_what_did_not_change_is_not_sent_again(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    tagged = httpx.Response(200, json=RUN, headers={"etag": 'W/"1"'})
    route = gateway.get("/v1/runs/7").mock(
        side_effect=[tagged, httpx.Response(304), httpx.Response(200, json=COMPLETED)]
    )
    gateway.get("/v1/runs/7/tasks").respond(json={"tasks": TASKS})
    gateway.get("/v1/runs/7/corrections").respond(json={"corrections": []})
    assert crawlctl("watch", "7").code == 0
    assert [call.request.headers.get("if-none-match") for call in route.calls] == [
        None,
        'W/"1"',
        'W/"1"',
    ]


def test_large_runs_are_told_in_counts(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    rows = [TASKS[0] | {"task_id": n, "task_index": n} for n in range(watch.TASKS_PAGE)]
    _answers(gateway, [COMPLETED | {"tasks": {"SUCCEEDED": 900}}], [rows])
    result = crawlctl("watch", "7")
    assert "tasks SUCCEEDED 900" in result.out
    assert len(result.out.splitlines()) == 2


# --- lists ----------------------------------------------------------------------------------------


def test_live_runs_until_the_time_is_over(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    pages = [[RUN], [RUN, RUN | {"run_id": 8}], [RUN | {"run_id": 8}]]
    answers = [httpx.Response(200, json={"runs": page}) for page in pages]

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.params.get_list("status") == ["INITIALIZING", "PROCESSING", "STOPPING"]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    gateway.get("/v1/runs").mock(side_effect=answer)
    gateway.get("/v1/runs/7").respond(json=COMPLETED)
    result = crawlctl("watch", "--timeout", "0.3")
    assert result.code == 0
    assert [line.split(" ", 1)[1] for line in result.out.splitlines()] == [
        "run 7 operations PROCESSING reconciliation",
        "run 8 operations PROCESSING reconciliation",
        "run 7 operations COMPLETED completion finished: All 2 tasks succeeded",
    ]


def test_a_run_that_leaves_a_filter_is_told_once_also_after_an_outage(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    here = httpx.Response(200, json={"runs": [RUN | {"stage": "deployment"}]})
    empty = httpx.Response(200, json={"runs": []})
    pages: list[httpx.Response] = [here]
    gateway.get("/v1/runs").mock(side_effect=lambda request: pages.pop() if pages else empty)
    answers: list[object] = [httpx.ConnectError("refused"), httpx.Response(200, json=RUN)]
    route = gateway.get("/v1/runs/7").mock(side_effect=answers)
    result = crawlctl("list", "-w", "--stage", "deployment", "--timeout", "0.2")
    assert result.code == 0
    assert [line.split(" ", 1)[1] for line in result.out.splitlines()] == [
        "run 7 operations PROCESSING deployment",
        "run 7 operations PROCESSING reconciliation",
    ]
    assert route.call_count == 2


def test_a_list_that_is_watched_keeps_its_filters(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    route = gateway.get("/v1/runs").respond(json={"runs": []})
    result = crawlctl("list", "-w", "--tag", "night", "--timeout", "0.01")
    assert (result.code, result.out) == (0, "")
    assert route.calls.last.request.url.params["tag"] == "night"


@pytest.mark.parametrize("form", ["json", "yaml", "name"])
def test_a_document_without_an_end_is_refused(crawlctl: Crawlctl, form: str) -> None:
    assert crawlctl("watch", "-o", form).code == 2


# --- on a terminal --------------------------------------------------------------------------------


# A shell starts background processes with SIGINT ignored, and children inherit this.
def _heed() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _on_a_terminal(
    served: Served,
    *words: str,
    env: dict[str, str] | None = None,
    until: Callable[[str], bool] = lambda text: False,
) -> tuple[int, str]:
    """Return how it ended and what it drew; interrupt it as soon as ``until`` is true of that."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "crawler_lifecycle.cli", "--gateway", served.url, *words]
    variables = os.environ | {"TERM": "xterm", "LINES": "24", "COLUMNS": "100"} | (env or {})
    with subprocess.Popen(
        command, stdout=follower, stderr=follower, stdin=follower, env=variables, preexec_fn=_heed
    ) as process:
        os.close(follower)
        text, interrupted = b"", False
        try:
            while True:
                try:
                    piece = os.read(leader, 65536)
                except OSError:  # the other end is closed
                    break
                if not piece:
                    break
                text += piece
                if not interrupted and until(text.decode(errors="replace")):
                    interrupted = True
                    process.send_signal(signal.SIGINT)
        except BaseException:
            process.kill()  # otherwise each would wait for the other at the exit
            raise
    os.close(leader)
    return process.returncode, text.decode()


def test_a_picture_in_place_on_a_terminal(served: Served) -> None:
    served.runs = [RUN | {"waiting": "waiting for a slot"}, RUN, FAILED]
    code, text = _on_a_terminal(served, "watch", "7")
    assert code == 5
    assert "\x1b[2K" in text, "redrawn"
    assert "reconciliation" in text
    assert "waiting for a slot" in text
    assert text.rstrip().endswith("crawlctl resume 7")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is there again"


@pytest.mark.parametrize(
    ("words", "code", "title"),
    [
        (("watch",), 130, "CRAWLER"),
        (("list", "-w"), 130, "CRAWLER"),
        (("tasks", "7", "-w"), 5, "INDEX"),
    ],
)
def test_tables_in_place_on_a_terminal(
    served: Served, words: tuple[str, ...], code: int, title: str
) -> None:
    served.runs = [RUN, RUN, FAILED]
    again = (lambda text: text.count(title) > 1) if code == 130 else (lambda text: False)
    ended, text = _on_a_terminal(served, *words, until=again)
    assert ended == code, text
    assert text.count(title) > 1, "drawn again"
    assert "\x1b[2K" in text, "in place"
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is there again"


def test_a_dumb_terminal_gets_lines(served: Served) -> None:
    served.runs = [RUN, COMPLETED]
    code, text = _on_a_terminal(served, "watch", "7", env={"TERM": "dumb"})
    assert code == 0
    assert "\x1b[2K" not in text
    assert "run 7 operations COMPLETED" in text


def test_no_colour_where_none_is_wanted(served: Served) -> None:
    served.runs = [COMPLETED]
    _, text = _on_a_terminal(served, "--no-color", "watch", "7")
    assert "\x1b[32m" not in text
    assert "COMPLETED" in text


@pytest.mark.parametrize("height", [1, 10, 24, 200])
def test_the_picture_fits(height: int) -> None:
    rows = [
        TASKS[0] | {"task_id": n, "task_index": n, "status": "QUEUED" if n % 9 else "RUNNING"}
        for n in range(150)
    ]
    seen = watch.WatchedRun(
        RUN | {"tasks": {"QUEUED": 890, "RUNNING": 110}}, rows, [CORRECTION] * 5
    )
    lines = _lines_of(lambda: watch.draw(seen, height))
    assert len(lines) <= max(height, watch.FRAME + 1)
    shown = [line for line in lines if " RUNNING " in line and "items" in line]
    assert shown, "what executes comes first"
    assert any(f"{1000 - min(150, max(1, height - watch.FRAME))} more" in line for line in lines)


def _lines_of(draw: Callable[[], Any]) -> list[str]:
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), width=120)
    console.print(draw())
    return str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]


def test_the_same_document_is_the_same_object() -> None:
    with respx.mock(base_url=GATEWAY) as router, Gateway(GATEWAY) as gateway:
        router.get("/v1/runs/7").mock(
            side_effect=[httpx.Response(200, json=RUN), httpx.Response(200, json=dict(RUN))]
        )
        assert gateway.poll("/v1/runs/7") is gateway.poll("/v1/runs/7")
