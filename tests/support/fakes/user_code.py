"""``UserCodeProcesses`` in this process: for tests of everything around users' classes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from crawler_lifecycle.domain.run_data import AskedFiles
from crawler_lifecycle.features.managers.domain.manager import (
    Decision,
    Facts,
    JobState,
    Live,
    Page,
    Start,
    Waiting,
)
from crawler_lifecycle.managers.base import BaseScript
from crawler_lifecycle.managers.driver import Driver
from crawler_lifecycle.managers.platform import OwnedPage, OwnedQuery
from crawler_lifecycle.managers.types import ClassError
from crawler_lifecycle.ports.protocols import FunctionCall, FunctionReply, UserCodeFailed

Answer = Callable[[str, Mapping[str, Any]], Any]


class FakeHosts:
    """Processes as plain objects."""

    def __init__(
        self, classes: Mapping[str, type[BaseScript]], queue: str = "crawler-lifecycle-plans/fake"
    ) -> None:
        """``classes`` are by name; tests may add and replace some."""
        self.classes = dict(classes)
        self.queue = queue
        self.fingerprints: dict[str, str] = {}
        """Of plans; the others have that of their class's name."""
        self.made = 0
        """How many processes there were."""
        self.prints: dict[int, str] = {}
        """What the process of a manager prints next."""
        self._hosts: dict[int, FakeHost] = {}
        self._busy: dict[int, threading.Lock] = {}

    def __deepcopy__(self, _: object) -> FakeHosts:
        """Return the same classes in another worker, which has no process yet."""
        another = FakeHosts(self.classes, self.queue)
        another.fingerprints = dict(self.fingerprints)
        return another

    @contextmanager
    def use(
        self, plan: str, manager_id: int, attempt: int, generation: int, alive: Callable[[], None]
    ) -> Iterator[FakeHost]:
        """See the port."""
        with self._busy.setdefault(manager_id, threading.Lock()):
            alive()
            host = self._hosts.pop(manager_id, None)
            if host is None or host.is_for != (plan, attempt, generation):
                host = self._make(plan, attempt)
            yield host  # after an error, it stays forgotten
            if host.settled:
                self._hosts[manager_id] = host

    def drop(self, manager_id: int) -> None:
        """See the port. Also for a process that died."""
        self._hosts.pop(manager_id, None)

    def printed(self, manager_id: int) -> str:
        """See the port."""
        return self.prints.pop(manager_id, "")

    def _make(self, plan: str, attempt: int) -> FakeHost:
        cls = self.classes.get(plan)
        if cls is None:
            raise UserCodeFailed(f"{plan}: there is no such class", missing=True)
        self.made += 1
        return FakeHost(plan, attempt, cls, self.fingerprints.get(plan, cls.__name__))


class FakeHost:
    """One object of a class."""

    def __init__(self, plan: str, attempt: int, cls: type[BaseScript], fingerprint: str) -> None:
        self.plan, self.attempt, self._class = plan, attempt, cls
        self.fingerprint = fingerprint
        self.on_code_change: str = getattr(cls, "on_code_change", "replay")
        self.on_item_error: str = getattr(cls, "on_item_error", "stop")
        self.on_hook_error: str = getattr(cls, "on_hook_error", "fail")
        self.failed_outcomes: frozenset[str] = frozenset()
        self.generation: int | None = None
        self.at: str | None = None
        self.settled = True
        self._driver: Driver | None = None
        self._platform: FakePlatform | None = None

    @property
    def done(self) -> Decision | None:
        """See the port."""
        return None if self._platform is None else self._platform.done

    @property
    def is_for(self) -> tuple[str, int, int | None]:
        return self.plan, self.attempt, self.generation

    def begin(self, start: Start, generation: int, answer: Answer) -> None:
        """See the port."""
        self._platform = FakePlatform(start)
        try:
            with self._asking(answer):
                self._driver = Driver(self._class, self._platform)
                self._driver.begin()
                self.failed_outcomes = frozenset(self._driver.failed_outcomes)
        except UserCodeFailed as failed:
            failed.for_good = self._driver is None
            raise
        self.generation = generation

    def page(self, after: int, answer: Answer) -> Page:
        """See the port."""
        self.settled = False
        with self._asking(answer):
            return self._object.page(after)

    def cycle(self, facts: Facts, answer: Answer) -> Decision:
        """See the port."""
        self.settled = False
        with self._asking(answer):
            return self._object.cycle(facts)

    def finish(self, reason: str | None, answer: Answer) -> Decision:
        """See the port."""
        with self._asking(answer):
            return self._object.close(reason)

    @property
    def _object(self) -> Driver:
        assert self._driver is not None, "begin comes first"
        return self._driver

    @contextmanager
    def _asking(self, answer: Answer) -> Iterator[None]:
        assert self._platform is not None, "begin comes first"
        self._platform.answer = answer
        try:
            yield
        except ClassError as error:
            raise UserCodeFailed(f"{self.plan}: {error}", lives=True) from error


class FakePlatform(AskedFiles):
    """``Platform`` with function calls."""

    def __init__(self, start: Start) -> None:
        super().__init__(lambda name, **arguments: self.answer(name, arguments))
        self._start = start
        self.answer: Answer = lambda name, arguments: None
        self.done: Decision | None = None

    def start(self) -> Start:
        return self._start

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        raise TimeoutError(f"{seconds:g} s exceed the time limit of this call")

    def entering(self, what: str, item_id: int | None = None) -> None:
        pass

    def did(self, done: Decision) -> None:
        self.done = deepcopy(done)

    def waiting_jobs(self, state: JobState, after_id: int = 0, limit: int = 100) -> list[Waiting]:
        found: list[Waiting] = self.answer(
            "waiting_jobs", {"state": state, "after_id": after_id, "limit": limit}
        )
        return found

    def live_jobs(self, after_id: int = 0, limit: int = 500) -> list[Live]:
        found: list[Live] = self.answer("live_jobs", {"after_id": after_id, "limit": limit})
        return found

    def known_identities(self, identities: Collection[str]) -> set[str]:
        return set(self.answer("known_identities", {"identities": list(identities)}))

    def job(self, key: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.answer("job", {"key": key})
        return found

    def owned_jobs(self, query: OwnedQuery) -> OwnedPage:
        asked = {name: getattr(query, name) for name in OwnedQuery.__slots__}
        return OwnedPage(**self.answer("owned_jobs", asked))


class FakeFunctions:
    """``FunctionHosts`` whose functions do nothing."""

    def __init__(self) -> None:
        self.called: list[str] = []
        """Paths, each time that one was called."""

    @contextmanager
    def use(self, graph: str) -> Iterator[FakeFunctions]:
        """See the port."""
        yield self

    def call(self, call: FunctionCall, answer: Answer, alive: Callable[[], None]) -> FunctionReply:
        """See the port."""
        alive()
        self.called.append(call.job["path"])
        return FunctionReply("done")

    def give(self, values: Iterable[tuple[Mapping[str, Any], Iterable[bytes]]]) -> int:
        """See the port."""
        return 0

    def taken(self, size: int) -> list[bytes]:
        """See the port."""
        return []

    def end_soon(self) -> None:
        """See the port."""

    def printed(self) -> str:
        """See the port."""
        return ""
