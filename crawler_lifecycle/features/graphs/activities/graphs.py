"""Activities of a graph's workflow: claim its row, pick steps, begin and stop crawls and managers,
end the graph.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from crawler_lifecycle.activities.audits.giving_up import BY, check_gone, owner_name
from crawler_lifecycle.activities.audits.parents import source
from crawler_lifecycle.activities.child_runs import (
    ERROR_MAX,
    BegunRuns,
    ChildRuns,
    Claim,
    NeverBegun,
    RecordParentStop,
    RunsLeft,
    StopRecorded,
    StopRuns,
    begin_request,
    next_workflow_id,
)
from crawler_lifecycle.activities.shared import activity_method, beating, there
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.audit import FindingKind, LiveParent
from crawler_lifecycle.domain.bounds import INPUT_VALUES_MAX, check_values, refusal
from crawler_lifecycle.domain.code import CodeVersions
from crawler_lifecycle.domain.crawlers.crawler import (
    CrawlerDefinition,
    check_request,
    completed,
    unknown,
)
from crawler_lifecycle.domain.due_ids import due_of
from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    InvalidRequest,
    NotInThisState,
    Overtaken,
    RowUnreadable,
)
from crawler_lifecycle.domain.names import (
    ended_key,
    graph_batch_workflow_id,
    graph_workflow_id,
    manager_workflow_id,
)
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent
from crawler_lifecycle.features.managers.activities.managing import stop_manager
from crawler_lifecycle.features.managers.domain.manager import ManagerOrder
from crawler_lifecycle.features.managers.ports import NewManager
from crawler_lifecycle.ports.runs import Owner

from ..domain.commands import (
    StepCommand,
    cause_of,
    step_manager,
    step_request_id,
)
from ..domain.engine import Graph, Step
from ..domain.kinds import STEP_RULES
from ..domain.picking import turn
from ..domain.spec import GraphState, StepKind, StepState
from ..ports import GraphFence, GraphRow, StepWork
from .questions import unfit

if TYPE_CHECKING:
    from crawler_lifecycle.features.managers.store.managers import ManagerStore

    from ..store.graphs import GraphStore


#: The graphs that audits compare with their workflows.
SOURCES = (source("open_graphs", "graph", FindingKind.NO_RUN, FindingKind.UNREADABLE),)
_REQUEST = TypeAdapter(RunRequest)

#: Maximum number of crawls and managers that one execution of ``advance_graph`` picks.
BEGIN_MAX = 500
#: Seconds between two reads of a row that needs a manual repair.
REPAIRED_S = 30.0
#: The fields of a manager's step that ``NewManager`` takes unchanged.
_OF_MANAGER = ("plan", "options", "tags")


@dataclass(frozen=True, slots=True)
class GraphOpened:
    """The result of ``open_graph``: the claimed graph."""

    key: str
    name: str | None
    attempt: int
    state: GraphState
    parent: str | None = None
    stop: StopIntent | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class AdvanceGraph:
    """Input of ``advance_graph``."""

    fence: GraphFence
    answered: list[int] = field(default_factory=list)
    """The calls of functions that have returned or will never return."""
    seen: int = 0
    """The highest number of a call that the workflow knows."""
    room: int = 0
    """The number of calls that may be started."""
    ended: int = 0
    """The number of steps that had ended at the last advance."""


@dataclass(frozen=True, slots=True)
class BatchCall:
    """A call of functions that must be started."""

    number: int
    queue: str | None = None
    long: bool = False
    turn: int = 1
    """The priority of this call among the calls of all graphs: 1 (first) to 5."""


@dataclass(frozen=True, slots=True)
class AdvanceResult:
    """Result of ``advance_graph``."""

    state: GraphState
    counts: dict[str, int] = field(default_factory=dict)
    batches: list[BatchCall] = field(default_factory=list)
    begin: bool = False
    """True if crawls or managers must be begun."""
    ending: int = 0
    """The number of cancelled crawls and managers that may still run."""
    again_at: datetime | None = None
    stop: StopIntent | None = None
    cause: str | None = None
    waiting: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CommandGraph:
    """Input of ``command_graph``."""

    graph_id: int
    request_id: str
    command: StepCommand


@dataclass(frozen=True, slots=True)
class ClosedBatches:
    """The input of ``closed_graph_batches``: calls that have their own workflow."""

    key: str
    batches: list[int]


@dataclass(frozen=True, slots=True)
class EndGraph:
    """Input of ``end_graph``."""

    fence: GraphFence
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class GraphEnded:
    """The recorded end of the graph."""

    state: GraphState
    cause: str | None


@dataclass
class GraphActivities:
    """Activities of a graph's workflow on the main and on the control queue."""

    graphs: GraphStore
    managers: ManagerStore
    children: ChildRuns
    clock: Clock = utc_now

    @activity_method
    def open_graph(self, order: Claim) -> GraphOpened:
        """Claim a new graph, or a graph that a retry or an append reopened.

        The graph's runs report to the workflow id that is derived from the graph's key, so no other
        workflow may own the graph. A second execution returns the same result to the same owner.
        """
        row = self._row(order.number)
        expected = graph_workflow_id(row.key)
        if order.owner.workflow_id != expected:
            raise refusal(
                "workflow id", order.owner.workflow_id, f"graph {row.graph_id} runs as {expected!r}"
            )
        row = self.graphs.claim_graph(order.number, order.owner)
        return GraphOpened(
            row.key, row.name, row.attempt, row.state, row.parent, row.stop, row.cause
        )

    @activity_method
    def advance_graph(self, order: AdvanceGraph) -> AdvanceResult:
        """Record ended steps, and pick the steps that start now, in one transaction.

        A second execution returns the same picks, which are found by the call numbers that the
        workflow has not seen.
        """
        began = time.monotonic()
        fence = order.fence
        ends = self.graphs.runs_ended(fence)
        now = self.clock()

        def advance(graph: Graph) -> AdvanceResult:
            graph.released(order.answered)
            graph.ended(ends)
            ended = sum(n for state, n in graph.counts().items() if state.final) - order.ended
            calls = len(order.answered)
            picked = graph.pick(
                now, batches=order.room, begin=BEGIN_MAX, answered=calls, ended=ended
            )
            runs = [step for step in graph.steps if STEP_RULES[step.kind].counts_as_run]
            return AdvanceResult(
                state=graph.state,
                counts={str(state): n for state, n in graph.counts().items() if n},
                batches=_calls(graph.steps, order.seen),
                begin=any(step.state is StepState.EXECUTING for step in runs),
                ending=sum(step.ending for step in runs),
                again_at=_again_at(graph, picked.again_at, now),
                cause=cause_of(graph) if graph.state is not GraphState.EXECUTING else None,
                waiting=(graph.waits(called=False) or "")[:ERROR_MAX] or None,
            )

        advanced = self.graphs.change(fence, advance)
        begin = advanced.begin and bool(self.graphs.to_begin(fence, 1))
        stop = self._row(fence.graph_id).stop
        return replace(advanced, begin=begin, stop=stop, seconds=time.monotonic() - began)

    @activity_method
    def command_graph(self, order: CommandGraph) -> int:
        """Carry out a command from a person. Returns the number of changed steps.

        Raises ``InvalidRequest``, and ``NotInThisState`` after a stop.
        A second execution returns the same number.
        """
        return self.graphs.command(order.graph_id, order.request_id, order.command.apply)

    @activity_method
    def closed_graph_batches(self, order: ClosedBatches) -> list[int]:
        """Return the calls whose own workflow has closed: such calls will never return.

        A second execution only repeats the check, so a retry is safe.
        """
        with beating():
            ids = {batch: graph_batch_workflow_id(order.key, batch) for batch in order.batches}
            return [
                batch
                for batch, workflow_id in ids.items()
                if not self.children.directory.state(workflow_id).open
            ]

    # --- crawls and managers ----------------------------------------------------------------------

    @activity_method
    def begin_graph_runs(self, fence: GraphFence) -> BegunRuns:
        """Begin every picked crawl and manager, or resume the one that an earlier attempt of the
        step began.

        If a crawl or manager can never be begun, its step ends. After a stop of the graph, nothing
        is begun. A second execution finds the existing crawls and managers by their request ids,
        and begins the others.
        """
        row = self._row(fence.graph_id)
        with beating(), limited(row.project):
            return _Beginning(self, row, fence).run()

    @activity_method
    def stop_graph_runs(self, order: StopRuns) -> RunsLeft:
        """Stop each live run and manager of cancelled steps.

        After a stop of the graph, stop the runs and managers of all steps.

        A second execution again notifies the workflows that have not acted on the stop. A run
        recognizes a repeated stop by the id of the stop.
        """
        graph_id = order.number
        stop = order.intent
        intent = stop or StopIntent(
            self.clock(), requested_by=f"graph {graph_id}", reason="its step was cancelled"
        )
        with beating():
            left = [
                steps.stop(self, graph_id, intent, stop is None) for steps in RUN_STEPS.values()
            ]
            trouble = next((part.trouble for part in left if part.trouble), None)
            return RunsLeft(
                sum(part.live for part in left), any(part.more for part in left), trouble
            )

    def stop_crawls(self, graph_id: int, intent: StopIntent, ending: bool) -> RunsLeft:
        """Stop the live runs of crawls. If ``ending`` is true, stop only runs whose step was
        cancelled.
        """
        page = functools.partial(self.graphs.live_graph_runs, graph_id, ending=ending)
        return self.children.stop_all(f"graph/{graph_id}", page, intent)

    def stop_managers(self, graph_id: int, intent: StopIntent, ending: bool) -> RunsLeft:
        """Stop the live managers. If ``ending`` is true, stop only managers whose step was
        cancelled.
        """
        live = self.graphs.live_graph_managers(graph_id, ending=ending)
        for manager in live:
            stop_manager(
                self.managers, self.children.directory, manager, f"graph/{graph_id}", intent
            )
        return RunsLeft(len(live))

    # --- stop and end -----------------------------------------------------------------------------

    @activity_method
    def record_graph_stop(self, order: RecordParentStop) -> StopRecorded:
        """Record the stop, and cancel the steps that have not ended.

        A second execution changes nothing.
        """
        try:
            return StopRecorded(self.graphs.record_graph_stop(order.number, order.intent).stop)
        except RowUnreadable as error:
            return StopRecorded(order.intent, unreadable=str(error)[:ERROR_MAX])

    @activity_method
    def end_graph(self, order: EndGraph) -> GraphEnded:
        """Record the end of the graph, once for each attempt, and start the delivery of its event.

        A second execution returns the recorded end, but may deliver the same event again.
        """
        row = self.graphs.end_graph(order.fence, order.cause)
        self.children.directory.deliver_event(
            ended_key("graph", row.graph_id, row.graph_uid, row.attempt)
        )
        return GraphEnded(row.state, row.cause)

    def give_up(self, parent: LiveParent, why: str) -> str | None:
        """End a graph that no workflow can execute (``ParentKind.give_up``)."""
        number = parent.number
        own = owner_name(parent.owner_run_id)
        opened = self.open_graph(Claim(number, Owner(parent.workflow_id, own)))
        fence = GraphFence(number, opened.attempt, own)
        stop = opened.stop or StopIntent(self.clock(), True, BY, why)
        self.record_graph_stop(RecordParentStop(number, stop))
        check_gone(self.stop_graph_runs(StopRuns(number, stop)).live)
        self.advance_graph(AdvanceGraph(fence))

        def discard(graph: Graph) -> None:
            for step in graph.steps:
                if step.state is StepState.CANCELLED and stop.requested_by == BY:
                    step.state = StepState.DISCARDED
                    graph.changed.add(step.number)

        self.graphs.change(fence, discard)
        self.end_graph(EndGraph(fence, why))
        return opened.parent

    def _row(self, graph_id: int) -> GraphRow:
        return there(self.graphs.get_graph(graph_id), f"graph {graph_id}")


def crawl_request(job: Mapping[str, Any]) -> RunRequest:
    """Return the run request of a crawl step. Raises ``InvalidRequest``, which names the field."""
    sent = json.dumps(dict(job)).encode()
    check_values("crawl", sent, INPUT_VALUES_MAX)
    try:
        return _REQUEST.validate_json(sent, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        text = first["msg"].removeprefix("Value error, ")
        raise InvalidRequest(f"{'.'.join(map(str, first['loc'])) or 'crawl'}: {text}") from None


def checked_run(
    request: RunRequest,
    crawlers: Sequence[CrawlerDefinition],
    versions: CodeVersions,
    problem: str | None = None,
) -> RunRequest:
    """Return the request, completed from its crawler's entry.

    Raises ``InvalidRequest`` if the crawler refuses it, or with the ``problem`` of the catalogue if
    there is no such crawler."""
    crawler = next((crawler for crawler in crawlers if crawler.name == request.crawler), None)
    if crawler is None:
        words = unknown(request.crawler, (crawler.name for crawler in crawlers), problem)
        raise InvalidRequest(f"crawler: {request.crawler!r} is unknown; {words}")
    check_request(crawler, request)
    return completed(request, crawler, versions)


def _calls(steps: Sequence[Step], seen: int) -> list[BatchCall]:
    """Return the calls with numbers above ``seen``, each once."""
    found: dict[int, Step] = {}
    for step in steps:
        if step.batch is not None and step.batch > seen and not step.state.final:
            found[step.batch] = min(found.get(step.batch, step), step, key=turn)
    return [
        BatchCall(number, step.queue, step.long, turn(step))
        for number, step in sorted(found.items())
    ]


def _again_at(graph: Graph, at: datetime | None, now: datetime) -> datetime | None:
    """Return the time of the next ``advance_graph`` without a signal.

    Nothing signals that a person has repaired a row or sent an archive again, so steps that wait
    for this are checked regularly.
    """
    waits = (
        step.unreadable
        or (
            step.state is StepState.EXECUTING
            and step.reason
            and STEP_RULES[step.kind].counts_as_run
        )
        for step in graph.steps
    )
    if not any(waits):
        return at
    return min(filter(None, (at, now + timedelta(seconds=REPAIRED_S))))


class _Beginning:
    """One pass that begins the picked crawls and managers of a graph."""

    def __init__(self, acts: GraphActivities, row: GraphRow, fence: GraphFence) -> None:
        self._graphs = acts.graphs
        self._managers = acts.managers
        self._children = acts.children
        self._acts = acts
        self._row = row
        self._fence = fence
        self._whose = f"graph/{row.graph_id}"
        self._parent = graph_workflow_id(row.key)
        self._crawlers = functools.cache(acts.children.crawlers)

    def run(self) -> BegunRuns:
        """Begin all picked steps, within the time limit."""
        begun = functools.partial(self._graphs.run_begun, self._fence)
        return self._children.begin_all(
            self._whose, self._waiting, self._begin, begun, self._stopped
        )

    def _waiting(self, limit: int) -> dict[int, StepWork]:
        return {job.number: job for job in self._graphs.to_begin(self._fence, limit)}

    def _stopped(self, job: StepWork | None = None) -> StopIntent | None:
        if job is not None and self._graphs.cancelled(self._fence, [job.number]):
            return StopIntent(
                self._acts.clock(),
                requested_by=self._row.requested_by,
                reason="its step was cancelled",
            )
        return self._acts._row(self._row.graph_id).stop

    def _begin(self, job: StepWork) -> int | None:
        """Begin the run or manager of a step, and return its id. Raises ``NeverBegun``."""
        wrong = unfit(job)
        if wrong is not None:
            raise NeverBegun(wrong)
        return RUN_STEPS[job.kind].begin(self, job)

    def begin_crawl(self, job: StepWork) -> int | None:
        """Begin the run of a crawl, or resume the run of an earlier attempt."""
        if job.run_id is not None:
            return self._resume(job, job.run_id)
        request_id = step_request_id(self._row.key, job.path, job.attempt)
        request = functools.partial(self._request, job)
        stopped = functools.partial(self._stopped, job)
        run = self._children.begin(self._whose, self._parent, request_id, request, stopped)
        return None if run is None else run.run_id

    def _request(self, job: StepWork) -> RunRequest:
        due_at = due_of(self._parent)
        own = {"flow_id": self._row.key, "requested_by": self._row.requested_by, "trigger": "api"}
        own |= {} if due_at is None else {"due_at": due_at.isoformat()}
        more = {"parent": self._parent, "project": self._row.project}
        asked = crawl_request({**own, **job.job, **more})
        children = self._children
        return checked_run(asked, self._crawlers(), children.versions, children.problem)

    def _resume(self, job: StepWork, run_id: int) -> int:
        """Resume the run of an earlier attempt, unless it was already resumed."""
        run = self._children.runs.get_run(run_id)
        if run is None:
            raise NeverBegun(f"run {run_id} no longer exists; retry the step with fresh=True")
        if run.attempt <= job.run_attempt:
            request = begin_request(run, rerun=run.status is RunStatus.COMPLETED)
            try:
                run, _ = self._children.acceptance.resume_run(
                    request, next_workflow_id(run), job.run_attempt
                )
            except NotInThisState as error:
                raise NeverBegun(str(error)) from None
        self._children.carry(run)
        return run_id

    def begin_manager(self, job: StepWork) -> int:
        """Reserve and begin the manager, or resume the manager of an earlier attempt."""
        own = {name: value for name, value in job.job.items() if name in _OF_MANAGER}
        name, flow_id = step_manager(self._row.graph_uid, job.number, job.job)
        try:
            new = NewManager(
                name, flow_id, requested_by=self._row.requested_by, parent=self._parent, **own
            )
            row, _ = self._managers.reserve_manager(new)
        except (TypeError, InvalidRequest, NotInThisState, DuplicateRequest) as error:
            raise NeverBegun(str(error)) from None
        if row.parent != self._parent:
            raise NeverBegun(
                f"name: manager {row.name} of flow {row.flow_id} does not belong to this graph; "
                "choose another"
            )
        workflow_id = manager_workflow_id(row.name, row.flow_id)
        if (
            row.status.terminal
            and row.attempt <= job.run_attempt
            and self._children.directory.state(workflow_id).open
        ):
            raise Overtaken(
                f"the workflow of manager {row.manager_id} "
                "is still closing; the manager begins afterwards"
            )
        if not row.status.terminal or row.attempt <= job.run_attempt:
            self._children.directory.begin_for(ManagerOrder(row.manager_id), workflow_id)
        return row.manager_id


@dataclass(frozen=True, slots=True)
class RunSteps:
    """Begins and stops the runs or managers of one kind of steps."""

    begin: Callable[[_Beginning, StepWork], int | None]
    stop: Callable[[GraphActivities, int, StopIntent, bool], RunsLeft]


#: The entry of each kind of steps that ``counts_as_run``.
RUN_STEPS: Mapping[StepKind, RunSteps] = {
    StepKind.CRAWL: RunSteps(_Beginning.begin_crawl, GraphActivities.stop_crawls),
    StepKind.MANAGER: RunSteps(_Beginning.begin_manager, GraphActivities.stop_managers),
}
