"""Supervision of long-running processes: start, health checks, restart with back-off, ordered
shutdown.

Twenty times per second, one thread compares the wanted parts with the running processes. Only this
thread starts processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from crawler_lifecycle.dev_json import VARIABLES, folder_of
from crawler_lifecycle.domain.names import STACK_HEADER

from . import processes

INTERVAL_S = 0.05
FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
#: Seconds after which a running part counts as stable: the next restart of this part then has the
#: shortest delay again.
PROVED_S = 30.0
#: Seconds between two health checks of a part, and the maximum number of seconds without a
#: response.
ASK_S = 5.0
SILENT_S = 60.0
#: If a pause takes this many seconds, the machine or this process was suspended, and no part counts
#: as silent.
SLEPT_S = 20.0
#: The maximum number of seconds until a part responds for the first time. This is enough even for a
#: slow machine.
READY_S = 180.0
#: A start fails if the part ends this many times before it is healthy.
FAILED_STARTS = 3


class PartFailed(Exception):
    """Raised if a part did not start. The text contains the part's name and the end of its log."""


@dataclass(frozen=True, slots=True)
class Part:
    """One process that the supervisor keeps running."""

    name: str
    command: Sequence[str]
    health: str
    """The address at which the part responds when it is ready (see ``answers``)."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    grace_s: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""


@dataclass(slots=True)
class _Supervised:
    part: Part
    log: Path
    wanted: bool = False
    process: subprocess.Popen[bytes] | None = None
    since: float = 0.0
    delay: float = 0.0
    due: float = 0.0
    ends: int = 0
    asked_to_end: float | None = None
    heard: float | None = None
    """Time of this process's last response; ``None`` if it has not responded yet or is not
    checked."""
    grace_s: float = 0.0
    starts: list[int] = field(default_factory=list)


class Supervisor:
    """A supervisor that keeps parts running.

    ``say`` is called with a line for each event; ``changed`` is called when the process id of a
    part has changed.

    If ``silent_s`` is given, a part that has responded once is restarted if it then does not
    respond for this many seconds.
    """

    def __init__(
        self,
        logs: Path,
        *,
        say: Callable[[str], None],
        changed: Callable[[], None],
        silent_s: float | None = None,
    ) -> None:
        self._logs = logs
        self._say = say
        self._changed = changed
        self._kept: dict[str, _Supervised] = {}
        self._wake = threading.Event()
        self._starting = threading.Lock()
        self._closed = False
        self._silent_s = silent_s
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._asking = threading.Thread(target=self._ask, name="asks parts", daemon=True)

    def start(self, parts: Iterable[Part]) -> None:
        """Set the parts that have to run, and return at once. ``wait_healthy`` waits until they are
        healthy.
        """
        for part in parts:
            log = self._logs / f"{part.name}.log"
            self._kept[part.name] = _Supervised(part, log, wanted=True, grace_s=part.grace_s)
        if not self._thread.is_alive():
            self._thread.start()
        if self._silent_s is not None and not self._asking.is_alive():
            self._asking.start()
        self._wake.set()

    def stop(self, names: Iterable[str] | None = None) -> None:
        """End these parts (default: all), and wait for their end."""
        chosen = [
            self._kept[name]
            for name in (self._kept if names is None else names)
            if name in self._kept
        ]
        # Wait for a start that is in progress, so that the loop below sees the new process.
        with self._starting:
            for kept in chosen:
                kept.wanted = False
        self._wake.set()
        while any(kept.process is not None for kept in chosen):
            time.sleep(INTERVAL_S / 2)

    def close(self) -> None:
        """End all parts, and the threads of the supervisor."""
        self.stop()
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def hurry(self) -> None:
        """Give no part a grace period from now on."""
        for kept in self._kept.values():
            kept.grace_s = 0.0

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a part, as another program could. Return the part's process id."""
        process = self._kept[name].process
        if process is None:
            raise ProcessLookupError(f"{name} is not running")
        os.kill(process.pid, number)
        return process.pid

    def pids(self) -> dict[str, int]:
        """Return the process ids of the running parts."""
        processes = [(name, kept.process) for name, kept in list(self._kept.items())]
        return {name: process.pid for name, process in processes if process is not None}

    def starts(self, name: str) -> int:
        """Return the number of starts of this part."""
        return len(self._kept[name].starts)

    def wait_healthy(self, names: Iterable[str] | None = None, timeout_s: float = READY_S) -> None:
        """Wait until these parts (default: all) are healthy. Raises ``PartFailed``."""
        until = time.monotonic() + timeout_s
        missing = [self._kept[name] for name in (self._kept if names is None else names)]
        before = {kept.part.name: kept.ends for kept in missing}
        while missing:
            missing = [kept for kept in missing if _status(kept) != 200]
            for kept in missing:
                ends = kept.ends - before[kept.part.name]
                if ends >= FAILED_STARTS or time.monotonic() > until:
                    why = (
                        f"ended {ends} times" if ends > 0 else f"is not ready after {timeout_s:g} s"
                    )
                    raise PartFailed(
                        f"{kept.part.name} {why}; the end of "
                        f"{kept.log}:\n{processes.tail(kept.log) or '(empty)'}"
                    )
            if missing:
                time.sleep(INTERVAL_S)

    def _watch(self) -> None:
        # this clock continues while the machine is suspended
        awake = time.clock_gettime(time.CLOCK_BOOTTIME)
        while not self._closed:
            now = time.monotonic()
            pause = time.clock_gettime(time.CLOCK_BOOTTIME) - awake
            awake += pause
            if pause > SLEPT_S:
                self._say(
                    f"this machine, or crawlctl dev, was suspended for {pause:.0f} s; the "
                    f"services continue"
                )
            for kept in list(self._kept.values()):
                if pause > SLEPT_S and kept.heard is not None:
                    kept.heard = now
                if self._tend(kept, now):
                    self._changed()
            self._wake.wait(INTERVAL_S)
            self._wake.clear()

    def _ask(self) -> None:
        """Check the health of parts in a separate thread, because a part that does not respond must
        not delay other parts.
        """
        while not self._closed:
            for kept in list(self._kept.values()):
                process = kept.process
                with contextlib.suppress(PartFailed):  # another process responds at this address
                    if _status(kept) is not None and kept.process is process:
                        kept.heard = time.monotonic()
            time.sleep(ASK_S)

    def _silent(self, kept: _Supervised, now: float) -> bool:
        return (
            self._silent_s is not None
            and kept.heard is not None
            and now - kept.heard > self._silent_s
        )

    def _tend(self, kept: _Supervised, now: float) -> bool:
        """Take the next step towards the wanted state of a part.

        Return whether the part's process id changed.
        """
        if kept.process is None:
            with self._starting:
                if kept.wanted and now >= kept.due:
                    self._spawn(kept, now)
                    return True
            return False
        code = kept.process.poll()
        if code is not None:
            kept.process = None
            kept.asked_to_end = None
            if kept.wanted:
                self._ended(kept, code, now)
            return True
        if not kept.wanted:
            self._ask_to_end(kept, kept.process, now)
        elif self._silent(kept, now):
            if kept.asked_to_end is None:
                self._say(
                    f"{kept.part.name} has not responded for {self._silent_s:g} s; replacing it "
                    f"(log: {kept.log})"
                )
            self._ask_to_end(kept, kept.process, now)
        elif kept.ends and now - kept.since >= PROVED_S:
            kept.ends = 0
            kept.delay = 0.0
        return False

    def _spawn(self, kept: _Supervised, now: float) -> None:
        part = kept.part
        try:
            kept.process = processes.spawn(part.command, env=part.env, cwd=part.cwd, log=kept.log)
        except OSError as error:  # at the moment, no memory or no file descriptor is free
            self._ended(kept, str(error), now)
            return
        kept.since = now
        kept.heard = None
        kept.starts.append(kept.process.pid)

    def _ended(self, kept: _Supervised, code: int | str, now: float) -> None:
        kept.ends += 1
        kept.delay = min(LONGEST_DELAY_S, max(FIRST_DELAY_S, kept.delay * 2))
        kept.due = now + kept.delay
        how = f"by signal {-code}" if isinstance(code, int) and code < 0 else f"with {code}"
        self._say(
            f"{kept.part.name} ended {how}; starting it again in {kept.delay:g} s (log: {kept.log})"
        )

    @staticmethod
    def _ask_to_end(kept: _Supervised, process: subprocess.Popen[bytes], now: float) -> None:
        if kept.asked_to_end is None:
            kept.asked_to_end = now
            process.terminate()
        elif now - kept.asked_to_end > kept.grace_s:
            process.kill()


# --- health ---------------------------------------------------------------------------------------


def ask(url: str, timeout_s: float = 2.0) -> tuple[int | None, str | None]:
    """Return the HTTP status of the response to a GET, or ``None``, and the stack named in the
    answer.

    For ``grpc://HOST:PORT/NAMESPACE``, the status is 200 if Temporal serves the namespace. The
    status is 503 if a part is not ready.
    """
    address = urlsplit(url)
    if address.scheme == "grpc":
        return 200 if _serves(address, timeout_s) else None, None
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout_s)
    try:
        connection.request("GET", address.path or "/")
        answer = connection.getresponse()
        return answer.status, answer.getheader(STACK_HEADER)
    except (OSError, http.client.HTTPException):
        return None, None
    finally:
        connection.close()


def _status(kept: _Supervised) -> int | None:
    """Return the status of a part: 503 if the part is not ready, ``None`` if a different process or
    no process responds.

    Our services name their stack in the response, because we cannot see their open sockets. Any
    other part counts only if its process listens at the address. Raises ``PartFailed`` if another
    stack responds at the part's address.
    """
    process = kept.process
    part = kept.part
    if process is None:
        return None
    status, stack = ask(part.health)
    if stack is not None and stack != part.env.get(VARIABLES["stack"]):
        raise PartFailed(
            f"{part.name}: {part.health} is an address of the stack of {folder_of(stack)}, and not "
            "of the stack of "
            f"{kept.log.parents[1]}; next: crawlctl dev --ports free"
        )
    if (
        status is None
        or stack is not None
        or processes.listens(process.pid, urlsplit(part.health).port or 0)
    ):
        return status
    return None


def _serves(address: SplitResult, timeout_s: float) -> bool:
    # At startup, usually no process is listening yet. A plain socket shows this quickly.
    try:
        socket.create_connection((address.hostname or "", address.port or 0), timeout_s).close()
    except OSError:
        return False
    # Imported here, because this module is slow to load.
    from crawler_lifecycle.temporal.operator.server import serves

    # Use a separate thread, because this thread may already have an event loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(
            asyncio.run, serves(address.netloc, address.path.strip("/"), timeout_s)
        ).result()
