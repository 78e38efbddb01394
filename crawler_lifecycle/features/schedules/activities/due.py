"""Activities for one due time of a schedule: decide about it, stop the previous target, and begin
the new target.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.child_runs import ERROR_MAX, ChildRuns
from crawler_lifecycle.activities.shared import activity_method, alive, beating, there
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.due_ids import due_flow_id, due_graph_key, due_request_id, due_text
from crawler_lifecycle.domain.errors import DuplicateRequest, InvalidRequest, NotInThisState
from crawler_lifecycle.domain.projects import DEFAULT, limited, only
from crawler_lifecycle.domain.run import RunRequest, StopIntent, Trigger
from crawler_lifecycle.features.graphs.activities.graphs import checked_run, crawl_request
from crawler_lifecycle.features.graphs.domain.checks import check
from crawler_lifecycle.features.graphs.domain.commands import GraphOrder
from crawler_lifecycle.features.graphs.domain.pages import fingerprint, step_from_json
from crawler_lifecycle.features.graphs.domain.spec import GraphOptions, GraphSpec, GraphState
from crawler_lifecycle.features.graphs.ports import GraphRow, NewGraph
from crawler_lifecycle.features.managers.activities.managing import stop_manager
from crawler_lifecycle.features.managers.domain.manager import ManagerOrder
from crawler_lifecycle.features.managers.ports import ManagerRow, NewManager

from ..domain.decision import Decision
from ..domain.definition import Overlap, ScheduleSpec, TargetKind
from ..ports import DueOrder, DueRow, ScheduleRow, TargetRef

if TYPE_CHECKING:
    from crawler_lifecycle.features.graphs.store.graphs import GraphStore
    from crawler_lifecycle.features.managers.store.managers import ManagerStore

    from ..store.schedules import ScheduleStore


#: The type of the failure that a due time raises while it waits for the verdict of the previous
#: target.
PREVIOUS_LIVE = "PreviousLive"


@dataclass(frozen=True, slots=True)
class DueDecided:
    """Result of ``decide_due``: the decision about a due time."""

    due_id: int
    decision: Decision
    begun: TargetRef | None = None
    """The target that has begun."""
    begin: bool = False
    """True if the target still has to begin, because it is waiting for the previous target."""
    stop: bool = False
    """True if the previous target must be stopped first."""


@dataclass
class DueActivities:
    """Activities of ``CrawlDueWorkflow``."""

    schedules: ScheduleStore
    managers: ManagerStore
    graphs: GraphStore
    children: ChildRuns
    clock: Clock = utc_now

    @activity_method
    def decide_due(self, order: DueOrder) -> DueDecided | None:
        """Record the decision about a due time, and begin its target unless the target has to wait.

        Return ``None`` if the schedule has no such due time or was deleted. A single activity
        decides and begins, so that each of many due times is recorded early. A second execution
        returns the recorded firing, and finds the firing's target by the id of the request.
        """
        now = self.clock()
        due_at = order.due_at
        firing = (
            None
            if due_at is None
            else self.schedules.decide_due(order.name, due_at, order.revision)
        )
        if firing is None:
            return None
        if firing.decided_at >= now and not firing.decision.begins:
            meters.count(meters.SCHEDULE_DUE, decision=firing.decision.value)
        if firing.target is not None or not firing.decision.begins:
            return DueDecided(firing.due_id, firing.decision, firing.target)
        if firing.decision is Decision.STARTED:
            begun = self._begun(self._schedule(order.name), firing)
            return DueDecided(
                firing.due_id, Decision.FAILED if begun is None else firing.decision, begun
            )
        return DueDecided(firing.due_id, firing.decision, begin=True, stop=self._stops(firing))

    def _stops(self, firing: DueRow) -> bool:
        """Return whether the previous target must be stopped for this firing."""
        spec = ScheduleSpec.read(self._schedule(firing.name).definition)
        return (
            firing.decision is Decision.QUEUED
            and spec.overlap is Overlap.STOP_PREVIOUS
            and firing.asked_by is None
        )

    @activity_method
    def stop_previous_due(self, due_id: int) -> bool:
        """Record the stop of the previous target, and notify its workflow.

        Return whether that target has its verdict. Fail with ``PREVIOUS_LIVE`` while that target
        has not begun. On a second execution, the target recognizes the repeated stop by the id of
        the stop.
        """
        previous = self.schedules.previous_target(due_id)
        firing = self.schedules.get_due(due_id)
        if previous is None or not previous.live:
            return True
        if previous.target is None:
            raise _waits(
                f"the target of due time {previous.due_id} has not begun yet; it will be stopped "
                "then"
            )
        why = f"its schedule is due again, at {due_text(firing.due_at)} (overlap: stop_previous)"
        intent = StopIntent(self.clock(), requested_by=f"schedule {firing.name}", reason=why)
        with beating():
            # After a restore of the database, another firing may have this number.
            if not self._stops(firing):
                return True
            self._stop(previous.target, f"schedule/{firing.name}", intent)
        return False

    @activity_method
    def begin_due(self, due_id: int) -> TargetRef | None:
        """Begin the target of a due time after the previous target has its verdict.

        Return ``None`` and record the reason if the target was not begun. Fail with
        ``PREVIOUS_LIVE`` while the target has to wait for a verdict. A second execution finds the
        firing's target by the id of the request.
        """
        previous = self.schedules.previous_target(due_id)
        firing = self.schedules.get_due(due_id)
        row = self._schedule(firing.name)
        with limited(row.project):  # a target of another project may have the same id
            if not firing.decision.begins and self._begun_before(firing) is None:
                return None
        if (
            firing.decision is Decision.QUEUED
            and firing.target is None
            and self.schedules.give_way(due_id)
        ):
            meters.count(meters.SCHEDULE_DUE, decision=Decision.SKIPPED_OVERLAP.value)
            return None
        if previous is not None and previous.live:
            what = (
                "" if previous.target is None else f" ({previous.target.kind} {previous.target.id})"
            )
            raise _waits(f"the target of due time {previous.due_id}{what} has no verdict yet")
        return self._begun(row, firing)

    # --- targets ----------------------------------------------------------------------------------

    def _begun(self, row: ScheduleRow, firing: DueRow) -> TargetRef | None:
        """Begin the target of a firing as the gateway does: first write the row, then start the
        workflow.

        Return ``None`` and record the reason if the target was not begun.
        """
        try:
            with limited(row.project):
                target = self._begin(row, firing)
        except (InvalidRequest, NotInThisState, DuplicateRequest) as error:
            self.schedules.due_failed(firing.due_id, str(error)[:ERROR_MAX])
            meters.count(meters.SCHEDULE_DUE, decision=Decision.FAILED.value)
            return None
        if target is not None:
            self.schedules.due_begun(firing.due_id, target)
            if firing.target is None:
                meters.count(meters.SCHEDULE_DUE, decision=firing.decision.value)
            if firing.target is None and firing.asked_by is None:
                late = (self.clock() - firing.due_at).total_seconds()
                meters.measure(meters.SCHEDULE_LATENESS, late, decision=firing.decision.value)
        return target

    def _schedule(self, name: str) -> ScheduleRow:
        return there(self.schedules.get(name), f"schedule {name!r}")

    def _begin(self, row: ScheduleRow, firing: DueRow) -> TargetRef | None:
        """Begin the target, or find the target that an earlier try has begun.

        Raises the errors that ``_begun`` records.
        """
        begun = self._begun_before(firing)
        if begun is None and firing.asked_by is None:
            if row.deleted_at is not None:
                raise NotInThisState("its schedule was deleted before it began")
            if row.paused_at is not None and firing.decision is Decision.QUEUED:
                raise _waits(f"its schedule is paused: {row.pause_reason}")
        spec = ScheduleSpec.read(row.definition)
        begin = {TargetKind.RUN: self._begin_run, TargetKind.MANAGER: self._begin_manager}
        return begin.get(begun or spec.kind, self._begin_graph)(firing, spec)

    def _begun_before(self, firing: DueRow) -> TargetKind | None:
        """Return the kind of the target that an earlier try has begun, or ``None``.

        The definition may have changed since then.
        """
        if self.children.runs.find_run(due_request_id(firing.name, firing.due_at)) is not None:
            return TargetKind.RUN
        if self.managers.find_manager(None, due_flow_id(firing.name, firing.due_at)) is not None:
            return TargetKind.MANAGER
        graph = self.graphs.find_graph(due_graph_key(firing.name, firing.due_at))
        return (
            TargetKind.GRAPH if graph is not None and graph.state is not GraphState.DRAFT else None
        )

    def _begin_run(self, firing: DueRow, spec: ScheduleSpec) -> TargetRef | None:
        def request() -> RunRequest:
            project = only() or DEFAULT
            asked = run_request(firing.name, firing.due_at, spec, project)
            children = self.children
            crawlers = children.crawlers()
            return checked_run(asked, crawlers, children.versions, children.problem)

        alive()
        run = self.children.begin(
            f"schedule {firing.name}", None, due_request_id(firing.name, firing.due_at), request
        )
        return None if run is None else TargetRef(TargetKind.RUN, run.run_id)

    def _begin_manager(self, firing: DueRow, spec: ScheduleSpec) -> TargetRef:
        flow_id = due_flow_id(firing.name, firing.due_at)
        row = self.managers.find_manager(None, flow_id) or self._make_manager(firing, spec, flow_id)
        if not row.status.terminal:
            self.children.directory.begin_for(ManagerOrder(row.manager_id), row.workflow_id)
        return TargetRef(TargetKind.MANAGER, row.manager_id)

    def _make_manager(self, firing: DueRow, spec: ScheduleSpec, flow_id: str) -> ManagerRow:
        target = spec.target_at(firing.due_at)
        by = target.get("requested_by", f"schedule {firing.name}")
        own = {
            name: value
            for name, value in target.items()
            if name in ("name", "plan", "options", "tags")
        }
        try:
            new = NewManager(flow_id=flow_id, requested_by=by, fresh=True, **own)
        except TypeError as error:
            raise InvalidRequest(f"manager: {error}") from None
        return self.managers.reserve_manager(new)[0]

    def _begin_graph(self, firing: DueRow, spec: ScheduleSpec) -> TargetRef:
        row = self.graphs.find_graph(due_graph_key(firing.name, firing.due_at))
        if row is None or row.state is GraphState.DRAFT:
            row = self._make_graph(firing, spec)
        if not row.state.final:
            self.children.directory.begin_for(GraphOrder(row.graph_id), row.workflow_id)
        return TargetRef(TargetKind.GRAPH, row.graph_id)

    def _make_graph(self, firing: DueRow, spec: ScheduleSpec) -> GraphRow:
        own = spec.target_at(firing.due_at)
        whole = graph_spec(own)
        new = NewGraph(
            key=due_graph_key(firing.name, firing.due_at),
            fingerprint=fingerprint(whole),
            name=own.get("name"),
            options=whole.options,
            requested_by=own.get("requested_by", f"schedule {firing.name}"),
            tags=own.get("tags", []),
        )
        return self.graphs.reserve_graph(new, whole)[0]

    def _stop(self, target: TargetRef, whose: str, intent: StopIntent) -> None:
        """Record the stop of a target.

        Afterwards, notify the target's workflow or start a workflow, as the gateway does.
        """
        if target.kind is TargetKind.RUN:
            run = self.children.runs.get_run(target.id)
            if run is not None:
                self.children.stop(run, whose, intent)
        elif target.kind is TargetKind.MANAGER:
            manager = self.managers.get_manager(target.id)
            if manager is not None:
                stop_manager(self.managers, self.children.directory, manager, whose, intent)
        else:
            graph = self.graphs.record_graph_stop(target.id, intent)
            if not graph.state.final:
                self.children.directory.begin_for(GraphOrder(graph.graph_id), graph.workflow_id)


def _waits(why: str) -> ApplicationError:
    """Return the failure that makes Temporal retry. The failure is marked as benign, because it is
    expected.
    """
    return ApplicationError(why, type=PREVIOUS_LIVE, category=ApplicationErrorCategory.BENIGN)


def graph_spec(target: dict[str, Any]) -> GraphSpec:
    """Return the checked graph of a target. Raises ``InvalidRequest``."""
    try:
        options = GraphOptions(**target.get("options", {}))
    except TypeError as error:
        raise InvalidRequest(f"graph.options: {error}") from None
    steps = target.get("steps")
    if not isinstance(steps, list) or not steps:
        raise InvalidRequest("graph.steps: give the steps of the graph, at least one")
    spec = GraphSpec([step_from_json(step) for step in steps], options, target.get("context", {}))
    check(spec)
    return spec


def run_request(name: str, due_at: datetime, spec: ScheduleSpec, project: str) -> RunRequest:
    """Return the request for the run that is started for a due time. Raises ``InvalidRequest``."""
    own = {"requested_by": f"schedule {name}", **spec.target_at(due_at)}
    due = {"trigger": Trigger.SCHEDULED.value, "due_at": due_at.isoformat(), "project": project}
    return crawl_request({**own, **due})
