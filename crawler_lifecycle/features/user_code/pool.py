"""Pools of processes with users' code, and the pool of managers' processes of one worker.

Each manager has its own process, which contains its object. If there are too many processes, the
process that has been idle longest is ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import user_code_queue
from crawler_lifecycle.features.managers.domain.manager import (
    CYCLE_S,
    OUTPUT_BYTES,
    Decision,
    Facts,
    Page,
    Start,
)
from crawler_lifecycle.ports.protocols import UserCodeFailed, WorkerLeaves

from . import calls
from .process import START_S, Alive, Answer, HostProcess, Rules
from .wire import Message

T = TypeVar("T")
P = TypeVar("P", bound="PooledProcess")

#: Seconds between two checks by a caller that waits for a process. At each check, the caller also
#: reports that it is alive.
_TURN_S = 0.5


class PooledProcess:
    """A process in a pool."""

    process: HostProcess
    key: int | None = None
    """The key of its owner, who has one process at a time, or ``None`` without an owner."""
    outdated = False
    """True if its source code has changed since it was loaded."""

    def usable(self) -> bool:
        """Return whether the process may be called again."""
        return not self.outdated and self.process.lives()

    def kill(self) -> None:
        """Kill the process and its child processes."""
        self.process.kill()


class Pool(Generic[P]):
    """Processes of one kind. One thread at a time uses a process."""

    def __init__(self, most: float = float("inf")) -> None:
        self.over = threading.Event()
        """Set when the pool ends all processes."""
        self.started = 0
        self.parked = 0
        self._most = most
        self._changed = threading.Condition()
        self._idle: list[P] = []
        """Idle processes, the longest idle first."""
        self._taken: dict[object, P | None] = {}
        """Processes in use, by key; ``None`` while the process is starting."""

    @contextmanager
    def use(
        self, key: int | None, fits: Callable[[P], bool], start: Callable[[], P], alive: Alive
    ) -> Iterator[P]:
        """Yield an idle process with this key that ``fits``, or a new one from ``start``.

        Wait while another thread uses the process with this key, or all processes are in use.
        ``alive`` is called regularly during the wait. Raises ``WorkerLeaves``, and the errors of
        ``start`` and ``alive``.
        """
        slot = object() if key is None else key
        process, gone = self._take(slot, key, fits, alive)
        try:
            for host in gone:
                host.process.end()
                host.kill()
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
        """End the idle process with this key. A process in use is not ended here."""
        with self._changed:
            gone = [host for host in self._idle if host.key == key]
            self._idle = [host for host in self._idle if host.key != key]
        for host in gone:
            host.process.end()

    def processes(self) -> list[P]:
        with self._changed:
            return [*self._idle, *(host for host in self._taken.values() if host is not None)]

    def state(self) -> dict[str, object]:
        """Return the facts for the worker's health report."""
        with self._changed:
            live = len(self._idle) + len(self._taken)
            return {"live": live, "at_work": len(self._taken), "started": self.started}

    def close(self) -> None:
        """End all processes. Current calls end because their processes are killed."""
        with self._changed:
            self.over.set()
            idle, self._idle = self._idle, []
            for host in self._taken.values():
                if host is not None:
                    host.process.strike()
        for host in idle:
            host.kill()

    def _take(
        self, slot: object, key: int | None, fits: Callable[[P], bool], alive: Alive
    ) -> tuple[P | None, list[P]]:
        """Return a matching process, or ``None`` to start one, and the processes to end first."""
        while True:
            with self._changed:
                if self.over.is_set():
                    raise WorkerLeaves("this worker is stopping")
                if slot not in self._taken and (found := self._found(key, fits)) is not None:
                    self._taken[slot] = found[0]
                    return found
                self._changed.wait(_TURN_S)
            alive()

    def _found(self, key: int | None, fits: Callable[[P], bool]) -> tuple[P | None, list[P]] | None:
        """Return the same as ``_take``, or ``None`` if all processes are in use. The caller holds
        the lock.
        """
        gone: list[P] = []
        for process in [host for host in reversed(self._idle) if host.key == key]:
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
    """Time limits of calls in seconds, and the maximum number of processes."""

    hook_timeout_s: float = 60.0
    page_timeout_s: float = 300.0
    processes: int = 100


class Host(PooledProcess):
    """``UserCodeProcess`` that uses a process."""

    def __init__(
        self, plan: str, manager_id: int, attempt: int, rules: Rules, limits: Limits
    ) -> None:
        """Start the process. Raises ``UserCodeFailed``."""
        self.plan = plan
        self.key = manager_id
        self.attempt = attempt
        self.process = HostProcess(f"{plan} of manager {manager_id}", rules)
        self._limits = limits
        self.fingerprint = ""
        self.on_code_change = "replay"
        self.on_item_error = "stop"
        self.on_hook_error = "fail"
        self.failed_outcomes: frozenset[str] = frozenset()
        self.generation: int | None = None
        self.settled = True
        self.alive: Alive = _nothing

    @property
    def at(self) -> str | None:
        return None if self.process.at is None else self.process.at[0]

    def usable(self) -> bool:
        return self.settled and self.generation is not None and super().usable()

    def load(self) -> None:
        """Import the class in the process. Raises ``UserCodeFailed``."""
        try:
            one = self._call(
                "load",
                max(self._limits.hook_timeout_s, START_S),
                no_answer,
                calls.loaded,
                plan=self.plan,
            )
        except UserCodeFailed as failed:
            failed.missing = True
            raise
        self.fingerprint = one.fingerprint
        self.on_code_change = one.on_code_change
        self.on_item_error = one.on_item_error
        self.on_hook_error = one.on_hook_error

    def begin(self, start: Start, generation: int, answer: Answer) -> None:
        try:
            hook_timeout_s = self._limits.hook_timeout_s
            whole_s = self._limits.page_timeout_s
            outcomes = self._call(
                "begin", hook_timeout_s, answer, calls.outcomes, start=start, whole_s=whole_s
            )
        except UserCodeFailed as failed:
            failed.for_good = self.at == "__init__"
            raise
        self.generation = generation
        self.failed_outcomes = outcomes

    def page(self, after: int, answer: Answer) -> Page:
        self.settled = False
        return self._call(
            "page",
            self._limits.page_timeout_s,
            answer,
            lambda reply: calls.page(reply, after),
            after=after,
        )

    def cycle(self, facts: Facts, answer: Answer) -> Decision:
        self.settled = False
        self.process.did = None
        return self._call(
            "cycle",
            self._limits.hook_timeout_s,
            answer,
            calls.decision,
            facts=facts,
            whole_s=CYCLE_S,
        )

    @property
    def done(self) -> Decision | None:
        try:
            return None if self.process.did is None else calls.decision(self.process.did)
        except InvalidRequest:
            return None

    def finish(self, reason: str | None, answer: Answer) -> Decision:
        return self._call(
            "finish", self._limits.hook_timeout_s, answer, calls.decision, reason=reason
        )

    def _call(
        self,
        name: str,
        limit_s: float,
        answer: Answer,
        check: Callable[[object], T],
        **arguments: Any,
    ) -> T:
        reply = self.process.call(name, limit_s, answer, self.alive, **arguments)
        try:
            return check(reply)
        except InvalidRequest as why:
            self.process.kill()
            raise UserCodeFailed(
                f"{self.process.label}: its reply to {name} is not valid: {why}"
            ) from None


class Hosts:
    """``UserCodeProcesses`` of one worker. This object is used by the threads of activities."""

    def __init__(
        self, worker_id: str, modules: Collection[str], rules: Rules, limits: Limits
    ) -> None:
        """Set the rules for the processes. Only classes in ``modules``, which may change, are
        loaded.
        """
        self.own_queue = user_code_queue(worker_id)
        self._modules = modules
        self._rules = rules
        self._limits = limits
        self._pool: Pool[Host] = Pool(limits.processes)
        self.close = self._pool.close
        self._lock = threading.Lock()
        self._known: set[int] = set()
        """Managers whose next calls should come to this worker again."""
        self._printed: dict[int, str] = {}
        """Output that ``printed`` has not returned yet, by manager."""
        self._leaving = False

    @property
    def queue(self) -> str | None:
        """The task queue of this worker (``UserCodeProcesses``), or ``None`` after ``leave``."""
        return None if self._leaving else self.own_queue

    def leave(self) -> list[int]:
        """Stop offering the queue of this worker.

        Return the managers whose next calls would have come here.
        """
        with self._lock:
            self._leaving = True
            return sorted(self._known)

    @contextmanager
    def use(
        self, plan: str, manager_id: int, attempt: int, generation: int, alive: Alive
    ) -> Iterator[Host]:
        if plan.partition(":")[0] not in self._modules:
            fix = "add it to the setting on all workers that serve this queue"
            raise UserCodeFailed(
                f"{plan}: its module is not in LIFECYCLE_USER_CODE__MODULES here; {fix}",
                missing=True,
            )

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
                    self._keep_output(manager_id, host)
        except WorkerLeaves as why:
            raise UserCodeFailed(str(why)) from None

    def drop(self, manager_id: int) -> None:
        """Forget the manager and end its idle process (``UserCodeProcesses``).

        A process in use is not ended here.
        """
        with self._lock:
            self._known.discard(manager_id)
        self._pool.drop(manager_id)

    def printed(self, manager_id: int) -> str:
        with self._lock:
            return self._printed.pop(manager_id, "")

    def retire(self, fingerprints: Mapping[str, str]) -> None:
        """Mark processes that loaded another fingerprint as outdated, so that they are replaced
        after their current call.
        """
        for host in self._pool.processes():
            host.outdated |= fingerprints.get(host.plan, host.fingerprint) != host.fingerprint

    def state(self) -> dict[str, object]:
        """Return the facts for the worker's health report."""
        return self._pool.state() | {"most": self._limits.processes, "parked": self._pool.parked}

    def _keep_output(self, manager_id: int, host: Host) -> None:
        if not host.usable():
            host.kill()
        text = host.process.output.take()
        with self._lock:
            self._printed[manager_id] = (self._printed.get(manager_id, "") + text)[-OUTPUT_BYTES:]


def _nothing() -> None:
    """Do nothing: no caller is waiting for a sign of life."""


def no_answer(name: str, _: Message) -> Any:
    """Refuse every question, because no manager or step exists yet. Raises ``InvalidRequest``."""
    raise InvalidRequest(f"{name}: there is no manager yet; ask in on_start or later")
