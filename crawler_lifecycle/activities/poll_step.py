"""One poll of a run: ask the cluster, compare its response with the rows, and record the changes
that it proves.

The workflow orders polls through activities, which stage the changes for subsequent activities.
``Recorder`` does a whole poll without the workflow, and records at once the changes that an
observer noticed.
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
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain import polling_schedule
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.ends import Reading
from crawler_lifecycle.domain.errors import LifecycleError, Overtaken
from crawler_lifecycle.domain.last_words import printable
from crawler_lifecycle.domain.task import Observation, Phase, TaskState, TaskStatus, reconcile
from crawler_lifecycle.domain.wake_ups import Tasks
from crawler_lifecycle.ports.cluster import RunPolls, TaskInventory, TaskPolls
from crawler_lifecycle.ports.polls import Details, FoundState, Poll, PollReport, Start, TaskFinding
from crawler_lifecycle.ports.runs import Fence, TaskRef

from .retries import Policies
from .shared import ordered_at

if TYPE_CHECKING:
    from crawler_lifecycle.store.runs.polls import PollStore
    from crawler_lifecycle.store.runs.retries import RetryStore

log = logging.getLogger(__name__)

#: Number of tasks whose debugging information is fetched and written at once.
DETAILS_PAGE = 500
#: Maximum number of repetitions of a poll because another poll or a stop was recorded in the
#: meantime.
TRIES = 3

T = TypeVar("T")


def again_if_overtaken(poll: Callable[[], T]) -> T:
    """Return the result of ``poll``. The poll is repeated if a newer state was recorded while the
    poll was under way. Raises ``Overtaken`` after the last try.
    """
    for _ in range(TRIES - 1):
        with suppress(Overtaken):
            return poll()
    return poll()


def ref_of(task: TaskState) -> TaskRef:
    """Return the reference with which the cluster is asked about a task."""
    stopping = task.status is TaskStatus.STOPPING
    # A task that was never offered, or that was deferred, is in no namespace.
    place = task.place if task.uid is not None or task.offered_until is not None else None
    return TaskRef(
        task.task_id, task.index, task.attempt, task.uid, stopping, task.missed_at, place
    )


class PollStep:
    """One poll of a run. Each step is one transaction or one call to the cluster, and can be
    repeated on its own.
    """

    def __init__(
        self, polls: PollStore, cluster: TaskPolls, fence: Fence, policies: Policies | None = None
    ) -> None:
        self._polls = polls
        self._cluster = cluster
        self.fence = fence
        self._policies = policies
        self.unsuccessful = False
        """True if the recorded poll found a task that ended without success."""

    def poll(self, few: Tasks = None) -> tuple[FoundState, Poll]:
        """Return the tasks from the database, and the current state on the cluster.

        ``few`` limits the poll to these tasks if the run has many (``PollStore.found_state``).
        Raises ``ClusterUnavailable``.
        """
        state = self._polls.found_state(self.fence, few)
        return state, self._cluster.poll(self.fence.run, [ref_of(task) for task in state.tasks])

    def record(
        self,
        state: FoundState,
        poll: Poll,
        *,
        next_look_at: datetime | None = None,
        gap_s: float = 0.0,
        resumed: bool = False,
        ends: bool = True,
        stretch: float | None = None,
    ) -> PollReport:
        """Record the poll, and stage the changes that the poll proves. If ``ends`` is false, stage
        no outcomes of tasks. ``gap_s`` is the interval before the poll. If ``next_look_at`` is
        ``None``, the planned time stays. ``stretch`` is the factor by which the next interval is
        stretched. Raises ``Overtaken``.
        """
        found = self._compare(state, poll, gap_s, resumed)
        if not ends:
            found = [finding for finding in found if not finding.change.after.terminal]
        gap = None if next_look_at is None else max(next_look_at - poll.observed_at, timedelta(0))
        order = (ordered_at(), state.revision, gap, stretch)
        return self._polls.record_poll(self.fence, poll, found, next_look_at, *order)

    def record_at_once(
        self, state: FoundState, poll: Poll, source: str, soon: datetime
    ) -> PollReport:
        """Record the poll and the changes that it proves in one transaction.

        ``soon`` is the time of the next poll if the run has just started. Raises ``Overtaken``.
        """
        found = self._compare(state, poll, 0.0, resumed=False)
        begun, at = started(poll, resumed=False)
        start = Start(at, soon) if begun else None
        return self._polls.record_at_once(self.fence, poll, found, source, state, start)

    def _compare(
        self, state: FoundState, poll: Poll, gap_s: float, resumed: bool
    ) -> list[TaskFinding]:
        reading = self._policies.reading(state.crawler) if self._policies is not None else None
        found = _compare(state, poll, gap_s, resumed, reading)
        after = {finding.change.after for finding in found}
        self.unsuccessful = any(status.terminal for status in after - {TaskStatus.SUCCEEDED})
        return found

    def take_up_tries(
        self,
        cluster: TaskInventory,
        retries: RetryStore,
        state: FoundState,
        apply: Callable[[], None],
    ) -> None:
        """Find the next tries of ended tasks, if these tries have no row, before a decision about
        these tasks.

        The cluster has such tries if the database was restored from a copy that is older than that
        decision. ``apply`` applies the changes that the poll found, if they are still staged.
        """
        known = {(task.index, task.attempt) for task in state.tasks}
        found = cluster.inventory(run_id=self.fence.run_id, limit=ID_MAX)
        mine = [task for task in found if task.run_uid == self.fence.run_uid and not task.stray]
        if tries := [task for task in mine if (task.index, task.attempt) not in known]:
            apply()
            retries.take_up(self.fence, tries)

    def fetch_details(self) -> int:
        """Stage debugging information (log tail, counters, memory) about the tasks that ended, and
        return their number.

        A task that has just begun has printed nothing that is worth a call, and thousands can begin
        between two polls. If nothing can be read about a task, that fact is recorded.
        """
        ended = list[TaskRef]()
        page = self._polls.staged(self.fence, -1, DETAILS_PAGE)
        while page:
            seen = [
                (report.change.task_id, report.observation)
                for report in page
                if report.change.after.terminal
            ]
            ended += [
                TaskRef(task_id, observation.index, observation.attempt, observation.uid)
                for task_id, observation in seen
            ]
            after = page[-1].observation.index
            full = len(page) == DETAILS_PAGE
            page = self._polls.staged(self.fence, after, DETAILS_PAGE) if full else []
        # A single call is made, because a cluster may have to list all tasks of the run for each
        # call. The results are written in pages.
        found = iter(self._cluster.details(self.fence.run, ended))
        missing = {task.task_id for task in ended}
        while details := list(islice(found, DETAILS_PAGE)):
            self._polls.save_details(self.fence, details)
            missing.difference_update(detail.task_id for detail in details)
        if missing:
            self._polls.save_details(self.fence, [Details(task_id) for task_id in sorted(missing)])
        return len(ended) - len(missing)

    def apply(self, source: str, poll: Poll) -> None:
        """Apply the changes that ``record`` has staged, together with their details."""
        self.fetch_details()
        self._polls.apply_details(self.fence)
        self._polls.apply_findings(self.fence, source, poll.observed_at)


def _compare(
    state: FoundState, poll: Poll, gap_s: float, resumed: bool, ends: Reading | None
) -> list[TaskFinding]:
    """Return the changes that a poll proves about the tasks in ``state``, in the order of the
    tasks.
    """
    seen = {(o.index, o.attempt): o for o in poll.observations}
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
            (end.finished_at if end else None) or observation.changed_at or poll.observed_at
        )
        planned = state.next_look_at or poll.observed_at
        # A change after the planned time of the poll should be found by the next poll, at most one
        # gap after the change.
        due_at = planned if changed_at <= planned else changed_at + timedelta(seconds=gap_s)
        change = reconcile(task, observation, state.stop, due_at=due_at, resumed=resumed, ends=ends)
        if change is not None:
            findings.append(TaskFinding(change, observation))
    return findings


def again_s(poll: Poll) -> float | None:
    """Return the seconds after which another poll is needed at the latest, or ``None``."""
    code_s = polling_schedule.CODE_SECONDS if any(o.code_wait for o in poll.observations) else None
    return min((s for s in (poll.again_s, code_s) if s is not None), default=None)


def started(poll: Poll, resumed: bool) -> tuple[bool, datetime | None]:
    """Return whether the run has started, and when.

    After a resume, ended tasks belong to the previous attempt.
    """
    begun = [
        o
        for o in poll.observations
        if o.phase is Phase.EXECUTING or (not resumed and _has_executed(o))
    ]
    return bool(begun), min((o.started_at for o in begun if o.started_at is not None), default=None)


def _has_executed(seen: Observation) -> bool:
    return seen.phase is Phase.ENDED and (
        seen.started_at is not None or bool(seen.end and seen.end.exit_code is not None)
    )


@dataclass(frozen=True, slots=True)
class PollOutcome:
    """The result of a poll that the workflow did not request."""

    changed: int
    """The number of changes. The workflow has to be notified of them."""
    seconds: float
    again_s: float | None = None
    """Seconds after which another poll is needed."""
    spares_poll: bool = True
    """True if the workflow only has to count the tasks. An earlier build, which may still be
    running for a while after an upgrade, polls again.
    """


@dataclass
class Recorder:
    """Polls runs independently of their workflows, and records changes at once.

    Verdicts, deployments, retries and stops belong to the workflow, which has to be notified of
    changes.
    """

    polls: PollStore
    retries: RetryStore
    cluster: RunPolls
    policies: Policies
    clock: Clock = utc_now

    def record(self, fence: Fence, source: str, few: Tasks = None) -> PollOutcome | None:
        """Do one poll of a run, and record the changes that the poll proves.

        Return ``None`` for a run that has just been resumed, because its workflow has to do this
        poll. ``few`` contains the tasks that changed. In a run with many tasks, only these tasks
        are polled. Raises ``LifecycleError``; a later poll or the workflow then finds the change.
        """
        step = PollStep(self.polls, self.cluster, fence, self.policies)
        return again_if_overtaken(lambda: self._record(step, source, few))

    def _record(self, step: PollStep, source: str, few: Tasks) -> PollOutcome | None:
        state, poll = step.poll(few)
        if state.resuming:
            return None
        soon = self.clock() + timedelta(
            seconds=polling_schedule.poll_interval(0, state.poll_minutes, poll.seconds)
        )
        report = step.record_at_once(state, poll, source, soon)
        meters.polled(poll.seconds)
        if step.unsuccessful or not report.active + report.queued:
            step.take_up_tries(self.cluster, self.retries, state, lambda: None)
        if report.details:
            self._write_details(step)
        spares_poll = bool(report.changed) and not self.polls.rollback_possible()
        return PollOutcome(report.changed, poll.seconds, again_s(poll), spares_poll)

    def _write_details(self, step: PollStep) -> None:
        try:
            step.fetch_details()
            self.polls.apply_details(step.fence)
        except LifecycleError as error:  # the workflow fetches the details later
            log.warning(
                "the details of ended tasks of run %s are fetched later: %s",
                step.fence.run_id,
                error,
            )
