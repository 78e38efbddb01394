"""The processes with users' code of one worker: a pool of them for managers, and one for functions of graphs.

A manager has a process of its own, which holds its object. When there are too many, the longest idle process is ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.manager import CYCLE_S, OUTPUT_BYTES, Decision, Facts, Page, Start
from crawler_lifecycle.domain.names import plans_queue
from crawler_lifecycle.ports.protocols import PlanFailed, WorkerLeaves

from . import calls
from .process import START_S, Answer, HostProcess, Rules

T = TypeVar("T")
P = TypeVar("P", bound="Pooled")

#: Seconds between two checks, and signs of life, of a caller that waits for a process.
_TURN_S = 0.5


class Pooled:
    """A process as a pool has it."""

    process: HostProcess
    key: int | None = None
    """The key of its owner: there is one process of each key at a time. ``None``: no owner."""
    outdated = False
    """True when the source of its code has changed since."""

    def usable(self) -> bool:
        """Return whether it may be called again."""
        return not self.outdated and self.process.lives()

    def kill(self) -> None:
        """Kill it, with all its processes."""
        self.process.kill()


class Pool(Generic[P]):
    """Processes of one kind, each used by one thread at a time."""

    def __init__(self, most: float = float("inf")) -> None:
        self.over = threading.Event()
        """Set when all of them are being ended."""
        self.started, self.parked = 0, 0
        self._most = most
        self._changed = threading.Condition()
        self._idle: list[P] = []
        """The one idle longest is first."""
        self._taken: dict[object, P | None] = {}
        """Processes by their key; ``None`` while one is being started."""

    @contextmanager
    def use(
        self, key: int | None, fits: Callable[[P], bool], start: Callable[[], P], alive: Callable[[], None]
    ) -> Iterator[P]:
        """An idle process of this key, where it fits, else a new one. Waits while another thread uses the one of this
        key, and while all are taken.

        Raises ``WorkerLeaves``, and what ``start`` and ``alive`` raise, which is called while this waits.
        """
        slot = object() if key is None else key
        process, gone = self._take(slot, key, fits, alive)
        try:
            for one in gone:
                one.process.end()
                one.kill()
            if process is None:
                process = start()
                with self._changed:
                    self.started += 1
                    self._taken[slot] = process
                    if self.over.is_set():
                        process.process.strike()
            yield process
        finally:
            self._give_back(slot, process)

    def drop(self, key: int) -> None:
        """End the process of this key. One that is in use ends after its use, if it is not usable then."""
        with self._changed:
            gone = [one for one in self._idle if one.key == key]
            self._idle = [one for one in self._idle if one.key != key]
        for one in gone:
            one.process.end()

    def processes(self) -> list[P]:
        with self._changed:
            return [*self._idle, *(one for one in self._taken.values() if one is not None)]

    def state(self) -> dict[str, object]:
        """For the worker's health."""
        with self._changed:
            live = len(self._idle) + len(self._taken)
            return {"live": live, "at_work": len(self._taken), "started": self.started}

    def close(self) -> None:
        """End all processes. Calls under way end as with a killed process."""
        with self._changed:
            self.over.set()
            idle, self._idle = self._idle, []
            for one in self._taken.values():
                if one is not None:
                    one.process.strike()
        for one in idle:
            one.kill()

    def _take(
        self, slot: object, key: int | None, fits: Callable[[P], bool], alive: Callable[[], None]
    ) -> tuple[P | None, list[P]]:
        """The matching process, and those that must be ended first."""
        while True:
            with self._changed:
                if self.over.is_set():
                    raise WorkerLeaves("this worker leaves")
                if slot not in self._taken and (found := self._found(key, fits)) is not None:
                    self._taken[slot] = found[0]
                    return found
                self._changed.wait(_TURN_S)
            alive()

    def _found(self, key: int | None, fits: Callable[[P], bool]) -> tuple[P | None, list[P]] | None:
        """The same; ``None``: all are in use. The caller holds the lock."""
        gone: list[P] = []
        for process in [one for one in reversed(self._idle) if one.key == key]:
            self._idle.remove(process)
            if process.usable() and fits(process):
                return process, gone
            gone.append(process)
        if not gone and len(self._idle) + len(self._taken) >= self._most:
            if not self._idle:
                return None
            gone.append(self._idle.pop(0))
            self.parked += 1
        return None, gone

    def _give_back(self, slot: object, process: P | None) -> None:
        keep = process is not None and process.usable()
        if process is not None and not keep:
            process.kill()
        with self._changed:
            del self._taken[slot]
            if process is not None and keep:
                self._idle.append(process)
            self._changed.notify_all()
        if self.over.is_set():
            self.close()


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of calls, in seconds, and the most processes."""

    hook_s: float = 60.0
    page_s: float = 300.0
    processes: int = 100


class Host(Pooled):
    """``PlanHost`` by a process."""

    def __init__(self, plan: str, manager_id: int, attempt: int, rules: Rules, limits: Limits) -> None:
        """Start it. Raises ``PlanFailed``."""
        self.plan, self.key, self.attempt = plan, manager_id, attempt
        self.process, self._limits = HostProcess(f"{plan} of manager {manager_id}", rules), limits
        self.fingerprint, self.on_code_change, self.on_item_error, self.on_hook_error = "", "replay", "stop", "fail"
        self.failed_outcomes: frozenset[str] = frozenset()
        self.generation: int | None = None
        self.settled = True
        self.alive: Callable[[], None] = _nothing

    @property
    def at(self) -> str | None:
        return None if self.process.at is None else self.process.at[0]

    def usable(self) -> bool:
        return self.settled and self.generation is not None and super().usable()

    def load(self) -> None:
        """Import the class."""
        try:
            one = self._call("load", max(self._limits.hook_s, START_S), no_answer, calls.loaded, plan=self.plan)
        except PlanFailed as failed:
            failed.missing = True
            raise
        self.fingerprint, self.on_code_change = one.fingerprint, one.on_code_change
        self.on_item_error, self.on_hook_error = one.on_item_error, one.on_hook_error

    def begin(self, start: Start, generation: int, answer: Answer) -> None:
        try:
            hook_s, whole_s = self._limits.hook_s, self._limits.page_s
            outcomes = self._call("begin", hook_s, answer, calls.outcomes, start=start, whole_s=whole_s)
        except PlanFailed as failed:
            failed.for_good = self.at == "__init__"
            raise
        self.generation, self.failed_outcomes = generation, outcomes

    def page(self, after: int, answer: Answer) -> Page:
        self.settled = False
        return self._call("page", self._limits.page_s, answer, lambda reply: calls.page(reply, after), after=after)

    def cycle(self, facts: Facts, answer: Answer) -> Decision:
        self.settled, self.process.did = False, None
        return self._call("cycle", self._limits.hook_s, answer, calls.decision, facts=facts, whole_s=CYCLE_S)

    @property
    def done(self) -> Decision | None:
        try:
            return None if self.process.did is None else calls.decision(self.process.did)
        except InvalidRequest:
            return None

    def finish(self, reason: str | None, answer: Answer) -> Decision:
        return self._call("finish", self._limits.hook_s, answer, calls.decision, reason=reason)

    def _call(self, name: str, limit_s: float, answer: Answer, check: Callable[[object], T], **arguments: Any) -> T:
        reply = self.process.call(name, limit_s, answer, self.alive, **arguments)
        try:
            return check(reply)
        except InvalidRequest as why:
            self.process.kill()
            raise PlanFailed(f"{self.process.label}: its answer to {name} cannot be: {why}") from None


class Hosts:
    """``PlanHosts`` of one worker. Used from the threads of its activities."""

    def __init__(self, worker_id: str, modules: Collection[str], rules: Rules, limits: Limits) -> None:
        """``modules``: only classes of these modules may be loaded now."""
        self.own_queue = plans_queue(worker_id)
        self._modules, self._rules, self._limits = modules, rules, limits
        self._pool: Pool[Host] = Pool(limits.processes)
        self.close = self._pool.close
        self._lock = threading.Lock()
        self._known: set[int] = set()
        """Managers that should come back to this worker."""
        self._printed: dict[int, str] = {}
        """Output of processes that nobody has read yet, by manager."""
        self._leaving = False

    @property
    def queue(self) -> str | None:
        """See the port."""
        return None if self._leaving else self.own_queue

    def leave(self) -> list[int]:
        """From now on no manager should come back here. Returns those that should have, with or without an object
        here.
        """
        with self._lock:
            self._leaving = True
            return sorted(self._known)

    @contextmanager
    def use(
        self, plan: str, manager_id: int, attempt: int, generation: int, alive: Callable[[], None]
    ) -> Iterator[Host]:
        if plan.partition(":")[0] not in self._modules:
            cure = "add it there, or let a worker that has it serve this queue alone"
            raise PlanFailed(f"{plan}: its module is none of LIFECYCLE_PLANS__MODULES here; {cure}", missing=True)

        def fits(host: Host) -> bool:
            return (host.plan, host.attempt, host.generation) == (plan, attempt, generation)

        def start() -> Host:
            with self._lock:
                self._known.add(manager_id)
            return Host(plan, manager_id, attempt, self._rules, self._limits)

        try:
            with self._pool.use(manager_id, fits, start, alive) as host:
                host.alive = alive
                try:
                    if host.generation is None:
                        host.load()
                    yield host
                finally:
                    host.alive = _nothing
                    self._hear(manager_id, host)
        except WorkerLeaves as why:
            raise PlanFailed(str(why)) from None

    def drop(self, manager_id: int) -> None:
        """See the port. One that is in use ends with its call."""
        with self._lock:
            self._known.discard(manager_id)
        self._pool.drop(manager_id)

    def printed(self, manager_id: int) -> str:
        with self._lock:
            return self._printed.pop(manager_id, "")

    def retire(self, fingerprints: Mapping[str, str]) -> None:
        """Their source has changed: processes that loaded the former one are replaced when they are idle."""
        for host in self._pool.processes():
            host.outdated |= fingerprints.get(host.plan, host.fingerprint) != host.fingerprint

    def state(self) -> dict[str, object]:
        """For the worker's health."""
        return self._pool.state() | {"most": self._limits.processes, "parked": self._pool.parked}

    def _hear(self, manager_id: int, host: Host) -> None:
        if not host.usable():
            host.kill()
        text = host.process.output.take()
        with self._lock:
            self._printed[manager_id] = (self._printed.get(manager_id, "") + text)[-OUTPUT_BYTES:]


def _nothing() -> None:
    """Without a sign of life: nobody waits."""


def no_answer(name: str, _: Mapping[str, Any]) -> Any:
    """The answer to every question where there is no manager."""
    raise InvalidRequest(f"{name}: there is no manager yet; ask in on_start or later")
