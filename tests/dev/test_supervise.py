"""The supervisor with small parts that do what a test needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from crawler_lifecycle import dev_json
from crawler_lifecycle.cli.stack import processes, supervise
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.cli.stack.supervise import Part, PartFailed, Supervisor
from crawler_lifecycle.domain.names import STACK_HEADER
from tests.dev.dev_support import wait_until

SERVER = """
import http.server, signal, sys
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


#: If it is asked rarely on a busy machine, it may have ended once more.
THRICE = r"([3-9]|\d{2,})"


@pytest.fixture
def said() -> list[str]:
    """Return the supervisor's messages."""
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[str]) -> Iterator[Supervisor]:
    found = Supervisor(tmp_path, say=said.append, changed=lambda: None)
    yield found
    found.hurry()
    found.close()


def _server(name: str, *words: str, grace_s: float = 5.0) -> Part:
    port = processes.free_port()
    command = (sys.executable, "-S", "-c", SERVER, str(port), *words)
    return Part(name, command, f"http://127.0.0.1:{port}/", os.environ, grace_s=grace_s)


def _failing(name: str) -> Part:
    command = (sys.executable, "-S", "-c", "print('my last words'); raise SystemExit(7)")
    return Part(name, command, "http://127.0.0.1:1/", os.environ)


def test_what_is_being_started_when_it_is_stopped_is_ended_too(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, really = threading.Event(), threading.Event(), processes.spawn

    def slowly(*command: Any, **options: Any) -> subprocess.Popen[bytes]:
        begun.set()
        go_on.wait(60)
        return really(*command, **options)

    monkeypatch.setattr(processes, "spawn", slowly)
    supervisor.start([_server("web")])
    assert begun.wait(60)
    stopping = threading.Thread(target=supervisor.stop)
    stopping.start()
    stopping.join(0.3)  # it would have finished if it took a part that is not there yet for gone
    stopped_early = not stopping.is_alive()
    go_on.set()
    stopping.join()
    assert not stopped_early
    assert supervisor.starts("web") == 1
    assert supervisor.pids() == {}


def test_a_part_that_ends_while_the_living_are_counted(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending:
        process = property(lambda self: self.left.pop() if self.left else None)

        def __init__(self) -> None:
            self.left = [SimpleNamespace(pid=7)]

    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "_kept", {"web": Ending()})
        assert supervisor.pids() == {"web": 7}
        assert supervisor.pids() == {}


def test_neither_a_full_disk_nor_a_closed_terminal_ends_the_watching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()

    def say(line: str) -> None:
        told.append(line)
        raise BrokenPipeError(32, "Broken pipe")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    stack = Stack(Layout(tmp_path), say=say)
    watching = stack.supervisor
    monkeypatch.setattr(Stack, "_write_dev_json", full)
    watching.start([_server("web")])
    try:
        watching.wait_healthy()
        watching.kill("web")
        wait_until(lambda: watching.starts("web") == 2)
        watching.wait_healthy()
    finally:
        monkeypatch.undo()
        watching.hurry()
        watching.close()
    assert any("dev.json cannot be written" in line for line in told)


def test_a_part_is_restarted_with_growing_delay(supervisor: Supervisor, said: list[str]) -> None:
    supervisor.start([_failing("broken")])
    wait_until(lambda: len(said) >= 4)
    assert [line.rpartition(" in ")[2].partition(" (")[0] for line in said[:4]] == [
        "0.2 s",
        "0.4 s",
        "0.8 s",
        "1.6 s",
    ]
    assert "broken ended with 7" in said[0]


def test_a_part_that_proved_itself_starts_again_at_once(
    supervisor: Supervisor, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "PROVED_S", 0.3)
    supervisor.start([_server("web")])
    for n in range(1, 4):
        supervisor.wait_healthy()
        wait_until(lambda: supervisor._kept["web"].ends == 0)
        supervisor.kill("web")
        wait_until(lambda n=n: len(said) == n)  # type: ignore[misc]
    assert all("in 0.2 s" in line for line in said)


def test_a_part_that_does_not_come_up_shows_its_log(supervisor: Supervisor) -> None:
    supervisor.start([_failing("broken")])
    with pytest.raises(PartFailed, match=rf"broken ended {THRICE} times(.|\n)*my last words"):
        supervisor.wait_healthy()


def test_only_the_words_of_the_last_start_are_shown(supervisor: Supervisor, tmp_path: Path) -> None:
    """The log is kept for days; a fixed error must not look like today's."""
    log = tmp_path / "words.log"
    log.write_text("an error of yesterday\n")
    for words in ("the first error", "the second error"):
        processes.spawn([sys.executable, "-c", f"print({words!r})"], env={}, log=log).wait()
        assert processes.tail(log) == words
    processes.spawn([sys.executable, "-c", "pass"], env={}, log=log).wait()
    assert processes.tail(log) == "the second error", (
        "what was only just started has said nothing yet"
    )
    assert processes.tail(tmp_path / "none.log") == ""


def test_a_part_that_never_answers_is_given_up(supervisor: Supervisor) -> None:
    part = _server("deaf")
    supervisor.start([Part(part.name, part.command, "http://127.0.0.1:1/", part.env)])
    with pytest.raises(PartFailed, match="not ready after"):
        supervisor.wait_healthy(timeout_s=0.5)


def test_a_part_that_ignores_the_end_is_killed_after_its_grace(supervisor: Supervisor) -> None:
    supervisor.start([_server("stubborn", "stubborn", grace_s=0.5), _server("polite")])
    supervisor.wait_healthy()
    pids = supervisor.pids()
    begun = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - begun > 0.5, "its grace"
    assert all(processes.start_time(pid) is None for pid in pids.values())
    assert supervisor.pids() == {}


def test_a_program_that_does_not_exist_is_no_crash(supervisor: Supervisor, said: list[str]) -> None:
    supervisor.start([Part("nothing", ("/nowhere/program",), "http://127.0.0.1:1/", os.environ)])
    with pytest.raises(PartFailed, match=f"nothing ended {THRICE} times"):
        supervisor.wait_healthy()


def test_start_times_tell_processes_apart() -> None:
    mine = processes.start_time(os.getpid())
    assert mine is not None
    assert processes.start_time(2**22 + 5) is None
    processes.end_process(os.getpid(), mine + 1, 0.1)  # another process's start time: not touched


def test_a_leftover_is_ended(supervisor: Supervisor) -> None:
    supervisor.start([_server("old")])
    supervisor.wait_healthy()
    pid = supervisor.pids()["old"]
    supervisor.kill("old", signal.SIGSTOP)  # cannot end by itself
    processes.end_process(pid, processes.start_time(pid), 0.2)
    wait_until(lambda: processes.start_time(pid) is None)


def test_a_part_that_does_not_answer_any_more_is_replaced(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is blocked, so only its health address shows the problem.

    Another part is left alone.
    """
    monkeypatch.setattr(supervise, "ASK_S", 0.1)
    # Nobody is silent for that long; for the blocked part, the time is set back.
    watching = Supervisor(tmp_path, say=said.append, changed=lambda: None, silent_s=600)
    blocked = _server("blocked", grace_s=0.1)
    try:
        watching.start([blocked, _server("sound")])
        watching.wait_healthy()
        kept = watching._kept["blocked"]
        wait_until(lambda: kept.heard is not None)
        before = watching.kill("blocked", signal.SIGSTOP)
        assert supervise.ask(blocked.health)[0] is None

        def replaced() -> bool:
            # An earlier request may get its response only now.
            if watching.pids().get("blocked") == before:
                kept.heard = time.monotonic() - 601
            return watching.starts("blocked") == 2

        wait_until(replaced)
        watching.wait_healthy()
        assert watching.pids()["blocked"] != before
        assert processes.start_time(before) is None
        assert (
            sum("blocked has not responded for 600 s; replacing it" in line for line in said) == 1
        )
        assert watching.starts("sound") == 1
    finally:
        watching.hurry()
        watching.close()


def test_a_machine_that_slept_replaces_nothing(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing could respond meanwhile.

    This is reported once, and each part gets time to respond again.
    """
    monkeypatch.setattr(supervise, "ASK_S", 600)  # later responses do not count
    watching = Supervisor(tmp_path, say=said.append, changed=lambda: None, silent_s=60)
    slept, clock_gettime = threading.Event(), time.clock_gettime

    def later(clock: int) -> float:
        return clock_gettime(clock) + (61 if slept.is_set() else 0)

    monkeypatch.setattr(supervise.time, "clock_gettime", later)
    try:
        watching.start([_server("web")])
        watching.wait_healthy()
        kept = watching._kept["web"]
        with watching._starting:
            kept.heard = time.monotonic() - 59
            slept.set()
        wait_until(lambda: bool(said))
        time.sleep(2)
        assert said == [
            "this machine, or crawlctl dev, was suspended for 61 s; the services continue"
        ]
        assert watching.starts("web") == 1
    finally:
        watching.hurry()
        watching.close()


def test_a_part_that_lacks_something_answers_all_the_same(tmp_path: Path, said: list[str]) -> None:
    """A 503 is a response: restarting the part would not help."""
    part = _server("lacking")
    lacking = (*part.command[:3], SERVER.replace("200", "503"), *part.command[4:])
    watching = Supervisor(tmp_path, say=said.append, changed=lambda: None, silent_s=60)
    try:
        watching.start([Part(part.name, lacking, part.health, os.environ)])
        wait_until(lambda: supervise.ask(part.health)[0] is not None)
        assert supervise.ask(part.health)[0] == 503
    finally:
        watching.hurry()
        watching.close()


def test_a_part_is_not_ready_by_the_answers_of_another_stack(tmp_path: Path) -> None:
    """The message names both folders."""
    ours, theirs = (dev_json.identity(name, Path("/of", name)) for name in ("us", "them"))
    other = _server("other")
    named = SERVER.replace(
        "self.end_headers()", f"self.send_header({STACK_HEADER!r}, {theirs!r}); self.end_headers()"
    )
    command = [*other.command]
    command[command.index(SERVER)] = named
    supervisor = Supervisor(tmp_path / "logs", say=lambda line: None, changed=lambda: None)
    try:
        supervisor.start(
            [
                replace(
                    other, command=command, env={**other.env, dev_json.VARIABLES["stack"]: theirs}
                )
            ]
        )
        supervisor.wait_healthy()
        sleeping = (sys.executable, "-c", "import time; time.sleep(600)")
        supervisor.start(
            [
                Part(
                    "gateway",
                    sleeping,
                    other.health,
                    {**os.environ, dev_json.VARIABLES["stack"]: ours},
                    grace_s=0,
                )
            ]
        )
        with pytest.raises(
            PartFailed, match=f"stack of /of/them, and not of the stack of {tmp_path}; next: "
        ):
            supervisor.wait_healthy(["gateway"])
    finally:
        supervisor.close()


def test_a_part_is_not_ready_by_the_answers_of_another_program(supervisor: Supervisor) -> None:
    """The program returns 200, but belongs to no stack, so the port must belong to the process."""
    other = _server("other")
    supervisor.start([other])
    supervisor.wait_healthy()
    assert processes.listens(supervisor.pids()["other"], urlsplit(other.health).port or 0)
    supervisor.start(
        [
            Part(
                "temporal",
                (sys.executable, "-c", "import time; time.sleep(600)"),
                other.health,
                os.environ,
            )
        ]
    )
    with pytest.raises(PartFailed, match="temporal is not ready after 1 s"):
        supervisor.wait_healthy(["temporal"], 1.0)
