"""The state of a manager's workflow, which is one value that continue-as-new passes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from temporalio.common import SearchAttributeKey

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.workflows.state import (
    FLOW,
    OUTCOME,
    PARENT,
    STATUS,
    Attributes,
    Inbox,
    ReceivedSignal,
)

from ..activities.cycles import CycleAnswer
from ..activities.managing import ManagerEnded, ManagerOpened
from ..domain.manager import FINISHED, ManagerResult, ManagerSnapshot, outcome_of
from ..ports import ManagerFence

NAME = SearchAttributeKey.for_keyword("CrawlName")

#: Signals after which the next cycle begins. The payload of these signals is not read.
WAKING = (names.SIGNAL_WAKE, names.SIGNAL_RUN_ENDED, names.SIGNAL_MANAGER_ENDED)
#: The maximum time between two cycles of a manager, in seconds. The manager's class may request an
#: earlier cycle.
LEVEL_S = 300.0
#: The minimum time between the starts of two cycles, in seconds. This time grows with the
#: number of live jobs, so that one cycle handles many ended jobs. After a cycle without an end or a
#: pick, the minimum time is ``IDLE_GAP_S``.
GAP_S = 0.05
GAP_PER_LIVE_S = 0.005
GAP_MOST_S = 0.5
IDLE_GAP_S = 1.0
#: Seconds between two passes that stop runs, for the first wait and for the longest wait. Each wait
#: takes at least ``PASS_LEAST_S``, even if a run ends in this time.
PASS_S = 5.0
PASS_MOST_S = 60.0
PASS_LEAST_S = 1.0


@dataclass
class ManagerInbox(Inbox):
    """The signals and stops that reached the manager and have not been carried out yet."""

    woken: bool = False
    asked: int = 0
    """The number of wake-ups since the row was last read. The row may contain a new command or
    stop.
    """
    leave: bool = True
    """True if all stops so far let the runs continue."""
    moved: bool = False
    """True if the worker with the object has shut down since the last cycle."""

    def signal(self, signal: ReceivedSignal) -> None:
        """Accept one signal. No signal is refused, so no stop is lost."""
        name = signal.name
        if name in WAKING:
            self.woken = True
            self.asked += name == names.SIGNAL_WAKE
        elif name == names.SIGNAL_MOVED:
            self.moved = True
        elif name in (names.SIGNAL_STOP, names.SIGNAL_FORCE_STOP):
            intent, told = self.asked_to_stop(signal, "leave")
            self.want(intent, leave=not intent.force and told.get("leave") is True)
        else:
            self.unheard(signal, *WAKING)

    def want(self, intent: StopIntent, *, leave: bool = False) -> None:
        """Accept a stop that has not been recorded yet."""
        if self.late():
            return
        before, self.stop = self.stop, intent if self.stop is None else self.stop.merged(intent)
        self.changed = self.changed or self.stop != before or (self.leave and not leave)
        self.leave = self.leave and leave

    def recorded(self, stop: StopIntent | None, leave: bool) -> None:
        """Adopt a stop that is already in the database. The gateway may have recorded this stop."""
        if stop is not None:
            self.leave = leave and (self.leave or self.stop is None)
            self.recorded_stop(stop)


@dataclass
class OwnedState:
    """The state that a workflow keeps about the row that it owns.

    New fields need a default, and no field may be removed, because old histories must load.
    """

    attempt: int = 0
    owner_run_id: str = ""
    parent: str | None = None
    next_at: datetime | None = None
    """The latest time of the next turn; ``None`` means at once."""
    waiting: str | None = None
    cause: str | None = None
    parent_told: bool = False
    inbox: ManagerInbox = field(default_factory=ManagerInbox)
    published: dict[str, str] = field(default_factory=dict)
    """Search attributes as they were last set."""

    def gap_left(self, now: datetime) -> float:
        """Return the seconds until the next turn may begin after a wake-up."""
        raise NotImplementedError


@dataclass
class ManagerState(OwnedState):
    """The state of a manager as its workflow knows it."""

    manager_id: int = 0
    name: str = ""
    flow_id: str = ""
    status: RunStatus = RunStatus.INITIALIZING
    queue: str | None = None
    """The task queue of the worker with the object of the class, or ``None`` if any worker may
    build the object.
    """
    cycles: int = 0
    cycle_at: datetime | None = None
    """The time at which the last cycle began."""
    idle: bool = False
    """True if the last cycle handled no end and picked no job."""
    live: int = 0
    error: str | None = None
    over: ManagerEnded | None = None
    """How the manager ended, set if its class asks for no further cycle."""
    passes: int = 0
    """The number of passes that stopped runs."""
    unrecorded: str | None = None
    """The reason why the requested stop has not been recorded yet."""
    gone: bool = False
    """True after a stop has found that no run is live."""
    closed: bool = False
    """True after ``on_close`` was called after a stop, or could not be called."""
    unclosed: str | None = None
    """The reason why ``on_close`` was not called, or the error of ``on_close``."""
    outcome: str | None = None

    @property
    def fence(self) -> ManagerFence:
        return ManagerFence(self.manager_id, self.attempt, self.owner_run_id)

    def adopt(self, opened: ManagerOpened) -> None:
        """Copy the row of the manager that this workflow now owns."""
        self.name = opened.name
        self.flow_id = opened.flow_id
        self.attempt = opened.attempt
        self.status = opened.status
        self.parent = opened.parent
        self.inbox.recorded(opened.stop, opened.leave)

    def took(self, answer: CycleAnswer, now: datetime) -> None:
        """Apply a cycle's result."""
        self.queue = answer.queue
        self.live = answer.live
        self.waiting = answer.waiting
        self.error = answer.error
        self.cycles += 1
        if answer.stopped and self.inbox.stop is None:  # a stop is in the row, and no signal came
            self.inbox.asked += 1
        self.idle = not (answer.ended or answer.picked)
        again = LEVEL_S if answer.again_s is None else min(max(answer.again_s, 0.0), LEVEL_S)
        self.next_at = now + timedelta(seconds=again)
        if self.status is RunStatus.INITIALIZING:
            self.status = RunStatus.PROCESSING

    def ends_by(self, answer: CycleAnswer) -> None:
        """Set the end of the manager after the class wanted no further cycle."""
        if answer.error is not None:
            self.over = ManagerEnded(RunStatus.FAILED, "failed", answer.error)
            return
        outcome, bad = outcome_of(
            answer.close_reason, answer.failed, answer.hook_errors, answer.on_hook_error
        )
        status = RunStatus.FAILED if bad else RunStatus.COMPLETED
        errors = f"; errors in hooks: {answer.hook_errors}" if answer.hook_errors else ""
        close = f"{errors}; {answer.unclosed}" if answer.unclosed else errors
        reason = answer.close_reason or FINISHED
        self.over = ManagerEnded(
            status, outcome, f"Its class ended it with the close reason {reason!r}{close}"
        )

    def gap_left(self, now: datetime) -> float:
        if self.cycle_at is None or not self.inbox.woken:
            return 0.0
        gap = IDLE_GAP_S if self.idle else min(GAP_S + GAP_PER_LIVE_S * self.live, GAP_MOST_S)
        return gap - (now - self.cycle_at).total_seconds()

    def stopped_by(self) -> ManagerEnded:
        """Return the end of a manager that was stopped."""
        left = "; its runs continue" if self.inbox.leave else ""
        close = f"; {self.unclosed}" if self.unclosed else ""
        stopped = self.inbox.stop.stopped if self.inbox.stop is not None else "Stopped"
        return ManagerEnded(RunStatus.FAILED, "cancelled", f"{stopped}{left}{close}")

    def result(self) -> ManagerResult:
        """Return the workflow's result."""
        identity = (self.manager_id, self.name, self.flow_id, self.attempt)
        return ManagerResult(*identity, self.status, self.outcome or "", self.cause or "")

    def snapshot(self) -> ManagerSnapshot:
        """Return the response to the query ``status``."""
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

    def search_attributes(self) -> Attributes:
        """Return the search attributes of the manager."""
        known = [(NAME, self.name), (FLOW, self.flow_id), (STATUS, str(self.status))]
        return [*known, (OUTCOME, self.outcome), (PARENT, self.parent)]

    def details(self) -> str:
        """Return a description of the manager in Markdown, for the Temporal UI."""
        ended = f", {self.outcome}: {self.cause}" if self.outcome else ""
        rows = [
            (
                f"### Manager {self.manager_id}: {self.name}, flow {self.flow_id}, attempt "
                f"{self.attempt}"
            ),
            f"- **{self.status}**{ended}",
            f"- {count(self.live, 'live job')} after {count(self.cycles, 'cycle')}",
        ]
        rows += [f"- waiting: {self.waiting}"] if self.waiting and not self.outcome else []
        rows += [f"- error: {self.error}"] if self.error else []
        return self.inbox.described(rows)
