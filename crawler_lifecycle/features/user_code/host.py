"""The host process with users' code.

``python -m crawler_lifecycle.features.user_code.host PARENT IN OUT MEMORY [GIVEN RESULT]``

The process contains the object of one manager, or calls functions of graphs one after the other.
GIVEN and RESULT are two open files for values of functions. The process reads calls from one pipe
and writes replies to a second pipe (``wire.py``). Standard input is empty, and only the user's code
writes to standard output. Only ``process.py`` starts it. Users' code can change anything in this
process, so the worker checks every message.
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
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.domain.run_data import AskedFiles
from crawler_lifecycle.domain.starts import offer
from crawler_lifecycle.features.managers.domain.manager import (
    CHOICES,
    Decision,
    JobState,
    Live,
    Start,
    Waiting,
)
from crawler_lifecycle.managers.driver import Driver
from crawler_lifecycle.managers.platform import OwnedPage, OwnedQuery
from crawler_lifecycle.managers.types import ClassError
from crawler_lifecycle.runner.child import become_subreaper

from . import loading, wire

if TYPE_CHECKING:
    from crawler_lifecycle.graphs.platform import Document

    from .caller import Caller

PR_SET_PDEATHSIG = 1


class HostPlatform(AskedFiles):
    """``Platform`` that sends its questions to the worker."""

    def __init__(self, pipes: wire.Pipes, start: Start) -> None:
        super().__init__(pipes.ask)
        self._pipes = pipes
        self._start = start
        self.limit_s = 0.0
        """The time limit in seconds for each method of the class, set by the current call."""
        self._until = 0.0

    def start(self) -> Start:
        return self._start

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if time.monotonic() + seconds >= self._until:
            raise TimeoutError(
                f"a sleep of {seconds:g} s exceeds the time limit of this call; wait in a "
                "later cycle"
            )
        time.sleep(seconds)

    def entering(self, what: str, item_id: int | None = None) -> None:
        self._until = time.monotonic() + self.limit_s
        self._pipes.send({"at": what, "item": item_id})

    def did(self, done: Decision) -> None:
        self._pipes.send({"did": done})

    def waiting_jobs(self, state: JobState, after_id: int = 0, limit: int = 100) -> list[Waiting]:
        found = self._pipes.ask("waiting_jobs", state=state, after_id=after_id, limit=limit)
        return [wire.restored(Waiting, row) for row in found]

    def live_jobs(self, after_id: int = 0, limit: int = 500) -> list[Live]:
        return [
            wire.restored(Live, row)
            for row in self._pipes.ask("live_jobs", after_id=after_id, limit=limit)
        ]

    def known_identities(self, identities: Collection[str]) -> set[str]:
        return set(self._pipes.ask("known_identities", identities=list(identities)))

    def job(self, key: str) -> Document | None:
        found: Document | None = self._pipes.ask("job", key=key)
        return found

    def owned_jobs(self, query: OwnedQuery) -> OwnedPage:
        return OwnedPage(**self._pipes.ask("owned_jobs", **asdict(query)))


class Host:
    """Answers a worker's calls. A call ``name`` executes the method ``do_name``.

    The host has at most one class and one object of the class.
    """

    def __init__(self, pipes: wire.Pipes, files: Sequence[int]) -> None:
        self._pipes = pipes
        self._files = files
        self._caller: Caller | None = None
        self._class: type | None = None
        self._driver: Driver | None = None
        self._platform: HostPlatform | None = None

    def serve(self) -> None:
        """Answer calls until the worker ends the process or has died."""
        me = os.getpid()
        while (message := self._pipes.receive()) is not None and message["call"] != "end":
            self._pipes.open = True
            reply = self._reply(message)
            if os.getpid() != me:  # the user's code has forked, and this process is the copy
                os._exit(0)
            with contextlib.suppress(Exception):  # the user's code may have closed them
                # This is done before the reply, because later output belongs to the next call.
                sys.stdout.flush()
                sys.stderr.flush()
            try:
                self._pipes.reply({"id": message["id"], **reply})
            except (TypeError, ValueError, RecursionError) as error:
                text = (
                    f"its return value is not JSON ({error}); return strings, numbers, lists and "
                    "dictionaries"
                )
                self._pipes.reply({"id": message["id"], "broken": text})

    def _reply(self, message: Document) -> Document:
        try:
            return {"reply": getattr(self, f"do_{message['call']}")(message)}
        except (ClassError, loading.NotUsable) as error:
            return {"wrong": str(error) or type(error).__name__}
        except BaseException as error:  # sys.exit() must not end this process
            return {"broken": loading.reported(error)}

    def do_find(self, message: Document) -> Any:
        return loading.find(message["module"])

    def do_spiders(self, message: Document) -> Any:
        from . import spiders  # imported here because only inspections need it

        return spiders.found()

    def do_load(self, message: Document) -> Any:
        self._class = found = loading.load(message["plan"])
        return {
            "fingerprint": loading.fingerprint(found),
            **{name: getattr(found, name, choices[0]) for name, choices in CHOICES.items()},
        }

    def do_begin(self, message: Document) -> Any:
        if self._class is None:
            raise loading.NotUsable("no class is loaded; call load first")
        self._platform = HostPlatform(self._pipes, Start(**message["start"]))
        self._platform.limit_s = message["limit_s"]
        offer(self._graphs)
        self._platform.entering("__init__")
        self._driver = Driver(self._class, self._platform)
        self._driver.begin()
        return self._driver.failed_outcomes

    def do_page(self, message: Document) -> Any:
        return self._ready(message).page(message["after"])

    def do_cycle(self, message: Document) -> Decision:
        return self._ready(message).cycle(wire.facts(message["facts"]))

    def do_finish(self, message: Document) -> Decision:
        return self._ready(message).close(message["reason"])

    def do_open(self, message: Document) -> None:
        # Imported here because managers do not need it.
        from crawler_lifecycle.graphs.asking import use

        use(None)  # code that runs at import belongs to no graph
        importlib.import_module(message["module"])

    def do_function(self, message: Document) -> Any:
        if self._caller is None:
            from .caller import (
                Caller,  # imported here because managers do not need it
            )

            self._caller = Caller(self._pipes, *self._files)
            # Orphaned grandchildren become our children, so that we can find them.
            become_subreaper()
        before = _shared()
        return {**self._caller.call(message), "left": _shared() != before or _has_children()}

    def _graphs(self) -> Any:
        from .caller import (
            HookGraphs,  # imported here because most managers start no graphs
        )

        return HookGraphs(self._pipes.ask)

    def _ready(self, message: Document) -> Driver:
        if self._driver is None or self._platform is None:
            raise loading.NotUsable("there is no object; call begin first")
        self._platform.limit_s = message["limit_s"]
        return self._driver


def _shared() -> list[object]:
    """Return the state of the process that a function can change for all later calls."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    timers = [
        signal.getitimer(timer)[0] > 0
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    ]
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    limits = [
        resource.getrlimit(value)
        for name, value in vars(resource).items()
        if name.startswith("RLIMIT_")
    ]
    return [
        threading.active_count(),
        sys.getrecursionlimit(),
        dict(os.environ),
        blocked,
        timers,
        handlers,
        limits,
    ]


def _has_children() -> bool:
    """Return whether this process has a child process."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _restrain(parent: int, memory: int, pipes: wire.Pipes) -> None:
    """Limit this process and its forks: they die with the worker, have a memory limit, and write no
    core file.
    """

    def die_with_parent() -> None:
        # The kernel means the thread that started this process, so that thread must live as long as
        # the worker. On systems other than Linux, the end of the pipe ends the process.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # a lower limit is already set
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    os.register_at_fork(after_in_child=die_with_parent)
    os.register_at_fork(after_in_child=pipes.forget)


def main() -> None:
    """Serve one worker until it ends this process or has died."""
    parent, reading, writing, memory, *files = (int(word) for word in sys.argv[1:])
    sys.argv[1:] = []
    pipes = wire.Pipes(reading, writing)
    _restrain(parent, memory, pipes)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    Host(pipes, files).serve()
    logging.shutdown()
    os._exit(0)  # do not wait for the threads of the user's code


if __name__ == "__main__":
    main()
