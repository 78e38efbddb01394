"""The process that holds a user's class: ``python -m crawler_lifecycle.plans.host PARENT IN OUT MEMORY``.

It reads calls from one pipe and writes replies to another (``plans/wire.py``); standard input is empty, and standard
output belongs to the user. It is started by ``plans/process.py`` and by nothing else. What the user's code may do to
this process is everything, so nothing that is said here is believed without a check on the other side.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

from crawler_lifecycle.domain.manager import Decision, JobState, Live, Start, Waiting
from crawler_lifecycle.managers.driver import Driver
from crawler_lifecycle.managers.platform import OwnedPage, OwnedQuery
from crawler_lifecycle.managers.types import ClassError
from crawler_lifecycle.plans import loading, wire

PR_SET_PDEATHSIG = 1


class Pipes:
    """The two pipes to the worker."""

    def __init__(self, reading: int, writing: int) -> None:
        self._read, self._write = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")

    def receive(self) -> dict[str, Any] | None:
        """The next message; ``None`` when the worker is gone."""
        line = self._read.readline()
        return json.loads(line) if line else None

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises ``ValueError`` and ``TypeError`` for what is no JSON, and sends nothing then."""
        line = wire.encode(message)
        self._write.write(line)
        self._write.flush()

    def forget(self) -> None:
        """In a copy of this process: it must not speak for the original."""
        for file in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(file.fileno())


class HostPlatform:
    """``Platform`` by questions to the worker."""

    def __init__(self, pipes: Pipes, start: Start) -> None:
        self._pipes, self._start = pipes, start
        self.until = 0.0
        """When the call under way is killed, by ``time.monotonic``."""

    def start(self) -> Start:
        return self._start

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if time.monotonic() + seconds >= self.until:
            raise TimeoutError(f"{seconds:g} s are more than this call may take; return, and ask again in a later one")
        time.sleep(seconds)

    def entering(self, what: str, item_id: int | None = None) -> None:
        self._pipes.send({"at": what, "item": item_id})

    def waiting_jobs(self, state: JobState, after_id: int = 0, limit: int = 100) -> list[Waiting]:
        found = self._ask("waiting_jobs", state=state, after_id=after_id, limit=limit)
        return [wire.waiting(one) for one in found]

    def live_jobs(self, after_id: int = 0, limit: int = 500) -> list[Live]:
        return [wire.live(one) for one in self._ask("live_jobs", after_id=after_id, limit=limit)]

    def known_identities(self, identities: Collection[str]) -> set[str]:
        return set(self._ask("known_identities", identities=list(identities)))

    def job(self, key: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._ask("job", key=key)
        return found

    def owned_jobs(self, query: OwnedQuery) -> OwnedPage:
        return OwnedPage(**self._ask("owned_jobs", **asdict(query)))

    def _ask(self, name: str, **arguments: Any) -> Any:
        self._pipes.send({"ask": name, "args": arguments})
        answer = self._pipes.receive()
        if answer is None:
            os._exit(0)  # the worker is gone
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer["answer"]


class Host:
    """One class, at most one object of it, and the calls."""

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        self._class: type | None = None
        self._driver: Driver | None = None
        self._platform: HostPlatform | None = None
        self._calls: dict[str, Callable[[dict[str, Any]], Any]] = {
            "find": self._find,
            "load": self._load,
            "begin": self._begin,
            "page": self._page,
            "cycle": self._cycle,
            "finish": self._finish,
        }

    def serve(self) -> None:
        """Until the worker says so, or is gone."""
        me = os.getpid()
        while (message := self._pipes.receive()) is not None and message["call"] != "end":
            reply = self._reply(message)
            if os.getpid() != me:  # the user's code forked, and this is the copy
                os._exit(0)
            try:
                self._pipes.send({"id": message["id"], **reply})
            except (TypeError, ValueError, RecursionError) as error:
                text = f"it answered what is no JSON ({error}); give texts, numbers, lists and dictionaries"
                self._pipes.send({"id": message["id"], "broken": text})
            with contextlib.suppress(Exception):  # the user may have closed them
                sys.stdout.flush()
                sys.stderr.flush()

    def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"reply": self._calls[message["call"]](message)}
        except (ClassError, loading.NotUsable) as error:
            return {"wrong": str(error) or type(error).__name__}
        except BaseException as error:  # sys.exit and its like are no reason to leave
            return {"broken": _told(error)}

    def _find(self, message: dict[str, Any]) -> Any:
        return loading.find(message["module"])

    def _load(self, message: dict[str, Any]) -> Any:
        loaded = loading.load(message["plan"])
        self._class = loaded.cls
        return {
            "fingerprint": loading.fingerprint(loaded.cls),
            "on_code_change": getattr(loaded.cls, "on_code_change", "replay"),
            "on_item_error": getattr(loaded.cls, "on_item_error", "stop"),
        }

    def _begin(self, message: dict[str, Any]) -> Any:
        if self._class is None:
            raise loading.NotUsable("no class was loaded")
        self._platform = HostPlatform(self._pipes, Start(**message["start"]))
        self._platform.until = time.monotonic() + message["limit_s"]
        self._platform.entering("__init__")
        self._driver = Driver(self._class, self._platform)
        self._driver.begin()
        return self._driver.failed_outcomes

    def _page(self, message: dict[str, Any]) -> Any:
        return self._ready(message).page(message["after"])

    def _cycle(self, message: dict[str, Any]) -> Decision:
        return self._ready(message).cycle(wire.facts(message["facts"]))

    def _finish(self, message: dict[str, Any]) -> Decision:
        return self._ready(message).close(message["reason"])

    def _ready(self, message: dict[str, Any]) -> Driver:
        if self._driver is None or self._platform is None:
            raise loading.NotUsable("no object was made")
        self._platform.until = time.monotonic() + message["limit_s"]
        return self._driver


def _told(error: BaseException) -> str:
    """The exception and where in the user's code it came from; the whole stack goes to the output."""
    with contextlib.suppress(Exception):
        traceback.print_exception(error)
    kind = type(error).__name__
    text = f"{kind}: {error}" if str(error) else kind
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "crawler_lifecycle" not in frame.filename] or frames
    return f"{text} ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else text


def _restrain(parent: int, memory: int, pipes: Pipes) -> None:
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
    parent, reading, writing, memory = (int(word) for word in sys.argv[1:5])
    sys.argv[1:] = []
    pipes = Pipes(reading, writing)
    _restrain(parent, memory, pipes)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    Host(pipes).serve()
    logging.shutdown()
    os._exit(0)  # threads of the user's code are no reason to stay


if __name__ == "__main__":
    main()
