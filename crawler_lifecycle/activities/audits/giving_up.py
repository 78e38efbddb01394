"""Giving up runs after several consecutive workflows ended without progress. The steps are the same
as in a workflow. First, all tasks of a run are ended, and the cluster must prove this. If there is
no proof, the run stays open, and the next search tries again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from crawler_lifecycle.activities.poll_step import PollStep, again_if_overtaken
from crawler_lifecycle.activities.retries import Policies
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.audit import LiveRun
from crawler_lifecycle.domain.errors import NotInThisState, TemporalUnavailable
from crawler_lifecycle.domain.run import (
    EndedTasks,
    RunRequest,
    RunStatus,
    StopIntent,
    Verdict,
    verdict,
)
from crawler_lifecycle.ports.cluster import AuditedCluster
from crawler_lifecycle.ports.polls import Poll
from crawler_lifecycle.ports.protocols import WorkflowDirectory
from crawler_lifecycle.ports.runs import Fence, Owner, RunRow

from .settling import end_tasks

if TYPE_CHECKING:
    from crawler_lifecycle.store.store import Store


#: Prefix of the owner name of audits, and the name under which they request stops.
OURS = "given-up-"
BY = "the audit"
OUTCOME = "failed"
#: Maximum number of polls for a run whose tasks have ended, and seconds between two polls.
POLLS = 5
POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class GivingUp:
    """Ends runs. After a crash, a second call continues as the same owner."""

    store: Store
    cluster: AuditedCluster
    directory: WorkflowDirectory
    clock: Clock = utc_now
    policies: Policies | None = None

    def run(self, run: LiveRun, why: str) -> str:
        """Stop the run, end its tasks, then end the run.

        Raises ``ClusterUnavailable`` if the end of the tasks cannot be proved, and ``RunIsLive`` if
        a workflow has taken over the run in the meantime.
        """
        s = self.store
        owner = Owner(f"audit/{run.run_id}", owner_name(run.owner_run_id))
        if run.stop is None:
            s.stops.record_stop(
                run.run_id, StopIntent(self.clock(), True, BY, why, limit=OUTCOME), None
            )
        # An earlier try has recorded the cause.
        elif run.stop.requested_by == BY and run.stop.reason:
            why = run.stop.reason
        self.end_tasks(run)
        claimed = s.initiation.claim_run(
            RunRequest(run_id=run.run_id), owner, self.directory.is_open, repair=True
        )
        fence = Fence(run.run_id, claimed.attempt, owner.first_run_id, claimed.run_uid)
        s.stops.acted_on_stop(fence, self.clock())
        self._poll(fence)

        def judge(groups: Sequence[EndedTasks], stop: StopIntent | None) -> Verdict:
            found = verdict(groups, stop)
            return (
                found
                if found.status is RunStatus.COMPLETED
                else replace(found, cause=f"{why}. {found.cause}")
            )

        ended = s.completion.end_run(fence, judge)
        wake(self.directory, ended.parent)
        with suppress(TemporalUnavailable):  # the next audit delivers the event
            self.directory.deliver_again(fence, event=True, files=True)
        return f"given up: {ended.status}"

    def end_tasks(self, run: LiveRun | RunRow) -> None:
        """End all tasks of the run, and prove this by the absence of the tasks. Raises
        ``ClusterUnavailable``.
        """
        while seen := [
            task for task in self.cluster.inventory(run_id=run.run_id) if run.ref.owns(task.run_uid)
        ]:
            for became in end_tasks(
                self.cluster, {str((task.key, task.uid)): (task, None) for task in seen}
            ).values():
                if isinstance(became, Exception):
                    raise became

    def _poll(self, fence: Fence) -> None:
        """Record how the tasks have ended, until no task row is active."""
        s = self.store
        step = PollStep(self.store.polls, self.cluster, fence, self.policies)
        for _ in range(POLLS):
            step.apply("sweep", again_if_overtaken(lambda: self._record(step)))
            counts = s.stops.cancel_queued(fence, self.clock())
            if not counts.alive:
                return
            time.sleep(POLL_S)

    def _record(self, step: PollStep) -> Poll:
        state, poll = step.poll()
        step.record(state, poll, next_look_at=self.clock() + timedelta(seconds=POLL_S))
        return poll


def owner_name(present: str | None) -> str:
    """Return the owner name with which we claim the run. If we already own the row, return the same
    name as before.
    """
    return present if present is not None and present.startswith(OURS) else OURS + uuid.uuid4().hex


def check_gone(live: int) -> None:
    """Raise ``NotInThisState`` if runs of the parent are live."""
    if live:
        raise NotInThisState(f"{live} of its runs were asked to end; it will be ended after them")


def wake(directory: WorkflowDirectory, parent: str | None) -> None:
    """Make the parent's workflow read its rows again, if Temporal can be reached."""
    if parent is not None:
        with suppress(TemporalUnavailable):
            directory.wake(parent)
