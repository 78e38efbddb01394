"""Graphs: who owns one, the states of its steps, and what each of its writers may not do."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    Fenced,
    InvalidRequest,
    NotInThisState,
    RowUnreadable,
    RunIsLive,
    RunNotFound,
)
from crawler_lifecycle.domain.names import EVENT_GRAPH_ENDED, graph_subject, graph_workflow_id
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.domain.values import RESULT_PART
from crawler_lifecycle.features.graphs.activities.graphs import RUN_STEPS
from crawler_lifecycle.features.graphs.activities.starting import OFFERED
from crawler_lifecycle.features.graphs.domain.commands import (
    ApproveStep,
    RetrySteps,
    step_request_id,
)
from crawler_lifecycle.features.graphs.domain.engine import Graph, StepEnd
from crawler_lifecycle.features.graphs.domain.kinds import STEP_RULES
from crawler_lifecycle.features.graphs.domain.pages import encode_pages
from crawler_lifecycle.features.graphs.domain.spec import (
    LOST_MAX,
    GraphSpec,
    GraphState,
    StepKind,
    StepState,
)
from crawler_lifecycle.features.graphs.ports import ExecutionEnd, GraphFence
from crawler_lifecycle.features.graphs.store.reads import StepQuery
from crawler_lifecycle.features.graphs.store.unrecorded import RUNS
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store.base import search
from tests.contracts.store.graphing import (
    KEY,
    MINE,
    NEXT,
    Graphed,
    announced,
    approval,
    chain,
    crawl,
    group,
    manager,
    step,
)
from tests.contracts.store.harness import Harness, request

S = StepState


@pytest.fixture
def graphed(harness: Harness) -> Graphed:
    """Two branches, one of them with a group, and a step that depends on both."""
    steps = [step("a"), step("b", "a"), group("g"), step("g/x"), step("g/y"), step("z", "b", "g")]
    return Graphed.made(harness, steps, context={"day": 1})


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of small graphs are cached as well, and all guarantees hold with them."""
    monkeypatch.setattr("crawler_lifecycle.features.graphs.store.unit.LARGE", 0)


def told(harness: Harness, key: str = KEY) -> list[str]:
    return [
        event.type for event in harness.store.events.events_after(0, subject=graph_subject(key))
    ]


# --- drafts


def test_a_graph_exists_wholly_or_not_at_all(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = harness.store.graphs
    monkeypatch.setattr("crawler_lifecycle.features.graphs.domain.pages.PAGE_BYTES", 1000)
    spec = GraphSpec(
        [*chain(30), group("g", "s29", job={"context": {"b": "ü"}}), step("g/x")],
        context={"a": "ü"},
    )
    first, second, *rest = pages = encode_pages(spec)
    new = announced(spec, pages=len(pages), tags=["t", "s", "t"], requested_by="ann")
    draft, is_new = graphs.reserve_graph(new)
    assert (is_new, draft.state, draft.tags) == (True, GraphState.DRAFT, ["s", "t"])
    assert graphs.reserve_graph(new) == (draft, False)
    graphs.add_graph_page(draft.graph_id, 0, first)
    other, is_new = graphs.reserve_graph(replace(new, fingerprint="0" * 64))
    assert (is_new, graphs.get_graph(draft.graph_id), other.graph_id > draft.graph_id) == (
        True,
        None,
        True,
    )
    with pytest.raises(RunNotFound):
        graphs.add_graph_page(draft.graph_id, 1, second)
    draft, is_new = graphs.reserve_graph(new)
    assert (is_new, graphs.get_graph(other.graph_id)) == (True, None)
    graphs.add_graph_page(draft.graph_id, 0, first)
    graphs.add_graph_page(draft.graph_id, 0, first)
    with pytest.raises(DuplicateRequest, match="page 0"):
        graphs.add_graph_page(draft.graph_id, 0, b'{"context":{"a":1},"steps":[]}')
    with pytest.raises(InvalidRequest, match=f"page: {len(pages)} "):
        graphs.add_graph_page(draft.graph_id, len(pages), second)
    with pytest.raises(InvalidRequest, match=r"page 1 of graph .* is missing"):
        graphs.make_graph(draft.graph_id)
    assert graphs.list_steps(draft.graph_id) == graphs.newest() == []
    assert [row.key for row in graphs.newest(states=[GraphState.DRAFT])] == [KEY]
    for refused in (
        lambda: graphs.claim_graph(draft.graph_id, MINE),
        lambda: graphs.command(draft.graph_id, "r1", lambda graph: graph.cancel(None, "no")),
        lambda: graphs.record_graph_stop(draft.graph_id, harness.stop()),
    ):
        with pytest.raises(NotInThisState):
            refused()
    for page, data in enumerate([second, *rest], 1):
        graphs.add_graph_page(draft.graph_id, page, data)
    made = graphs.make_graph(draft.graph_id)
    assert graphs.make_graph(draft.graph_id) == made
    assert (made.state, made.counts) == (GraphState.EXECUTING, {S.AVAILABLE: 1, S.SUSPENDED: 30})
    with pytest.raises(NotInThisState):
        graphs.add_graph_page(made.graph_id, 0, first)
    graphs.add_graph_page(made.graph_id, 0, first, again=True)
    assert not graphs.drop_draft(made.graph_id)
    assert graphs.reserve_graph(new) == (graphs.get_graph(made.graph_id), False)
    with pytest.raises(DuplicateRequest, match="use another key"):
        graphs.reserve_graph(replace(new, fingerprint="0" * 64))
    [x] = graphs.list_steps(made.graph_id, paths=["g/x"])
    assert x.job["args"] == {"path": "g/x"}
    assert graphs.context(made.graph_id, x.number) == ['{"a":"ü"}'.encode(), '{"b":"ü"}'.encode()]
    assert graphs.context(made.graph_id, None) == ['{"a":"ü"}'.encode()]


def test_steps_are_found_by_state_kind_and_a_part_of_their_path(harness: Harness) -> None:
    graphed = Graphed.made(harness, [group("G"), step("G/a_1"), step("G/a21"), step("b%", "G")])
    graphs = harness.store.graphs
    every: dict[str, StepQuery] = {
        "G G/a_1 G/a21 b%": {},
        "G G/a_1 G/a21": {"search": "g"},
        "G/a_1": {"search": "A_"},
        "b%": {"search": "%", "kinds": [StepKind.FUNCTION], "states": [S.SUSPENDED]},
        "G": {"kinds": [StepKind.GRAPH]},
        "": {"search": "g", "states": [S.COMPLETED]},
    }
    for paths, asked in every.items():
        assert [one.path for one in graphs.list_steps(graphed.id, **asked)] == paths.split()
        assert graphs.count_listed_steps(graphed.id, **asked) == len(paths.split()), asked
    assert graphs.list_steps(graphed.id, search="a", paths=["b%"]) == []


def test_pages_of_another_graph_make_none(harness: Harness) -> None:
    graphs = harness.store.graphs
    row, _ = graphs.reserve_graph(announced(GraphSpec(chain(2)), pages=1))
    [page] = encode_pages(GraphSpec(chain(3)))
    graphs.add_graph_page(row.graph_id, 0, page)
    with pytest.raises(InvalidRequest, match="fingerprint"):
        graphs.make_graph(row.graph_id)
    cycle = GraphSpec([step("a", "b"), step("b", "a")])
    row, _ = graphs.reserve_graph(announced(cycle, "cycle"))
    graphs.add_graph_page(row.graph_id, 0, encode_pages(cycle)[0])
    with pytest.raises(InvalidRequest, match='"a" waits for "b"'):
        graphs.make_graph(row.graph_id)
    assert graphs.list_steps(row.graph_id) == []


def test_graphs_are_found_by_a_text_put_in_order_and_counted(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = harness.store.graphs

    def found(text: str | None, sort: str | None = None, **wanted: Any) -> list[str]:
        return [row.key for row in graphs.search(text, sort, **wanted)[0]]

    for key, name, tags in (
        ("b-1", "Nightly", ["Zürich"]),
        ("A/2", None, ["x"]),
        ("c", "weekly", []),
    ):
        row, _ = graphs.reserve_graph(announced(GraphSpec(chain(1)), key, name=name, tags=tags))
        graphs.add_graph_page(row.graph_id, 0, encode_pages(GraphSpec(chain(1)))[0])
        graphs.make_graph(row.graph_id)
    for text, keys in {
        **{
            "NIGHT": ["b-1"],
            "zür": ["b-1"],
            "a/": ["A/2"],
            "LY": ["c", "b-1"],
            "%": [],
            "[": [],
            "1": ["b-1"],
        },
    }.items():
        assert found(text) == keys, text
    for sort, keys in {
        "id": ["A/2", "b-1", "c"],
        "-name": ["c", "b-1", "A/2"],
        "took": ["c", "A/2", "b-1"],
    }.items():
        assert found(None, sort) == keys, sort
    assert found("LY", "name", offset=1) == ["c"]
    assert found("a", states=[GraphState.COMPLETED]) == []
    assert found("ly")[0] == graphs.newest(limit=1)[0].key
    assert graphs.search("ly")[0][0] == graphs.newest(limit=1)[0], "with the counts of a live graph"
    assert [graphs.count_listed(most) for most in (2, 9)] == [2, 3]
    assert graphs.count_listed(9, name="weekly") == 1
    monkeypatch.setattr(search, "WINDOW", 1)
    assert (found("NIGHT"), found("zür"), found("LY")) == (["b-1"], [], ["c", "b-1"])
    assert graphs.search("x")[1].left == ["ids", "tags"]


def test_graphs_are_found_and_listed(harness: Harness) -> None:
    graphs = harness.store.graphs
    ids = [Graphed.made(harness, chain(1), key).id for key in ("a", "A", "ä", "ü/…")]
    assert len(set(ids)) == 4
    for key, graph_id in zip(("a", "A", "ä", "ü/…"), ids, strict=True):
        row = graphs.find_graph(key)
        assert (row.graph_id, row) == (graph_id, graphs.get_graph(graph_id))
    assert [row.graph_id for row in graphs.newest(ids[3], 2)] == [ids[2], ids[1]]
    assert [row.counts for row in graphs.newest(states=[GraphState.EXECUTING])] == [
        {S.AVAILABLE: 1}
    ] * 4
    twice = [GraphState.EXECUTING] * 2
    assert len(graphs.newest(states=twice)) == graphs.count_listed(9, states=twice) == 4
    assert graphs.newest(states=[GraphState.COMPLETED]) == graphs.newest(name="x") == []
    assert graphs.get_graph(2**63) is graphs.find_graph("b") is graphs.find_graph("a ") is None
    gone = GraphFence(77, 1, "x")
    for asked in (
        lambda: graphs.load(2**63),
        lambda: graphs.live_graph_runs(77),
        lambda: graphs.cancelled(gone, [1]),
    ):
        with pytest.raises(RunNotFound):
            asked()


# --- owners


def test_a_graph_has_one_owner_and_a_former_one_never_comes_back(graphed: Graphed) -> None:
    graphs, first = graphed.harness.store.graphs, graphed.row
    assert graphs.claim_graph(graphed.id, MINE) == first
    with pytest.raises(RunIsLive):
        graphs.claim_graph(graphed.id, Owner("graph/other", "chain-9"))
    picked = graphed.advance()
    work = graphed.work(picked.batches[0].number)[0]
    graphed.begin(work)
    again = Graphed.claimed(graphed.harness, graphed.id, NEXT)
    assert again.fence.attempt == 2
    with pytest.raises(Fenced):
        graphs.claim_graph(graphed.id, MINE)
    with pytest.raises(Fenced):
        graphed.begin(done=[graphed.end(work)])
    assert again.step(work.path).state is S.AVAILABLE, "what a lost call had begun begins again"
    assert again.execute() == ["a", "b", "g/x", "g/y", "z"]
    row = again.step(work.path)
    assert (row.attempt, [one["attempt"] for one in row.errors]) == (2, [1])


WRITES: list[Callable[[Harness, GraphFence], object]] = [
    lambda w, f: w.store.graphs.change(f, lambda graph: graph.cancel(None, "late")),
    lambda w, f: w.store.graphs.batch(f, 1),
    lambda w, f: w.store.graphs.record(f, [ExecutionEnd(StepEnd(0, 1, S.COMPLETED))]),
    lambda w, f: w.store.graphs.to_begin(f),
    lambda w, f: w.store.graphs.run_begun(f, 0, 1),
    lambda w, f: w.store.graphs.runs_ended(f),
    lambda w, f: w.store.graphs.end_graph(f, "late"),
]


def test_every_writer_is_fenced_by_attempt_and_owner(graphed: Graphed) -> None:
    graphed.begin(graphed.work(graphed.advance().batches[0].number)[0])
    before = graphed.row, graphed.states()
    for write in WRITES:
        for fence in (
            replace(graphed.fence, attempt=2),
            replace(graphed.fence, owner_run_id="chain-9"),
        ):
            with pytest.raises(Fenced):
                write(graphed.harness, fence)
    assert (graphed.row, graphed.states()) == before


# --- functions


def test_a_graph_from_its_first_step_to_its_end(graphed: Graphed) -> None:
    harness, graphs = graphed.harness, graphed.harness.store.graphs
    with pytest.raises(NotInThisState, match="not ended"):
        graphs.end_graph(graphed.fence, None)
    harness.clock.forward(5)
    before = len(told(harness))
    assert graphed.execute(result=b"some") == ["a", "b", "g/x", "g/y", "z"]
    assert set(graphed.states().values()) == {S.COMPLETED}
    [z] = graphs.list_steps(graphed.id, 4)
    assert (z.path, z.deps, z.attempt, z.result_bytes) == ("z", ["b", "g"], 1, 4)
    assert (z.started_at, z.ended_at) == (harness.clock.now, harness.clock.now)
    given = {one.path: one.result_bytes for one in graphs.given(graphed.id, [1, 2])}
    assert given == {"b": 4, "g": None, "g/x": 4, "g/y": 4}
    assert list(graphs.results(graphed.id, [4, 2, 0])) == [(4, b"some"), (0, b"some")]
    graphed.advance()
    assert len(told(harness)) - before == 3, (
        "what was picked, what ended, the last end; and nothing more"
    )
    row = graphs.end_graph(graphed.fence, "all done")
    assert graphs.end_graph(graphed.fence, "again") == row == graphed.row
    assert (row.state, row.counts, row.started_at) == (
        GraphState.COMPLETED,
        {S.COMPLETED: 5},
        harness.clock.now,
    )
    assert told(harness).count(EVENT_GRAPH_ENDED) == 1
    assert told(harness)[-1] == EVENT_GRAPH_ENDED
    event = harness.store.events.events_after(0, subject=graph_subject(KEY))[-1]
    assert (event.subject_uid, event.run_id) == (row.graph_uid, None)
    assert event.body["steps"] == {"completed": 5}
    assert graphs.claim_graph(graphed.id, Owner(MINE.workflow_id, "chain-late")) == row


def test_an_end_counts_once_and_only_of_the_attempt_that_executes(harness: Harness) -> None:
    graphed = Graphed.made(harness, [step("a", max_attempts=3)])
    [batch] = graphed.advance().batches
    [work] = graphed.work(batch.number)
    assert graphed.begin(work) == graphed.begin(work) == {0}, (
        "the answer of the first call was lost"
    )
    failed = graphed.end(work, S.RETRYABLE, reason="no " + "x" * 9000)
    graphed.begin(done=[failed])
    graphed.begin(done=[failed])
    graphed.begin(done=[graphed.end(work, result=b"late")])
    [row] = graphed.harness.store.graphs.list_steps(graphed.id)
    assert (row.state, row.attempt, row.tries, len(row.errors)) == (S.RETRYABLE, 1, 1, 1)
    assert row.errors[0]["error"].startswith("no xxx")
    assert graphed.begin(work) == set(), "its time has not come, and it belongs to no call"
    assert graphed.advance().again_at == harness.clock.now + timedelta(seconds=5)
    harness.clock.forward(6)
    [batch] = graphed.advance(batch.number).batches
    [again] = graphed.work(batch.number)
    assert (again.attempt, again.tries) == (2, 2)
    graphed.begin(again)
    graphed.begin(done=[graphed.end(again, S.SCHEDULED)])
    row = graphed.step("a")
    assert (row.state, row.tries, row.snoozed, len(row.errors)) == (S.SCHEDULED, 1, 1, 1)
    harness.clock.forward(6)
    [batch] = graphed.advance(batch.number).batches
    [third] = graphed.work(batch.number)
    graphed.begin(third)
    graphed.begin(done=[graphed.end(third, S.AVAILABLE)])
    assert (graphed.step("a").state, graphed.step("a").tries) == (S.AVAILABLE, 1), (
        "it was not called after all"
    )
    assert graphed.execute(result=b"") == ["a"]
    assert (graphed.step("a").attempt, graphed.step("a").result_bytes) == (4, 0)
    for state in (S.SUSPENDED, S.EXECUTING):
        with pytest.raises(InvalidRequest):
            graphed.begin(done=[replace(failed, end=replace(failed.end, state=state))])


def test_a_chain_goes_on_only_behind_what_completed(harness: Harness) -> None:
    graphed = Graphed.made(harness, [*chain(4), step("late", "s3", ignore_cancelled=True)])
    [batch, *others] = graphed.advance().batches
    assert not others
    work = {one.path: one for one in graphed.work(batch.number)}
    assert list(work) == ["s0", "s1", "s2", "s3", "late"]
    assert graphed.begin(work["s1"]) == set(), "s0 has not ended"
    assert graphed.begin(work["s0"]) == {0}
    end = graphed.end(work["s0"])
    assert graphed.begin(work["s1"], done=[end]) == {1}
    end = graphed.end(work["s1"], S.DISCARDED, reason="bad")
    assert graphed.begin(work["s2"], done=[end]) == set()
    graphed.harness.store.graphs.change(graphed.fence, lambda graph: graph.released([batch.number]))
    assert graphed.states() == {"s0": S.COMPLETED, "s1": S.DISCARDED, "s2": S.CANCELLED, "s3": S.CANCELLED,
                                "late": S.AVAILABLE}  # fmt: skip
    assert graphed.execute() == ["late"]
    assert graphed.harness.store.graphs.end_graph(graphed.fence, "s1").state is GraphState.DISCARDED


def test_a_graph_that_fails_fast_begins_nothing_in_any_call(harness: Harness) -> None:
    steps = [step("a"), step("b", queue="gpu"), step("c", "b", queue="gpu")]
    graphed = Graphed.made(harness, steps, fail_fast=True)
    one, other = graphed.advance().batches
    [a], [b, c] = graphed.work(one.number), graphed.work(other.number)
    assert graphed.begin(a, b) == {a.number, b.number}
    graphed.begin(done=[graphed.end(a, S.DISCARDED, reason="bad")])
    assert graphed.begin(c, done=[graphed.end(b)]) == set(), (
        "the other call has recorded the failure"
    )
    graphed.advance(one.number, other.number)
    assert graphed.states() == {"a": S.DISCARDED, "b": S.COMPLETED, "c": S.CANCELLED}


def test_a_step_that_was_taken_from_a_call_begins_in_another_one_alone(harness: Harness) -> None:
    graphed = Graphed.made(harness, chain(2))
    [batch] = graphed.advance().batches
    first, second = graphed.work(batch.number)
    graphed.begin(first)
    graphed.begin(done=[graphed.end(first)])
    assert (
        harness.store.graphs.command(
            graphed.id, "again", lambda graph: graph.retry([0], cascade=False)
        )
        == 1
    )
    assert graphed.begin(second) == set(), "it has to wait again"
    [batch] = graphed.advance().batches
    first, given = graphed.work(batch.number)
    graphed.begin(first)
    assert given.attempt == second.attempt
    assert graphed.begin(given, done=[graphed.end(first)]) == {1}
    assert graphed.begin(given) == {1}, "the answer was lost"
    assert graphed.begin(second) == set(), "the former call comes to it"


def test_work_comes_behind_what_it_depends_on_however_it_is_numbered(harness: Harness) -> None:
    steps = [step("c", "b"), step("b", "a"), step("a")]
    assert Graphed.made(harness, steps).execute() == ["a", "b", "c"]


def test_a_worker_that_dies_in_a_step_again_and_again_is_not_waited_for(harness: Harness) -> None:
    graphed = Graphed.made(harness, [step("a")])
    [batch] = graphed.advance().batches
    for attempt in range(1, LOST_MAX + 2):
        [work] = graphed.work(batch.number)
        assert work.attempt == attempt
        assert graphed.begin(work) == {0}
    [work] = graphed.work(batch.number)
    assert graphed.begin(work) == set()
    row = graphed.step("a")
    assert (row.state, row.outcome, len(row.errors)) == (S.DISCARDED, "lost", LOST_MAX + 1)
    assert graphed.work(batch.number) == []


def test_results_of_any_size_come_back_in_order(harness: Harness) -> None:
    graphs = harness.store.graphs
    graphed = Graphed.made(harness, [step(f"s{n}") for n in range(6)])
    parts = {
        n: [bytes([n, part]) * (RESULT_PART // 2) for part in range(9 if n == 2 else 1)]
        for n in range(6)
    }
    work = [one for batch in graphed.advance().batches for one in graphed.work(batch.number)]
    graphed.begin(*work)
    with pytest.raises(InvalidRequest, match="part 0"):
        graphed.begin(
            done=[replace(graphed.end(work[0]), result=[b"x" * (RESULT_PART + 1)], result_bytes=1)]
        )
    for one in work:
        size = sum(map(len, parts[one.number]))
        graphed.begin(done=[replace(graphed.end(one), result=parts[one.number], result_bytes=size)])
    found: dict[int, list[bytes]] = {}
    for number, data in graphs.results(graphed.id, [5, 2, 77, 0, 1]):
        found.setdefault(number, []).append(data)
    assert list(found) == [5, 2, 0, 1]
    assert all(found[n] == parts[n] for n in found)
    assert list(graphs.result(graphed.id, 2)) == parts[2]
    graphs.command(graphed.id, "r", lambda graph: graph.retry([2], cascade=False))
    assert graphed.execute(result=b"anew") == ["s2"]
    assert list(graphs.result(graphed.id, 2)) == [b"anew"], "nothing of the former result is left"


def test_ends_that_come_at_once_are_all_kept(harness: Harness) -> None:
    graphed = Graphed.made(harness, [step(f"s{n}") for n in range(40)])
    work = [one for batch in graphed.advance().batches for one in graphed.work(batch.number)]

    def whole(part: int) -> None:
        for one in work[part::4]:
            assert graphed.begin(one) == {one.number}
            graphed.begin(done=[graphed.end(one, result=b"{}")])
            if part == 0:
                graphed.advance()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(whole, range(4)))
    graphed.advance()
    assert graphed.row.counts == {S.COMPLETED: 40}
    assert len(list(harness.store.graphs.results(graphed.id, range(40)))) == 40


# --- grafts


def test_a_graft_is_attached_once(harness: Harness) -> None:
    graphs = harness.store.graphs
    graphed = Graphed.made(harness, [step("f", graft=True), step("z", "f")])
    spec = GraphSpec([step("x"), group("in", "x"), step("in/y")], context={"c": 1})
    with pytest.raises(Fenced, match="is not executing"):
        graphs.begin_graft(graphed.id, 0, 1, spec, "d1")
    [batch] = graphed.advance().batches
    [work] = graphed.work(batch.number)
    graphed.begin(work)
    for _ in range(2):
        graphs.begin_graft(graphed.id, 0, 1, spec, "d1")
    with pytest.raises(DuplicateRequest, match="grafted other steps"):
        graphs.begin_graft(graphed.id, 0, 1, GraphSpec([step("q")]), "d2")
    with pytest.raises(Fenced):
        graphs.begin_graft(graphed.id, 0, 2, spec, "d1")
    graphed.begin(done=[graphed.end(work)])
    with pytest.raises(Fenced):
        graphs.begin_graft(graphed.id, 0, 1, spec, "d1")
    assert graphed.step("z").state is S.SUSPENDED, "it is waiting for all that was grafted"
    [y] = graphs.list_steps(graphed.id, paths=["f/in/y"])
    assert graphs.context(graphed.id, y.number) == [b'{"c":1}']
    assert graphed.execute(batch.number) == ["f/x", "f/in/y", "z"]
    assert set(graphed.states().values()) == {S.COMPLETED}
    assert [one.path for one in graphs.given(graphed.id, [0])] == ["f", "f/x", "f/in", "f/in/y"]


# --- commands


def test_a_command_is_carried_out_once_and_opens_a_graph_again(graphed: Graphed) -> None:
    harness, graphs = graphed.harness, graphed.harness.store.graphs
    cancelled = graphs.command(graphed.id, "c1", lambda graph: graph.cancel([0], "no"))
    assert (
        cancelled == graphs.command(graphed.id, "c1", lambda graph: graph.cancel(None, "all")) == 1
    )
    assert graphed.states() == {"a": S.CANCELLED, "b": S.CANCELLED, "g": S.EXECUTING, "g/x": S.AVAILABLE,
                                "g/y": S.AVAILABLE, "z": S.CANCELLED}  # fmt: skip
    graphed.execute()
    ended = graphs.end_graph(graphed.fence, "a")
    assert ended.state is GraphState.CANCELLED
    with pytest.raises(InvalidRequest, match="there is no such step"):
        graphs.command(
            graphed.id, "r0", lambda graph: graph.retry(graph.numbers(["nope"]), cascade=False)
        )
    assert graphed.row == ended, "what was refused changes nothing"
    assert graphs.command(graphed.id, "r1", lambda graph: graph.retry([0], cascade=True)) == 3
    row = graphed.row
    assert (row.state, row.attempt, row.owner_run_id, row.ended_at) == (
        GraphState.EXECUTING,
        2,
        None,
        None,
    )
    with pytest.raises(Fenced):
        graphed.advance()
    again = Graphed.claimed(harness, graphed.id, MINE)
    assert again.fence.attempt == 2, "the workflow that was about to close may go on"
    assert again.execute() == ["a", "b", "z"]
    assert graphs.end_graph(again.fence, None).state is GraphState.COMPLETED
    assert told(harness).count(EVENT_GRAPH_ENDED) == 2


def test_an_approval_and_its_decision_outlive_every_workflow(harness: Harness) -> None:
    graphed, graphs = (
        Graphed.made(harness, [approval("ask", timeout_s=60), step("then", "ask")]),
        harness.store.graphs,
    )
    assert (graphed.advance().begin, graphed.step("ask").state) == ([], S.EXECUTING)
    graphed = Graphed.claimed(harness, graphed.id, NEXT)
    again_at = graphed.advance().again_at
    waits = graphed.step("ask")
    assert (again_at, waits.state, waits.attempt) == (waits.not_before, S.EXECUTING, 1)
    assert f"crawlctl graph approve {KEY} ask" in str(waits.reason)
    assert graphed.row.waiting_for == f'step "ask": {waits.reason}'
    yes = ApproveStep(step="ask", requested_by="ada", note="go", at=harness.clock.now)
    assert [
        graphs.command(graphed.id, request_id, yes.apply) for request_id in ("y", "y", "again")
    ] == [1, 1, 0]
    said = {"approved": True, "by": "ada", "at": harness.clock.now.isoformat(), "note": "go"}
    assert (graphed.recorded("ask"), graphed.step("ask").outcome) == (said, "approved")
    with pytest.raises(NotInThisState, match=r"it is completed \(approved by ada: go\)"):
        graphs.command(graphed.id, "n", ApproveStep(step="ask", approved=False).apply)
    graphs.record_graph_stop(graphed.id, StopIntent(harness.clock.now))
    assert graphs.end_graph(graphed.fence, None).state is GraphState.CANCELLED
    graphs.command(graphed.id, "r", RetrySteps().apply)
    again = Graphed.claimed(harness, graphed.id, NEXT)
    assert (again.execute(), again.recorded("ask")) == (["then"], said)


def test_an_approval_ends_with_a_stop_a_no_or_its_time(harness: Harness) -> None:
    graphed, graphs = Graphed.made(harness, [approval("ask", timeout_s=60)]), harness.store.graphs
    graphed.advance()
    no = ApproveStep(step="ask", approved=False, note="wrong day", at=harness.clock.now)
    assert graphs.command(graphed.id, "n", no.apply) == 1
    refused = graphed.step("ask")
    assert (refused.state, refused.reason) == (S.DISCARDED, "rejected by somebody: wrong day")
    assert [error["error"] for error in refused.errors] == [refused.reason]
    graphs.command(graphed.id, "r", RetrySteps().apply)
    graphed.advance()
    assert (graphed.step("ask").state, graphed.step("ask").attempt) == (S.EXECUTING, 2)
    harness.clock.now += timedelta(seconds=60)
    graphed.advance()
    assert (graphed.step("ask").state, graphed.step("ask").outcome) == (S.DISCARDED, "timed_out")
    graphs.command(graphed.id, "r2", RetrySteps().apply)
    graphed.advance()
    graphs.record_graph_stop(graphed.id, StopIntent(harness.clock.now))
    assert (graphed.step("ask").state, graphed.step("ask").ending) == (S.CANCELLED, False)
    assert graphs.end_graph(graphed.fence, None).state is GraphState.CANCELLED


def test_every_kind_of_steps_is_in_the_tables() -> None:
    assert set(STEP_RULES) == set(StepKind)
    runs = {kind for kind, rules in STEP_RULES.items() if rules.counts_as_run}
    assert set(RUNS) == set(RUN_STEPS) == runs
    assert set(OFFERED) == runs | {kind for kind, rules in STEP_RULES.items() if rules.called}


def test_steps_are_appended_and_found_by_those_that_missed_them(harness: Harness) -> None:
    graphs = harness.store.graphs
    graphed = Graphed.made(harness, [step("a", "later", timeout_s=7)], check_deps=False)
    assert graphed.execute() == []
    assert graphed.step("a").deps == ["later"]
    assert 'step "a"' in (graphed.row.waiting_for or "")
    assert "later" in (graphed.row.waiting_for or "")

    def append(graph: Graph) -> int:
        return len(graph.add([step("later", backoff_s=3.0)]))

    assert graphs.command(graphed.id, "p1", append) == graphs.command(graphed.id, "p1", append) == 1
    [batch] = graphed.advance().batches
    first, second = graphed.work(batch.number)
    assert (first.path, first.backoff_s, second.path, second.timeout_s, second.deps) == (
        "later",
        3.0,
        "a",
        7,
        (1,),
    )


def test_a_stop_cancels_everything_and_is_over_when_nothing_runs(harness: Harness) -> None:
    graphs = harness.store.graphs
    graphed = Graphed.made(harness, [step("a"), step("b"), crawl("c"), step("z", "a")])
    picked = graphed.advance()
    work = [one for batch in picked.batches for one in graphed.work(batch.number)]
    graphed.begin(work[0])
    run = graphed.begin_runs()["c"]
    row = graphs.record_graph_stop(graphed.id, harness.stop(reason="enough"))
    assert row.stop == harness.stop(reason="enough")
    assert graphed.row == row == graphs.record_graph_stop(graphed.id, harness.stop(reason="enough"))
    assert set(graphed.states().values()) == {S.CANCELLED}
    assert graphed.step("a").reason == "the graph was stopped by ann: enough"
    assert graphs.cancelled(graphed.fence, [0, 1, 7]) == {0, 1, 7}
    assert graphed.begin(work[1]) == set()
    with pytest.raises(NotInThisState, match="stopping"):
        graphs.command(graphed.id, "r", lambda graph: graph.retry(None, cascade=True))
    assert graphs.record_graph_stop(graphed.id, harness.stop(force=True)).stop == harness.stop(
        reason="enough", force=True
    )
    assert [one.run_id for one in graphs.live_graph_runs(graphed.id)] == [run.run_id]
    assert [one.run_id for one in graphs.live_graph_runs(graphed.id, ending=True)] == [run.run_id]
    assert graphs.live_graph_runs(graphed.id, run.run_id) == []
    graphed.begin(done=[graphed.end(work[0])])
    graphed.advance()
    assert (graphed.step("a").state, graphed.step("a").ending, graphed.step("c").ending) == (
        S.CANCELLED,
        False,
        True,
    )
    with pytest.raises(NotInThisState):
        graphs.end_graph(graphed.fence, "stopped")
    harness.finish(run)
    graphed.advance(*(batch.number for batch in picked.batches))
    row = graphs.end_graph(graphed.fence, "stopped")
    assert (row.state, graphs.record_graph_stop(graphed.id, harness.stop())) == (
        GraphState.CANCELLED,
        row,
    )


# --- crawls


def test_crawls_begin_end_and_are_resumed(harness: Harness) -> None:
    graphs = harness.store.graphs
    graphed = Graphed.made(harness, [crawl("c", max_attempts=2, backoff_s=60), step("z", "c")])
    assert graphed.advance().begin == [0]
    [work] = graphs.to_begin(graphed.fence)
    assert (work.attempt, work.run_id, work.job) == (1, None, {"crawler": "services"})
    run = graphed.begin_runs()["c"]
    assert graphs.to_begin(graphed.fence) == []
    assert graphs.run_begun(graphed.fence, 0, run.run_id)
    assert graphed.advance().again_at is None
    harness.finish(run, failed=[0])
    [end] = graphs.runs_ended(graphed.fence)
    assert (end.state, end.run_attempt, end.not_before) == (
        S.RETRYABLE,
        1,
        harness.clock.now + timedelta(seconds=60),
    )
    graphed.advance()
    row = graphed.step("c")
    assert (row.state, row.outcome, len(row.errors)) == (S.RETRYABLE, "failed", 1)
    harness.clock.forward(61)
    assert graphed.advance().begin == [0]
    [work] = graphs.to_begin(graphed.fence)
    assert (work.attempt, work.run_id, work.run_attempt) == (2, run.run_id, 1)
    assert graphs.runs_ended(graphed.fence) == [], "it has not begun anew"
    graphs.run_begun(graphed.fence, 0, run.run_id)
    assert graphs.runs_ended(graphed.fence) == [], "this end was taken in before"
    again = harness.resume(run)
    harness.begin(again)
    graphed.finish(again)
    assert graphed.execute() == ["z"]
    given = graphed.recorded("c")
    assert (given["run_id"], given["status"], given["items"]) == (run.run_id, "COMPLETED", 5)


def test_a_crawl_ends_with_its_archive_and_its_record_stays(harness: Harness) -> None:
    """Otherwise a dependent step would sometimes have no archive."""
    graphed = Graphed.made(harness, [crawl("c"), step("z", "c")])
    graphed.advance()
    run = graphed.begin_runs()["c"]
    harness.finish(run)
    why = f"run {run.run_id} is COMPLETED, and its archive is not delivered yet (crawlctl export {run.run_id})"
    for _ in range(2):
        assert graphed.execute() == []
        assert (graphed.step("c").state, graphed.step("c").reason) == (S.EXECUTING, why)
        assert graphed.row.waiting_for == f'step "c": {why}'
        harness.store.exports.record_export(run, "failed", None, "no such bucket")
    run = harness.resume(run, rerun=True)
    graphed.advance()
    assert (graphed.step("c").reason, graphed.row.waiting_for) == (None, None)
    harness.begin(run)
    harness.finish(run)
    graphed.deliver(run)
    assert graphed.execute() == ["z"]
    told = {
        "run_id": run.run_id,
        "status": "COMPLETED",
        "outcome": "finished",
        "items": 5,
        "pages": 10,
        "errors": 0,
    }
    assert graphed.recorded("c") == {**told, "archive": f"s3://crawls/{run.run_id}/2"}
    harness.resume(run, Owner("crawl/again", "chain-again"), rerun=True)
    assert graphed.recorded("c") == {**told, "archive": f"s3://crawls/{run.run_id}/2"}


def test_a_crawl_waits_a_day_for_its_archive_and_not_when_it_was_cancelled(
    harness: Harness,
) -> None:
    graphs = harness.store.graphs
    graphed = Graphed.made(harness, [crawl("none"), crawl("late"), crawl("cancelled"), crawl("on")])
    graphed.advance()
    runs = graphed.begin_runs()
    for path in ("none", "late", "cancelled"):
        harness.finish(runs[path], failed=[0] if path == "late" else ())
    harness.store.exports.record_export(runs["none"], "empty", None, None)
    graphed.advance()
    assert (graphed.step("none").state, graphed.recorded("none")["archive"]) == (S.COMPLETED, None)
    graphs.command(graphed.id, "x", lambda graph: graph.cancel([2], "no"))
    harness.clock.forward(24 * 3600 - 1)
    graphed.advance()
    assert graphed.states()["late"] == S.EXECUTING
    assert (graphed.step("cancelled").ending, graphed.recorded("cancelled")["status"]) == (
        False,
        "COMPLETED",
    )
    harness.clock.forward(1)
    graphed.advance()
    graphed.deliver(runs["late"])
    assert (graphed.step("late").state, graphed.recorded("late")["archive"]) == (S.DISCARDED, None)
    assert (graphed.states()["on"], graphed.row.waiting_for) == (S.EXECUTING, None)


def test_a_crawl_that_is_tried_again_has_the_record_of_its_last_end(harness: Harness) -> None:
    graphed = Graphed.made(harness, [crawl("c", max_attempts=2, backoff_s=60)])
    graphed.advance()
    run = graphed.begin_runs()["c"]
    harness.finish(run, failed=[0])
    graphed.advance()
    assert (graphed.step("c").state, graphed.recorded("c")) == (S.RETRYABLE, None), (
        "a try waits for no archive"
    )
    for failed, state in (([0], S.DISCARDED), ([], S.COMPLETED)):
        harness.clock.forward(61)
        graphed.advance()
        harness.store.graphs.run_begun(graphed.fence, 0, run.run_id)
        run = harness.resume(run, Owner("crawl/again", f"chain-{state}"))
        harness.begin(run)
        graphed.finish(run, failed)
        graphed.advance()
        assert graphed.step("c").state is state
        told = {
            "status": "FAILED" if failed else "COMPLETED",
            "archive": f"s3://crawls/{run.run_id}/{run.attempt}",
        }
        assert graphed.recorded("c").items() >= told.items()
        harness.store.graphs.command(
            graphed.id, "again", lambda graph: graph.retry(None, cascade=False)
        )


def test_a_crawl_that_cannot_begin_and_one_that_a_person_stopped(harness: Harness) -> None:
    graphs = harness.store.graphs
    graphed = Graphed.made(harness, [crawl("bad", max_attempts=5), crawl("c"), crawl("gone")])
    graphed.advance()
    for _ in range(2):
        graphs.run_begun(graphed.fence, 0, None, "there is no crawler 'services'")
    row = graphed.step("bad")
    assert (row.state, row.outcome, len(row.errors)) == (S.DISCARDED, "deploy_failed", 1)
    runs = graphed.begin_runs()
    harness.store.stops.record_stop(runs["c"].run_id, harness.stop(), "s1")
    harness.store.stops.acted_on_stop(runs["c"], harness.clock.now)
    graphed.finish(runs["c"], failed=[0])
    graphed.advance()
    assert (graphed.step("c").state, graphed.step("c").outcome) == (S.CANCELLED, "cancelled")
    graphs.command(graphed.id, "x", lambda graph: graph.cancel([2], "no"))
    assert graphed.step("gone").ending
    assert [end.number for end in graphs.runs_ended(graphed.fence)] == [], "its run lives"
    with pytest.raises(InvalidRequest):
        graphs.run_begun(graphed.fence, 77, 1)
    with pytest.raises(InvalidRequest):
        graphs.run_begun(graphed.fence, 1, 1, "and an error")


def test_a_crawl_that_was_cancelled_before_its_run_was_told_keeps_the_run(harness: Harness) -> None:
    graphs = harness.store.graphs
    graphed = Graphed.made(harness, [crawl("c")])
    graphed.advance()
    graphs.command(graphed.id, "x", lambda graph: graph.cancel(None, "no"))
    [end] = graphs.runs_ended(graphed.fence)
    assert end.state is S.CANCELLED
    graphed.advance()
    assert not graphed.step("c").ending
    asked = Graphed.made(harness, [crawl("c")], "other")
    asked.advance()
    run = asked.begin_runs()["c"]
    assert graphs.run_begun(graphed.fence, 0, run.run_id) is False
    row = graphed.step("c")
    assert (row.state, row.ending, row.run_id) == (S.CANCELLED, True, run.run_id)
    harness.finish(run)
    graphed.advance()
    assert not graphed.step("c").ending


def test_a_crawl_that_was_cancelled_ends_with_the_run_of_whoever_died_before_telling(
    harness: Harness,
) -> None:
    graphs = harness.store.graphs
    graphed, other = (
        Graphed.made(harness, [crawl("c")]),
        Graphed.made(harness, [crawl("c")], "other"),
    )
    for one in (graphed, other):
        one.advance()
    run = graphed.begin_runs(told=False)["c"]
    graphs.command(graphed.id, "x", lambda graph: graph.cancel(None, "no"))
    graphed.advance()
    assert graphed.step("c").ending, "its run lives"
    assert [row.run_id for row in graphs.live_graph_runs(graphed.id, ending=True)] == [run.run_id]
    assert graphs.live_graph_runs(other.id, ending=True) == []
    harness.finish(run)
    graphed.advance()
    assert (graphed.step("c").state, graphed.step("c").ending) == (S.CANCELLED, False)


def test_a_crawl_that_was_cancelled_ends_with_the_attempt_of_whoever_died_before_telling(
    harness: Harness,
) -> None:
    graphs = harness.store.graphs
    graphed = Graphed.made(harness, [crawl("c"), crawl("on")])
    graphed.advance()
    runs = graphed.begin_runs()
    harness.finish(runs["c"], failed=[0])
    graphed.advance()
    graphs.command(graphed.id, "again", lambda graph: graph.retry([0], cascade=False))
    graphed.advance()
    harness.resume(runs["c"])
    graphs.command(graphed.id, "x", lambda graph: graph.cancel([0], "no"))
    graphed.advance()
    assert graphed.step("c").ending, "its run goes on"
    assert [row.run_id for row in graphs.live_graph_runs(graphed.id, ending=True)] == [
        runs["c"].run_id
    ]


@pytest.mark.parametrize("again", [False, True], ids=["begun", "resumed"])
def test_a_manager_that_was_cancelled_ends_with_the_one_of_whoever_died_before_telling(
    harness: Harness, again: bool
) -> None:
    graphs, managers = harness.store.graphs, harness.store.managers
    steps = [manager("own"), manager("named", name="shops", flow_id="f"), manager("never")]
    graphed, other = (
        Graphed.made(harness, steps, max_parallel=2),
        Graphed.made(harness, steps[:1], "other"),
    )
    for one in (graphed, other):
        one.advance()
    began = {**other.begin_managers(), **graphed.begin_managers(told=again)}
    if again:
        for fence in began.values():
            managers.end_manager(fence, RunStatus.FAILED, "failed", "over")
        graphed.advance()
        assert (
            graphs.command(graphed.id, "again", lambda graph: graph.retry([0, 1], cascade=False))
            == 2
        )
        graphs.command(graphed.id, "gone", lambda graph: graph.cancel([2], "no"))
        graphed.advance()
        began = graphed.begin_managers(told=False)
    graphs.command(graphed.id, "x", lambda graph: graph.cancel(None, "no"))
    graphed.advance()
    expected = {"own": True, "named": True, "never": False}
    assert {path: graphed.step(path).ending for path in graphed.states()} == expected
    ids = sorted(began[path].manager_id for path in ("own", "named"))
    assert [row.manager_id for row in graphs.live_graph_managers(graphed.id, ending=True)] == ids
    assert [row.manager_id for row in graphs.live_graph_managers(graphed.id)] == ids
    assert graphs.live_graph_managers(other.id, ending=True) == []
    for path in ("own", "named"):
        managers.end_manager(began[path], RunStatus.FAILED, "cancelled", "stopped")
    graphed.advance()
    assert not any(graphed.step(path).ending for path in graphed.states())
    assert graphs.live_graph_managers(graphed.id) == []


def test_a_manager_whose_row_is_gone_is_begun_anew_and_its_first_end_counts(
    harness: Harness,
) -> None:
    graphs, managers = harness.store.graphs, harness.store.managers
    graphed = Graphed.made(harness, [manager("m")])
    graphed.advance()
    managers.end_manager(graphed.begin_managers()["m"], RunStatus.FAILED, "failed", "over")
    graphed.advance()
    harness.write("DELETE FROM manager")
    graphs.command(graphed.id, "again", lambda graph: graph.retry(None, cascade=True))
    graphed.advance()
    managers.end_manager(graphed.begin_managers()["m"], RunStatus.COMPLETED, "finished", "done")
    graphed.advance()
    assert graphed.step("m").state is S.COMPLETED


def test_an_audit_finds_steps_and_runs_that_do_not_know_each_other(harness: Harness) -> None:
    graphs, audits = harness.store.graphs, harness.store.audits
    graphed = Graphed.made(
        harness, [crawl(name) for name in ("right", "gone", "strange", "new")], max_parallel=3
    )
    draft, _ = graphs.reserve_graph(announced(GraphSpec([]), "draft"))
    graphed.advance()
    runs = graphed.begin_runs()
    assert [(one.what, one.number, one.workflow_id) for one in audits.open_graphs()] == [
        ("graph", graphed.id, "graph/nightly/shops")
    ]
    assert (
        audits.open_graphs(graphed.id)
        == audits.steps_without_runs([graphed.id, draft.graph_id])
        == []
    )
    harness.write("UPDATE graph_step SET run_id = 9999 WHERE path = 'gone'")
    harness.write(
        "UPDATE run_history SET parent = 'graph/other' WHERE run_id = :id",
        id=runs["strange"].run_id,
    )
    found = {
        one.path: (one.run_id, one.exists, one.parent)
        for one in audits.steps_without_runs([graphed.id])
    }
    assert found == {
        "gone": (9999, False, None),
        "strange": (runs["strange"].run_id, True, "graph/other"),
    }
    graphed.advance()
    assert [graphed.step(path).outcome for path in ("gone", "strange")] == ["lost", "lost"]
    assert "belongs to graph/other, not to this graph" in str(graphed.step("strange").reason)
    assert audits.steps_without_runs([graphed.id]) == []
    long = "x" * 200
    for request_id in (
        "graph/nightly/shops/new/1",
        "graph/nightly/shops/nobody/1",
        step_request_id(KEY, long, 1),
    ):
        asked = request(crawler="services", parent=graph_workflow_id(KEY))
        harness.store.initiation.reserve_run(asked, request_id)
    told = [run.uncounted for run in audits.open_runs()]
    assert [(one.state, one.starting) for one in told if one is not None] == [
        ("executing", True), (None, False), (None, False),
    ]  # fmt: skip


# --- another hand


#: Column -> an impossible value, and its error.
EDITED = {
    "shape": ('{"deps": [99]}', "numbers of steps"),
    "parent": (77, "the number of a step"),
}


@pytest.mark.parametrize("column", EDITED)
def test_what_another_hand_wrote_is_told_and_never_written_over(
    graphed: Graphed, column: str
) -> None:
    harness, graphs = graphed.harness, graphed.harness.store.graphs
    value, fix = EDITED[column]
    statement = f"UPDATE graph_step SET {column} = :value WHERE number = 4"
    harness.write(statement, value=value)
    told = rf"graph_step .*{column} is .*{fix}"
    asks: list[Callable[[], object]] = [lambda: graphs.end_graph(graphed.fence, None)]
    asks.append(lambda: graphs.command(graphed.id, "c1", lambda graph: graph.cancel(None, "no")))
    if column == "parent":  # its position is unknown
        asks += [graphed.advance, lambda: graphs.load(graphed.id)]
    else:
        assert sorted(graphed.execute()) == ["a", "b", "g/x"], "what does not wait for it goes on"
        assert graphed.states()["z"] == S.SUSPENDED
        assert (graphs.load(graphed.id).waiting(5) or "").startswith('it is waiting for "g"')
        assert re.match(f'step "g/y": {told}', graphed.row.waiting_for or "")
    for ask in asks:
        with pytest.raises(RowUnreadable, match=told):
            ask()
    assert len(graphs.list_steps(graphed.id)) == 6
    stopped = graphs.record_graph_stop(graphed.id, harness.stop())
    assert stopped.stop == harness.stop(), "nothing keeps a stop back"
    harness.write(statement, value={"shape": None, "parent": 2}[column])
    graphed.advance()
    assert {graphed.states()[path] for path in ("g", "g/y", "z")} == {S.CANCELLED}, (
        "mended, it goes on by itself"
    )
    assert graphs.end_graph(graphed.fence, None).state is GraphState.CANCELLED


def test_a_graphs_own_row_that_another_hand_wrote(graphed: Graphed) -> None:
    harness, graphs = graphed.harness, graphed.harness.store.graphs
    harness.write("UPDATE graph SET options = :odd", odd='{"fail_fast": "perhaps"}')
    for ask in (lambda: graphs.get_graph(graphed.id), graphed.advance):
        with pytest.raises(
            RowUnreadable, match=rf"graph graph_id {graphed.id}: options .*fail_fast of the options"
        ):
            ask()
    [row], [audited] = graphs.newest(), harness.store.audits.open_graphs()
    assert "fail_fast of the options" in (row.unreadable or "")
    assert audited.unreadable == row.unreadable
    harness.write("UPDATE graph SET options = '{}'")
    harness.write("DELETE FROM graph_step WHERE number = 1")
    with pytest.raises(RowUnreadable, match="step 1 is missing"):
        graphed.advance()


# --- a remembered engine


def test_a_remembered_engine_is_the_one_of_all_rows_whoever_wrote_them(
    harness: Harness, graphed: Graphed
) -> None:
    graphs, reads = harness.store.graphs, list[Graph]()

    def how(known: Graph) -> None:
        whole = graphs.load(graphed.id)
        assert (known.steps, known.next_batch) == (whole.steps, whole.next_batch)
        assert known.counts() == whole.counts()
        assert [known.waiting(step.number) for step in known.steps] == [
            whole.waiting(n) for n in range(len(known.steps))
        ]
        reads.append(known)

    def same(again: bool) -> None:
        before = reads[-1:]
        graphs.change(graphed.fence, how)
        assert (before == [] or reads[-1] is before[0]) is again

    same(True)
    picked = graphed.advance()
    same(True)
    work = [one for batch in picked.batches for one in graphed.work(batch.number)]
    graphed.begin(*work)
    same(True)
    graphed.begin(
        done=[graphed.end(one, S.DISCARDED if one.path == "a" else S.COMPLETED) for one in work]
    )
    same(True)
    graphed.advance(*(batch.number for batch in picked.batches))
    same(False)  # it has ended, and the engine of an ended graph is not cached
    graphs.command(
        graphed.id, "again", lambda graph: graph.retry(graph.numbers(["a"]), cascade=True)
    )
    same(False)
    same(True)
