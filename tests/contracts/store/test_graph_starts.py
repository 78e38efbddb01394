"""Concurrent starts of graphs: each id has one complete graph, and every start finds it or is
refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    InvalidRequest,
    NotInThisState,
    RunNotFound,
    StoreUnavailable,
    TooManyOpen,
)
from crawler_lifecycle.domain.names import EVENT_GRAPH_CHANGED, graph_subject
from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, GraphState
from crawler_lifecycle.features.graphs.store.graphs import DRAFT_S
from crawler_lifecycle.store.store import open_store
from tests.contracts.store.graphing import KEY, announced, chain, crawl, step
from tests.contracts.store.harness import Clock, Harness

LENGTHS = (3, 4)
SPECS = [GraphSpec(chain(length)) for length in LENGTHS]


@pytest.fixture
def few(store_url: str, clock: Clock) -> Iterator[Harness]:
    """An installation that allows two open graphs."""
    most = dict.fromkeys(("managers", "graphs", "schedules", "webhooks"), 2)
    store = open_store(store_url, pool_size=10, clock=clock, most=most)
    yield Harness(store, clock)
    store.close()


def begun(harness: Harness, spec: GraphSpec, key: str = KEY) -> bool:
    return harness.store.graphs.reserve_graph(announced(spec, key), spec)[1]


def sent(harness: Harness, spec: GraphSpec, key: str = KEY, again: int = 10) -> bool:
    """Send pages as clients do, and begin again when the draft has disappeared."""
    graphs = harness.store.graphs
    for _ in range(again):
        row, _ = graphs.reserve_graph(announced(spec, key))
        if row.state is not GraphState.DRAFT:
            return False
        try:
            graphs.add_graph_page(row.graph_id, 0, encode_pages(spec)[0], again=True)
            return graphs.make_graph(row.graph_id).state is GraphState.EXECUTING
        except RunNotFound:
            continue
    raise AssertionError("its draft was removed again and again")


def the_graph(harness: Harness, key: str = KEY) -> tuple[str, int]:
    row = harness.store.graphs.find_graph(key)
    assert row is not None
    return row.fingerprint, len(harness.store.graphs.list_steps(row.graph_id))


def test_a_graph_is_begun_whole_or_not_at_all(harness: Harness) -> None:
    graphs, spec = harness.store.graphs, GraphSpec([step("a"), crawl("b", "a")], context={"k": 1})
    new = announced(spec, tags=["t"], name="Nightly")
    made, is_new = graphs.reserve_graph(new, spec)
    assert (is_new, made.state, made.name, sum(made.counts.values())) == (
        True,
        GraphState.EXECUTING,
        "Nightly",
        2,
    )
    assert graphs.reserve_graph(new, spec) == (made, False)
    assert graphs.context(made.graph_id, None) == [b'{"k":1}']
    assert [
        event.type for event in harness.store.events.events_after(0, subject=graph_subject(KEY))
    ] == [EVENT_GRAPH_CHANGED]
    with pytest.raises(DuplicateRequest, match="use another key"):
        begun(harness, SPECS[0])
    cycle = GraphSpec([step("a", "b"), step("b", "a")])
    with pytest.raises(InvalidRequest):
        begun(harness, cycle, "cycle")
    assert graphs.find_graph("cycle") is None


def test_a_graph_replaces_the_draft_under_its_id(harness: Harness) -> None:
    graphs = harness.store.graphs
    for number, (left, spec) in enumerate((one, two) for one in SPECS for two in SPECS):
        key = f"g{number}"
        draft, _ = graphs.reserve_graph(announced(left, key))
        graphs.add_graph_page(draft.graph_id, 0, encode_pages(left)[0])
        assert graphs.draft_spec(draft.graph_id).steps == left.steps
        assert begun(harness, spec, key)
        assert the_graph(harness, key) == (fingerprint(spec), len(spec.steps))
        assert graphs.get_graph(draft.graph_id) is None
        assert not graphs.drop_draft(draft.graph_id)


def test_drafts_of_any_number_and_age_close_graphs_for_nobody(few: Harness) -> None:
    graphs = few.store.graphs
    for number in range(5):
        graphs.reserve_graph(announced(SPECS[0], f"d{number}"))
    assert begun(few, SPECS[0], "a")
    assert sent(few, SPECS[0], "b")
    for start in (begun, sent):
        with pytest.raises(TooManyOpen):
            start(few, SPECS[0], "c")
        assert graphs.find_graph("c") is None
    few.clock.forward(DRAFT_S / 2)
    graphs.drop_old_drafts()
    assert len(graphs.newest(states=[GraphState.DRAFT])) == 5
    few.clock.forward(DRAFT_S / 2 + 1)
    graphs.drop_old_drafts()
    assert [row.key for row in graphs.newest(states=list(GraphState))] == ["b", "a"]


@pytest.mark.parametrize("many", [2, 10])
def test_equal_starts_at_one_moment_are_one_graph(harness: Harness, many: int) -> None:
    for number, ways in enumerate(([begun], [sent], [begun, sent])):
        with ThreadPoolExecutor(many) as pool:
            starts = [
                pool.submit(ways[n % len(ways)], harness, SPECS[0], f"g{number}")
                for n in range(many)
            ]
            [start.result() for start in starts]
        assert the_graph(harness, f"g{number}") == (fingerprint(SPECS[0]), LENGTHS[0])
    assert len(harness.store.graphs.newest(states=list(GraphState))) == 3


@pytest.mark.parametrize("seed", range(4))
def test_whatever_senders_do_in_any_order_the_graph_is_whole(harness: Harness, seed: int) -> None:
    """Several senders of two graphs with one id, which also stop, die and arrive late."""
    graphs = harness.store.graphs

    def acts(number: int) -> list[str]:
        dice, done = random.Random(f"{seed}/{number}"), list[str]()
        row: Any = None
        for _ in range(12):
            spec = dice.choice(SPECS)
            known = 0 if row is None else row.graph_id
            what: dict[str, Callable[[], object]] = {
                "reserve": lambda spec=spec: graphs.reserve_graph(announced(spec))[0],  # type: ignore[misc]
                "page": lambda spec=spec, known=known: graphs.add_graph_page(
                    known, 0, encode_pages(spec)[0]
                ),  # type: ignore[misc]
                "make": lambda known=known: graphs.make_graph(known),  # type: ignore[misc]
                "begin": lambda spec=spec: graphs.reserve_graph(announced(spec), spec)[0],  # type: ignore[misc]
                "drop": lambda known=known: graphs.drop_draft(known),  # type: ignore[misc]
            }
            name = dice.choices(list(what), [6, 6, 4, 1, 3])[0]
            try:
                found = what[name]()
                row = found if name == "reserve" else row
                done.append(name)
            except (RunNotFound, DuplicateRequest, NotInThisState, InvalidRequest) as error:
                done.append(type(error).__name__)
            except StoreUnavailable as error:  # three times in a row; a sender tries again
                if "was inserted and removed at the same time" not in str(error):
                    raise
                done.append(type(error).__name__)
        return done

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(acts, range(4)))
    left = graphs.newest(states=list(GraphState))
    assert len(left) <= 1
    if left and left[0].state is GraphState.EXECUTING:
        whose, steps = the_graph(harness)
        assert (whose, steps) in [(fingerprint(spec), len(spec.steps)) for spec in SPECS]
    else:  # whatever was left blocks nobody
        assert begun(harness, SPECS[0])
