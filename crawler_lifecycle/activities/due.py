"""Activities of one due time of a schedule: decide, stop what the previous one began, begin the target."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from crawler_lifecycle.activities.graphs.graphs import checked_run, crawl_request
from crawler_lifecycle.domain.errors import DuplicateRequest, InvalidRequest, NotInThisState
from crawler_lifecycle.domain.graph.checks import check
from crawler_lifecycle.domain.graph.pages import encode_pages, fingerprint, step_from_json
from crawler_lifecycle.domain.graph.spec import GraphOptions, GraphSpec, GraphState
from crawler_lifecycle.domain.managers.manager import manager_workflow_id
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.run import RunRequest, StopIntent, Trigger
from crawler_lifecycle.domain.schedules.decision import Decision
from crawler_lifecycle.domain.schedules.definition import (
    Overlap,
    ScheduleSpec,
    TargetKind,
    due_flow_id,
    due_graph_key,
    due_request_id,
    due_text,
)
from crawler_lifecycle.ports.graphs import GraphRow, NewGraph
from crawler_lifecycle.ports.managers import ManagerRow, NewManager
from crawler_lifecycle.ports.schedules import DueOrder, DueRow, ScheduleRow, TargetRef

from . import meters
from .child_runs import ERROR_MAX, ChildRuns
from .shared import Clock, alive, beating, there, utc_now

if TYPE_CHECKING:
    from crawler_lifecycle.store.graphs.graphs import GraphStore
    from crawler_lifecycle.store.managers.managers import ManagerStore
    from crawler_lifecycle.store.schedules.schedules import ScheduleStore


#: The type of failure with which a due time waits for the verdict of the previous target.
PREVIOUS_LIVE = "PreviousLive"


@dataclass(frozen=True, slots=True)
class DueDecided:
    """Decision about a due time."""

    due_id: int
    decision: Decision
    begun: TargetRef | None = None
    """The target that was begun."""
    begin: bool = False
    """True if the target is still to be begun: it waits for the previous one."""
    stop: bool = False
    """True if the previous target is stopped first."""


@dataclass
class DueActivities:
    """Activities of ``CrawlDueWorkflow``."""

    schedules: ScheduleStore
    managers: ManagerStore
    graphs: GraphStore
    children: ChildRuns
    clock: Clock = utc_now

    @activity.defn(name="decide_due", no_thread_cancel_exception=True)
    def decide_due(self, order: DueOrder) -> DueDecided | None:
        """Record the decision about a due time, and begin its target where it waits for nothing; ``None``: it is no due
        time, or the schedule was deleted. One activity does both, so that each of many due times is recorded early.

        Second execution: returns the recorded firing, and finds its target by the id of the request.
        """
        now, due_at = self.clock(), order.due_at
        line = None if due_at is None else self.schedules.decide_due(order.name, due_at, order.revision)
        if line is None:
            return None
        if line.decided_at >= now and not line.decision.begins:
            meters.count(meters.SCHEDULE_DUE, decision=line.decision.value)
        if line.target is not None or not line.decision.begins:
            return DueDecided(line.due_id, line.decision, line.target)
        if line.decision is Decision.STARTED:
            begun = self._begun(self._schedule(order.name), line)
            return DueDecided(line.due_id, Decision.FAILED if begun is None else line.decision, begun)
        return DueDecided(line.due_id, line.decision, begin=True, stop=self._stops(line))

    def _stops(self, line: DueRow) -> bool:
        """Return whether the target of the previous due time is to be stopped for this one."""
        spec = ScheduleSpec.read(self._schedule(line.name).definition)
        return line.decision is Decision.QUEUED and spec.overlap is Overlap.STOP_PREVIOUS and line.asked_by is None

    @activity.defn(name="stop_previous_due", no_thread_cancel_exception=True)
    def stop_previous_due(self, due_id: int) -> bool:
        """Record the stop of the previous target, and notify its workflow. Returns whether the target has its verdict.

        Second execution: the target knows the stop by its id. Fails as ``PREVIOUS_LIVE`` while the target has not
        begun.
        """
        previous, line = self.schedules.previous_target(due_id), self.schedules.get_due(due_id)
        if previous is None or not previous.live:
            return True
        if previous.target is None:
            raise _waits(f"what due time {previous.due_id} begins is not there yet, and is stopped then")
        why = f"its schedule is due again, at {due_text(line.due_at)} (overlap: stop_previous)"
        intent = StopIntent(self.clock(), requested_by=f"schedule {line.name}", reason=why)
        with beating():
            if not self._stops(line):  # a database that was put back gives the number of a line out again
                return True
            self._stop(previous.target, f"schedule/{line.name}", intent)
        return False

    @activity.defn(name="begin_due", no_thread_cancel_exception=True)
    def begin_due(self, due_id: int) -> TargetRef | None:
        """Begin the target of a due time once the previous target has its verdict. ``None``: it was not begun; the
        reason is recorded. Fails as ``PREVIOUS_LIVE`` while it has to wait for a verdict.

        Second execution: finds its target by the id of the request.
        """
        previous, line = self.schedules.previous_target(due_id), self.schedules.get_due(due_id)
        if not line.decision.begins and self._begun_before(line) is None:
            return None
        if line.decision is Decision.QUEUED and line.target is None and self.schedules.give_way(due_id):
            meters.count(meters.SCHEDULE_DUE, decision=Decision.SKIPPED_OVERLAP.value)
            return None
        if previous is not None and previous.live:
            what = "" if previous.target is None else f" ({previous.target.kind} {previous.target.id})"
            raise _waits(f"what due time {previous.due_id} began{what} has no verdict yet")
        return self._begun(self._schedule(line.name), line)

    # --- targets ---------------------------------------------------------------------------------------------------

    def _begun(self, row: ScheduleRow, line: DueRow) -> TargetRef | None:
        """Begin the target of a firing as the gateway does: first the row, then the workflow.

        ``None``: it was not begun; the reason is recorded.
        """
        try:
            target = self._begin(row, line)
        except (InvalidRequest, NotInThisState, DuplicateRequest) as error:
            self.schedules.due_failed(line.due_id, str(error)[:ERROR_MAX])
            meters.count(meters.SCHEDULE_DUE, decision=Decision.FAILED.value)
            return None
        if target is not None:
            self.schedules.due_begun(line.due_id, target)
            if line.target is None:
                meters.count(meters.SCHEDULE_DUE, decision=line.decision.value)
            if line.target is None and line.asked_by is None:
                late = (self.clock() - line.due_at).total_seconds()
                meters.measure(meters.SCHEDULE_LATENESS, late, decision=line.decision.value)
        return target

    def _schedule(self, name: str) -> ScheduleRow:
        return there(self.schedules.get_schedule(name), f"schedule {name!r}")

    def _begin(self, row: ScheduleRow, line: DueRow) -> TargetRef | None:
        """Begin the target, or find the one that an earlier try began without an answer. Raises the errors that
        ``begin_due`` records.
        """
        begun = self._begun_before(line)
        if begun is None and line.asked_by is None:
            if row.deleted_at is not None:
                raise NotInThisState("its schedule was deleted before it began")
            if row.paused_at is not None and line.decision is Decision.QUEUED:
                raise _waits(f"its schedule is paused: {row.pause_reason}")
        spec = ScheduleSpec.read(row.definition)
        begin = {TargetKind.RUN: self._begin_run, TargetKind.MANAGER: self._begin_manager}
        return begin.get(begun or spec.kind, self._begin_graph)(line, spec)

    def _begun_before(self, line: DueRow) -> TargetKind | None:
        """The kind of target that an unanswered try began, by the definition of that time."""
        if self.children.runs.find_run(due_request_id(line.name, line.due_at)) is not None:
            return TargetKind.RUN
        if self.managers.find_manager(None, due_flow_id(line.name, line.due_at)) is not None:
            return TargetKind.MANAGER
        graph = self.graphs.find_graph(due_graph_key(line.name, line.due_at))
        return TargetKind.GRAPH if graph is not None and graph.state is not GraphState.DRAFT else None

    def _begin_run(self, line: DueRow, spec: ScheduleSpec) -> TargetRef | None:
        def request() -> RunRequest:
            return checked_run(run_request(line.name, line.due_at, spec), self.children.crawlers())

        alive()
        run = self.children.begin(f"schedule {line.name}", None, due_request_id(line.name, line.due_at), request)
        return None if run is None else TargetRef(TargetKind.RUN, run.run_id)

    def _begin_manager(self, line: DueRow, spec: ScheduleSpec) -> TargetRef:
        flow_id = due_flow_id(line.name, line.due_at)
        row = self.managers.find_manager(None, flow_id) or self._make_manager(line, spec, flow_id)
        if not row.status.terminal:
            self.children.directory.begin_manager(row.manager_id, manager_workflow_id(row.name, row.flow_id))
        return TargetRef(TargetKind.MANAGER, row.manager_id)

    def _make_manager(self, line: DueRow, spec: ScheduleSpec, flow_id: str) -> ManagerRow:
        by = spec.target.get("requested_by", f"schedule {line.name}")
        own = {name: value for name, value in spec.target.items() if name in ("name", "plan", "options", "tags")}
        try:
            new = NewManager(flow_id=flow_id, requested_by=by, fresh=True, **own)
        except TypeError as error:
            raise InvalidRequest(f"manager: {error}") from None
        return self.managers.reserve_manager(new)[0]

    def _begin_graph(self, line: DueRow, spec: ScheduleSpec) -> TargetRef:
        row = self.graphs.find_graph(due_graph_key(line.name, line.due_at))
        if row is None or row.state is GraphState.DRAFT:
            row = self._make_graph(line, spec)
        if not row.state.final:
            self.children.directory.begin_graph(row.graph_id, graph_workflow_id(row.key))
        return TargetRef(TargetKind.GRAPH, row.graph_id)

    def _make_graph(self, line: DueRow, spec: ScheduleSpec) -> GraphRow:
        whole, own = graph_spec(spec.target), spec.target
        pages = encode_pages(whole)
        new = NewGraph(
            key=due_graph_key(line.name, line.due_at),
            fingerprint=fingerprint(whole),
            pages=len(pages),
            name=own.get("name"),
            options=whole.options,
            requested_by=own.get("requested_by", f"schedule {line.name}"),
            tags=own.get("tags", []),
        )
        row, _ = self.graphs.reserve_graph(new)
        if row.state is GraphState.DRAFT:
            for number, page in enumerate(pages):
                self.graphs.add_graph_page(row.graph_id, number, page)
            row = self.graphs.make_graph(row.graph_id)
        return row

    def _stop(self, target: TargetRef, whose: str, intent: StopIntent) -> None:
        """Record the stop, then notify the workflow, or start one, as the gateway does."""
        if target.kind is TargetKind.RUN:
            run = self.children.runs.get_run(target.id)
            if run is not None:
                self.children.stop(run, whose, intent)
        elif target.kind is TargetKind.MANAGER:
            manager = self.managers.get_manager(target.id)
            if manager is not None:
                self.children.stop_manager(self.managers, manager, whose, intent)
        else:
            graph = self.graphs.record_graph_stop(target.id, intent)
            if not graph.state.final:
                self.children.directory.begin_graph(graph.graph_id, graph_workflow_id(graph.key))


def _waits(why: str) -> ApplicationError:
    """The failure that makes Temporal ask again; expected, so benign."""
    return ApplicationError(why, type=PREVIOUS_LIVE, category=ApplicationErrorCategory.BENIGN)


def graph_spec(target: dict[str, Any]) -> GraphSpec:
    """The graph of a target, checked. Raises ``InvalidRequest``."""
    try:
        options = GraphOptions(**target.get("options", {}))
    except TypeError as error:
        raise InvalidRequest(f"graph.options: {error}") from None
    steps = target.get("steps")
    if not isinstance(steps, list) or not steps:
        raise InvalidRequest("graph.steps: give the steps of the graph, at least one")
    spec = GraphSpec([step_from_json(one) for one in steps], options, target.get("context", {}))
    check(spec)
    return spec


def run_request(name: str, due_at: datetime, spec: ScheduleSpec) -> RunRequest:
    """The request of the run that a due time begins. Raises ``InvalidRequest``."""
    own = {"requested_by": f"schedule {name}", **spec.target}
    due = {"trigger": Trigger.SCHEDULED.value, "due_at": due_at.isoformat()}
    return crawl_request({**own, **due})
