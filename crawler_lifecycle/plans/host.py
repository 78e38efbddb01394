"""The process with users' code: ``python -m crawler_lifecycle.plans.host PARENT IN OUT MEMORY [GIVEN RESULT]``.

It holds the object of one manager, or calls functions of graphs (with the two files at the end), one after the other.
It reads calls from one pipe and writes replies to another (``plans/wire.py``); standard input is empty, and standard
output belongs to the user. It is started by ``plans/process.py`` and by nothing else. The user's code may change
anything in this process, so the other side checks every message.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from crawler_lifecycle.domain.managers.manager import CHOICES, Decision, JobState, Live, Start, Waiting
from crawler_lifecycle.domain.run_data import AskedFiles
from crawler_lifecycle.managers.driver import Driver
from crawler_lifecycle.managers.platform import OwnedPage, OwnedQuery
from crawler_lifecycle.managers.types import ClassError
from crawler_lifecycle.runner.child import become_subreaper

from . import loading, wire

if TYPE_CHECKING:
    from .caller import Caller

PR_SET_PDEATHSIG = 1


class HostPlatform(AskedFiles):
    """``Platform`` by questions to the worker."""

    def __init__(self, pipes: wire.Pipes, start: Start) -> None:
        super().__init__(pipes.ask)
        self._pipes, self._start = pipes, start
        self.limit_s = 0.0
        """Seconds that each method of the class may take, as of the call under way."""
        self._until = 0.0

    def start(self) -> Start:
        return self._start

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if time.monotonic() + seconds >= self._until:
            raise TimeoutError(f"{seconds:g} s are more than this call may take; return, and ask again in a later one")
        time.sleep(seconds)

    def entering(self, what: str, item_id: int | None = None) -> None:
        self._until = time.monotonic() + self.limit_s
        self._pipes.send({"at": what, "item": item_id})

    def did(self, done: Decision) -> None:
        self._pipes.send({"did": done})

    def waiting_jobs(self, state: JobState, after_id: int = 0, limit: int = 100) -> list[Waiting]:
        found = self._pipes.ask("waiting_jobs", state=state, after_id=after_id, limit=limit)
        return [wire.held(Waiting, one) for one in found]

    def live_jobs(self, after_id: int = 0, limit: int = 500) -> list[Live]:
        return [wire.held(Live, one) for one in self._pipes.ask("live_jobs", after_id=after_id, limit=limit)]

    def known_identities(self, identities: Collection[str]) -> set[str]:
        return set(self._pipes.ask("known_identities", identities=list(identities)))

    def job(self, key: str) -> dict[str, Any] | None:
        return cast(dict[str, Any] | None, self._pipes.ask("job", key=key))

    def owned_jobs(self, query: OwnedQuery) -> OwnedPage:
        return OwnedPage(**self._pipes.ask("owned_jobs", **asdict(query)))


class Host:
    """Holds one class and at most one object of it; each call is a method ``do_<name>``."""

    def __init__(self, pipes: wire.Pipes, files: Sequence[int] = ()) -> None:
        self._pipes, self._files = pipes, files
        self._caller: Caller | None = None
        self._class: type | None = None
        self._driver: Driver | None = None
        self._platform: HostPlatform | None = None

    def serve(self) -> None:
        """Until the worker ends it, or has died."""
        me = os.getpid()
        while (message := self._pipes.receive()) is not None and message["call"] != "end":
            self._pipes.open = True
            reply = self._reply(message)
            if os.getpid() != me:  # the user's code forked, and this is the copy
                os._exit(0)
            with contextlib.suppress(Exception):  # the user may have closed them
                sys.stdout.flush()  # before the reply: later output belongs to another call
                sys.stderr.flush()
            try:
                self._pipes.reply({"id": message["id"], **reply})
            except (TypeError, ValueError, RecursionError) as error:
                text = f"it answered what is no JSON ({error}); give texts, numbers, lists and dictionaries"
                self._pipes.reply({"id": message["id"], "broken": text})

    def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"reply": getattr(self, f"do_{message['call']}")(message)}
        except (ClassError, loading.NotUsable) as error:
            return {"wrong": str(error) or type(error).__name__}
        except BaseException as error:  # sys.exit and its like are no reason to leave
            return {"broken": loading.reported(error)}

    def do_find(self, message: dict[str, Any]) -> Any:
        return loading.find(message["module"])

    def do_load(self, message: dict[str, Any]) -> Any:
        self._class = found = loading.load(message["plan"])
        return {
            "fingerprint": loading.fingerprint(found),
            **{name: getattr(found, name, choices[0]) for name, choices in CHOICES.items()},
        }

    def do_begin(self, message: dict[str, Any]) -> Any:
        if self._class is None:
            raise loading.NotUsable("no class was loaded")
        self._platform = HostPlatform(self._pipes, Start(**message["start"]))
        self._platform.limit_s = message["limit_s"]
        self._platform.entering("__init__")
        self._driver = Driver(self._class, self._platform)
        self._driver.begin()
        return self._driver.failed_outcomes

    def do_page(self, message: dict[str, Any]) -> Any:
        return self._ready(message).page(message["after"])

    def do_cycle(self, message: dict[str, Any]) -> Decision:
        return self._ready(message).cycle(wire.facts(message["facts"]))

    def do_finish(self, message: dict[str, Any]) -> Decision:
        return self._ready(message).close(message["reason"])

    def do_open(self, message: dict[str, Any]) -> None:
        from crawler_lifecycle.graphs.asking import use  # managers need none of it

        use(None)  # imported code belongs to no graph
        importlib.import_module(message["module"])

    def do_function(self, message: dict[str, Any]) -> Any:
        if self._caller is None:
            from .caller import Caller  # managers need none of it

            self._caller = Caller(self._pipes, *self._files)
            become_subreaper()  # processes that leave our tree of children are found too
        before = _shared()
        return {**self._caller.call(message), "left": _shared() != before or _has_children()}

    def _ready(self, message: dict[str, Any]) -> Driver:
        if self._driver is None or self._platform is None:
            raise loading.NotUsable("no object was made")
        self._platform.limit_s = message["limit_s"]
        return self._driver


def _shared() -> list[object]:
    """Return the state of the process that a function may change for all later calls."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    timers = [signal.getitimer(one)[0] > 0 for one in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
    handlers = [signal.getsignal(one) for one in signal.valid_signals()]
    limits = [resource.getrlimit(one) for name, one in vars(resource).items() if name.startswith("RLIMIT_")]
    return [threading.active_count(), sys.getrecursionlimit(), dict(os.environ), blocked, timers, handlers, limits]


def _has_children() -> bool:
    """Return whether a process that was started here is left."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _restrain(parent: int, memory: int, pipes: wire.Pipes) -> None:
    """Die with the worker, also in copies; take no more memory than allowed; leave no core file."""

    def die_with_parent() -> None:
        with contextlib.suppress(OSError, AttributeError):  # another system than Linux: the pipe ends with the worker
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    os.register_at_fork(after_in_child=die_with_parent)
    os.register_at_fork(after_in_child=pipes.forget)


def main() -> None:
    """Serve one worker until it is gone."""
    parent, reading, writing, memory, *files = (int(word) for word in sys.argv[1:])
    sys.argv[1:] = []
    pipes = wire.Pipes(reading, writing)
    _restrain(parent, memory, pipes)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    Host(pipes, files).serve()
    logging.shutdown()
    os._exit(0)  # threads of the user's code are no reason to stay


if __name__ == "__main__":
    main()
