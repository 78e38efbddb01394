"""Stage 3, reconciliation: polls the cluster, compares it with the rows, and records the true
statuses.

The activities in one round exchange the findings of a poll through the database. So no large data
is sent through Temporal, and each activity can be repeated separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from crawler_lifecycle.activities import meters
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain import polling_schedule
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.names import EVENT_RUN_CHANGED
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.stall import stalled
from crawler_lifecycle.domain.waiting import stretch_of
from crawler_lifecycle.ports.cluster import RunPolls
from crawler_lifecycle.ports.protocols import Notifier
from crawler_lifecycle.ports.runs import Fence

from .poll_step import PollStep, again_if_overtaken, again_s, started
from .retries import Policies
from .shared import (
    Counts,
    activity_method,
    beating,
    ordered_at,
    push_event,
    reporting,
)

if TYPE_CHECKING:
    from crawler_lifecycle.store.events import EventStore
    from crawler_lifecycle.store.runs.polls import PollStore
    from crawler_lifecycle.store.runs.retries import RetryStore
    from crawler_lifecycle.store.runs.tasks import TaskReader


@dataclass(frozen=True, slots=True)
class ActiveReport:
    """Counts of the run's tasks."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class PollOrder:
    """Input of ``get_history_statuses_to_sync``.

    ``gap_s`` is the interval before this poll, and ``next_gap_s`` is the interval after it.
    """

    fence: Fence
    gap_s: float
    next_gap_s: float
    source: str = "look"
    resumed: bool = False
    stall_timeout_s: float | None = None
    late_s: float = 0.0
    """The delay with which a planned poll begins, by Temporal's clock."""


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """Result of a poll."""

    changed: int
    active: int
    queued: int
    observed_at: datetime
    next_look_at: datetime
    gap_s: float
    """Seconds until the next poll. The workflow uses this duration instead of a time, because the
    worker's clock may be wrong.
    """
    seconds: float
    stop: StopIntent | None = None
    stalled: bool = False
    started: bool = False
    """True if a task is executing or, unless the run was just resumed, if a task was executed and
    has ended.
    """
    started_at: datetime | None = None
    """The earliest start of these tasks, if the cluster reports it."""
    truth_first: bool = False
    """True if the changes are recorded before their debugging information is fetched. An earlier
    build, which may still be running for a while after an upgrade, uses the opposite order.
    """


@dataclass(frozen=True, slots=True)
class Sync:
    """Input of ``sync_statuses``."""

    fence: Fence
    source: str = "look"
    observed_at: datetime | None = None
    """The time of the poll whose findings are recorded. ``None`` stands for the last poll."""
    details_follow: bool = False
    """True if the debugging information of ended tasks is fetched after this
    (``PollAnswer.truth_first``).
    """


@dataclass(frozen=True, slots=True)
class SyncedCounts(Counts):
    """Task counts after ``sync_statuses``.

    ``push`` is true if ``signal_pusher_changed`` is needed.
    """

    push: bool = False


@dataclass(frozen=True, slots=True)
class AliveTasks(Counts):
    """The recorded state of a run after a poll."""

    started: bool = False
    started_at: datetime | None = None
    stop: StopIntent | None = None
    details: int = 0
    """The number of ended tasks whose debugging information is not written yet."""
    push: bool = False
    """True if ``signal_pusher_changed`` is needed."""

    @property
    def counts(self) -> Counts:
        """Only the numbers of tasks."""
        return Counts(self.by_status, self.active, self.queued)


@dataclass
class ReconciliationActivities:
    """Activities for stage 3."""

    polls: PollStore
    tasks: TaskReader
    events: EventStore
    cluster: RunPolls
    notifiers: Sequence[Notifier]
    retries: RetryStore
    clock: Clock = utc_now
    policies: Policies | None = None
    """The rules for ends and retries. If this is ``None``, the entries in the catalogue are not
    used."""

    @activity_method
    def get_active_running_tasks(self, run_id: int) -> ActiveReport:
        """Return the numbers of the run's tasks by status, from the database. Second execution:
        reads the numbers again.
        """
        return ActiveReport(Counts.of(self.tasks.count_tasks(run_id)))

    @activity_method
    def get_history_statuses_to_sync(self, order: PollOrder) -> PollAnswer:
        """Do one complete poll of the cluster, compare it with the database, and stage the
        differences.

        A failed poll is not an observation: its error is recorded and raised, and no status
        changes.

        Second execution: polls and stages again.
        """
        fence = order.fence
        with beating(), reporting(self._note_error, fence):
            return again_if_overtaken(lambda: self._poll(order))

    def _poll(self, order: PollOrder) -> PollAnswer:
        step = PollStep(self.polls, self.cluster, order.fence, self.policies)
        try:
            state, poll = step.poll()
        except ClusterUnavailable as error:
            self._note_error(order.fence, str(error))
            raise
        soon_s = again_s(poll)
        wanted = order.next_gap_s if soon_s is None else min(order.next_gap_s, soon_s)
        planned = gap = max(wanted, 2 * poll.seconds, polling_schedule.MIN_GAP_SECONDS)
        if order.source != "stop":
            gap = polling_schedule.stretched(planned, stretch_of(state.waiting_for), order.late_s)
        meters.stretched(gap / planned)
        next_look_at = self.clock() + timedelta(seconds=gap)
        report = step.record(
            state,
            poll,
            next_look_at=next_look_at,
            gap_s=order.gap_s,
            resumed=order.resumed,
            stretch=gap / planned,
        )
        if step.unsuccessful or not report.active + report.queued:
            step.take_up_tries(
                self.cluster, self.retries, state, lambda: step.apply(order.source, poll)
            )
        former = self.polls.rollback_possible()
        # An earlier build polls again after a recorded poll, and fetches missing information only
        # if something has changed.
        missing = (
            self.polls.recorded_state(order.fence.run_id).details
            if former and not report.changed
            else 0
        )
        return PollAnswer(
            report.changed + missing,
            report.active,
            report.queued,
            poll.observed_at,
            next_look_at,
            gap,
            round(poll.seconds, 3),
            report.stop,
            stalled(report.quiet, order.stall_timeout_s),
            *started(poll, order.resumed),
            truth_first=not former,
        )

    def _note_error(self, fence: Fence, error: str) -> None:
        """Record why a poll cannot be done or recorded. This happens on every try, even the
        first."""
        self.polls.record_poll_error(fence, error, ordered_at())

    @activity_method
    def get_bulk_task_history_data(self, fence: Fence) -> int:
        """Fetch debugging information (log tail, counters, memory) about the tasks that ended,
        stage it, and return their number.

        Second execution: fetches and stages again.
        """
        with beating(), reporting(self._note_error, fence):
            return PollStep(self.polls, self.cluster, fence).fetch_details()

    @activity_method
    def reconcile_tasks(self, fence: Fence) -> int:
        """Write the staged debugging information into the task history, and return the number of
        tasks.

        Second execution: writes the same values again.
        """
        with reporting(self._note_error, fence):
            return self.polls.apply_details(fence)

    @activity_method
    def sync_statuses(self, order: Sync) -> SyncedCounts:
        """Record the staged statuses, with transitions and corrections, in one transaction.

        Second execution: no change is staged, and the counts are the same.
        """
        with reporting(self._note_error, order.fence):
            counts = self.polls.apply_findings(
                order.fence, order.source, order.observed_at, details_follow=order.details_follow
            )
        return SyncedCounts(
            counts.positive(),
            counts.active,
            counts.queued,
            push=any(notifier.sends for notifier in self.notifiers),
        )

    @activity_method
    def signal_pusher_changed(self, fence: Fence) -> None:
        """Push the run's newest ``run.changed`` event to the front end.

        Second execution: pushes the event that is the newest at that time.
        """
        event = self.events.last_event(fence.run_id, EVENT_RUN_CHANGED)
        if event is not None:
            push_event(self.events, event, self.notifiers)

    @activity_method
    def count_alive_tasks(self, run_id: int) -> AliveTasks:
        """Count the active and the queued tasks. If there are none, all tasks have ended. Second
        execution: counts the tasks again.
        """
        state = self.polls.recorded_state(run_id)
        counts = Counts.of(state.counts)
        return AliveTasks(
            counts.by_status,
            counts.active,
            counts.queued,
            started=state.started,
            started_at=state.started_at,
            stop=state.stop,
            details=state.details,
            push=any(notifier.sends for notifier in self.notifiers),
        )
