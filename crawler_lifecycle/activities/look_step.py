"""One look, step by step: ask the cluster about a run, compare its answer with the rows, stage what it proves."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from crawler_lifecycle.domain import ladder
from crawler_lifecycle.domain.task import TaskState, TaskStatus, reconcile
from crawler_lifecycle.ports.cluster import TaskLooks
from crawler_lifecycle.ports.looks import FoundState, Look, LookReport, TaskFinding
from crawler_lifecycle.ports.runs import Fence, TaskRef

from .shared import ordered_at

if TYPE_CHECKING:
    from crawler_lifecycle.store.runs.looks import LookStore


#: Tasks whose debugging information is fetched and written in one go.
DETAILS_PAGE = 500


def ref_of(task: TaskState) -> TaskRef:
    """The task as the cluster is asked about it."""
    stopping = task.status is TaskStatus.STOPPING
    # One that was never offered, or was put off, is nowhere.
    place = task.place if task.uid is not None or task.offered_until is not None else None
    return TaskRef(task.task_id, task.index, task.attempt, task.uid, stopping, task.missed_at, place)


class LookStep:
    """A look of one run. Each step is one transaction or one call of the cluster, and can be repeated alone."""

    def __init__(self, looks: LookStore, cluster: TaskLooks, fence: Fence) -> None:
        self._looks, self._cluster, self._fence = looks, cluster, fence

    def look(self) -> tuple[FoundState, Look]:
        """What is believed about the run's tasks, and what the cluster says now. Raises ``ClusterUnavailable``."""
        state = self._looks.found_state(self._fence)
        return state, self._cluster.look(self._fence.run, [ref_of(task) for task in state.tasks])

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
        """Put the look on record and stage the changes that it proves; without ``ends`` those of live tasks alone.

        ``gap_s`` is the interval that led to the look. ``next_look_at`` ``None``: the plan stays. Raises ``Overtaken``.
        """
        found = _compare(state, look, gap_s, resumed)
        if not ends:
            found = [finding for finding in found if not finding.change.after.terminal]
        return self._looks.record_look(self._fence, look, found, next_look_at, source, ordered_at())

    def fetch_details(self) -> int:
        """Stage debugging information (log tail, counters, memory) about the changed tasks; about how many."""
        fetched, after = 0, -1
        while True:
            page = self._looks.staged(self._fence, after, DETAILS_PAGE)
            seen = [(finding.change.task_id, finding.observation) for finding in page]
            refs = [TaskRef(task_id, one.index, one.attempt, one.uid) for task_id, one in seen]
            details = self._cluster.details(self._fence.run, refs)
            self._looks.save_details(self._fence, details)
            fetched += len(details)
            if len(page) < DETAILS_PAGE:
                return fetched
            after = page[-1].observation.index


def _compare(state: FoundState, look: Look, gap_s: float, resumed: bool) -> list[TaskFinding]:
    """The changes that a look proves about the tasks in ``state``, in order of the tasks."""
    seen = {(o.index, o.attempt): o for o in look.observations}
    findings = []
    for task in state.tasks:
        observation = seen.get((task.index, task.attempt))
        if observation is None:
            continue
        end = observation.end
        changed_at = (end.finished_at if end else None) or observation.changed_at or look.observed_at
        planned = state.next_look_at or look.observed_at
        due = ladder.due_for(changed_at.timestamp(), planned.timestamp(), gap_s)
        due_at = datetime.fromtimestamp(due, tz=look.observed_at.tzinfo)
        change = reconcile(task, observation, state.stop, due_at=due_at, resumed=resumed)
        if change is not None:
            findings.append(TaskFinding(change, observation))
    return findings
