"""The worker's side of one process with users' code, which starts it, calls it with a time limit,
and kills it.

The process cannot delay the worker: every wait has a time limit, and every message and output has a
maximum size. The process leads its own process group, and the whole group is killed. Processes that
left the group are found by a mark in their environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crawler_lifecycle.clusters.local.launch import PASSED_ON
from crawler_lifecycle.clusters.local.processes import identity
from crawler_lifecycle.domain.errors import (
    ClusterUnavailable,
    DuplicateRequest,
    Fenced,
    InvalidRequest,
    NotDelivered,
    NotInThisState,
    RunNotFound,
)
from crawler_lifecycle.ports.protocols import UserCodeFailed

from .output import Output, for_people
from .wire import MESSAGE_MAX, TEXT_MAX, Message, encode

#: Errors of an ``Answer`` that are passed to users' code. Any other error ends the call.
PASS = (
    InvalidRequest,
    DuplicateRequest,
    Fenced,
    NotInThisState,
    RunNotFound,
    NotDelivered,
    ClusterUnavailable,
)
#: Answers a question of the host, given its name and arguments. Raises ``InvalidRequest`` for an
#: invalid question.
Answer = Callable[[str, Message], Any]
#: Called regularly during a call. An exception ends the call.
Alive = Callable[[], None]

#: The maximum number of seconds by which answers to questions extend the time limit of a call, and
#: the maximum number of questions in a call.
ANSWERS_S = 60.0
ASKS_MAX = 20_000
#: The number of questions per second of a call's limit. A long call may ask this many, even above
#: ``ASKS_MAX``.
ASKS_A_SECOND = 10
#: The setting that gives a call of a manager more time.
SETTING = "LIFECYCLE_USER_CODE__HOOK_TIMEOUT_S (LIFECYCLE_USER_CODE__PAGE_TIMEOUT_S for its source)"
#: The maximum number of seconds that a process gets to end on its own.
POLITE_S = 2.0
#: The maximum number of seconds from the start of a process to its first reply, including our
#: imports.
START_S = 30.0
#: Environment variable of the process; processes that it starts inherit it.
_MARK = "CRAWL_PLANS_PROCESS"
#: The number of searches for processes outside of the group. These processes may start more
#: processes during a search.
_ROUNDS = 5
#: The maximum number of seconds to wait for the end of a process that has closed its pipe.
_LEAVING_S = 1.0
_TURN_S = 0.5
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for every process with users' code."""

    memory: int = 1024**3
    """The maximum number of bytes of private memory of one process."""
    passed_on: tuple[str, ...] = ()
    """Names of further environment variables of the worker that users' code gets."""
    folder: Path = field(default_factory=Path.cwd)
    """The first folder to search for users' modules, and the working directory."""

    def environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process, which contains the variables of ``ours`` that the
        process may have.
        """
        named = {*PASSED_ON, *self.passed_on, "PYTHONPATH", "LC_ALL", "LC_CTYPE"}
        return {name: value for name, value in ours.items() if name in named}


class HostProcess:
    """A host process. Any thread may call it, but only one call at a time."""

    def __init__(self, label: str, rules: Rules, files: Sequence[int] = ()) -> None:
        """Start the process with these open files.

        Raises ``UserCodeFailed`` if the system cannot start it.
        """
        self.label = label
        self.at: tuple[str, int | None] | None = None
        """The last reported position: the name of a method, and the id of the method's job."""
        self.did: Any = None
        """The last reported work, which is not checked yet."""
        ours_in, its_out = os.pipe()
        its_in, ours_out = os.pipe()
        mark = uuid.uuid4().hex
        self._mark = os.fsencode(f"{_MARK}={mark}")
        command = [sys.executable, "-m", "crawler_lifecycle.features.user_code.host"]
        command += [str(number) for number in (os.getpid(), its_in, its_out, rules.memory, *files)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=rules.folder,
                env={**rules.environment(os.environ), _MARK: mark},
                pass_fds=(its_in, its_out, *files),
                start_new_session=True,
            )
        except OSError as error:
            os.close(ours_in)
            os.close(ours_out)
            raise UserCodeFailed(
                f"no process for {label} can be started here: {error}", missing=True
            ) from None
        finally:
            os.close(its_in)
            os.close(its_out)
        self.pid = self._process.pid
        self._in = ours_in
        self._out = ours_out
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._unread = bytearray()
        self._calls = 0
        self._ending = threading.Lock()
        self._gone: str | None = None
        self._struck = False
        assert self._process.stdout is not None  # because of ``stdout=PIPE``
        self.output = Output(label, self._process.stdout.fileno())

    def lives(self) -> bool:
        """Return whether the process is alive.

        The process is not reaped here, so its number is not reused before ``kill``.
        """
        if self._gone is not None:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        except ChildProcessError:  # another thread has just killed it
            return False

    def call(
        self,
        name: str,
        limit_s: float,
        answer: Answer,
        alive: Alive,
        *,
        setting: str = SETTING,
        whole_s: float = 0.0,
        **arguments: Any,
    ) -> Any:
        """Call the host and return its reply.

        ``limit_s`` is the time limit in seconds. The time limit restarts for each method that the
        host enters within ``whole_s`` seconds. ``setting`` names the setting with the time limit,
        for error messages. After any error except one from the user's class, the process is killed.
        Raises ``UserCodeFailed``, and any error of ``alive``.
        """
        self.at = None
        self._calls += 1
        call = _Call(self, limit_s, answer, alive, setting, whole_s)
        try:
            return call.result({"call": name, "id": self._calls, "limit_s": limit_s, **arguments})
        except _Over as over:
            if over.ended:
                self._wait_for_end(_LEAVING_S)  # a process closes its files before it has ended
            how = self.kill()
            raise self.failed(over.text.format(how=how) + self.output.newest()) from None
        except BaseException as error:
            if not (isinstance(error, UserCodeFailed) and error.lives):
                self.kill()
            raise

    def failed(self, text: str, lives: bool = False) -> UserCodeFailed:
        """Return the error for a failed call.

        ``lives`` is true if the user's class raised the error and the process is still alive.
        """
        method, item_id = self.at or (None, None)
        position = f" in {method}" if method and not lives else ""
        shown = for_people(f"{self.label}{position}: {text}", TEXT_MAX)
        return UserCodeFailed(shown, item_id=item_id, lives=lives, struck=self._struck)

    def end(self) -> None:
        """Let the process end on its own within ``POLITE_S``, and otherwise kill it. No other
        thread may be in a call.
        """
        if self._gone is not None:
            return
        with contextlib.suppress(OSError):
            os.write(self._out, encode({"call": "end"}))
        self._wait_for_end(POLITE_S)
        self.kill()

    def _wait_for_end(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.lives() and time.monotonic() < until:
            time.sleep(0.005)

    def strike(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the whole process group, from any thread.

        The death of the process ends a current call. ``kill`` must still be called.
        """
        with self._ending:
            if self._gone is None:
                # The process is not reaped yet, so no other process or group has its number.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, how)

    def resident(self) -> int:
        """Return the number of bytes of memory that the process is using; 0 if unknown."""
        try:
            return (
                int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize()
            )
        except (OSError, IndexError, ValueError):
            return 0

    def kill(self) -> str:
        """Kill the process and all processes that it started, and return its outcome in words.

        No other thread may be in a call.
        """
        killed = self.lives()
        self.strike()
        with self._ending:
            if self._gone is None:
                code = self._process.wait()
                self._end_what_left_it()
                os.close(self._in)
                os.close(self._out)
                self.output.close()
                if self._process.stdout is not None:
                    self._process.stdout.close()
                self._gone = "was killed" if killed else _ended(code)
                self._struck = not killed and code in (-signal.SIGKILL, -signal.SIGTERM)
            return self._gone

    def _end_what_left_it(self) -> None:
        """Kill processes that have left the process group."""
        with contextlib.suppress(OSError):  # systems other than Linux have no /proc
            for _ in range(_ROUNDS):
                if not identity.kill_all(identity.members(None, [self._mark])):
                    return

    # --- the pipes, for a call

    def send(self, message: bytes, wait: Callable[[bool], None]) -> None:
        """Write the whole message. ``wait`` is called while the pipe is full."""
        rest = memoryview(message)
        while rest:
            try:
                rest = rest[os.write(self._out, rest) :]
            except BlockingIOError:
                wait(True)
            except OSError:
                raise _Over("its process {how}", ended=True) from None

    def receive(self, wait: Callable[[bool], None]) -> dict[str, Any]:
        """Return the next message. ``wait`` is called while the pipe is empty."""
        while (end := self._unread.find(b"\n")) < 0:
            if len(self._unread) > MESSAGE_MAX:
                raise _Over(
                    f"it sent a message above {MESSAGE_MAX} bytes, and {{how}}; let it return less"
                )
            try:
                part = os.read(self._in, _CHUNK)
            except BlockingIOError:
                wait(False)
                continue
            if not part:
                raise _Over("its process {how}", ended=True)
            self._unread += part
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise _Over(
                "it wrote into our pipe, and {how}; let it close and write only its own files"
            )
        return found

    def wait_for(self, writing: bool, seconds: float) -> bool:
        """Wait up to ``seconds`` until the pipe can be written, or read or has ended. Return
        whether it can.
        """
        reading, ready = ([], [self._out]) if writing else ([self._in], [])
        return any(select.select(reading, ready, [], max(0.0, seconds)))


class _Over(Exception):
    """Raised if the call gets no reply and the process must end.

    ``{how}`` in the text is replaced by a description of the end of the process.
    """

    def __init__(self, text: str, *, ended: bool = False) -> None:
        """Store the text. ``ended`` is true if the process seems to have ended on its own."""
        self.text = text
        self.ended = ended


@dataclass(eq=False)
class _Call:
    """One call, from its message to its reply."""

    process: HostProcess
    limit_s: float
    answer: Answer
    alive: Alive
    setting: str
    whole_s: float

    def __post_init__(self) -> None:
        self._asks_max = max(ASKS_MAX, int(self.limit_s * ASKS_A_SECOND))
        self._began = time.monotonic()
        self._until = self._began + self.limit_s
        self._answered_s = 0.0
        self._asks = 0
        self._checked = 0.0

    def result(self, message: Message) -> Any:
        self.process.send(encode(message), self._wait)
        while True:
            found = self.process.receive(self._wait)
            if "ask" in found:
                self.process.send(self._answered(found), self._wait)
            elif "at" in found:
                item = found.get("item")
                name = str(found["at"])[:100].encode(errors="backslashreplace").decode()
                self.process.at = (for_people(name, TEXT_MAX), item if type(item) is int else None)
                entered = min(time.monotonic(), self._began + self._answered_s + self.whole_s)
                self._until = max(self._until, entered + self.limit_s)
                # Check the limit here too, because we never wait while a process sends without a
                # pause.
                self._left()
            elif "did" in found:
                self.process.did = found["did"]
                self._left()
            elif found.get("id") != message["id"]:
                raise _Over(
                    "it sent a reply to another call, and {how}; let it write only to its own files"
                )
            elif "reply" in found:
                return found["reply"]
            elif "wrong" in found or "broken" in found:
                raise self.process.failed(
                    str(found.get("wrong") or found.get("broken")), lives=True
                )
            else:
                raise _Over(
                    "it sent an unknown message, and {how}; let it write only to its own files"
                )

    def _wait(self, writing: bool) -> None:
        if not self.process.lives() and not self.process.wait_for(False, 0.0):
            # Its child processes may keep the pipe open.
            raise _Over("its process {how}", ended=True)
        self.process.wait_for(writing, min(self._left(), _TURN_S))

    def _left(self) -> float:
        """Return the remaining seconds, and call ``alive`` regularly.

        Raises ``_Over`` after the time limit.
        """
        now = time.monotonic()
        if now - self._checked >= _TURN_S:
            self._checked = now
            self.alive()
        left = self._until - now
        if left <= 0:
            limit = f"{self.limit_s:g} s"
            raise _Over(
                f"it took more than {limit} and {{how}}; let it do less at once, or raise "
                f"{self.setting}"
            )
        return left

    def _answered(self, asked: Message) -> bytes:
        self._asks += 1
        if self._asks > self._asks_max:
            raise _Over(
                f"it asked more than {self._asks_max} questions in one call, and {{how}}; let it "
                "ask less"
            )
        began = time.monotonic()
        name = asked["ask"]
        arguments = asked.get("args")
        try:
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise InvalidRequest("a question needs a name and arguments")
            line = encode({"answer": self.answer(name, arguments)})
        except PASS as error:
            line = encode({"refused": str(error), "error": error.code})
        more = min(time.monotonic() - began, ANSWERS_S - self._answered_s)
        self._answered_s += more
        self._until += more
        return line


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}"
