"""Pruning of managers and graphs: old ones that have ended keep only their row, drafts lose their
pages.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState
from crawler_lifecycle.domain.names import (
    EVENT_GRAPH_ENDED,
    EVENT_MANAGER_ENDED,
    graph_subject,
    manager_subject,
)
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.graphs.domain.pages import encode_pages
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, GraphState
from crawler_lifecycle.features.managers.domain.manager import JobState
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.retention.pruning import Pruner
from tests.contracts.store import graphing
from tests.contracts.store.graphing import KEY, Graphed, announced, chain, group, step
from tests.contracts.store.harness import Harness
from tests.contracts.store.managing import NEXT, Managed, job, page

AGE = timedelta(days=90)
GRAPH_TABLES = ("graph_page", "graph_result", "graph_step", "graph_log")
TABLES = ("outbox_event", "manager_item", "manager_addition", *GRAPH_TABLES)


def prune(pruner: Pruner, harness: Harness) -> dict[str, int]:
    before, gone = harness.clock.now - AGE, dict[str, int]()
    for table in TABLES:
        gone |= pruner.remove(table, pruner.poll(table, before).goes, before)
    return {table: rows for table, rows in gone.items() if rows}


def left(harness: Harness) -> Managed:
    """A manager with ended, buffered and queued jobs, and events."""
    managed = Managed.begun(harness)
    [fence] = managed.executing([1, 2], 1)
    harness.finish(fence)
    managed.handle()
    harness.store.managers.add_jobs(managed.id, [job(3)], "page-1")
    return managed


def test_only_what_ended_long_ago_goes(pruner: Pruner, harness: Harness) -> None:
    managed = left(harness)
    harness.clock.forward(100 * 86_400)
    told = [
        event.seq
        for event in harness.store.events.events_after(0, subject=manager_subject(managed.id))
    ]
    assert prune(pruner, harness).keys() == {"outbox_event"}, (
        "run.changed of its run, which is old; the manager is live"
    )
    assert [
        event.seq
        for event in harness.store.events.events_after(0, subject=manager_subject(managed.id))
    ] == told
    harness.store.managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
    assert prune(pruner, harness) == {}, "it ended just now"
    last = harness.store.events.last_event_seq()
    harness.clock.forward(91 * 86_400)
    gone = prune(pruner, harness)
    assert (gone["manager_item"], gone["manager_addition"]) == (3, 1)
    assert prune(pruner, harness) == {}
    [event] = harness.store.events.events_after(0, subject=manager_subject(managed.id))
    assert (event.type, event.seq) == (EVENT_MANAGER_ENDED, last)
    row = managed.row
    assert row.pruned_through is not None
    assert row.pruned_through < last
    assert row.jobs_pruned_at == harness.clock.now
    assert row.counts.by_state[JobState.ENDED] == 1, "what it did stays told"


def test_a_resume_after_it_begins_anew_and_says_so(pruner: Pruner, harness: Harness) -> None:
    managed = left(harness)
    harness.store.managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
    harness.clock.forward(100 * 86_400)
    before = harness.clock.now - AGE
    found = pruner.poll("manager_item", before).goes
    claimed = harness.store.managers.claim_manager(managed.id, NEXT)
    assert pruner.remove("manager_item", found, before) == {}, "it was resumed meanwhile"
    assert claimed.jobs_pruned_at is None
    harness.store.managers.end_manager(
        Managed.claimed(harness, managed.id, NEXT).fence, RunStatus.COMPLETED, "finished", "done"
    )
    harness.clock.forward(100 * 86_400)
    before = harness.clock.now - AGE
    # And no more of them.
    pruner.remove("manager_item", pruner.poll("manager_item", before).goes[:2], before)
    third = Managed.claimed(harness, managed.id, Owner(NEXT.workflow_id, "chain-m3"))
    third.check_counters()
    assert third.row.jobs_pruned_at == harness.clock.now, (
        "who reads it sees that they are new again"
    )
    assert harness.store.managers.add_page(third.fence, page([1, 2])) == 2
    third.pick(5)
    keys = [one.key for one in harness.store.managers.starting_jobs(third.fence)]
    assert keys == [f"manager/{managed.id}/{n}" for n in (2, 3)], "a number is never given again"
    third.check_counters()


def test_a_run_that_was_resumed_after_its_job_went_holds_a_slot_and_ends_again(
    pruner: Pruner, harness: Harness
) -> None:
    managed, store = left(harness), harness.store
    store.managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
    [run] = store.runs.list_runs()
    harness.clock.forward(100 * 86_400)
    before = harness.clock.now - AGE
    pruner.remove("manager_item", pruner.poll("manager_item", before).goes, before)
    resumed = harness.resume(Fence(run.run_id, 1, run.owner_run_id or "", run.run_uid), rerun=True)
    harness.begin(resumed)
    again = Managed.claimed(harness, managed.id, NEXT)
    facts = store.managers.facts(again.fence, 100)
    assert (facts.live, facts.live_by_spider) == (1, {"services": 1})
    again.check_counters()
    [told] = again.jobs(JobState.STARTED)
    assert (told.run_id, told.seq, told.job and told.job.spider_args) == (run.run_id, 1, {"n": "1"})
    harness.finish(resumed)
    [ended] = store.managers.facts(again.fence, 100).ended
    assert (ended.live.key, ended.attempt) == (str(run.run_id), 2)
    assert again.handle() == [run.run_id]
    assert store.managers.add_page(again.fence, page([1])) == 1, (
        "it is like no other: the same job is new"
    )
    again.check_counters()


def test_only_whole_graphs_that_ended_long_ago_go(pruner: Pruner, harness: Harness) -> None:
    graphs = harness.store.graphs
    graphed = Graphed.made(
        harness,
        [*chain(3), group("g"), step("g/x", "y", graft=True), step("g/y")],
        context={"a": 1},
    )
    live = Graphed.made(harness, chain(2), "live")
    live.execute()
    graphed.execute(result=b"{}")
    graphs.keep_output(graphed.id, "some")
    harness.clock.forward(100 * 86_400)
    assert prune(pruner, harness) == {}, "it is live"
    ended = graphs.end_graph(graphed.fence, "done")
    assert prune(pruner, harness) == {}, "it ended just now"
    harness.clock.forward(91 * 86_400)
    before = harness.clock.now - AGE
    found = pruner.poll("graph_step", before).goes
    graphs.command(graphed.id, "r", lambda graph: graph.retry([0], cascade=False))
    assert pruner.remove("graph_step", found, before) == {}, "it was opened again meanwhile"
    again = Graphed.claimed(harness, graphed.id, graphing.NEXT)
    again.execute(result=b"{}")
    graphs.end_graph(again.fence, "done again")
    harness.clock.forward(91 * 86_400)
    gone = prune(pruner, harness)
    assert {name: gone[name] for name in GRAPH_TABLES[1:]} == {
        "graph_result": 5,
        "graph_step": 6,
        "graph_log": 1,
    }
    assert prune(pruner, harness) == {}
    row = again.row
    assert (row.state, row.counts, row.pruned_at) == (
        GraphState.COMPLETED,
        ended.counts,
        harness.clock.now,
    )
    assert graphs.list_steps(graphed.id) == graphs.load(graphed.id).steps == []
    assert list(graphs.results(graphed.id, range(6))) == []
    with pytest.raises(NotInThisState, match="were removed"):
        graphs.command(graphed.id, "r2", lambda graph: graph.retry(None, cascade=True))
    told = harness.store.events.events_after(0, subject=graph_subject(KEY))
    assert [event.type for event in told] == [EVENT_GRAPH_ENDED] * 2
    assert len(live.states()) == 2


def test_pages_of_a_draft_that_nobody_starts_go_and_may_be_sent_again(
    pruner: Pruner, harness: Harness
) -> None:
    graphs, spec = harness.store.graphs, GraphSpec(chain(3))
    row, _ = graphs.reserve_graph(announced(spec))
    graphs.add_graph_page(row.graph_id, 0, encode_pages(spec)[0])
    assert prune(pruner, harness) == {}
    harness.clock.forward(100 * 86_400)
    assert prune(pruner, harness) == {"graph_page": 1}
    with pytest.raises(InvalidRequest, match="page 0"):
        graphs.make_graph(row.graph_id)
    graphs.add_graph_page(row.graph_id, 0, encode_pages(spec)[0])
    assert graphs.make_graph(row.graph_id).state is GraphState.EXECUTING
