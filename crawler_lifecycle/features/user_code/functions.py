"""The processes of one worker that call functions of graphs. Each process can call any function.

The worker opens two unnamed files for inputs and results. These files can have any size, users'
code cannot replace them, and a killed worker leaves no files behind.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from crawler_lifecycle.domain.bounds import YEAR_S
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.values import packed
from crawler_lifecycle.ports.protocols import (
    FunctionCall,
    FunctionReply,
    UserCodeFailed,
    WorkerLeaves,
)

from .output import for_people
from .pool import Pool, PooledProcess, no_answer
from .process import START_S, Alive, Answer, HostProcess, Rules
from .wire import TEXT_MAX, FrameError, Message, read_frames, write_frames

#: The number of calls after which a process is replaced, to limit the state that functions leave in
#: a process.
CALLS_MAX = 5000
#: The time limit for the import of a module, in seconds.
IMPORT_S = 2 * START_S
#: The maximum size of a question in the file in bytes, which is enough for a graft of 20,000 steps.
QUESTION_MAX = 64 * 1024 * 1024
_SETTING = "timeout_s of the step"


class FunctionProcess(PooledProcess):
    """``FunctionHost`` that uses a process."""

    def __init__(
        self, modules: Collection[str], rules: Rules, result_max: int, leaving: threading.Event
    ) -> None:
        """Start the process.

        ``leaving`` is set when the pool ends all processes. Raises ``UserCodeFailed``.
        """
        self._leaving = leaving
        self._modules = modules
        self._rules = rules
        self._result_max = result_max
        self._imported: set[str] = set()
        self._calls = 0
        self.graph = ""
        self.left = False
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as result:
            self.process = HostProcess("functions", rules, (given.fileno(), result.fileno()))
            self._given = os.dup(given.fileno())
            self._result = os.dup(result.fileno())

    def call(self, call: FunctionCall, answer: Answer, alive: Alive) -> FunctionReply:
        try:
            self._import(call.function.partition(":")[0], alive)
            self._calls += 1
            self.process.label = call.function
            reply = self.process.call(
                "function",
                call.limit_s,
                answer,
                alive,
                setting=_SETTING,
                function=call.function,
                graph=call.graph,
                job=call.job,
                graft=call.graft,
                limit=self._result_max,
                given=self.give(call.given),
            )
        except UserCodeFailed:
            if self._leaving.is_set():
                raise WorkerLeaves("this worker is stopping, and has ended its processes") from None
            raise
        try:
            return self._checked(reply)
        except (FrameError, LookupError, TypeError, ValueError, OSError) as why:
            self.process.kill()
            raise UserCodeFailed(
                f"{call.function}: its process sent an invalid reply ({why}) and was killed"
            ) from None

    def give(self, values: Iterable[tuple[Message, Iterable[bytes]]]) -> int:
        try:
            return write_frames(self._given, values, self._rules.memory)
        except OSError as error:  # a lack of memory on this machine is not the function's fault
            raise UserCodeFailed(
                f"its input cannot be written on this worker: {error}", missing=True
            ) from None
        except OverflowError:
            raise InvalidRequest(
                f"its input exceeds the {self._rules.memory} bytes that its process may use; "
                "record the location of large results instead of the results, or raise "
                "LIFECYCLE_USER_CODE__MEMORY"
            ) from None

    def taken(self, size: int) -> list[bytes]:
        if type(size) is not int or not 0 <= size <= QUESTION_MAX:
            raise InvalidRequest(
                f"bytes: {size!r:.40} are not allowed; a question has at most {QUESTION_MAX}"
            )
        try:
            return [b"".join(chunks) for _, chunks in read_frames(self._result, size)]
        except FrameError as error:
            raise InvalidRequest(str(error)) from None

    def end_soon(self) -> None:
        self.process.strike(signal.SIGTERM)

    def printed(self) -> str:
        return self.process.output.take(whole=True)

    def usable(self) -> bool:
        return (
            self._calls < CALLS_MAX
            and super().usable()
            and self.process.resident() < self._rules.memory // 2
        )

    def kill(self) -> None:
        super().kill()
        for file in (self._given, self._result):
            os.close(file)

    def _import(self, module: str, alive: Alive) -> None:
        """Import the module in the process, with a separate time limit. Raises
        ``UserCodeFailed``.
        """
        if module not in self._modules:
            fix = "add it to the setting, or give the step the queue of workers that have it"
            raise UserCodeFailed(
                f"{module} is not in LIFECYCLE_USER_CODE__MODULES of this worker; {fix}",
                missing=True,
            )
        if module in self._imported:
            return
        self.process.label = f"module {module}"
        try:
            self.process.call(
                "open", IMPORT_S, no_answer, alive, setting="the speed of its import", module=module
            )
        except UserCodeFailed as failed:
            failed.missing = True
            raise
        self._imported.add(module)

    def _checked(self, reply: Message) -> FunctionReply:
        """Return the function's result after checking it.

        Raises ``UserCodeFailed`` if the function failed, and other errors for an invalid result.
        """
        kind, self.left = reply["kind"], self.left or reply["left"] is not False
        if kind == "failed":
            raise UserCodeFailed(
                _text(reply["error"]), lives=True, for_good=reply["for_good"] is True
            )
        if kind == "cancel":
            return FunctionReply(kind, reason=_text(reply["reason"]))
        if kind == "snooze" and 0 <= float(reply["seconds"]) <= YEAR_S:
            return FunctionReply(kind, seconds=float(reply["seconds"]))
        if kind == "value":
            return self._value(reply["bytes"])
        if kind != "done":
            raise ValueError(f"{kind!r:.40}")
        return FunctionReply(kind)

    def _value(self, size: object) -> FunctionReply:
        # The frame around the value adds a few bytes.
        if type(size) is not int or not 0 <= size <= self._result_max + 100:
            raise ValueError(f"a result of {size!r:.40} bytes")
        value_bytes = 0

        def counted(chunks: Iterable[bytes]) -> Iterator[bytes]:
            nonlocal value_bytes
            for chunk in chunks:
                value_bytes += len(chunk)
                yield chunk

        (parts,) = (list(packed(counted(chunks))) for _, chunks in read_frames(self._result, size))
        return FunctionReply("value", parts, value_bytes)


class Functions:
    """``FunctionHosts`` of one worker.

    This object is used by the threads of activities, each of which uses at most one process.
    """

    def __init__(self, modules: Collection[str], rules: Rules, result_max: int) -> None:
        """Set the rules for the processes. Only functions in ``modules``, which may change, are
        called.
        """
        self._pool: Pool[FunctionProcess] = Pool()
        self._start = lambda: FunctionProcess(modules, rules, result_max, self._pool.over)
        self._code: Mapping[str, str] = {}
        self.state = self._pool.state
        self.close = self._pool.close

    @contextmanager
    def use(self, graph: str) -> Iterator[FunctionProcess]:
        # A function may leave state in its process, such as threads or variables. In this case,
        # only the same graph may use this process.
        with self._pool.use(
            None, lambda host: not host.left or host.graph == graph, self._start, lambda: None
        ) as host:
            if host.graph != graph:
                host.printed()  # drop output of the other graph
                host.graph = graph
            yield host

    def outdate(self, code: Mapping[str, str]) -> None:
        """Set the current fingerprints of all modules. After a change, all current processes are
        outdated, because modules import each other, and one changed module may affect every
        process.
        """
        if self._code and code != self._code:
            for host in self._pool.processes():
                host.outdated = True
        self._code = dict(code)


def _text(text: object) -> str:
    """Return text from users' code, with secrets and control characters removed."""
    return for_people(str(text).encode(errors="backslashreplace").decode(), TEXT_MAX)
