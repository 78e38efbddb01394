"""The state of a manager's workflow, as one value that travels over continue-as-new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from temporalio.common import RawValue, SearchAttributeKey
from temporalio.converter import PayloadConverter

from crawler_lifecycle.activities.managers.cycles import CycleAnswer
from crawler_lifecycle.activities.managers.managing import ManagerEnded, ManagerOpened
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.managers.manager import FINISHED, ManagerResult, ManagerSnapshot, outcome_of
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.ports.managers import ManagerFence
from crawler_lifecycle.workflows.state import FLOW, OUTCOME, PARENT, STATUS, Inbox

NAME = SearchAttributeKey.for_keyword("CrawlName")

#: Signals that make the next cycle begin. Their payload is not read.
WAKING = (names.SIGNAL_WAKE, names.SIGNAL_RUN_ENDED, names.SIGNAL_MANAGER_ENDED)
#: The longest time between two readings of a manager's rows, in seconds, unless its class wants a cycle before.
LEVEL_S = 300.0
#: The shortest time between the beginnings of two cycles, in seconds: short for a small window, and longer for a large
#: one, so that one cycle handles many ends. One second after a cycle without any event.
GAP_S, GAP_PER_LIVE_S, GAP_MOST_S, IDLE_GAP_S = 0.05, 0.005, 0.5, 1.0
#: Seconds between two passes over the runs of a stop: the first wait, and the longest; and the wait after a run has
#: ended.
PASS_S, PASS_MOST_S, PASS_LEAST_S = 5.0, 60.0, 1.0


@dataclass
class ManagerInbox(Inbox):
    """Everything that reached the manager from outside and has not been carried out yet."""

    woken: bool = False
    asked: int = 0
    """Number of wake-ups after which the manager's row was not read yet: it may contain a command, perhaps a stop."""
    leave: bool = True
    """True if every stop so far lets the runs continue."""
    moved: bool = False
    """True if the worker that held the object has shut down since the last cycle."""

    def signal(
        self, name: str, args: Sequence[RawValue], converter: PayloadConverter, now: datetime, new_id: str
    ) -> None:
        """Take one signal, whatever its payload: nothing is refused, and a stop is never lost."""
        if name in WAKING:
            self.woken = True
            self.asked += name == names.SIGNAL_WAKE
        elif name == names.SIGNAL_MOVED:
            self.moved = True
        elif name in (names.SIGNAL_STOP, names.SIGNAL_FORCE_STOP):
            intent, told = self.asked_to_stop(name, args, converter, now, "leave")
            self.want(intent, leave=not intent.force and told.get("leave") is True)
        else:
            self.unheard(name, args, converter, *WAKING)

    def want(self, intent: StopIntent, *, leave: bool = False) -> None:
        """A stop that is not on record yet."""
        if self.late():
            return
        before, self.stop = self.stop, intent if self.stop is None else self.stop.merged(intent)
        self.changed = self.changed or self.stop != before or (self.leave and not leave)
        self.leave = self.leave and leave

    def recorded(self, stop: StopIntent | None, leave: bool) -> None:
        """A stop that is in the database already, perhaps past us (through the gateway)."""
        if stop is not None:
            self.leave = leave and (self.leave or self.stop is None)
            self.recorded_stop(stop)


@dataclass
class OwnedState:
    """Knowledge of a workflow about the row that it owns. Fields are only ever added, with defaults: old histories must
    load."""

    attempt: int = 0
    owner_run_id: str = ""
    parent: str | None = None
    next_at: datetime | None = None
    """The latest time of the next turn; ``None``: at once."""
    waiting: str | None = None
    cause: str | None = None
    parent_told: bool = False
    inbox: ManagerInbox = field(default_factory=ManagerInbox)
    published: dict[str, str] = field(default_factory=dict)
    """Search attributes as they were last set."""

    def gap_left(self, now: datetime) -> float:
        """Seconds until a turn may begin that something woke."""
        raise NotImplementedError


@dataclass
class ManagerState(OwnedState):
    """The manager as its workflow knows it."""

    manager_id: int = 0
    name: str = ""
    flow_id: str = ""
    status: RunStatus = RunStatus.INITIALIZING
    queue: str | None = None
    """The task queue of the worker that holds the object of the class; ``None``: any worker may make it."""
    cycles: int = 0
    cycle_at: datetime | None = None
    """When the last cycle began."""
    idle: bool = False
    """Whether nothing happened in it."""
    live: int = 0
    error: str | None = None
    over: ManagerEnded | None = None
    """The end of the manager, when its class wants no further cycle."""
    passes: int = 0
    """Passes over the live runs of a stop."""
    unrecorded: str | None = None
    """Why a stop is carried out that could not be recorded."""
    gone: bool = False
    """Whether a stop has found no live run any more."""
    closed: bool = False
    """Whether ``on_close`` had its chance after a stop."""
    unclosed: str | None = None
    """The reason why it was not called, or its error."""
    outcome: str | None = None

    @property
    def fence(self) -> ManagerFence:
        return ManagerFence(self.manager_id, self.attempt, self.owner_run_id)

    def adopt(self, opened: ManagerOpened) -> None:
        """Take over the database's data about the manager that we now own."""
        self.name, self.flow_id, self.attempt = opened.name, opened.flow_id, opened.attempt
        self.status, self.parent = opened.status, opened.parent
        self.inbox.recorded(opened.stop, opened.leave)

    def took(self, answer: CycleAnswer, now: datetime) -> None:
        """Take over the result of a cycle."""
        self.queue, self.live, self.waiting, self.error = answer.queue, answer.live, answer.waiting, answer.error
        self.cycles += 1
        if answer.stopped and self.inbox.stop is None:  # the worker that recorded it could not report it
            self.inbox.asked += 1
        self.idle = not (answer.ended or answer.picked)
        again = LEVEL_S if answer.again_s is None else min(max(answer.again_s, 0.0), LEVEL_S)
        self.next_at = now + timedelta(seconds=again)
        if self.status is RunStatus.INITIALIZING:
            self.status = RunStatus.PROCESSING

    def ends_by(self, answer: CycleAnswer) -> None:
        """The class wants no further cycle."""
        if answer.error is not None:
            self.over = ManagerEnded(RunStatus.FAILED, "failed", answer.error)
            return
        outcome, bad = outcome_of(answer.close_reason, answer.failed, answer.hook_errors, answer.on_hook_error)
        status = RunStatus.FAILED if bad else RunStatus.COMPLETED
        errors = f"; errors in hooks: {answer.hook_errors}" if answer.hook_errors else ""
        close = f"{errors}; {answer.unclosed}" if answer.unclosed else errors
        reason = answer.close_reason or FINISHED
        self.over = ManagerEnded(status, outcome, f"Its class ended it with the close reason {reason!r}{close}")

    def gap_left(self, now: datetime) -> float:
        if self.cycle_at is None or not self.inbox.woken:
            return 0.0
        gap = IDLE_GAP_S if self.idle else min(GAP_S + GAP_PER_LIVE_S * self.live, GAP_MOST_S)
        return gap - (now - self.cycle_at).total_seconds()

    def stopped_by(self) -> ManagerEnded:
        """The verdict of a stop."""
        left = "; its runs go on" if self.inbox.leave else ""
        close = f"; {self.unclosed}" if self.unclosed else ""
        stopped = self.inbox.stop.stopped if self.inbox.stop is not None else "Stopped"
        return ManagerEnded(RunStatus.FAILED, "cancelled", f"{stopped}{left}{close}")

    def result(self) -> ManagerResult:
        """The result of the workflow."""
        told = (self.manager_id, self.name, self.flow_id, self.attempt)
        return ManagerResult(*told, self.status, self.outcome or "", self.cause or "")

    def snapshot(self) -> ManagerSnapshot:
        """The answer of the query ``status``."""
        return ManagerSnapshot(
            manager_id=self.manager_id,
            name=self.name,
            flow_id=self.flow_id,
            attempt=self.attempt,
            status=self.status if self.outcome is not None else None,
            outcome=self.outcome,
            cause=self.cause,
            live=self.live,
            cycles=self.cycles,
            stop=self.inbox.stop,
            leave=self.inbox.stop is not None and self.inbox.leave,
            waiting=self.waiting,
            error=self.error,
            notes=self.inbox.told(),
        )

    def search_attributes(self) -> list[tuple[SearchAttributeKey[Any], object]]:
        """Search attributes of the manager."""
        known = [(NAME, self.name), (FLOW, self.flow_id), (STATUS, str(self.status))]
        return [*known, (OUTCOME, self.outcome), (PARENT, self.parent)]

    def details(self) -> str:
        """The manager in Markdown, for the Temporal UI."""
        ended = f", {self.outcome}: {self.cause}" if self.outcome else ""
        rows = [
            f"### Manager {self.manager_id}: {self.name}, flow {self.flow_id}, attempt {self.attempt}",
            f"- **{self.status}**{ended}",
            f"- {self.live} live jobs after {self.cycles} cycles",
        ]
        rows += [f"- waiting: {self.waiting}"] if self.waiting and not self.outcome else []
        rows += [f"- error: {self.error}"] if self.error else []
        rows += [f"- note: {note}" for note in self.inbox.told()[-5:]]
        return "\n".join(rows)
