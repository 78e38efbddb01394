"""Functions of graphs in processes: arguments, results, and what user code may do to its process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.values import decode, encode, to_json, unpacked
from crawler_lifecycle.features.user_code.functions import CALLS_MAX, FunctionProcess, Functions
from crawler_lifecycle.features.user_code.pool import no_answer
from crawler_lifecycle.features.user_code.process import Rules
from crawler_lifecycle.ports.protocols import (
    FunctionCall,
    FunctionReply,
    UserCodeFailed,
    WorkerLeaves,
)
from tests.user_code.user_code_support import module, nothing, until

BODY = """
import asyncio, functools, math, subprocess, threading
from crawler_lifecycle.graphs.job import current_job
from crawler_lifecycle.graphs.job import Cancel, Record, Snooze

def add(a, b=1): return a + b
async def later(a):
    await asyncio.sleep(0)
    return a
def wrapped(function):
    @functools.wraps(function)
    def call(*args, **kwargs): return function(*args, **kwargs)
    return call
decorated = wrapped(later)
decorated.__qualname__ = "decorated"
def give(value): return value
def merge(context): return {"mine": context["source"], **context["fetch"]}
def visit(item, context): return [item, context]
def keyed(): return [current_job().key, current_job().name, current_job().attempt]
class Worker:
    def process(self, job): return Record([job.args, job.meta["name"], job.meta["workflow_id"], job.max_attempts])
class Plain:
    async def process(self, job): return object()
class NoWorker: pass
def cancels(): return Cancel("nobody wants it")
def snoozes(): return Snooze(2.5)
def too_much(): return Record("x" * 100, limit=50)
def huge(): return "x" * 2_000_000
def raises(): return 1 / 0
def leaves(): sys.exit("enough")
def ends(): os._exit(3)
def kills(): os.kill(os.getpid(), signal.SIGKILL)
def hangs(): time.sleep(3600)
def stubborn():
    signal.signal(signal.SIGTERM, lambda *_: None); print("deaf", flush=True)
    while True: time.sleep(1)
async def forgets(): return later(1)
def generates(): yield 1
async def generates_later(): yield 1
def not_a_number(): return {"a": [math.nan]}
def holds_itself():
    found = []; found.append(found); return found
def odd(): return {1: 2}
def nonsense(): return open
def forged():
    write_everywhere(b'{"id": 2, "reply": {"kind": "value", "bytes": 7}}\\n'); time.sleep(3600)
def talks():
    while True: write_everywhere(b'{"at": "x"}\\n{"did": 1}\\n' * 2000)
def where(): return "".join(os.listdir("."))
def goes_away():
    os.chdir("/")
    return os.listdir(".") == os.listdir("/")
def forks():
    os.fork()
    return os.getpid()
def prints(word):
    print(word); print("goes on", end="")
    return os.getpid()
def leaves_a_process():
    subprocess.Popen(["sleep", "3600"])
def leaves_a_daemon():
    subprocess.run(["sh", "-c", "sleep 3600 &"], check=True)
def leaves_a_timer():
    signal.setitimer(signal.ITIMER_REAL, 3600)
def leaves_a_handler():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
def leaves_a_blocked_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
def leaves_a_variable():
    os.environ["PASSWORD"] = "of one"
def leaves_a_limit():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
def leaves_no_room_to_recur():
    sys.setrecursionlimit(100)
def leaves_a_thread():
    def ask():
        time.sleep(0.2)
        try: job.cancelled()
        except Exception as error: print(error)
    job = current_job()
    threading.Thread(target=ask).start()
def ask():
    while not current_job().cancelled(): time.sleep(0.01)
    return "was told"
async def ask_async():
    while not current_job().cancelled(): await asyncio.sleep(0.01)
    return "was told"
def elsewhere():
    from crawler_lifecycle.graphs.asking import current
    return current().status("another")
here = os.getpid
local = (lambda: (lambda: 1))()
"""


class Fixture:
    """The functions of one module."""

    def __init__(self, folder: Path, result_max: int = 1_000_000, memory: int = 1024**3) -> None:
        self.module = module(folder, BODY)
        self.functions = Functions([self.module], Rules(memory, folder=folder), result_max)

    def order(
        self, name: str, style: str = "plain", limit_s: float = 20.0, **more: Any
    ) -> FunctionCall:
        graft, given = more.pop("graft", False), more.pop("given", ())
        what = {"style": style, "args": to_json(more.pop("args", {})), **more}
        job = {"path": "top/step", "attempt": 2, "max_attempts": 3, "job": what}
        return FunctionCall(f"{self.module}:{name}", "g", job, limit_s, graft, given)

    def call(self, name: str, style: str = "plain", **more: Any) -> Any:
        """Return the value of a function, or its whole reply if it has none."""
        with self.functions.use("g") as host:
            return value(host.call(self.order(name, style, **more), no_answer, nothing))


def value(reply: FunctionReply) -> Any:
    if reply.result is None:
        return reply
    data = b"".join(unpacked(reply.result))
    assert len(data) == reply.result_bytes
    return decode(data)


@contextmanager
def opened(folder: Path, **more: Any) -> Iterator[Fixture]:
    fixture = Fixture(folder, **more)
    try:
        yield fixture
    finally:
        fixture.functions.close()


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixture]:
    with opened(tmp_path_factory.mktemp("users"), memory=512 * 1024**2) as found:
        yield found


def frame(path: list[str], found: object) -> tuple[Mapping[str, Any], list[bytes]]:
    data = encode(found)
    return {"path": path}, [data[:3], data[3:]]


DAY = datetime(2026, 11, 22, tzinfo=UTC)
ENDS: dict[str, tuple[str, dict[str, Any], object]] = {
    "arguments by name": ("add", {"args": {"a": 1, "b": 4}}, 5),
    "async": ("later", {"args": {"a": DAY}}, DAY),
    "async behind a decorator": ("decorated", {"args": {"a": b"\xff"}}, b"\xff"),
    "more than one part": ("give", {"args": {"value": ["é" * 1000] * 100}}, ["é" * 1000] * 100),
    "nothing": ("give", {"args": {"value": None}}, FunctionReply("done")),
    "cascade": (
        "merge",
        {
            "style": "cascade",
            "given": [
                frame([], {"source": 1, "fetch": 0}),
                frame([], {"source": DAY}),
                frame(["fetch"], {}),
                frame(["fetch", "0"], [1]),
                frame(["fetch", "users", "a"], {"n": 2}),
            ],
        },
        {"mine": DAY, "0": [1], "users": {"a": {"n": 2}}},
    ),
    "item": ("visit", {"style": "item", "item": {"$$date": 1}, "given": []}, [{"$date": 1}, {}]),
    "worker": ("Worker", {"style": "worker", "args": {"a": DAY}}, [{"a": DAY}, "step", "g", 3]),
    "a worker's value is no result": ("Plain", {"style": "worker"}, FunctionReply("done")),
    "cancel": ("cancels", {}, FunctionReply("cancel", reason="nobody wants it")),
    "snooze": ("snoozes", {}, FunctionReply("snooze", seconds=2.5)),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_goes_in_and_what_comes_out(fixture: Fixture, case: str) -> None:
    name, more, expected = ENDS[case]
    assert fixture.call(name, **more) == expected


def test_its_key_is_of_the_step_and_not_of_the_attempt(fixture: Fixture) -> None:
    key, name, attempt = fixture.call("keyed")
    assert (len(key), name, attempt) == (32, "step", 2)
    order = fixture.order("keyed")
    with fixture.functions.use("g") as host:
        again = host.call(
            FunctionCall(order.function, "g", {**order.job, "attempt": 5}, 9.0), no_answer, nothing
        )
        other = host.call(FunctionCall(order.function, "h", order.job, 9.0), no_answer, nothing)
    assert value(again) == [key, "step", 5]
    assert value(other)[0] != key


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "raises": ({}, r"^ZeroDivisionError: division by zero \(users_\w+\.py:\d+\)$"),
    "leaves": ({}, "^SystemExit: enough"),
    "too_much": ({}, "the return value: 102 bytes are more than 50"),
    "huge": ({}, "more than 1000000"),
    "forgets": ({}, "returned a coroutine that was never awaited; await it"),
    "generates": ({}, "returned a generator, which is not executed; return a list$"),
    "generates_later": ({}, "returned a generator"),
    "not_a_number": ({}, r"the return value\['a'\]\[0\]: nan is not a number"),
    "holds_itself": ({}, "it contains itself"),
    "odd": ({}, "the key 1 is not a string"),
    "nonsense": ({}, "a builtin_function_or_method cannot be encoded"),
    "elsewhere": ({}, "a function of a graph cannot ask about graph another"),
}
NEVER: dict[str, tuple[dict[str, Any], str]] = {
    "add": (
        {"args": {"c": 1}},
        r":add\(a, b=1\): missing a required argument: 'a'; the step passes c; change",
    ),
    "merge": (
        {"style": "item"},
        "too many positional arguments; the step passes the item and the context",
    ),
    "NoWorker": ({"style": "worker"}, "must be a class with a method process"),
    "nobody": ({}, "the module no longer has this name"),
    "here": ({}, "the module does not define this name"),
    "os.system": ({"args": {"command": "true"}}, "the module does not define this name"),
    "local": ({}, "the module does not define this name"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_told_and_the_process_goes_on(fixture: Fixture, name: str) -> None:
    more, said = FAILURES[name]
    with fixture.functions.use("g") as host:
        with pytest.raises(UserCodeFailed, match=said) as failed:
            host.call(fixture.order(name, **more), no_answer, nothing)
        assert (failed.value.lives, failed.value.for_good, failed.value.missing) == (
            True,
            False,
            False,
        )
        assert value(host.call(fixture.order("add", args={"a": 1}), no_answer, nothing)) == 2


@pytest.mark.parametrize("name", NEVER)
def test_what_can_never_be_called_is_told_as_such(fixture: Fixture, name: str) -> None:
    more, said = NEVER[name]
    with pytest.raises(UserCodeFailed, match=said) as failed:
        fixture.call(name, **more)
    assert failed.value.for_good


#: ``test_bad_code`` tests further ways to get out of control: the process is the same.
ENDINGS: dict[str, tuple[float, str]] = {
    "kills": (100.0, r"its process was ended by SIGKILL"),
    "hangs": (0.5, r"it took more than 0\.5 s and was killed; .*timeout_s of the step"),
    "forged": (100.0, r"invalid reply|reply to another call|unknown message"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_process_out_of_control_ends_and_only_its_step_fails(fixture: Fixture, name: str) -> None:
    limit_s, said = ENDINGS[name]
    with pytest.raises(UserCodeFailed, match=said) as failed, fixture.functions.use("g") as host:
        host.call(fixture.order(name, limit_s=limit_s), no_answer, nothing)
    assert f"{fixture.module}:{name}" in str(failed.value)
    assert (failed.value.missing, failed.value.struck) == (False, name == "kills")
    assert fixture.call("add", args={"a": 1}) == 2


def test_a_function_begins_where_the_users_code_is(fixture: Fixture) -> None:
    with fixture.functions.use("g") as host:
        for name in ("goes_away", "where"):
            found = value(host.call(fixture.order(name), no_answer, nothing))
    assert fixture.module in found


def test_a_copy_of_the_process_says_nothing(fixture: Fixture) -> None:
    with fixture.functions.use("g") as host:
        pids = [value(host.call(fixture.order("forks"), no_answer, nothing)) for _ in range(3)]
    assert set(pids) == {host.process.pid}


@pytest.mark.parametrize("name", ["ask", "ask_async"])
def test_a_function_is_told_that_it_was_cancelled(fixture: Fixture, name: str) -> None:
    asked = []

    def answer(question: str, arguments: Mapping[str, Any]) -> Any:
        asked.append((question, dict(arguments)))
        return len(asked) > 1

    with fixture.functions.use("g") as host:
        assert value(host.call(fixture.order(name), answer, nothing)) == "was told"
    # The second one after a while.
    assert asked == [("cancelled", {"path": "top/step", "attempt": 2})] * 2


def test_a_thread_that_outlives_its_call_confuses_nobody(fixture: Fixture) -> None:
    with fixture.functions.use("g") as host:
        host.call(fixture.order("leaves_a_thread"), no_answer, nothing)
        until(
            lambda: (
                "the call is over; end all threads before you return"
                in host.process.output.newest()
            )
        )
        assert value(host.call(fixture.order("add", args={"a": 1}), no_answer, nothing)) == 2


def test_what_one_graph_printed_is_told_to_no_other(fixture: Fixture) -> None:
    with fixture.functions.use("one") as host:
        pid = value(
            host.call(fixture.order("prints", args={"word": "for one"}), no_answer, nothing)
        )
        assert host.printed() == "for one\ngoes on"
        host.call(fixture.order("prints", args={"word": "more for one"}), no_answer, nothing)
    with fixture.functions.use("other") as host:
        assert host.process.pid == pid
        with pytest.raises(UserCodeFailed) as failed:
            host.call(fixture.order("ends"), no_answer, nothing)
    assert str(failed.value) == f"{fixture.module}:ends: its process ended with exit code 3"


@pytest.mark.parametrize("name", re.findall("def (leaves_[a-z_]+)", BODY))
def test_what_a_function_leaves_in_its_process_stays_with_its_own_graph(
    fixture: Fixture, name: str
) -> None:
    with fixture.functions.use("one") as first:
        first.call(fixture.order(name), no_answer, nothing)
    with fixture.functions.use("one") as again:
        assert again is first
    with fixture.functions.use("other") as other:
        assert other.process.pid != first.process.pid


def test_asked_to_end_it_ends_or_is_killed(fixture: Fixture) -> None:
    for name, said in (("hangs", "was ended by SIGTERM"), ("stubborn", "took more than")):
        with fixture.functions.use("g") as host:

            def alive(host: FunctionProcess = host, name: str = name) -> None:
                if name == "hangs" or "deaf" in host.process.output.newest():
                    host.end_soon()

            with pytest.raises(UserCodeFailed, match=said):
                host.call(fixture.order(name, limit_s=2.5), no_answer, alive)


def test_one_that_never_stops_talking_is_ended_in_time(fixture: Fixture) -> None:
    """It writes faster than the worker reads, so that there is always something to read."""
    with (
        fixture.functions.use("g") as host,
        pytest.raises(UserCodeFailed, match=r"took more than 0\.5 s"),
    ):
        host.call(fixture.order("talks", limit_s=0.5), no_answer, nothing)


def test_a_module_that_cannot_be_imported_may_be_elsewhere(tmp_path: Path) -> None:
    broken = module(tmp_path, "import nothing_of_this_name\ndef f(): pass")
    functions = Functions([broken], Rules(folder=tmp_path), 1000)
    with (
        pytest.raises(UserCodeFailed, match=f"module {broken}: ModuleNotFoundError") as failed,
        functions.use("g") as host,
    ):
        host.call(
            FunctionCall(f"{broken}:f", "g", {"path": "a", "job": {}}, 5.0), no_answer, nothing
        )
    functions.close()
    assert failed.value.missing


def test_more_than_a_process_can_hold_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, memory=200 * 1024**2) as fixture:
        given = (({"path": [str(n)]}, [bytes(1024 * 1024)]) for n in range(400))
        with pytest.raises(InvalidRequest, match="LIFECYCLE_USER_CODE__MEMORY"):
            fixture.call("merge", "cascade", given=given)


def test_new_code_gets_a_new_process(tmp_path: Path) -> None:
    with opened(tmp_path) as fixture:
        fixture.functions.outdate({fixture.module: "1"})
        assert fixture.call("add", args={"a": 1}) == 2
        path = tmp_path / f"{fixture.module}.py"
        path.write_text(path.read_text().replace("return a + b", "return a - b  # anew"))
        fixture.functions.outdate({fixture.module: "1"})
        assert fixture.call("add", args={"a": 1}) == 2  # nobody has reported that it is another one
        fixture.functions.outdate({fixture.module: "2"})
        assert fixture.call("add", args={"a": 1}) == 0
        assert fixture.functions.state() == {"live": 1, "at_work": 0, "started": 2}


def test_a_process_that_was_called_often_or_grew_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.features.user_code.functions.CALLS_MAX", 2)
    assert CALLS_MAX == 5000
    with opened(tmp_path) as fixture:
        pids = [fixture.call("forks") for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_a_worker_that_leaves_says_nothing_about_the_function(tmp_path: Path) -> None:
    with opened(tmp_path) as fixture:

        def alive(left: list[Callable[[], None]] = [fixture.functions.close]) -> None:  # noqa: B006
            if left:
                left.pop()()

        with pytest.raises(WorkerLeaves), fixture.functions.use("g") as host:
            host.call(fixture.order("hangs"), no_answer, alive)
        with pytest.raises(WorkerLeaves):
            fixture.call("add", args={"a": 1})


def test_nothing_is_left_behind_by_a_worker_that_was_killed(tmp_path: Path) -> None:
    """Files have no name, and the process dies with the one that started it."""
    users, temporary = tmp_path / "users", tmp_path / "tmp"
    users.mkdir()
    temporary.mkdir()
    name = module(users, BODY)
    code = f"""
import json, sys
from pathlib import Path
from crawler_lifecycle.features.user_code.functions import Functions
from crawler_lifecycle.features.user_code.process import Rules
from crawler_lifecycle.ports.protocols import FunctionCall
with Functions([{name!r}], Rules(folder=Path({str(users)!r})), 1000).use("g") as host:
    print(host.process.pid, flush=True)
    host.call(FunctionCall("{name}:hangs", "g", {{"path": "a", "job": {{}}}}, 60.0), None, lambda: None)
"""
    worker = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert worker.stdout is not None
    pid = int(worker.stdout.readline())
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert list(temporary.iterdir()) == []
