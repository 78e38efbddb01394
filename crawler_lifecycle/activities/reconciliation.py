"""Stage 3, reconciliation: looks at the cluster, compares it with the rows, and records the true statuses.

The activities of one round exchange the findings of a look through the database. So nothing large travels through
Temporal, and each activity can be repeated alone.

``LookStep`` does one look step by step: it asks the cluster, compares the answer with the rows, and stages the changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from crawler_lifecycle import redaction
from crawler_lifecycle.activities.shared import Counts, activity_named, beating, ordered_at, push_event, reporting
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain import ladder
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.ends import Reading
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.last_words import printable
from crawler_lifecycle.domain.names import EVENT_RUN_CHANGED
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.stall import stalled
from crawler_lifecycle.domain.task import Observation, Phase, TaskState, TaskStatus, reconcile
from crawler_lifecycle.ports.cluster import RunLooks, TaskLooks
from crawler_lifecycle.ports.looks import FoundState, Look, LookReport, TaskFinding
from crawler_lifecycle.ports.protocols import Notifier
from crawler_lifecycle.ports.runs import Fence, TaskRef

from .retries import Policies

if TYPE_CHECKING:
    from crawler_lifecycle.store.events import EventStore
    from crawler_lifecycle.store.runs.looks import LookStore
    from crawler_lifecycle.store.runs.retries import RetryStore
    from crawler_lifecycle.store.runs.tasks import TaskReader


@dataclass(frozen=True, slots=True)
class ActiveReport:
    """Counts of the run's tasks."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class LookOrder:
    """Input of ``get_history_statuses_to_sync``.

    ``gap_s`` is the interval before this look, and ``next_gap_s`` is the interval after it.
    """

    fence: Fence
    gap_s: float
    next_gap_s: float
    source: str = "look"
    resumed: bool = False
    stall_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class LookAnswer:
    """Result of a look."""

    changed: int
    active: int
    queued: int
    observed_at: datetime
    next_look_at: datetime
    gap_s: float
    """Seconds until the next look. The workflow uses them because the worker's clock may be wrong."""
    seconds: float
    stop: StopIntent | None = None
    stalled: bool = False
    started: bool = False
    """True if a task executes. Unless the run was just resumed, also true if a task executed and has ended."""
    started_at: datetime | None = None
    """The earliest start of these tasks, if the cluster knows it."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Input of ``sync_statuses``."""

    fence: Fence
    source: str = "look"
    observed_at: datetime | None = None
    """The time of the look whose findings are recorded. ``None``: the last look."""


def _started(look: Look, resumed: bool) -> tuple[bool, datetime | None]:
    """Return whether the run has started, and when. After a resume, ended tasks belong to the previous attempt."""
    begun = [o for o in look.observations if o.phase is Phase.EXECUTING or (not resumed and _has_executed(o))]
    return bool(begun), min((o.started_at for o in begun if o.started_at is not None), default=None)


def _has_executed(seen: Observation) -> bool:
    return seen.phase is Phase.ENDED and (
        seen.started_at is not None or bool(seen.end and seen.end.exit_code is not None)
    )


@dataclass(frozen=True, slots=True)
class Synced(Counts):
    """Task counts after ``sync_statuses``. ``push`` is true if ``signal_pusher_changed`` is needed."""

    push: bool = False


@dataclass
class ReconciliationActivities:
    """Activities of stage 3."""

    looks: LookStore
    tasks: TaskReader
    events: EventStore
    cluster: RunLooks
    notifiers: Sequence[Notifier]
    retries: RetryStore
    clock: Clock = utc_now
    policies: Policies | None = None
    """How the ends of crawlers are read; ``None``: without the entries of the catalogue."""

    @activity_named("get_active_running_tasks")
    def get_active_running_tasks(self, run_id: int) -> ActiveReport:
        """Return the run's tasks by status, from the database. Second execution: reads again."""
        return ActiveReport(Counts.of(self.tasks.count_tasks(run_id)))

    @activity_named("get_history_statuses_to_sync")
    def get_history_statuses_to_sync(self, order: LookOrder) -> LookAnswer:
        """Do one complete look at the cluster, compare it with the database, and stage the differences.

        A failed look is no observation: its error is recorded and raised, and no status changes.
        Second execution: looks again and stages again.
        """
        fence = order.fence
        with beating(), reporting(self._note_error, fence):
            step = LookStep(self.looks, self.cluster, fence, self.policies)
            try:
                state, look = step.look()
            except ClusterUnavailable as error:
                self._note_error(fence, str(error))
                raise
            wanted = order.next_gap_s if look.again_s is None else min(order.next_gap_s, look.again_s)
            gap = max(wanted, 2 * look.seconds, ladder.MIN_GAP_SECONDS)
            next_look_at = self.clock() + timedelta(seconds=gap)
            report = step.record(
                state, look, order.source, next_look_at=next_look_at, gap_s=order.gap_s, resumed=order.resumed
            )
            if step.unsuccessful or not report.active + report.queued:
                self._take_up_tries(step, order.source, state, look)
        return LookAnswer(
            report.changed,
            report.active,
            report.queued,
            look.observed_at,
            next_look_at,
            gap,
            round(look.seconds, 3),
            report.stop,
            stalled(report.quiet, order.stall_timeout_s),
            *_started(look, order.resumed),
        )

    def _take_up_tries(self, step: LookStep, source: str, state: FoundState, look: Look) -> None:
        """Find the next tries of ended tasks that have no row, before anybody decides about these ends. The cluster has
        such tries if the database was restored from a copy that is older than their decision.
        """
        fence, known = step.fence, {(task.index, task.attempt) for task in state.tasks}
        found = self.cluster.inventory(run_id=fence.run_id, limit=ID_MAX)
        mine = [one for one in found if one.run_uid == fence.run_uid and not one.stray]
        if tries := [one for one in mine if (one.index, one.attempt) not in known]:
            step.apply(source, look)
            self.retries.take_up(fence, tries)

    def _note_error(self, fence: Fence, error: str) -> None:
        """Record why a look cannot be done or recorded, from its first try on."""
        self.looks.record_look_error(fence, error, ordered_at())

    @activity_named("get_bulk_task_history_data")
    def get_bulk_task_history_data(self, fence: Fence) -> int:
        """Fetch debugging information (log tail, counters, memory) about the tasks that ended, and stage it. Returns
        their number.

        Second execution: fetches and stages again.
        """
        with beating(), reporting(self._note_error, fence):
            return LookStep(self.looks, self.cluster, fence).fetch_details()

    @activity_named("reconcile_tasks")
    def reconcile_tasks(self, fence: Fence) -> int:
        """Write the staged debugging information into the task history. Returns the number of tasks.

        Second execution: writes the same values again.
        """
        with reporting(self._note_error, fence):
            return self.looks.apply_details(fence)

    @activity_named("sync_statuses")
    def sync_statuses(self, order: Sync) -> Synced:
        """Record the staged statuses, with transitions and corrections, in one transaction.

        Second execution: nothing is staged any more, and the counts are the same.
        """
        with reporting(self._note_error, order.fence):
            counts = self.looks.apply_findings(order.fence, order.source, order.observed_at)
        return Synced(counts.positive(), counts.active, counts.queued, push=any(one.sends for one in self.notifiers))

    @activity_named("signal_pusher_changed")
    def signal_pusher_changed(self, fence: Fence) -> None:
        """Push the run's newest ``run.changed`` event to the front end.

        Second execution: pushes the event that is the newest by then.
        """
        event = self.events.last_event(fence.run_id, EVENT_RUN_CHANGED)
        if event is not None:
            push_event(self.events, event, self.notifiers)

    @activity_named("count_alive_tasks")
    def count_alive_tasks(self, run_id: int) -> Counts:
        """Count the active and the queued tasks. If there are none, the run is over.

        Second execution: counts again.
        """
        return Counts.of(self.tasks.count_tasks(run_id))


#: Number of tasks whose debugging information is fetched and written at once.
DETAILS_PAGE = 500


def ref_of(task: TaskState) -> TaskRef:
    """Return the reference by which the cluster is asked about a task."""
    stopping = task.status is TaskStatus.STOPPING
    # A task that was never offered, or was deferred, is in no namespace.
    place = task.place if task.uid is not None or task.offered_until is not None else None
    return TaskRef(task.task_id, task.index, task.attempt, task.uid, stopping, task.missed_at, place)


class LookStep:
    """One look at a run. Each step is one transaction or one call to the cluster, and can be repeated alone."""

    def __init__(self, looks: LookStore, cluster: TaskLooks, fence: Fence, policies: Policies | None = None) -> None:
        self._looks, self._cluster, self.fence = looks, cluster, fence
        self._policies = policies
        self.unsuccessful = False
        """True if the recorded look found a task that ended without success."""

    def look(self) -> tuple[FoundState, Look]:
        """Return the tasks from the database, and the cluster's present answer. Raises ``ClusterUnavailable``."""
        state = self._looks.found_state(self.fence)
        return state, self._cluster.look(self.fence.run, [ref_of(task) for task in state.tasks])

    def record(
        self,
        state: FoundState,
        look: Look,
        source: str,
        *,
        next_look_at: datetime | None = None,
        gap_s: float = 0.0,
        resumed: bool = False,
        ends: bool = True,
    ) -> LookReport:
        """Record the look, and stage the changes that it proves. Without ``ends``, stage no ends of tasks.

        ``gap_s`` is the interval before the look. ``next_look_at`` ``None``: the planned time stays. Raises
        ``Overtaken``.
        """
        how = self._policies.reading(state.crawler) if self._policies is not None else None
        found = _compare(state, look, gap_s, resumed, how)
        after = {finding.change.after for finding in found}
        self.unsuccessful = any(one.terminal for one in after - {TaskStatus.SUCCEEDED})
        if not ends:
            found = [finding for finding in found if not finding.change.after.terminal]
        return self._looks.record_look(self.fence, look, found, next_look_at, source, ordered_at())

    def fetch_details(self) -> int:
        """Stage debugging information (log tail, counters, memory) about the tasks that ended. Returns their number.

        A task that has just begun has printed nothing that is worth a call; thousands may begin between two looks.
        """
        ended, page = list[TaskRef](), self._looks.staged(self.fence, -1, DETAILS_PAGE)
        while page:
            seen = [(one.change.task_id, one.observation) for one in page if one.change.after.terminal]
            ended += [TaskRef(task_id, one.index, one.attempt, one.uid) for task_id, one in seen]
            after, full = page[-1].observation.index, len(page) == DETAILS_PAGE
            page = self._looks.staged(self.fence, after, DETAILS_PAGE) if full else []
        # In one call: a cluster may have to list all tasks of the run for it. What it yields is written in pages.
        found, fetched = iter(self._cluster.details(self.fence.run, ended)), 0
        while details := list(islice(found, DETAILS_PAGE)):
            self._looks.save_details(self.fence, details)
            fetched += len(details)
        return fetched

    def apply(self, source: str, look: Look) -> None:
        """Apply what ``record`` has staged, with its details, in one go."""
        self.fetch_details()
        self._looks.apply_details(self.fence)
        self._looks.apply_findings(self.fence, source, look.observed_at)


def _compare(state: FoundState, look: Look, gap_s: float, resumed: bool, ends: Reading | None) -> list[TaskFinding]:
    """Return the changes that a look proves about the tasks in ``state``, in the order of the tasks."""
    seen = {(o.index, o.attempt): o for o in look.observations}
    findings = []
    for task in state.tasks:
        observation = seen.get((task.index, task.attempt))
        if observation is None:
            continue
        end = observation.end
        if end is not None and end.message:
            end = replace(end, message=printable(redaction.current().text(end.message)))
            observation = replace(observation, end=end)
        changed_at = (end.finished_at if end else None) or observation.changed_at or look.observed_at
        planned = state.next_look_at or look.observed_at
        # A change after the planned time of the look should be found by the next look, at most one gap after the
        # change.
        due_at = planned if changed_at <= planned else changed_at + timedelta(seconds=gap_s)
        change = reconcile(task, observation, state.stop, due_at=due_at, resumed=resumed, ends=ends)
        if change is not None:
            findings.append(TaskFinding(change, observation))
    return findings
