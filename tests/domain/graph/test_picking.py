"""What starts, in which calls, and within which capacity."""

from __future__ import annotations

from collections.abc import Sequence

from crawler_lifecycle.features.graphs.domain.engine import Graph
from crawler_lifecycle.features.graphs.domain.picking import BATCH_STEPS, SPREAD
from crawler_lifecycle.features.graphs.domain.spec import StepState
from tests.domain.graph.steps import NOW, begin, crawl, end, graph, group, run, states, step


def calls(of: Graph, batches: int = 500) -> list[list[str]]:
    picked = of.pick(NOW, batches=batches, begin=500)
    return [[of.steps[number].path for number in batch.steps] for batch in picked.batches]


def test_a_chain_is_one_call() -> None:
    one = graph(step("0"), *(step(str(n), str(n - 1)) for n in range(1, BATCH_STEPS + 5)))
    assert calls(one) == [[str(n) for n in range(BATCH_STEPS)]]
    assert calls(one) == []


def test_a_call_goes_on_with_what_only_it_makes_ready_and_shares_out_what_fans_out() -> None:
    one = graph(step("a"), step("b", "a"), step("c", "b"), step("d", "b"), step("e", "c", "d"))
    assert calls(one) == [["a", "b"]]
    one = graph(step("a"), step("b"), step("c", "a", "b"))
    assert calls(one) == [["a"], ["b"]]  # two calls: the last one is unknown
    long = graph(step("a"), step("b", "a", timeout_s=61), step("c", "b"))
    assert calls(long) == [["a"]]
    graft = graph(step("a"), step("b", "a", graft=True), step("c", "b"))
    assert calls(graft) == [["a", "b"]]  # c waits for what b grafts
    pools = graph(step("a"), step("b", "a", queue="big"), crawl("c"))
    assert calls(pools) == [["a"]]


def test_a_wide_set_is_spread_over_calls_and_kept_apart_by_pool_and_length() -> None:
    one = graph(
        step("slow", timeout_s=61), *(step(str(n)) for n in range(1000)), step("big", queue="big")
    )
    picked = one.pick(NOW, batches=500, begin=500)
    sizes = [len(batch.steps) for batch in picked.batches if batch.queue is None and not batch.long]
    assert sizes == 7 * [1000 // SPREAD + 1]  # and the separate one
    apart = [(b.queue, b.long, len(b.steps)) for b in picked.batches if b.queue or b.long]
    assert apart == [(None, True, 1), ("big", False, 1)]
    first = picked.batches[0]
    assert {one.steps[n].batch for n in first.steps} == {first.number}


def test_no_more_calls_wait_than_workers_took() -> None:
    """At most twice as many if none waits.

    A call gets twice as many steps as calls ended; the first ones get few.
    """
    one = graph(*(step(str(n)) for n in range(640)), step("big", queue="big"))

    def left(
        taken: Sequence[int], answered: Sequence[int] = (), ended: int = 0
    ) -> tuple[list[int], float | None]:
        for number in taken:
            begin(
                one,
                next(
                    s.path
                    for s in one.steps
                    if s.batch == number and s.state is StepState.AVAILABLE
                ),
            )
        one.released(answered)
        picked = one.pick(NOW, batches=500, begin=500, answered=len(answered), ended=ended)
        again = None if picked.again_at is None else (picked.again_at - NOW).total_seconds()
        return [len(batch.steps) for batch in picked.batches if batch.queue is None], again

    assert left([]) == (8 * [20], 1.0)  # and a call of the other pool, 9
    assert left([]) == ([], 15.0)
    assert left([1, 2, 3]) == ([], 15.0)  # five wait
    assert left([4, 5], [1], ended=8) == (2 * [4], 15.0)  # three wait, and five were started
    # None waits, nine were started, and their functions are slow.
    assert left([6, 7, 8, 10, 11]) == (18 * [1], 1.0)
    assert left(range(12, 30), ended=900) == (39 * [12] + [6], None)


def test_priority_then_order_decides_and_no_more_is_given_than_there_is_room_for() -> None:
    one = graph(
        step("a", priority=5),
        step("b"),
        step("c", priority=1),
        crawl("d"),
        crawl("e", priority=1),
        crawl("f"),
    )
    picked = one.pick(NOW, batches=2, begin=2)
    assert [one.steps[n].path for batch in picked.batches for n in batch.steps] == ["b", "c"]
    assert [one.steps[n].path for n in picked.begin] == ["d", "f"]
    assert (one.steps[3].state, one.steps[3].attempt, one.steps[3].tries) == (
        StepState.EXECUTING,
        1,
        1,
    )
    assert one.waiting(0) == "it is waiting for a worker"
    assert one.waiting(1) == "it is waiting for a free worker with the role user-code"
    assert one.waiting(4) == "it is waiting to be started"


def test_caps_hold_for_everything_in_a_graph() -> None:
    one = graph(
        *(
            group("g", max_parallel=2),
            group("g/h", max_parallel=1),
            crawl("g/h/1"),
            crawl("g/h/2"),
            crawl("g/a"),
        ),
        *(crawl("g/b"), crawl("free")),
    )
    picked = one.pick(NOW, batches=9, begin=9)
    assert [one.steps[n].path for n in picked.begin] == ["g/h/1", "g/a", "free"]
    assert one.waiting(3) == 'it is waiting for one of the 1 slots of "g/h"'
    assert one.waiting(5) == 'it is waiting for one of the 2 slots of "g"'
    one.cancel([2], "no")
    assert list(one.pick(NOW, batches=9, begin=9).begin) == []  # it may still be running
    end(one, "g/h/1")
    assert [one.steps[n].path for n in one.pick(NOW, batches=9, begin=9).begin] == ["g/h/2"]
    whole = graph(crawl("a"), crawl("b"), max_parallel=1)
    assert run(whole) == ["a", "b"]
    assert whole.pick(NOW, batches=9, begin=9).begin == []


def test_a_call_takes_one_place_however_many_steps_it_has() -> None:
    one = graph(group("g", max_parallel=2), *(step(f"g/{n}") for n in range(200)))
    assert [len(steps) for steps in calls(one)] == [7, 7]
    assert one.waiting(50) == 'it is waiting for one of the 2 slots of "g"'
    one.released([1])
    assert [len(steps) for steps in calls(one)] == [7]
    assert states(one)["g"] == "executing"


def test_resources_are_exact_and_alternatives_are_taken_in_order() -> None:
    """S-81: the amounts of one alternative are taken together, alternatives replace each other, and
    thirds are exact.
    """
    third = ({"db": "1/3"},)
    one = graph(
        *(step(str(n), resources=third) for n in range(4)), step("all", resources=({"db": "1"},))
    )
    assert calls(one) == [["0"], ["1"], ["2"]]
    assert one.waiting(3) == "it is waiting for 1/3 of db (0 free)"
    begin(one, "0")
    end(one, "0")
    assert calls(one) == [["3"]]
    for path in ("1", "2", "3"):
        begin(one, path)
        end(one, path)
    assert calls(one) == [["all"]]
    either = graph(
        *(crawl(n, resources=({"a": "1", "b": "1"}, {"c": "2"})) for n in "xyz"), pools={"c": "3"}
    )
    assert [either.steps[n].alternative for n in either.pick(NOW, batches=9, begin=9).begin] == [
        0,
        1,
    ]
    assert (
        either.waiting(2)
        == "it is waiting for 1 of a (0 free) and 1 of b (0 free) or 2 of c (1 free)"
    )
    end(either, "x", StepState.RETRYABLE)
    assert [either.steps[n].path for n in either.pick(NOW, batches=9, begin=9).begin] == ["x"]


def test_a_pool_that_was_declared_keeps_its_size() -> None:
    """This also holds for a step whose row was edited: that step waits."""
    one = graph(*(step(n, resources=({"db": "1"},)) for n in "abc"), pools={"db": "1"})
    one.steps[2].resources = ((("db", "2"),),)
    assert calls(one) == [["a"]]
    assert one.waiting(2) == "it is waiting for 2 of db (0 free)"
