"""One look at a run: ask the cluster, compare its answer with the rows, and record the changes that
it proves.

The workflow orders looks by activities, which stage the changes for the activities after them.
``Recorder`` does a whole look without the workflow: it records at once what an observer noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from crawler_lifecycle import redaction
from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.retries import Policies
from crawler_lifecycle.activities.shared import ordered_at
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain import ladder
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.ends import Reading
from crawler_lifecycle.domain.errors import LifecycleError, Overtaken
from crawler_lifecycle.domain.last_words import printable
from crawler_lifecycle.domain.task import Observation, Phase, TaskState, TaskStatus, reconcile
from crawler_lifecycle.domain.wake_ups import Tasks
from crawler_lifecycle.ports.cluster import RunLooks, TaskInventory, TaskLooks
from crawler_lifecycle.ports.looks import Details, FoundState, Look, LookReport, Start, TaskFinding
from crawler_lifecycle.ports.runs import Fence, TaskRef

if TYPE_CHECKING:
    from crawler_lifecycle.store.runs.looks import LookStore
    from crawler_lifecycle.store.runs.retries import RetryStore

log = logging.getLogger(__name__)

#: Number of tasks whose debugging information is fetched and written at once.
DETAILS_PAGE = 500
#: How often a look is done again because another look or a stop was recorded meanwhile.
TRIES = 3

T = TypeVar("T")


def again_if_overtaken(look: Callable[[], T]) -> T:
    """Return the result of ``look``.

    It is done again if something newer was recorded while it was under way.

    Raises ``Overtaken`` after the last try.
    """
    for _ in range(TRIES - 1):
        with suppress(Overtaken):
            return look()
    return look()


def ref_of(task: TaskState) -> TaskRef:
    """Return the reference by which the cluster is asked about a task."""
    stopping = task.status is TaskStatus.STOPPING
    # A task that was never offered, or was deferred, is in no namespace.
    place = task.place if task.uid is not None or task.offered_until is not None else None
    return TaskRef(
        task.task_id, task.index, task.attempt, task.uid, stopping, task.missed_at, place
    )


class LookStep:
    """One look at a run.

    Each step is one transaction or one call to the cluster, and can be repeated alone.
    """

    def __init__(
        self, looks: LookStore, cluster: TaskLooks, fence: Fence, policies: Policies | None = None
    ) -> None:
        self._looks = looks
        self._cluster = cluster
        self.fence = fence
        self._policies = policies
        self.unsuccessful = False
        """True if the recorded look found a task that ended without success."""

    def look(self, few: Tasks = None) -> tuple[FoundState, Look]:
        """Return the tasks from the database, and the cluster's present answer.

        Raises ``ClusterUnavailable``.

        ``few``: only these tasks, if the run has many (``LookStore.found_state``).
        """
        state = self._looks.found_state(self.fence, few)
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
        stretch: float | None = None,
    ) -> LookReport:
        """Record the look, and stage the changes that it proves.

        Without ``ends``, stage no ends of tasks.

        ``gap_s`` is the interval before the look. ``next_look_at`` ``None``: the planned time
        stays. ``stretch``: how many times its interval the next one lasts. Raises ``Overtaken``.
        """
        found = self._compare(state, look, gap_s, resumed)
        if not ends:
            found = [finding for finding in found if not finding.change.after.terminal]
        gap = None if next_look_at is None else max(next_look_at - look.observed_at, timedelta(0))
        order = (ordered_at(), state.revision, gap, stretch)
        return self._looks.record_look(self.fence, look, found, next_look_at, source, *order)

    def record_at_once(
        self, state: FoundState, look: Look, source: str, soon: datetime
    ) -> LookReport:
        """Record the look and the changes that it proves in one transaction.

        ``soon``: the time of the next look if the run has just started. Raises ``Overtaken``.
        """
        found = self._compare(state, look, 0.0, resumed=False)
        begun, at = started(look, resumed=False)
        start = Start(at, soon) if begun else None
        return self._looks.record_at_once(self.fence, look, found, source, state, start)

    def _compare(
        self, state: FoundState, look: Look, gap_s: float, resumed: bool
    ) -> list[TaskFinding]:
        reading = self._policies.reading(state.crawler) if self._policies is not None else None
        found = _compare(state, look, gap_s, resumed, reading)
        after = {finding.change.after for finding in found}
        self.unsuccessful = any(one.terminal for one in after - {TaskStatus.SUCCEEDED})
        return found

    def take_up_tries(
        self,
        cluster: TaskInventory,
        retries: RetryStore,
        state: FoundState,
        apply: Callable[[], None],
    ) -> None:
        """Find the next tries of ended tasks that have no row, before anybody decides about these
        ends. The cluster has such tries if the database was restored from a copy that is older than
        their decision.

        ``apply`` applies the changes that the look found, if they are still staged.
        """
        known = {(task.index, task.attempt) for task in state.tasks}
        found = cluster.inventory(run_id=self.fence.run_id, limit=ID_MAX)
        mine = [one for one in found if one.run_uid == self.fence.run_uid and not one.stray]
        if tries := [one for one in mine if (one.index, one.attempt) not in known]:
            apply()
            retries.take_up(self.fence, tries)

    def fetch_details(self) -> int:
        """Stage debugging information (log tail, counters, memory) about the tasks that ended.

        Returns their number.

        A task that has just begun has printed nothing that is worth a call; thousands may begin
        between two looks. Of a task about which nothing can be read, that is recorded.
        """
        ended = list[TaskRef]()
        page = self._looks.staged(self.fence, -1, DETAILS_PAGE)
        while page:
            seen = [
                (one.change.task_id, one.observation) for one in page if one.change.after.terminal
            ]
            ended += [TaskRef(task_id, one.index, one.attempt, one.uid) for task_id, one in seen]
            after = page[-1].observation.index
            full = len(page) == DETAILS_PAGE
            page = self._looks.staged(self.fence, after, DETAILS_PAGE) if full else []
        # In one call: a cluster may have to list all tasks of the run for it. What it yields is
        # written in pages.
        found = iter(self._cluster.details(self.fence.run, ended))
        missing = {task.task_id for task in ended}
        while details := list(islice(found, DETAILS_PAGE)):
            self._looks.save_details(self.fence, details)
            missing.difference_update(detail.task_id for detail in details)
        if missing:
            self._looks.save_details(self.fence, [Details(task_id) for task_id in sorted(missing)])
        return len(ended) - len(missing)

    def apply(self, source: str, look: Look) -> None:
        """Apply what ``record`` has staged, with its details, in one go."""
        self.fetch_details()
        self._looks.apply_details(self.fence)
        self._looks.apply_findings(self.fence, source, look.observed_at)


def _compare(
    state: FoundState, look: Look, gap_s: float, resumed: bool, ends: Reading | None
) -> list[TaskFinding]:
    """Return the changes that a look proves about the tasks in ``state``, in the order of the
    tasks.
    """
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
        changed_at = (
            (end.finished_at if end else None) or observation.changed_at or look.observed_at
        )
        planned = state.next_look_at or look.observed_at
        # A change after the planned time of the look should be found by the next look, at most one
        # gap after the change.
        due_at = planned if changed_at <= planned else changed_at + timedelta(seconds=gap_s)
        change = reconcile(task, observation, state.stop, due_at=due_at, resumed=resumed, ends=ends)
        if change is not None:
            findings.append(TaskFinding(change, observation))
    return findings


def started(look: Look, resumed: bool) -> tuple[bool, datetime | None]:
    """Return whether the run has started, and when.

    After a resume, ended tasks belong to the previous attempt.
    """
    begun = [
        o
        for o in look.observations
        if o.phase is Phase.EXECUTING or (not resumed and _has_executed(o))
    ]
    return bool(begun), min((o.started_at for o in begun if o.started_at is not None), default=None)


def _has_executed(seen: Observation) -> bool:
    return seen.phase is Phase.ENDED and (
        seen.started_at is not None or bool(seen.end and seen.end.exit_code is not None)
    )


@dataclass(frozen=True, slots=True)
class LookOutcome:
    """The result of a look without the workflow."""

    changed: int
    """The number of changes. The workflow has to be notified of them."""
    seconds: float
    again_s: float | None = None
    """Seconds after which the cluster requests another look."""
    spares_look: bool = True
    """True if the workflow only has to count the tasks. A former build, which may return for a
    while after an upgrade, looks again."""


@dataclass
class Recorder:
    """Looks at runs without their workflows, and records at once what has changed.

    Verdicts, deployments, retries and stops belong to the workflow, which has to be notified of
    changes.
    """

    looks: LookStore
    retries: RetryStore
    cluster: RunLooks
    policies: Policies
    clock: Clock = utc_now

    def record(self, fence: Fence, source: str, few: Tasks = None) -> LookOutcome | None:
        """Do one look at a run, and record what it proves.

        Return ``None`` for a run whose workflow has to do that: it has just been resumed.

        ``few``: the tasks that changed. In a run of many tasks, the look is at these alone. Raises
            ``LifecycleError``;
        a later look or the workflow then finds the change.
        """
        step = LookStep(self.looks, self.cluster, fence, self.policies)
        return again_if_overtaken(lambda: self._record(step, source, few))

    def _record(self, step: LookStep, source: str, few: Tasks) -> LookOutcome | None:
        state, look = step.look(few)
        if state.resuming:
            return None
        soon = self.clock() + timedelta(
            seconds=ladder.poll_interval(0, state.poll_minutes, look.seconds)
        )
        report = step.record_at_once(state, look, source, soon)
        meters.looked(look.seconds)
        if step.unsuccessful or not report.active + report.queued:
            step.take_up_tries(self.cluster, self.retries, state, lambda: None)
        if report.details:
            self._write_details(step)
        spares_look = bool(report.changed) and not self.looks.rollback_possible()
        return LookOutcome(report.changed, look.seconds, look.again_s, spares_look)

    def _write_details(self, step: LookStep) -> None:
        try:
            step.fetch_details()
            self.looks.apply_details(step.fence)
        except LifecycleError as error:  # they stay staged, and the workflow fetches them
            log.warning(
                "the details of ended tasks of run %s are fetched later: %s",
                step.fence.run_id,
                error,
            )
