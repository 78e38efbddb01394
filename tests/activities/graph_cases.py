"""The cases of the activities of a graph's workflow, and of what audits do about graphs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from crawler_lifecycle.activities.audits.settling import AuditPage
from crawler_lifecycle.activities.child_runs import Claim, RecordParentStop, StopRuns
from crawler_lifecycle.domain.audits.audit import OpenWorkflow, UnknownDecision
from crawler_lifecycle.domain.names import ended_key, graph_batch_workflow_id, graph_workflow_id
from crawler_lifecycle.domain.run import RunRequest, StopIntent
from crawler_lifecycle.features.graphs.activities.batches import BatchOrder
from crawler_lifecycle.features.graphs.activities.graphs import (
    AdvanceGraph,
    ClosedBatches,
    CommandGraph,
    EndGraph,
)
from crawler_lifecycle.features.graphs.domain.commands import ApproveStep, CancelSteps, RetrySteps
from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, StepKind, StepSpec
from crawler_lifecycle.features.graphs.ports import GraphFence, NewGraph
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store.runs.tables import run_history
from tests.activities.cases import (
    ANOTHER_PROCESS,
    FAILS,
    GONE,
    LATER_S,
    REPAIR,
    SEEN_AGAIN,
    Case,
    _after_grace,
    _nothing,
)
from tests.activities.harness import Harness
from tests.support.fakes.cluster import Behaviour

GRAPH = Owner(graph_workflow_id("nightly"), "chain-of-the-graph")
#: The run, or the manager, is told again to stop.
CRAWL = "graph/nightly/books/1"

PARENTS = AuditPage(repair=True, what="graph")


def _function(path: str, *deps: str, **fields: Any) -> StepSpec:
    return StepSpec(path, StepKind.FUNCTION, {"call": "shop.steps:work"}, deps, **fields)


def _crawl(path: str, *deps: str, crawler: str = "books") -> StepSpec:
    return StepSpec(path, StepKind.CRAWL, {"crawler": crawler}, deps)


def _manager(path: str) -> StepSpec:
    return StepSpec(path, StepKind.MANAGER, {"name": "stream", "plan": "shop:Stream"})


def _made(w: Harness, *steps: StepSpec) -> int:
    graphs = w.store.graphs
    graphs.new_uid = lambda: "uid-of-the-graph"
    w.store.managers.new_uid = lambda: "uid-of-the-manager"
    spec = GraphSpec(steps or [_function("a"), _function("b", "a"), _function("c", queue="gpu")])
    pages = encode_pages(spec)
    row, _ = graphs.reserve_graph(
        NewGraph("nightly", fingerprint(spec), len(pages), requested_by="ada", project="shop-a")
    )
    for number, data in enumerate(pages):
        graphs.add_graph_page(row.graph_id, number, data)
    return graphs.make_graph(row.graph_id).graph_id


def _claimed(w: Harness, *steps: StepSpec) -> GraphFence:
    graph_id = _made(w, *steps)
    row = w.store.graphs.claim_graph(graph_id, GRAPH)
    return GraphFence(graph_id, row.attempt, GRAPH.first_run_id)


def _advance(w: Harness, fence: GraphFence) -> None:
    w.call("advance_graph", AdvanceGraph(fence, room=9))


def _states(w: Harness) -> dict[str, str]:
    return {one.path: str(one.state) for one in w.store.graphs.list_steps(1)}


def _opened(w: Harness, answer: Any) -> None:
    assert (answer.key, answer.attempt, answer.state, answer.stop) == (
        "nightly",
        1,
        "executing",
        None,
    )
    row = w.store.graphs.get_graph(1)
    assert row is not None
    assert row.owner_run_id == GRAPH.first_run_id


def _advanced(w: Harness, answer: Any) -> None:
    assert [(one.number, one.queue, one.long) for one in answer.batches] == [
        (1, None, False),
        (2, "gpu", False),
    ]
    assert (answer.state, answer.begin, answer.counts) == (
        "executing",
        False,
        {"available": 2, "suspended": 1},
    )


def _what_counts(answer: Any) -> Any:
    return (answer.state, answer.batches, answer.begin, answer.counts)


def _cancel(w: Harness) -> CommandGraph:
    _claimed(w)
    return CommandGraph(1, "c1", CancelSteps(names=["a"], requested_by="ada"))


def _cancelled(w: Harness, answer: Any) -> None:
    assert (answer, _states(w)) == (1, {"a": "cancelled", "b": "cancelled", "c": "available"})


def _approve(w: Harness) -> CommandGraph:
    fence = _claimed(w, StepSpec("ask", StepKind.APPROVAL), _function("a", "ask"))
    _advance(w, fence)
    return CommandGraph(1, "y1", ApproveStep(step="ask", requested_by="ada", at=w.now))


def _approved(w: Harness, answer: Any) -> None:
    assert (answer, _states(w)) == (1, {"ask": "completed", "a": "available"})
    assert w.store.graphs.list_steps(1)[0].reason == "approved by ada"


def _closed(w: Harness) -> ClosedBatches:
    w.directory.open.add(Owner(graph_batch_workflow_id("nightly", 1), "chain-9"))
    return ClosedBatches("nightly", [1, 2])


def _one_is_open(w: Harness, answer: Any) -> None:
    assert answer == [2]


def _picked(w: Harness) -> GraphFence:
    fence = _claimed(w, _crawl("books"), _crawl("nobody", crawler="nobody"), _manager("stream"))
    _advance(w, fence)
    w.catalogue.problem = "line 3 of crawlers.yaml is not read"
    return fence


def _begun(w: Harness, answer: Any) -> None:
    [run], [manager] = w.store.runs.list_runs(), w.store.managers.newest()
    assert (run.request_id, run.parent) == (CRAWL, GRAPH.workflow_id)
    assert (run.project, manager.project) == ("shop-a", "shop-a")
    assert list(w.directory.begun) == [f"crawl/books/{CRAWL}"]
    assert w.directory.managers_begun == {"manager/stream/uid-of-the-graph.2": 1}
    found = {one.path: one for one in w.store.graphs.list_steps(1)}
    assert (found["books"].run_id, found["stream"].run_id, found["nobody"].outcome) == (
        1,
        1,
        "deploy_failed",
    )
    assert "'nobody' is unknown" in str(found["nobody"].reason)
    assert "; line 3 of crawlers.yaml is not read" in str(found["nobody"].reason)


def _resumed(w: Harness) -> GraphFence:
    """The crawl has failed, and somebody requests another try."""
    w.cluster.behaviour = FAILS
    fence = _claimed(
        w, _crawl("books"), _function("far", "later", ignore_discarded=True), _function("later")
    )
    _advance(w, fence)
    w.call("begin_graph_runs", fence)
    w.call("export_supporting_files", w.judged(crawler=None, run_id=1))
    _advance(w, fence)
    assert _states(w)["books"] == "discarded"
    assert w.store.graphs.command(1, "again", RetrySteps(names=["books"]).apply) == 1
    _advance(w, fence)
    w.cluster.behaviour = Behaviour(executes=20)
    return fence


def _goes_on(w: Harness, answer: Any) -> None:
    run = w.row()
    assert (run.attempt, run.status, run.owner_run_id) == (2, "INITIALIZING", None)
    assert _states(w)["books"] == "executing"
    assert w.store.graphs.to_begin(GraphFence(1, 1, GRAPH.first_run_id)) == []


def _resumed_without_code(w: Harness) -> GraphFence:
    """The same, but the version that the crawl executed was deleted meanwhile."""
    fence = _resumed(w)
    r = run_history.c
    with w.store.database.writing() as conn:
        request = conn.execute(sa.select(r.request).where(r.run_id == 1)).scalar_one()
        request = {**request, "version": "v1", "code": "sha256:" + "1" * 64}
        conn.execute(sa.update(run_history).where(r.run_id == 1).values(request=request))
    return fence


def _never_begun(w: Harness, answer: Any) -> None:
    [found] = [step for step in w.store.graphs.list_steps(1) if step.path == "books"]
    assert (found.state, found.outcome) == ("discarded", "deploy_failed")
    assert "which was deleted; deploy this version again" in str(found.reason)
    assert w.row().attempt == 1


def _begin_after_stop(w: Harness) -> GraphFence:
    fence = _picked(w)
    w.store.graphs.record_graph_stop(1, StopIntent(w.now))
    return fence


def _none_begun(w: Harness, answer: Any) -> None:
    assert answer.stopped
    assert (w.store.runs.list_runs(), w.directory.begun) == ([], {})


def _stop(w: Harness, *, lost: bool = False, step: bool = False, untold: bool = False) -> StopRuns:
    w.call("begin_graph_runs", _picked(w))
    if untold:  # the worker died between the rows of run and manager and those of their steps
        with w.store.database.engine.begin() as conn:
            conn.execute(sa.text("UPDATE graph_step SET run_id = NULL, begun_attempt = 0"))
    if lost:
        w.directory.begun.clear()
    else:
        w.directory.open.add(Owner(f"crawl/books/{CRAWL}", "chain-of-the-run"))
        w.directory.open.add(Owner("manager/stream/uid-of-the-graph.2", "chain-of-the-manager"))
    if step:
        w.store.graphs.command(1, "c1", CancelSteps().apply)
        return StopRuns(1, None)
    intent = StopIntent(w.now, requested_by="ada")
    w.store.graphs.record_graph_stop(1, intent)
    return StopRuns(1, intent)


def _told(w: Harness, answer: Any) -> None:
    assert (answer.live, answer.trouble) == (2, None)
    assert [str(run.status) for run in w.store.runs.list_runs()] == ["STOPPING"]
    row = w.store.managers.get_manager(1)
    assert row is not None
    assert (row.status, row.stop is not None) == ("STOPPING", True)
    told = {*w.directory.stopped, *w.directory.begun, *w.directory.managers_begun}
    assert {f"crawl/books/{CRAWL}", "manager/stream/uid-of-the-graph.2"} <= told


def _record(w: Harness) -> RecordParentStop:
    _claimed(w)
    return RecordParentStop(1, StopIntent(w.now + timedelta(seconds=1), requested_by="ada"))


def _recorded(w: Harness, answer: Any) -> None:
    row = w.store.graphs.get_graph(1)
    assert row is not None
    assert (answer.stop, row.state) == (row.stop, "executing")
    assert set(_states(w).values()) == {"cancelled"}


def _unowned(w: Harness) -> AuditPage:
    _made(w)
    w.forward(LATER_S)
    return PARENTS


def _started(w: Harness, part: Any) -> None:
    assert (part.repaired, part.looked) == ({"not_started": 1}, 1)
    assert w.directory.graphs_begun == {GRAPH.workflow_id: 1}


def _lost(w: Harness) -> AuditPage:
    _claimed(w)
    return _after_grace(w, "audit_parents", PARENTS)


def _taken_over(w: Harness, part: Any) -> None:
    assert (part.repaired, part.looked) == ({"no_workflow": 1}, 1)
    assert w.directory.graphs_begun == {GRAPH.workflow_id: 1}


def _strange(w: Harness) -> AuditPage:
    """Somebody has edited the numbers in the rows of two steps."""
    w.call("begin_graph_runs", _picked(w))
    w.store.initiation.reserve_run(RunRequest(crawler="books", parent="nobody"), "r1")
    with w.store.database.engine.begin() as conn:
        edit = "UPDATE graph_step SET run_id = CASE kind WHEN 'crawl' THEN 2 ELSE 77 END WHERE run_id IS NOT NULL"
        conn.execute(sa.text(edit))
    w.directory.open.add(GRAPH)
    assert w.call("audit_parents", PARENTS).repaired == {}
    w.forward(LATER_S)
    return PARENTS


def _ends_it(w: Harness, part: Any) -> None:
    assert (part.found, part.repaired) == ({"no_run": 2}, {"no_run": 2})
    assert set(w.directory.woken) == {GRAPH.workflow_id}
    assert [finding.detail.partition(" is executing as ")[2] for finding in part.findings] == [
        "run 2, which belongs to nobody", "manager 77, which is not in the database",
    ]  # fmt: skip


def _uncounted(w: Harness) -> AuditPage:
    """The worker died after it had recorded the run and before it recorded the step. The other runs
    only claim to belong to a graph.
    """
    fence = _picked(w)
    parents = {
        "graph/nightly/books/1": "nightly",
        "graph/nightly/gone/1": "nightly",
        "graph/x/books/1": "x",
        "r1": "x",
    }
    for request_id, key in parents.items():
        w.store.initiation.reserve_run(
            RunRequest(crawler="books", parent=graph_workflow_id(key)), request_id
        )
        w.directory.open.add(Owner(f"crawl/books/{request_id}", "chain-9"))
    w.directory.open.add(GRAPH)
    assert w.store.graphs.to_begin(fence)
    w.forward(LATER_S)
    return REPAIR


def _woken(w: Harness, part: Any) -> None:
    assert (part.found, part.repaired) == ({"not_counted": 3}, {"not_counted": 1})
    assert set(w.directory.woken) == {GRAPH.workflow_id}
    assert [finding.repair for finding in part.findings] == [
        "its graph was woken", *(f"not changed: Stop ends the run (crawlctl stop {run})" for run in (2, 3)),
    ]  # fmt: skip
    assert "graph 'nightly', which began it, has no such step" in part.findings[1].detail
    assert (
        "graph 'x' (not in the database), which began it, has no such step"
        in part.findings[2].detail
    )


def _rowless(w: Harness) -> AuditPage:
    _made(w)
    w.directory.workflows = [
        OpenWorkflow(f"graph/{key}", "chain-9", w.now, of_parent=True) for key in ("x", "nightly")
    ]
    return replace(_after_grace(w, "audit_workflows"), unknown=UnknownDecision.END)


def _terminated(w: Harness, part: Any) -> None:
    assert part.repaired == {"no_row": 1}
    assert "a graph that is not in the database" in w.directory.ended["graph/x"]


AUDITED = [
    Case(
        "audit_parents",
        "graph: reserved",
        _unowned,
        _started,
        renews=SEEN_AGAIN | GONE,
        same=_nothing,
    ),
    Case(
        "audit_parents",
        "graph: no workflow",
        _lost,
        _taken_over,
        renews=SEEN_AGAIN | GONE,
        same=_nothing,
    ),
    Case(
        "audit_parents",
        "graph: strange runs",
        _strange,
        _ends_it,
        renews=SEEN_AGAIN | GONE,
        same=_nothing,
    ),
    Case(
        "audit_runs",
        "not counted by a graph",
        _uncounted,
        _woken,
        renews=SEEN_AGAIN | GONE,
        same=_nothing,
    ),
    Case("audit_workflows", "no graph", _rowless, _terminated, renews=GONE, same=_nothing),
]


def _over(w: Harness) -> EndGraph:
    fence = _claimed(w)
    w.store.graphs.command(1, "c1", CancelSteps().apply)
    return EndGraph(fence, "because")


def _ended(w: Harness, answer: Any) -> None:
    row = w.store.graphs.get_graph(1)
    assert row is not None
    assert (answer.state, answer.cause) == (row.state, row.cause) == ("cancelled", "because")
    assert w.directory.events == {ended_key("graph", 1, row.graph_uid, 1)}


def _live(answer: Any) -> Any:
    return answer.live


def _batch(w: Harness) -> BatchOrder:
    fence = _claimed(w, _function("a"), _function("b", "a"), _function("c", "b"))
    _advance(w, fence)
    return BatchOrder(fence, 1)


def _called(w: Harness, answer: Any) -> None:
    assert w.functions.called == ["a", "b", "c"]
    assert set(_states(w).values()) == {"completed"}


#: Whatever began without ending begins again.
BEGUN_AGAIN = ANOTHER_PROCESS & frozenset(
    f"graph_step.{name}" for name in ("attempt", "tries", "errors")
)

GRAPHS = [
    *AUDITED,
    Case("run_graph_batch", "chain", _batch, _called, renews=BEGUN_AGAIN),
    Case("open_graph", "made", lambda w: Claim(_made(w), GRAPH), _opened),
    Case(
        "advance_graph",
        "first",
        lambda w: AdvanceGraph(_claimed(w), room=9),
        _advanced,
        same=_what_counts,
    ),
    Case("command_graph", "cancel", _cancel, _cancelled),
    Case("command_graph", "approve", _approve, _approved),
    Case("closed_graph_batches", "two", _closed, _one_is_open),
    Case("begin_graph_runs", "picked", _picked, _begun, same=lambda answer: answer.more),
    Case("begin_graph_runs", "resumed", _resumed, _goes_on, same=lambda answer: answer.more),
    Case(
        "begin_graph_runs",
        "deleted",
        _resumed_without_code,
        _never_begun,
        same=lambda answer: answer.more,
    ),
    Case("begin_graph_runs", "stopped", _begin_after_stop, _none_begun),
    Case("stop_graph_runs", "live", _stop, _told, same=_live),
    Case("stop_graph_runs", "lost", lambda w: _stop(w, lost=True), _told, same=_live),
    Case("stop_graph_runs", "steps", lambda w: _stop(w, step=True), _told, same=_live),
    Case(
        "stop_graph_runs", "untold", lambda w: _stop(w, step=True, untold=True), _told, same=_live
    ),
    Case("record_graph_stop", "first", _record, _recorded),
    Case("end_graph", "over", _over, _ended),
]
