"""The processes with users' code of one worker: one for each manager, at most so many; the one idle longest goes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.manager import CYCLE_S, OUTPUT_BYTES, Decision, Facts, Page, Start
from crawler_lifecycle.domain.names import plans_queue
from crawler_lifecycle.ports.protocols import PlanFailed

from . import calls
from .process import START_S, Answer, HostProcess, Rules

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How often somebody who waits for a process looks, and says that it is alive. Seconds.
_TURN_S = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that calls may take, and how many processes there may be."""

    hook_s: float = 60.0
    page_s: float = 300.0
    processes: int = 100


class Host:
    """``PlanHost`` by a process."""

    def __init__(self, plan: str, manager_id: int, attempt: int, process: HostProcess, limits: Limits) -> None:
        self.plan, self.manager_id, self.attempt = plan, manager_id, attempt
        self.process, self._limits = process, limits
        self.fingerprint, self.on_code_change, self.on_item_error, self.on_hook_error = "", "replay", "stop", "fail"
        self.failed_outcomes: frozenset[str] = frozenset()
        self.generation: int | None = None
        self.settled = True
        self.outdated = False
        """Whether the source of its class has changed since."""
        self.used_at = time.monotonic()
        self.alive: Callable[[], None] = _nothing

    @property
    def at(self) -> str | None:
        return None if self.process.at is None else self.process.at[0]

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
            told = self._call("begin", hook_s, answer, calls.outcomes, start=start, whole_s=whole_s)
        except PlanFailed as failed:
            failed.for_good = self.at == "__init__"
            raise
        self.generation, self.failed_outcomes = generation, told

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
        except calls.Nonsense:
            return None

    def finish(self, reason: str | None, answer: Answer) -> Decision:
        return self._call("finish", self._limits.hook_s, answer, calls.decision, reason=reason)

    def _call(self, name: str, limit_s: float, answer: Answer, check: Callable[[object], T], **arguments: Any) -> T:
        reply = self.process.call(name, limit_s, answer, self.alive, **arguments)
        try:
            return check(reply)
        except calls.Nonsense as why:
            self.process.kill()
            raise PlanFailed(f"{self.process.label}: its answer to {name} cannot be: {why}") from None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which process is wanted."""

    plan: str
    manager_id: int
    attempt: int
    generation: int

    def fits(self, host: Host) -> bool:
        """Whether this is the one, and can be called."""
        its = (host.manager_id, host.plan, host.attempt, host.generation)
        same = its == (self.manager_id, self.plan, self.attempt, self.generation)
        return same and not host.outdated and host.process.lives()


class Hosts:
    """``PlanHosts`` of one worker. Used from the threads of its activities."""

    def __init__(self, worker_id: str, modules: Collection[str], rules: Rules, limits: Limits) -> None:
        """``modules``: those whose classes may be loaded at the moment, and no others."""
        self.own_queue = plans_queue(worker_id)
        self._modules = modules
        self._rules, self._limits = rules, limits
        self._changed = threading.Condition()
        self._idle: dict[int, Host] = {}
        self._taken: dict[int, Host | None] = {}
        """Managers whose process somebody uses; ``None`` while it is being started."""
        self._known: set[int] = set()
        """Managers that were told to come back here."""
        self._printed: dict[int, str] = {}
        """What processes printed and nobody has asked for, by manager."""
        self._started, self._parked, self._over = 0, 0, False
        self._leaving = False

    @property
    def queue(self) -> str | None:
        """See the port."""
        return None if self._leaving else self.own_queue

    def leave(self) -> list[int]:
        """From now on nobody is told to come back here; the managers that were, whether or not their objects are still
        here."""
        with self._changed:
            self._leaving = True
            return sorted(self._known)

    @contextmanager
    def use(
        self, plan: str, manager_id: int, attempt: int, generation: int, alive: Callable[[], None]
    ) -> Iterator[Host]:
        host = self._take(_Wanted(plan, manager_id, attempt, generation), alive)
        try:
            host.alive = alive
            yield host
        finally:
            self._give_back(manager_id, host)

    def drop(self, manager_id: int) -> None:
        """See the port. One that is in use ends with its call."""
        with self._changed:
            host = self._idle.pop(manager_id, None)
            self._known.discard(manager_id)
        if host is not None:
            host.process.end()

    def printed(self, manager_id: int) -> str:
        with self._changed:
            return self._printed.pop(manager_id, "")

    def retire(self, fingerprints: Mapping[str, str]) -> None:
        """Their source is another one now: processes that loaded the former one are replaced when they are idle."""
        with self._changed:
            for host in (*self._idle.values(), *filter(None, self._taken.values())):
                host.outdated |= fingerprints.get(host.plan, host.fingerprint) != host.fingerprint

    def state(self) -> dict[str, object]:
        """For the worker's health."""
        with self._changed:
            return {
                "live": len(self._idle) + len(self._taken),
                "at_work": len(self._taken),
                "most": self._limits.processes,
                "started": self._started,
                "parked": self._parked,
            }

    def close(self) -> None:
        """End all of them. Calls under way end as those of a process that was killed."""
        with self._changed:
            self._over = True
            idle, taken = list(self._idle.values()), [host for host in self._taken.values() if host is not None]
            self._idle.clear()
        for host in taken:
            host.process.strike()
        for host in idle:
            host.process.kill()

    def _take(self, wanted: _Wanted, alive: Callable[[], None]) -> Host:
        if wanted.plan.partition(":")[0] not in self._modules:
            cure = "add it there, or let a worker that has it serve this queue alone"
            raise PlanFailed(
                f"{wanted.plan}: its module is none of LIFECYCLE_PLANS__MODULES here; {cure}", missing=True
            )
        while True:
            with self._changed:
                if self._over:
                    raise PlanFailed("this worker leaves")
                found = self._room(wanted)
                if isinstance(found, Host) and wanted.fits(found):
                    return found
                if found is not False:
                    break
                self._changed.wait(_TURN_S)
            alive()
        try:
            if isinstance(found, Host):
                found.process.end()
            return self._start(wanted, alive)
        except BaseException:
            with self._changed:
                del self._taken[wanted.manager_id]
                self._changed.notify_all()
            raise

    def _room(self, wanted: _Wanted) -> Host | bool:
        """Take the manager's own process, or one that has to go for a new one; ``True``: there is room, ``False``:
        wait. The caller holds the lock."""
        if wanted.manager_id in self._taken:
            return False
        found = self._idle.pop(wanted.manager_id, None)
        if found is not None and wanted.fits(found):
            self._taken[wanted.manager_id] = found
            return found
        if found is None and len(self._idle) + len(self._taken) >= self._limits.processes:
            if not self._idle:
                return False
            found = self._idle.pop(min(self._idle, key=lambda one: self._idle[one].used_at))
            self._parked += 1
        self._taken[wanted.manager_id] = None
        self._known.add(wanted.manager_id)
        return found or True

    def _start(self, wanted: _Wanted, alive: Callable[[], None]) -> Host:
        label = f"{wanted.plan} of manager {wanted.manager_id}"
        host = Host(wanted.plan, wanted.manager_id, wanted.attempt, HostProcess(label, self._rules), self._limits)
        with self._changed:
            self._taken[wanted.manager_id] = host
            self._started += 1
            over = self._over
        try:
            if over:
                raise PlanFailed("this worker leaves")
            host.alive = alive
            host.load()
        except BaseException:
            host.process.kill()
            self._hear(host)
            raise
        return host

    def _give_back(self, manager_id: int, host: Host) -> None:
        host.alive = _nothing
        keep = host.settled and host.generation is not None and host.process.lives()
        if not keep:
            host.process.kill()
        self._hear(host)
        with self._changed:
            del self._taken[manager_id]
            if keep and not self._over:
                host.used_at = time.monotonic()
                self._idle[manager_id] = host
            self._changed.notify_all()
        if self._over:
            host.process.kill()

    def _hear(self, host: Host) -> None:
        text = host.process.output.take()
        with self._changed:
            self._printed[host.manager_id] = (self._printed.get(host.manager_id, "") + text)[-OUTPUT_BYTES:]


def _nothing() -> None:
    """Nobody waits."""


def no_answer(name: str, _: Mapping[str, Any]) -> Any:
    """The answer to every question where there is no manager."""
    raise InvalidRequest(f"{name}: there is no manager yet; ask in on_start or later")
