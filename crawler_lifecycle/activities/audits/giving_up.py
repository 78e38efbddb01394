"""Ends runs and parents after several of their workflows in a row ended without progress.

It does the same steps as a workflow. First it ends all tasks of a run, and the cluster must prove that. Without that
proof the run stays open, and the next search tries again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from crawler_lifecycle.activities.child_runs import Claim, RecordParentStop, StopRuns
from crawler_lifecycle.activities.look_step import LookStep, again_if_overtaken
from crawler_lifecycle.activities.retries import Policies
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.audit import LiveParent, LiveRun
from crawler_lifecycle.domain.errors import NotInThisState, TemporalUnavailable
from crawler_lifecycle.domain.run import EndedTasks, RunRequest, RunStatus, StopIntent, Verdict, verdict
from crawler_lifecycle.features.graphs.activities.graphs import AdvanceGraph, EndGraph, GraphActivities
from crawler_lifecycle.features.graphs.domain.engine import Graph
from crawler_lifecycle.features.graphs.domain.spec import StepState
from crawler_lifecycle.features.graphs.ports import GraphFence
from crawler_lifecycle.features.managers.activities.managing import EndManager, ManagingActivities
from crawler_lifecycle.features.managers.ports import ManagerFence
from crawler_lifecycle.ports.cluster import AuditedCluster
from crawler_lifecycle.ports.looks import Look
from crawler_lifecycle.ports.protocols import WorkflowDirectory
from crawler_lifecycle.ports.runs import Fence, Owner, RunRow

from .settling import end_tasks

if TYPE_CHECKING:
    from crawler_lifecycle.store.store import Store


#: Prefix of the owner name that this module uses, and the name under which it requests stops.
OURS = "given-up-"
BY = "the audit"
OUTCOME = "failed"
#: Maximum number of looks at a run whose tasks have ended, and seconds between two looks.
LOOKS = 5
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class GivingUp:
    """Ends runs and parents. After a crash, a second call continues as the same owner."""

    store: Store
    cluster: AuditedCluster
    directory: WorkflowDirectory
    managing: ManagingActivities
    graphs: GraphActivities
    clock: Clock = utc_now
    policies: Policies | None = None

    def run(self, run: LiveRun, why: str) -> str:
        """Stop the run, end its tasks, then end the run.

        Raises ``ClusterUnavailable`` if the end of the tasks cannot be proved, and ``RunIsLive`` if a workflow has
        taken over the run meanwhile.
        """
        s = self.store
        owner = Owner(f"audit/{run.run_id}", _owner(run.owner_run_id))
        if run.stop is None:
            s.stops.record_stop(run.run_id, StopIntent(self.clock(), True, BY, why, limit=OUTCOME), None)
        elif run.stop.requested_by == BY and run.stop.reason:  # an earlier try has recorded the cause
            why = run.stop.reason
        self.end_tasks(run)
        claimed = s.initiation.claim_run(RunRequest(run_id=run.run_id), owner, self.directory.is_open, repair=True)
        fence = Fence(run.run_id, claimed.attempt, owner.first_run_id, claimed.run_uid)
        s.stops.acted_on_stop(fence, self.clock())
        self._look(fence)

        def judge(groups: Sequence[EndedTasks], stop: StopIntent | None) -> Verdict:
            found = verdict(groups, stop)
            return found if found.status is RunStatus.COMPLETED else replace(found, cause=f"{why}. {found.cause}")

        ended = s.completion.end_run(fence, judge)
        self._wake(ended.parent)
        with suppress(TemporalUnavailable):  # the next audit delivers
            self.directory.deliver_again(fence, event=True, files=True)
        return f"given up: {ended.status}"

    def end_tasks(self, run: LiveRun | RunRow) -> None:
        """End all tasks of the run. Their absence proves that. Raises ``ClusterUnavailable``."""
        while seen := [one for one in self.cluster.inventory(run_id=run.run_id) if run.ref.owns(one.run_uid)]:
            for became in end_tasks(self.cluster, {str((one.key, one.uid)): (one, None) for one in seen}).values():
                if isinstance(became, Exception):
                    raise became

    def _look(self, fence: Fence) -> None:
        """Record how the tasks have ended, until no row of a task is active."""
        s = self.store
        step = LookStep(self.store.looks, self.cluster, fence, self.policies)
        for _ in range(LOOKS):
            step.apply("sweep", again_if_overtaken(lambda: self._record(step)))
            counts = s.stops.cancel_queued(fence, self.clock())
            if not counts.alive:
                return
            time.sleep(LOOK_S)

    def _record(self, step: LookStep) -> Look:
        state, look = step.look()
        step.record(state, look, "sweep", next_look_at=self.clock() + timedelta(seconds=LOOK_S))
        return look

    def parent(self, parent: LiveParent, why: str) -> str:
        """End a manager, a graph or a due time; pause a webhook. Raises ``NotInThisState`` while its runs are live."""
        if parent.what == "due time":
            self.store.schedules.due_failed(parent.number, why)
        elif parent.what == "webhook":
            self.store.webhooks.pause(parent.workflow_id.partition("/")[2], why)
        else:
            self._wake(self._manager(parent, why) if parent.what == "manager" else self._graph(parent, why))
        return "given up"

    def _manager(self, parent: LiveParent, why: str) -> str | None:
        acts = self.managing
        number = parent.number
        own = _owner(parent.owner_run_id)
        opened = acts.open_manager(Claim(number, Owner(parent.workflow_id, own)))
        leave = opened.stop is None or opened.leave
        if opened.stop is not None and not leave:
            _check_gone(acts.stop_manager_runs(StopRuns(number, opened.stop)).live)
        outcome = OUTCOME if opened.stop is None else "cancelled"
        acts.end_manager(
            EndManager(ManagerFence(number, opened.attempt, own), RunStatus.FAILED, outcome, why, leave=leave)
        )
        return opened.parent

    def _graph(self, parent: LiveParent, why: str) -> str | None:
        acts = self.graphs
        number = parent.number
        own = _owner(parent.owner_run_id)
        opened = acts.open_graph(Claim(number, Owner(parent.workflow_id, own)))
        fence = GraphFence(number, opened.attempt, own)
        stop = opened.stop or StopIntent(self.clock(), True, BY, why)
        acts.record_graph_stop(RecordParentStop(number, stop))
        _check_gone(acts.stop_graph_runs(StopRuns(number, stop)).live)
        acts.advance_graph(AdvanceGraph(fence))

        def discard(graph: Graph) -> None:
            for step in graph.steps:
                if step.state is StepState.CANCELLED and stop.requested_by == BY:
                    step.state = StepState.DISCARDED
                    graph.changed.add(step.number)

        self.store.graphs.change(fence, discard)
        acts.end_graph(EndGraph(fence, why))
        return opened.parent

    def _wake(self, parent: str | None) -> None:
        """Make the parent's workflow read its rows again."""
        if parent is not None:
            with suppress(TemporalUnavailable):
                self.directory.wake(parent)


def _owner(present: str | None) -> str:
    """Return our name as the owner. If we already own the row, return the same name as before."""
    return present if present is not None and present.startswith(OURS) else OURS + uuid.uuid4().hex


def _check_gone(live: int) -> None:
    if live:
        raise NotInThisState(f"{live} of its runs were asked to end; it is ended after they have ended")
