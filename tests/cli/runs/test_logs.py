"""Logs: as they are stored, as they grow, and what of them may reach a terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.cli.runs import logs
from tests.cli.cli_harness import Served
from tests.cli.cli_support import Crawlctl


def test_a_task_and_the_last_lines_of_its_log(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    route = gateway.get("/v1/runs/7/logs").respond(text="last words")
    assert crawlctl("logs", "7", "--task", "71", "--tail", "20").out == "last words\n"
    assert dict(route.calls.last.request.url.params) == {"task": "71", "tail": "20"}
    assert crawlctl("logs", "7").out == "last words\n"
    assert dict(route.calls.last.request.url.params) == {}


def test_the_lines_around_the_last_error(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    route = gateway.get("/v1/runs/7/logs").respond(text="ERROR: no\nbye\n")
    result = crawlctl("logs", "7", "--at-error")
    assert dict(route.calls.last.request.url.params) == {"around": "error"}
    assert result.out == "ERROR: no\nbye\n"


@pytest.mark.parametrize(
    ("words", "params"),
    [
        (("--line", "66"), {"around": "line", "line": "66"}),
        (("--search", "price"), {"q": "price"}),
        (("--level", "error", "--line", "66"), {"level": "error", "line": "66"}),
    ],
)
def test_lines_are_chosen_on_the_server(
    gateway: respx.MockRouter, crawlctl: Crawlctl, words: tuple[str, ...], params: dict[str, str]
) -> None:
    route = gateway.get("/v1/runs/7/logs").respond(text="66:ERROR: no\n")
    assert crawlctl("logs", "7", *words).out == "66:ERROR: no\n"
    assert dict(route.calls.last.request.url.params) == params


def test_an_empty_log_says_so(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7/logs").respond(text="")
    result = crawlctl("logs", "7")
    assert (result.code, result.out) == (0, "")
    assert "crawlctl tasks 7" in result.err


@pytest.mark.parametrize(
    "words",
    [
        ("--tail", "0"),
        ("--at-error", "-f"),
        ("--at-error", "--tail", "3"),
        ("--at-error", "--search", "x"),
        ("--search", "x", "-f"),
        ("--level", "loud"),
        ("-f", "-o", "json"),
        ("-f", "-o", "yaml"),
    ],
)
def test_usage(crawlctl: Crawlctl, words: tuple[str, ...]) -> None:
    assert crawlctl("logs", "7", *words).code == 2


def test_a_log_that_is_not_there(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    gateway.get("/v1/runs/7/logs").respond(
        404, json={"code": "log_not_found", "detail": "task 70 wrote nothing"}
    )
    for words in (("logs", "7"), ("logs", "7", "-f")):
        result = crawlctl(*words)
        assert result.code == 3
        assert "task 70 wrote nothing" in result.err


def test_following_until_the_task_ends(served: Served, crawlctl: Crawlctl) -> None:
    served.log = [b"one\ntw", "o\r\nümlaut ".encode()[:-2], b"t \x1b[2J\nend"]
    served.hold.set()
    result = crawlctl("--gateway", served.url, "logs", "7", "-f", "--tail", "5")
    assert result.code == 0
    assert result.out == "one\ntwo\nümlaut \\x1b[2J\nend\n"
    assert served.paths == ["/v1/runs/7/logs?tail=5&follow=true"]
    result = crawlctl("--gateway", served.url, "logs", "7", "-f", "-o", "jsonl")
    assert [line for line in result.out.splitlines() if '"line": "two"' in line]


def test_lines_come_while_the_log_goes_on(served: Served) -> None:
    served.log = [b"first\n"]
    command = [
        sys.executable,
        "-m",
        "crawler_lifecycle.cli",
        "--gateway",
        served.url,
        "logs",
        "7",
        "-f",
    ]

    # A shell starts background processes with SIGINT ignored, and children inherit this.
    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_following_gives_up(
    served: Served, crawlctl: Crawlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.log = [b"first\n"]
    former = signal.getsignal(signal.SIGALRM)
    others, _ = signal.getitimer(signal.ITIMER_REAL)
    real, all_of_it = signal.setitimer, logs.lines
    asked: list[float] = []

    def patient(which: int, seconds: float) -> tuple[float, float]:
        """The alarm is set when the first line was printed, however long that takes."""
        asked.append(seconds)
        return real(which, 0 if len(asked) == 1 else seconds)

    def lines(pieces: Iterable[str]) -> Iterator[str]:
        for line in all_of_it(pieces):
            yield line
            real(signal.ITIMER_REAL, 0.01)

    monkeypatch.setattr(signal, "setitimer", patient)
    monkeypatch.setattr(logs, "lines", lines)
    result = crawlctl("--gateway", served.url, "logs", "7", "-f", "--timeout", "90s")
    assert asked[0] == 90
    assert (result.code, result.out) == (7, "first\n")
    assert signal.getsignal(signal.SIGALRM) is former
    assert bool(signal.getitimer(signal.ITIMER_REAL)[0]) == bool(others), "alarms of others go on"


def test_a_connection_that_breaks_is_no_end(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    def broken() -> Iterator[bytes]:
        yield b"first\n"
        raise httpx.ReadError("reset by peer")

    class Stream(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            return broken()

    gateway.get("/v1/runs/7/logs").mock(return_value=httpx.Response(200, stream=Stream()))
    result = crawlctl("logs", "7", "-f")
    assert result.code == 8
    assert result.out == "first\n"
    assert "broke" in result.err


@given(st.lists(st.text(alphabet=st.sampled_from("ab\n"), max_size=9)))
def test_lines_do_not_depend_on_the_pieces(pieces: list[str]) -> None:
    whole = "".join(pieces)
    expected = whole.split("\n")
    assert list(logs.lines(pieces)) == (expected if expected[-1] else expected[:-1])


def test_a_line_without_an_end_is_not_kept_in_memory() -> None:
    lines = list(logs.lines("x" * 1000 for _ in range(200)))
    assert sum(map(len, lines)) == 200_000
    assert max(map(len, lines)) == logs.LINE_MAX
