"""Pruning of graphs: old ones that have ended leave nothing but their row, drafts that nobody started their pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState
from crawler_lifecycle.domain.graph.pages import encode_pages
from crawler_lifecycle.domain.graph.spec import GraphSpec, GraphState
from crawler_lifecycle.domain.names import EVENT_GRAPH_ENDED, graph_subject
from crawler_lifecycle.store import Pruner, open_pruner
from tests.contracts.store.graphing import KEY, NEXT, Graphed, announced, chain, group, step
from tests.contracts.store.world import Clock, World

AGE = timedelta(days=90)
TABLES = ("outbox_event", "graph_page", "graph_result", "graph_step", "graph_log")


@pytest.fixture
def pruner(store_url: str, clock: Clock) -> Iterator[Pruner]:
    with closing(open_pruner(store_url, clock=clock)) as pruner:
        yield pruner


def prune(pruner: Pruner, world: World) -> dict[str, int]:
    before, gone = world.clock.now - AGE, dict[str, int]()
    for table in TABLES:
        gone |= pruner.remove(table, pruner.look(table, before).goes, before)
    return {table: rows for table, rows in gone.items() if rows}


def test_only_whole_graphs_that_ended_long_ago_go(pruner: Pruner, world: World) -> None:
    graphs = world.store.graphs
    graphed = Graphed.made(world, [*chain(3), group("g"), step("g/x", "y", graft=True), step("g/y")], context={"a": 1})
    live = Graphed.made(world, chain(2), "live")
    live.execute()
    graphed.execute(result=b"{}")
    graphs.keep_graph_output(graphed.id, "some")
    world.clock.forward(100 * 86_400)
    assert prune(pruner, world) == {}, "it is live"
    ended = graphs.end_graph(graphed.fence, "done")
    assert prune(pruner, world) == {}, "it ended just now"
    world.clock.forward(91 * 86_400)
    before = world.clock.now - AGE
    found = pruner.look("graph_step", before).goes
    graphs.command(graphed.id, "r", lambda graph: graph.retry([0], cascade=False))
    assert pruner.remove("graph_step", found, before) == {}, "it was opened again meanwhile"
    again = Graphed.claimed(world, graphed.id, NEXT)
    again.execute(result=b"{}")
    graphs.end_graph(again.fence, "done again")
    world.clock.forward(91 * 86_400)
    gone = prune(pruner, world)
    assert {name: gone[name] for name in TABLES[2:]} == {"graph_result": 5, "graph_step": 6, "graph_log": 1}
    assert prune(pruner, world) == {}
    row = again.row
    assert (row.state, row.counts, row.pruned_at) == (GraphState.COMPLETED, ended.counts, world.clock.now)
    assert graphs.list_steps(graphed.id) == graphs.load(graphed.id).steps == []
    assert list(graphs.results(graphed.id, range(6))) == []
    with pytest.raises(NotInThisState, match="were removed"):
        graphs.command(graphed.id, "r2", lambda graph: graph.retry(None, cascade=True))
    told = world.store.events.events_after(0, subject=graph_subject(KEY))
    assert [event.type for event in told] == [EVENT_GRAPH_ENDED] * 2
    assert len(live.states()) == 2


def test_pages_of_a_draft_that_nobody_starts_go_and_may_be_sent_again(pruner: Pruner, world: World) -> None:
    graphs, spec = world.store.graphs, GraphSpec(chain(3))
    row, _ = graphs.reserve_graph(announced(spec))
    graphs.add_graph_page(row.graph_id, 0, encode_pages(spec)[0])
    assert prune(pruner, world) == {}
    world.clock.forward(100 * 86_400)
    assert prune(pruner, world) == {"graph_page": 1}
    with pytest.raises(InvalidRequest, match="page 0"):
        graphs.make_graph(row.graph_id)
    graphs.add_graph_page(row.graph_id, 0, encode_pages(spec)[0])
    assert graphs.make_graph(row.graph_id).state is GraphState.EXECUTING
