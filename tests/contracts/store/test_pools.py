"""Pools: limits are exact, the order holds, nobody waits for a run that does not come, and edited
rows recover.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import Engine, event, update

from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState
from crawler_lifecycle.domain.pools import CALL_S, NO_POOLS, PROBE_S, RECALL_S, Pool, Pools
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.task import Phase, TaskStatus
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec, StepState
from crawler_lifecycle.features.graphs.store.tables import graph_step
from crawler_lifecycle.features.managers.ports import NewManager
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from crawler_lifecycle.ports.runs import DeployedTask, Fence, Owner
from crawler_lifecycle.store.base.pools import stored_pool
from crawler_lifecycle.store.store import Store, open_store
from tests.contracts.store.graphing import Graphed
from tests.contracts.store.harness import Clock, Harness, good_end, seen
from tests.contracts.store.managing import Managed

POOLS = Pools({"a": Pool(), "b": Pool(weight=3), "one": Pool(max=1), "five": Pool(max=5)}, slots=8)


def _opened(url: str, clock: Clock, pools: Pools) -> Store:
    return open_store(url, pool_size=25, clock=clock, pools=pools)


@contextmanager
def _worker_and_gateway(url: str, clock: Clock, pools: Pools) -> Iterator[tuple[Store, Store]]:
    """Two processes with one database and the same settings."""
    with closing(_opened(url, clock, pools)) as store, closing(_opened(url, clock, pools)) as other:
        yield store, other


@pytest.fixture
def pooled(store_url: str, clock: Clock) -> Iterator[Harness]:
    with closing(_opened(store_url, clock, POOLS)) as store:
        yield Harness(store, clock)


def run(harness: Harness, name: str, tasks: int = 1, **fields: Any) -> Fence:
    """A run of its own workflow, accepted a second after the one before."""
    harness.clock.forward(1)
    return harness.run(name, tasks, owner=Owner(f"crawl/{name}", f"chain-{name}"), **fields)


def ask(harness: Harness, fence: Fence) -> int:
    """Ask for slots, as a deployment does. Return the number of tasks that are offered."""
    return len(
        harness.store.deployment.offer_tasks(
            fence, 100, None, harness.clock.now + timedelta(seconds=25)
        )[0]
    )


def called(harness: Harness) -> list[str]:
    return [
        workflow_id.removeprefix("crawl/") for workflow_id in harness.store.pools.call().values()
    ]


def test_a_cap_is_exact_whoever_asks_at_once(pooled: Harness) -> None:
    fences = {f"r{n}": run(pooled, f"r{n}", tasks=3, pool="five") for n in range(8)}
    with ThreadPoolExecutor(8) as threads:
        offered = Counter(
            dict(
                zip(
                    fences,
                    threads.map(lambda fence: ask(pooled, fence), fences.values()),
                    strict=True,
                )
            )
        )
    assert offered.total() <= 5
    while calls := called(pooled):
        offered.update({name: ask(pooled, fences[name]) for name in calls})
    assert offered.total() == 5
    waiting = {
        name
        for name, fence in fences.items()
        if pooled.store.deployment.waits_for_slot(fence.run_id)
    }
    # Whoever asked first: the order is undefined.
    assert waiting == {name for name in fences if offered[name] < 3}


def test_a_task_that_is_recorded_while_places_are_counted_keeps_its_place(
    pooled: Harness, store_url: str, clock: Clock
) -> None:
    first, other = (
        run(pooled, "first", tasks=5, pool="five"),
        run(pooled, "other", tasks=5, pool="five"),
    )
    offered, _ = pooled.store.deployment.offer_tasks(
        first, 100, None, clock.now + timedelta(seconds=25)
    )
    answers = [
        DeployedTask(task.index, "created", f"n{task.index}", f"u{task.index}") for task in offered
    ]
    answering: list[Thread] = []
    with closing(_opened(store_url, clock, POOLS)) as another:

        def counted(_: Any, __: Any, statement: str, *___: Any) -> None:
            """The response is recorded after the first statement that counts slots; SQLite makes it
            wait.
            """
            if "task_history.priority, count" in statement and not answering:
                recording = (first, "local", offered, answers, clock.now)
                answering.append(Thread(target=another.deployment.record_deployed, args=recording))
                answering[0].start()
                answering[0].join(2)

        event.listen(Engine, "after_cursor_execute", counted)
        try:
            assert ask(pooled, other) == 0
        finally:
            event.remove(Engine, "after_cursor_execute", counted)
        answering[0].join(60)
    assert pooled.store.tasks.count_tasks(first.run_id).active == 5


@pytest.mark.parametrize("there", [True, False])
def test_a_call_without_an_answer_keeps_its_place_until_a_poll_after_it(
    pooled: Harness, there: bool
) -> None:
    """A worker dies between the creation of a task and its record, and no poll takes place for a
    while.
    """
    silent, other = run(pooled, "silent", pool="one"), run(pooled, "other", pool="one")
    assert ask(pooled, silent) == 1
    pooled.clock.forward(3600)
    assert (called(pooled), ask(pooled, other)) == ([], 0), "its task may execute"
    assert ask(pooled, silent) == 1, "it holds the place itself"
    pooled.clock.forward(3600)
    if there:
        pooled.execute(silent)
    else:
        pooled.poll(silent, [])
    pooled.clock.forward(1)
    assert called(pooled) == ([] if there else ["other"])
    assert ask(pooled, other) == (0 if there else 1)


def test_the_next_place_goes_to_the_most_urgent_then_the_oldest(pooled: Harness) -> None:
    first = run(pooled, "first", pool="one")
    pooled.begin(first)
    runs = {
        name: run(pooled, name, pool="one", priority=priority)
        for name, priority in (("old", 3), ("new", 3), ("late", 5), ("urgent", 1))
    }
    assert [ask(pooled, fence) for fence in runs.values()] == [0, 0, 0, 0]
    assert pooled.row(runs["old"]).waiting_for == "a slot in pool one"
    assert called(pooled) == []
    pooled.finish(first)
    order = []
    while names := called(pooled):
        order += names
        assert ask(pooled, runs[names[0]]) == 1
        pooled.begin(runs[names[0]])
        pooled.finish(runs[names[0]])
    assert order == ["urgent", "old", "new", "late"]


def test_runs_of_the_same_pool_take_turns(pooled: Harness) -> None:
    """A run that came first with many tasks, and a later one with a few."""
    fences = {"big": run(pooled, "big", tasks=12, pool="one")}
    assert ask(pooled, fences["big"]) == 1
    fences["small"] = run(pooled, "small", tasks=3, pool="one")
    assert ask(pooled, fences["small"]) == 0
    order = ["big"]
    while order.count("small") < 3:
        pooled.clock.forward(1)
        pooled.deploy(fences[order[-1]])
        holder, now = fences[order[-1]], pooled.clock.now
        [task] = [
            one
            for one in pooled.store.polls.found_state(holder).tasks
            if one.status is TaskStatus.PENDING
        ]
        pooled.poll(holder, [seen(task, Phase.ENDED, now, uid=task.uid, end=good_end(now))])
        [name] = called(pooled)
        assert ask(pooled, fences[name]) == 1
        order.append(name)
        assert len(order) < 10, order
    assert order == ["big", *["big", "small"] * 3]


def test_a_run_that_does_not_come_is_passed_over_and_called_again(pooled: Harness) -> None:
    first = run(pooled, "first", pool="one")
    pooled.begin(first)
    old, new = run(pooled, "old", pool="one"), run(pooled, "new", pool="one")
    assert [ask(pooled, old), ask(pooled, new)] == [0, 0]
    pooled.finish(first)
    assert (called(pooled), called(pooled)) == (["old"], [])
    assert ask(pooled, new) == 0, "the place is kept for the older one"
    pooled.clock.forward(CALL_S)
    assert called(pooled) == ["new"]
    pooled.clock.forward(RECALL_S - CALL_S)
    assert called(pooled) == ["old"], "it is called again"
    assert ask(pooled, old) == 1
    assert ask(pooled, new) == 0


def test_a_lost_call_costs_no_run_its_turn(pooled: Harness) -> None:
    first = run(pooled, "first", pool="one")
    pooled.begin(first)
    urgent, other = run(pooled, "urgent", pool="one", priority=1), run(pooled, "other", pool="one")
    late = run(pooled, "late", pool="one")
    assert [ask(pooled, one) for one in (urgent, other, late)] == [0, 0, 0]
    pooled.finish(first)
    assert called(pooled) == ["urgent"], "and who calls it dies before it is told"
    pooled.clock.forward(CALL_S)
    assert called(pooled) == ["other"]
    pooled.begin(other)
    pooled.clock.forward(RECALL_S - CALL_S)
    assert (called(pooled), called(pooled)) == (["urgent"], []), "again, although no place is free"
    assert ask(pooled, urgent) == 0
    pooled.finish(other)
    assert called(pooled) == ["urgent"]
    assert ask(pooled, urgent) == 1


def test_nobody_overtakes_a_run_of_the_same_pool_by_asking(pooled: Harness) -> None:
    full = run(pooled, "full", tasks=5, pool="five")
    pooled.begin(full)
    old = {f"o{n}": run(pooled, f"o{n}", pool="five") for n in range(3)}
    assert [ask(pooled, one) for one in old.values()] == [0, 0, 0]
    pooled.finish(full)
    new, urgent = (
        run(pooled, "new", tasks=2, pool="five"),
        run(pooled, "urgent", pool="five", priority=1),
    )
    assert [ask(pooled, new), ask(pooled, urgent)] == [0, 1], (
        "five are free: three and one are of those before it"
    )
    assert called(pooled) == [*old, "new"], (
        "all at once, and nobody waits for the end of another task"
    )
    assert [ask(pooled, one) for one in (new, *old.values())] == [1, 1, 1, 1]


def test_runs_that_never_come_keep_no_place_from_the_others(pooled: Harness) -> None:
    first = run(pooled, "first", pool="one")
    pooled.begin(first)
    dead = {f"d{n}": run(pooled, f"d{n}", pool="one") for n in range(12)}
    live = run(pooled, "live", pool="one")
    assert [ask(pooled, one) for one in (*dead.values(), live)] == [0] * 13
    pooled.finish(first)
    order: list[str] = []
    while "live" not in order:
        order += called(pooled)
        pooled.clock.forward(CALL_S)
    assert [*dict.fromkeys(order)] == [*dead, "live"], (
        "nobody gets a place twice before all were called"
    )
    assert ask(pooled, live) == 1


def test_a_call_that_reached_nobody_costs_no_turn(pooled: Harness) -> None:
    first = run(pooled, "first", pool="one")
    pooled.begin(first)
    old, new = run(pooled, "old", pool="one"), run(pooled, "new", pool="one")
    assert [ask(pooled, old), ask(pooled, new)] == [0, 0]
    pooled.finish(first)
    for _ in range(2):
        assert pooled.store.pools.call() == {old.run_id: "crawl/old"}
        pooled.store.pools.uncall([old.run_id], gone=False)
    pooled.store.pools.uncall([old.run_id], gone=True)
    assert called(pooled) == ["old"], "who has asked meanwhile stays in the line"
    pooled.store.pools.uncall([old.run_id], gone=True)
    assert called(pooled) == ["new"], "its workflow is closed"
    assert ask(pooled, old) == 1, "who takes it over comes before the younger run"


def test_who_asks_again_without_an_answer_holds_its_places(pooled: Harness) -> None:
    fence = run(pooled, "r", tasks=7, pool="five")
    assert [ask(pooled, fence), ask(pooled, fence)] == [5, 5]
    assert pooled.store.pools.list_pools()[3].in_use == 5
    pooled.clock.forward(60)  # the call has expired, and a poll shows that it created nothing
    pooled.poll(fence, [])
    assert pooled.store.pools.list_pools()[3].in_use == 0


def test_the_runs_that_hold_slots_are_those_that_are_counted(
    pooled: Harness, store_url: str, clock: Clock
) -> None:
    small, large = run(pooled, "small", pool="five"), run(pooled, "large", tasks=7, pool="five")
    pooled.begin(small)
    assert ask(pooled, large) == 4, "an offer holds a slot before the cluster has answered"
    pools = pooled.store.pools
    held = [(one.run_id, one.slots) for one in pools.slot_holders("five", 10)]
    assert held == [(large.run_id, 4), (small.run_id, 1)]
    assert sum(slots for _, slots in held) == pools.list_pools()[3].in_use
    assert [one.run_id for one in pools.slot_holders("five", 1)] == [large.run_id]
    assert pools.slot_holders("a", 10) == pools.slot_holders("default", 10) == []
    with limited("other"):
        assert pools.slot_holders("five", 10) == []
    with closing(_opened(store_url, clock, Pools({"a": Pool()}, slots=8))) as store:
        removed = store.pools.slot_holders("default", 1)
    assert [one.run_id for one in removed] == [large.run_id], "default serves a removed pool"


def test_reserved_places_stay_free_for_their_pool(store_url: str, clock: Clock) -> None:
    pools = Pools({"a": Pool(), "kept": Pool(reserved=2)}, slots=4)
    with closing(_opened(store_url, clock, pools)) as store:
        harness = Harness(store, clock)
        burst, mine = (
            run(harness, "burst", tasks=9, pool="a", priority=1),
            run(harness, "mine", tasks=3, pool="kept"),
        )
        assert [ask(harness, burst), ask(harness, mine), ask(harness, burst)] == [2, 2, 2]


def test_priority_counts_over_pools_and_weight_among_equals(pooled: Harness) -> None:
    full = run(pooled, "full", tasks=8)
    pooled.begin(full)
    a, b = run(pooled, "a", tasks=30, pool="a"), run(pooled, "b", tasks=30, pool="b")
    urgent = run(pooled, "urgent", tasks=1, pool="a", priority=2)
    assert [ask(pooled, one) for one in (a, b, urgent)] == [0, 0, 0]
    pooled.finish(full)
    assert set(called(pooled)) == {"a", "b", "urgent"}
    assert [ask(pooled, one) for one in (urgent, b, a)] == [1, 6, 1], (
        "three of four of the other seven for weight 3"
    )


def test_a_removed_pool_is_served_by_default_and_reported(
    pooled: Harness, store_url: str, clock: Clock
) -> None:
    waiting, fence = run(pooled, "r2", pool="one"), run(pooled, "r1", pool="one")
    pooled.begin(fence)
    assert ask(pooled, waiting) == 0
    with pytest.raises(InvalidRequest, match="pool: 'gone' is not allowed; there is no such pool"):
        run(pooled, "r3", pool="gone")
    with closing(_opened(store_url, clock, Pools({"a": Pool()}, slots=8))) as store:
        harness = Harness(store, clock)
        shown = {row.name: row for row in store.pools.list_pools()}
        assert (
            shown["one"].problem
            == "there is no pool 'one': default serves its runs; add the pool again, or give the runs another pool"
        )
        assert (shown["one"].waiting_tasks, shown["default"].in_use) == (1, 1)
        store.pools.adopt()
        assert shown["a"].problem is not None
        assert "different value of LIFECYCLE_POOLS" in shown["a"].problem
        assert called(harness) == ["r2"]
        assert ask(harness, waiting) == 1
        assert {row.name: row for row in store.pools.list_pools()}["a"].problem is None
    with closing(_opened(store_url, clock, NO_POOLS)) as store:
        assert ask(Harness(store, clock), waiting) == 1, "without pools nothing is counted"


def test_who_stops_or_ends_leaves_the_line(pooled: Harness) -> None:
    first = run(pooled, "first", pool="one")
    pooled.begin(first)
    stopped, edited, last = (
        run(pooled, name, pool="one") for name in ("stopped", "edited", "last")
    )
    assert [ask(pooled, one) for one in (stopped, edited, last)] == [0, 0, 0]
    assert pooled.store.pools.list_pools()[-1].waiting_runs == 3
    pooled.store.stops.record_stop(stopped.run_id, pooled.stop(), "s1")
    assert pooled.store.pools.list_pools()[-1].waiting_runs == 2
    pooled.write(
        "UPDATE run_history SET status = 'STOPPING', stop_requested_at = created_at WHERE run_id = :id",
        id=edited.run_id,
    )
    pooled.finish(first)
    assert called(pooled) == ["last"]
    assert not pooled.store.deployment.waits_for_slot(edited.run_id)


def test_a_refusal_of_the_cluster_teaches_how_many_places_there_are(
    store_url: str, clock: Clock
) -> None:
    with closing(_opened(store_url, clock, Pools({"a": Pool()}))) as store:
        harness = Harness(store, clock)
        fence, other = run(harness, "r", tasks=5, pool="a"), run(harness, "other", pool="a")
        offered, _ = store.deployment.offer_tasks(
            fence, 100, None, clock.now + timedelta(seconds=25)
        )
        states = ["created", "created", "deferred", "deferred", "deferred"]
        answers = [
            DeployedTask(t.index, s, f"n{t.index}", f"u{t.index}")
            for t, s in zip(offered, states, strict=True)
        ]
        store.deployment.record_deployed(
            fence, "k", offered, answers, clock.now, offered[0].offered_until
        )
        assert store.deployment.waits_for_slot(fence.run_id)
        assert (ask(harness, other), called(harness)) == (0, []), "two places are all"
        clock.forward(16)
        assert (called(harness), ask(harness, fence)) == (["r"], 1), "one more is tried"
        harness.deploy(fence)
        harness.see_ends(fence)
        assert set(called(harness)) == {"r", "other"}


def test_the_line_is_told(pooled: Harness) -> None:
    first = run(pooled, "first", tasks=5, pool="five")
    pooled.begin(first)
    before = [
        run(pooled, "x", tasks=4, pool="five"),
        run(pooled, "y", tasks=2, pool="five", priority=1),
    ]
    mine = run(pooled, "mine", tasks=3, pool="five")
    assert [ask(pooled, one) for one in (*before, mine)] == [0, 0, 0]
    line = pooled.store.pools.in_line(mine.run_id)
    assert line is not None
    assert (line.pool, line.in_use, line.most, line.urgent, line.older) == ("five", 5, 5, 2, 1)
    assert not line.shared
    assert pooled.store.pools.in_line(first.run_id) is None
    assert pooled.store.pools.in_line(10**6) is None
    row = {one.name: one for one in pooled.store.pools.list_pools()}["five"]
    assert (row.in_use, row.executing, row.waiting_runs, row.waiting_tasks) == (5, 5, 3, 9)
    pooled.clock.forward(30)
    run(pooled, "z", pool="a")
    called(pooled)
    assert {one.name: one.share for one in pooled.store.pools.list_pools()}["five"] == 1.0


@pytest.mark.parametrize(
    "edit",
    [
        "DELETE FROM pool_gate",
        """UPDATE pool_gate SET state = '[]'""",
        """UPDATE pool_gate SET state = '{"shares": {"one": ["x"]}, "sampled_at": 3}'""",
        """UPDATE pool_gate SET state = '{"sampled_at": "2126-03-01T12:00:00+00:00"}'""",
        """UPDATE pool_gate SET state = '{"shares": {"a": [1e300, -5, 1]}}'""",
    ],
)
def test_an_edited_gate_heals(pooled: Harness, edit: str) -> None:
    fence = run(pooled, "r", tasks=2, pool="one")
    pooled.write(edit)
    assert ask(pooled, fence) == 1
    pooled.begin(fence)
    assert called(pooled) == []
    assert [row.in_use for row in pooled.store.pools.list_pools() if row.name == "one"] == [1]


def test_a_clock_that_is_set_back_holds_nobody(pooled: Harness) -> None:
    first = run(pooled, "first", pool="one")
    pooled.begin(first)
    waiting = run(pooled, "r", pool="one")
    assert ask(pooled, waiting) == 0
    pooled.finish(first)
    assert called(pooled) == ["r"]
    pooled.clock.forward(-86_400)
    assert called(pooled) == ["r"], "the call seems to be in the future, so it is made again"
    assert ask(pooled, waiting) == 1


def test_what_kueue_holds_back_takes_no_place_of_the_cluster(store_url: str, clock: Clock) -> None:
    pools = Pools({"a": Pool(), "k": Pool(queue="crawls")}, slots=4)
    with closing(_opened(store_url, clock, pools)) as store:
        harness = Harness(store, clock)
        held, mine = (
            run(harness, "held", tasks=9, pool="k"),
            run(harness, "mine", tasks=5, pool="a"),
        )
        assert (ask(harness, held), ask(harness, mine)) == (9, 4)


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE pool_ticket SET wanted = 0 WHERE run_id = 2",
        "UPDATE pool_ticket SET wanted = -5, priority = 99 WHERE run_id = 2",
        "UPDATE pool_ticket SET called_at = '2100-01-01 00:00:00' WHERE run_id = 2",
        "UPDATE run_history SET owner_workflow_id = NULL WHERE run_id = 2",
        "INSERT INTO pool_gate (id, state) VALUES (2, '{}')",
    ],
)
def test_edited_rows_keep_no_place_from_the_others(pooled: Harness, edit: str) -> None:
    first = run(pooled, "first", tasks=5, pool="five")
    pooled.begin(first)
    edited, other = run(pooled, "edited", pool="five"), run(pooled, "other", pool="five")
    assert [ask(pooled, edited), ask(pooled, other)] == [0, 0]
    pooled.write(edit)
    pooled.finish(first)
    assert "other" in called(pooled)
    assert ask(pooled, other) == 1


def test_a_clock_that_is_set_back_does_not_end_the_tries(store_url: str, clock: Clock) -> None:
    with closing(_opened(store_url, clock, Pools({"a": Pool()}))) as store:
        harness = Harness(store, clock)
        fence, until = run(harness, "r", tasks=2, pool="a"), clock.now + timedelta(seconds=25)
        offered, _ = store.deployment.offer_tasks(fence, 100, None, until)
        answers = [DeployedTask(t.index, "deferred") for t in offered]
        store.deployment.record_deployed(fence, "k", offered, answers, clock.now, until)
        clock.forward(-86_400)
        assert called(harness) == []
        clock.forward(PROBE_S)
        assert called(harness) == ["r"]


def test_whoever_waits_when_all_pools_are_taken_away_is_called(
    pooled: Harness, store_url: str, clock: Clock
) -> None:
    first = run(pooled, "first", pool="one")
    pooled.begin(first)
    waiting, stopped = run(pooled, "waiting", pool="one"), run(pooled, "stopped", pool="one")
    assert [ask(pooled, waiting), ask(pooled, stopped)] == [0, 0]
    with closing(_opened(store_url, clock, NO_POOLS)) as store:
        harness = Harness(store, clock)
        store.stops.record_stop(stopped.run_id, pooled.stop(), "s1")
        store.pools.adopt()
        assert called(harness) == ["waiting"]
        assert ask(harness, waiting) == 1
        assert {row.name: row.waiting_runs for row in store.pools.list_pools()}["default"] == 0


SHARING = Pools(
    {"shared": Pool(max=2), "own": Pool(max=1, project="p"), "other": Pool(project="q")}, slots=8
)


def test_a_caller_of_one_project_is_told_of_its_own_runs_alone(
    store_url: str, clock: Clock
) -> None:
    with closing(_opened(store_url, clock, SHARING)) as store:
        harness = Harness(store, clock)
        with pytest.raises(InvalidRequest, match="there is no such pool"):
            run(harness, "x", pool="other", project="p")
        of_own = [run(harness, f"own-{n}", pool="own", project="p") for n in range(2)]
        theirs = run(harness, "theirs", tasks=5, pool="shared", project="q")
        mine = run(harness, "mine", tasks=2, pool="shared", project="p")
        assert [ask(harness, one) for one in (*of_own, theirs, mine)] == [1, 0, 2, 0]
        for n, project in enumerate("qqp"):
            assert (
                ask(
                    harness,
                    run(
                        harness,
                        f"urgent-{n}",
                        tasks=10 + n,
                        pool="shared",
                        project=project,
                        priority=1,
                    ),
                )
                == 0
            )

        def rows() -> dict[str, tuple[object, ...]]:
            known = store.pools.list_pools()
            return {
                one.name: (one.in_use, one.waiting_runs, one.waiting_tasks, one.share)
                for one in known
            }

        assert {name: row[:3] for name, row in rows().items()} == {
            **{"default": (0, 0, 0), "other": (0, 0, 0), "own": (1, 1, 1), "shared": (2, 5, 38)},
        }
        everybody, own = store.pools.in_line(mine.run_id), store.pools.in_line(of_own[1].run_id)
        assert everybody is not None
        assert (everybody.in_use, everybody.most, everybody.urgent, everybody.older) == (
            2,
            2,
            33,
            1,
        )
        with limited("p"):
            assert rows() == {
                "default": (0, 0, 0, None),
                "own": (1, 1, 1, None),
                "shared": (0, 2, 14, None),
            }
            line = store.pools.in_line(mine.run_id)
            assert line == replace(everybody, in_use=0, most=None, urgent=12, older=0, shared=True)
            assert store.pools.in_line(of_own[1].run_id) == own, "a pool of its own"
        with limited("q"):
            assert [one.name for one in store.pools.list_pools()] == ["default", "other", "shared"]
            assert store.pools.in_line(mine.run_id) is None


def test_a_pool_that_gets_a_project_serves_runs_of_others_no_more(
    store_url: str, clock: Clock
) -> None:
    with closing(_opened(store_url, clock, SHARING)) as store:
        harness = Harness(store, clock)
        first, waits = (
            run(harness, "first", tasks=2, pool="shared"),
            run(harness, "waits", pool="shared", project="q"),
        )
        assert [ask(harness, first), ask(harness, waits)] == [2, 0]
    now = Pools({"shared": Pool(max=2, project="p"), "a": Pool()}, slots=8)
    with closing(_opened(store_url, clock, now)) as store:
        harness = Harness(store, clock)
        store.pools.adopt()
        with limited("p"):
            assert {one.name: (one.in_use, one.waiting_runs) for one in store.pools.list_pools()}[
                "shared"
            ] == (0, 0)
        assert called(harness) == ["waits"]
        assert ask(harness, waits) == 1
        with limited("q"):
            shown = {
                one.name: (one.in_use, one.max, one.problem) for one in store.pools.list_pools()
            }
        assert shown == {"a": (0, None, None), "default": (1, None, None)}


def test_a_pool_for_which_no_place_is_left_says_so(store_url: str, clock: Clock) -> None:
    with closing(_opened(store_url, clock, Pools({"kept": Pool(reserved=4)}, slots=4))) as store:
        harness = Harness(store, clock)
        fence = run(harness, "r")
        assert ask(harness, fence) == 0
        line = store.pools.in_line(fence.run_id)
        assert line is not None
        assert line.shut
        problems = {row.name: row.problem for row in store.pools.list_pools()}
        assert problems["kept"] is None
        assert problems["default"] is not None
        assert "runs of pool default never start" in problems["default"]


def test_without_pools_a_run_leaves_room_on_a_full_cluster(store_url: str, clock: Clock) -> None:
    with closing(_opened(store_url, clock, Pools(window=3))) as store:
        harness = Harness(store, clock)
        big = run(harness, "big", tasks=40)
        assert harness.deploy(big) == [0, 1, 2]
        assert harness.deploy(big) == [], "as many wait on the cluster as may"

        def poll(node: str | None, reason: str | None = None) -> None:
            tasks = [
                one
                for one in store.polls.found_state(big).tasks
                if one.status is TaskStatus.PENDING
            ]
            phase = Phase.WAITING if reason else Phase.EXECUTING
            harness.poll(
                big, [seen(t, phase, clock.now, uid=t.uid, node=node, reason=reason) for t in tasks]
            )

        poll("n1", "Node n1 is preparing the pod")
        assert harness.deploy(big) == [3, 4, 5], "what has a node waits for no place"
        poll("n1")
        assert harness.deploy(big) == [6, 7, 8, 9, 10, 11], "it grows as long as there is room"
        poll(None, "No node has capacity for it: 0/3 nodes are available")
        assert harness.deploy(big) == []
        small = run(harness, "small", tasks=5)
        assert harness.deploy(small) == [0, 1, 2]
        tasks = [
            one for one in store.polls.found_state(big).tasks if one.status is TaskStatus.PENDING
        ]
        harness.poll(
            big, [seen(t, Phase.EXECUTING, clock.now, uid=t.uid, node="n1") for t in tasks[:4]]
        )
        assert harness.deploy(big) == [], "no new one comes before pods of other runs that wait"
        harness.poll(big, [seen(tasks[4], Phase.EXECUTING, clock.now, uid=tasks[4].uid, node="n1")])
        assert harness.deploy(big) == [12, 13], "and no more while it is full"


# --- pools of the database ------------------------------------------------------------------------


def origins(store: Store) -> dict[str, str | None]:
    return {row.name: row.origin for row in store.pools.list_pools()}


def test_the_first_pool_counts_in_every_process_and_the_last_ends_it(
    store_url: str, clock: Clock
) -> None:
    """Without pools, the cluster has its own order, and a window. With pools, slots are counted."""
    settings = Pools(slots=4, surplus=2, window=3)
    with _worker_and_gateway(store_url, clock, settings) as (store, gateway):
        harness = Harness(store, clock)
        big = run(harness, "big", tasks=40)
        assert harness.deploy(big) == [0, 1, 2], "the window"
        assert store.pools.in_line(big.run_id) is None
        with pytest.raises(InvalidRequest, match="pool: 'shop' is not allowed"):
            run(harness, "early", pool="shop")
        assert gateway.pools.set_pool("shop", Pool(max=2), "ann") == (None, Pool(max=2))
        set_at = clock.now
        assert gateway.pools.set_pool("shop", Pool(max=2), "bob") == (Pool(max=2), Pool(max=2))
        shop = run(harness, "shop", tasks=5, pool="shop")
        assert harness.deploy(shop) == [0, 1]
        assert harness.deploy(big) == [3], "four slots, and two tasks that wait on the cluster"
        assert store.pools.in_line(big.run_id) is not None
        [row] = [row for row in store.pools.list_pools() if row.name == "shop"]
        assert (row.origin, row.changed_by, row.in_use, row.max) == ("people", "ann", 2, 2)
        assert (row.changed_at, row.problem) == (set_at, None)
        with limited("other"):
            [row] = [row for row in store.pools.list_pools() if row.name == "shop"]
            assert (row.changed_by, row.max) == (None, None)
        harness.finish(shop)
        assert gateway.pools.delete_pool("shop", []) == Pool(max=2)
        gateway.pools.adopt()
        assert origins(store) == {"default": None}
        assert called(harness) == ["big"], "a run in the line is not forgotten"
        assert not store.deployment.waits_for_slot(big.run_id)


def test_a_changed_limit_counts_for_the_next_grant_and_stops_nobody(
    store_url: str, clock: Clock
) -> None:
    with _worker_and_gateway(store_url, clock, Pools(slots=9)) as (store, gateway):
        harness = Harness(store, clock)
        gateway.pools.set_pool("shop", Pool(max=3), None)
        first, second = (run(harness, name, tasks=6, pool="shop") for name in ("r1", "r2"))
        assert [harness.deploy(first), harness.deploy(second)] == [[0, 1, 2], []]
        gateway.pools.set_pool("shop", Pool(max=5), None)
        clock.forward(1)
        assert called(harness) == ["r1", "r2"]
        assert [harness.deploy(first), harness.deploy(second)] == [[3], [0]]
        gateway.pools.set_pool("shop", Pool(max=1), None)
        [row] = [row for row in store.pools.list_pools() if row.name == "shop"]
        assert (row.in_use, row.max) == (5, 1)
        assert called(harness) == []


def test_a_limit_that_changes_while_a_grant_waits_for_the_gate_counts_for_it(
    store_url: str, clock: Clock
) -> None:
    with _worker_and_gateway(store_url, clock, Pools(slots=9)) as (store, gateway):
        harness = Harness(store, clock)
        store.pools.set_pool("shop", Pool(max=5), None)
        fence = run(harness, "r", tasks=6, pool="shop")
        granting: list[Future[int]] = []

        def changed(_: Any, __: Any, statement: str, *___: Any) -> None:
            """The grant begins while the command holds the gate, and has read the old limit."""
            if statement.startswith("UPDATE pool ") and not granting:
                granting.append(threads.submit(ask, harness, fence))
                wait(granting, 1)

        with ThreadPoolExecutor(1) as threads:
            event.listen(Engine, "before_cursor_execute", changed)
            try:
                gateway.pools.set_pool("shop", Pool(max=2), None)
            finally:
                event.remove(Engine, "before_cursor_execute", changed)
            assert granting[0].result(60) == 2


@pytest.mark.parametrize(
    ("name", "pool", "said"),
    [
        ("b", Pool(reserved=3), "reserved: 5 slots in total are too many for 4 slots"),
        ("default", Pool(project="x"), "default: project: 'x' is not allowed"),
    ],
)
def test_a_pool_that_does_not_fit_is_refused(
    store_url: str, clock: Clock, name: str, pool: Pool, said: str
) -> None:
    with closing(_opened(store_url, clock, Pools({"a": Pool(reserved=2)}, slots=4))) as store:
        with pytest.raises(InvalidRequest, match=said):
            store.pools.set_pool(name, pool, None)
        assert origins(store) == {"a": "settings", "default": None}
        store.pools.set_pool("b", Pool(reserved=2), None)
        store.pools.set_pool("b", Pool(reserved=1), None)
        store.pools.set_pool("default", Pool(max=1), None)
        assert store.pools.delete_pool("default", ["plain"]) == Pool(max=1)


def test_reserves_above_fewer_slots_are_lowered_one_after_the_other(
    store_url: str, clock: Clock
) -> None:
    with closing(_opened(store_url, clock, Pools(slots=8))) as store:
        for name in ("a", "b"):
            store.pools.set_pool(name, Pool(reserved=4), None)
    with closing(_opened(store_url, clock, Pools(slots=6))) as store:
        store.pools.set_pool("c", Pool(), None)
        store.pools.set_pool("a", Pool(max=5, reserved=4), None)
        for pool in (Pool(reserved=5), Pool(reserved=9)):
            with pytest.raises(InvalidRequest, match="slots in total are too many for 6 slots"):
                store.pools.set_pool("a", pool, None)
        store.pools.set_pool("a", Pool(reserved=3), None)
        with pytest.raises(InvalidRequest, match="8 slots in total are too many for 6 slots"):
            store.pools.set_pool("a", Pool(reserved=4), None)
        store.pools.set_pool("b", Pool(reserved=3), None)


def test_the_search_for_what_names_a_pool_locks_nothing(store_url: str, clock: Clock) -> None:
    statements: list[str] = []

    def executed(_: Any, __: Any, statement: str, *___: Any) -> None:
        statements.append(statement)

    with closing(_opened(store_url, clock, NO_POOLS)) as store:
        store.pools.set_pool("shop", Pool(), None)
        event.listen(Engine, "before_cursor_execute", executed)
        try:
            store.pools.delete_pool("shop", [])
        finally:
            event.remove(Engine, "before_cursor_execute", executed)
    [locked] = [n for n, text in enumerate(statements) if "pool_gate" in text][:1]
    searches = [
        n
        for n, text in enumerate(statements)
        if any(f"FROM {table}" in text for table in ("run_history", "schedule", "manager"))
    ]
    assert searches
    assert max(searches) < locked


def test_a_pool_of_the_settings_is_changed_there_and_hides_another(
    store_url: str, clock: Clock
) -> None:
    with closing(_opened(store_url, clock, Pools({"a": Pool()}, slots=4))) as store:
        store.pools.set_pool("b", Pool(max=1), None)
        for change in (
            lambda: store.pools.set_pool("a", Pool(max=1), None),
            lambda: store.pools.delete_pool("a", []),
        ):
            with pytest.raises(NotInThisState, match="pool 'a' is set by LIFECYCLE_POOLS"):
                change()
        run(Harness(store, clock), "r", pool="b")
        assert [row.problem for row in store.pools.list_pools()] == [None, None, None]
    pools = Pools({"a": Pool(), "b": Pool(max=9)}, slots=4)
    with closing(_opened(store_url, clock, pools)) as store:
        assert store.pools.known_pools().of("b") == Pool(max=9)
        assert origins(store) == {"a": "settings", "b": "settings", "default": None}
    # Fewer slots than the reserves is no reason to fail.
    with closing(_opened(store_url, clock, Pools(slots=1))) as store:
        store.pools.set_pool("c", Pool(reserved=1), None)
    with closing(_opened(store_url, clock, Pools({"a": Pool(reserved=1)}, slots=1))) as store:
        assert origins(store)["c"] == "people"


def test_a_pool_that_something_names_is_not_deleted(store_url: str, clock: Clock) -> None:
    with closing(_opened(store_url, clock, NO_POOLS)) as store:
        harness = Harness(store, clock)
        store.pools.set_pool("shop", Pool(), None)
        assert store.pools.delete_pool("gone", []) is None
        fence = run(harness, "r", pool="shop")
        nightly = ScheduleSpec(run={"crawler": "plain", "pool": "shop"}, every_s=60)
        store.schedules.put("nightly", nightly.document(), None)
        words = ["plain", "--pool=shop"]
        managed = Managed.begun(harness, NewManager("m", "m", "p", {"argv": words}))
        graphed = Graphed.made(
            harness, [StepSpec("a", StepKind.CRAWL, {"crawler": "plain", "pool": "shop"})]
        )
        users = f"run {fence.run_id}, crawler plain, graph {graphed.id}, manager {managed.id}, schedule nightly"
        with pytest.raises(NotInThisState, match=f"pool 'shop' is named by {users}; change or end"):
            store.pools.delete_pool("shop", ["plain"])
        with pytest.raises(NotInThisState, match=r"run \d+, crawler a, .* crawler d and others;"):
            store.pools.delete_pool("shop", ["a", "b", "c", "d", "e"])
        harness.deploy(fence)
        harness.finish(fence)
        store.schedules.delete("nightly")
        store.managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "")
        with store.database.writing() as conn:
            conn.execute(update(graph_step).values(state=StepState.CANCELLED))
        assert store.pools.delete_pool("shop", []) == Pool()


def test_a_pool_that_gets_a_project_is_no_longer_for_runs_of_others(
    store_url: str, clock: Clock
) -> None:
    with closing(_opened(store_url, clock, Pools(slots=1))) as store:
        harness = Harness(store, clock)
        store.pools.set_pool("shop", Pool(), None)
        full, waiting = (run(harness, name, pool="shop") for name in ("r1", "r2"))
        assert [ask(harness, full), ask(harness, waiting)] == [1, 0]
        store.pools.set_pool("shop", Pool(project="x"), None)
        store.pools.adopt()
        rows = {row.name: row.waiting_runs for row in store.pools.list_pools()}
        assert rows == {"default": 1, "shop": 0}
        with limited("y"):
            assert origins(store) == {"default": None}
            assert "shop" not in store.pools.known_pools().named


@pytest.mark.parametrize(
    "document",
    [
        {"max": "many"},
        {"max": 0},
        {"weight": 0},
        {"weight": 1e9},
        {"reserved": -1},
        {"max": 1, "reserved": 2},
    ],
)
def test_an_unreadable_row_shuts_its_pool_alone_until_it_is_set_again(
    store_url: str, clock: Clock, document: Any
) -> None:
    with closing(_opened(store_url, clock, Pools(slots=4))) as store:
        harness = Harness(store, clock)
        for name in ("shop", "other", "spare"):
            store.pools.set_pool(name, Pool(max=2), None)
        fence, busy = run(harness, "r1", pool="shop"), run(harness, "r2", pool="other")
        c = stored_pool.c
        with store.database.writing() as conn:
            conn.execute(update(stored_pool).values(document=document).where(c.name != "other"))
        assert [harness.deploy(fence), harness.deploy(busy)] == [[], [0]]
        assert called(harness) == []
        store.pools.adopt()
        problems = {row.name: row.problem for row in store.pools.list_pools()}
        assert "it gives no slots; set it again (crawlctl pool set shop)" in str(problems["shop"])
        assert problems["other"] is None
        store.pools.set_pool("other", Pool(max=3), None)
        assert store.pools.delete_pool("spare", []) is not None
        store.pools.set_pool("shop", Pool(weight=2), None, keep=("max", "reserved"))
        [row] = [row for row in store.pools.list_pools() if row.name == "shop"]
        assert (row.max, row.weight, row.reserved) == (None, 2, 0), "nothing of it is kept"
        store.pools.set_pool("shop", Pool(max=1), None, keep=("weight",))
        [row] = [row for row in store.pools.list_pools() if row.name == "shop"]
        assert (row.max, row.weight) == (1, 2)
        assert called(harness) == ["r1"]
        assert harness.deploy(fence) == [0]
        assert [row.problem for row in store.pools.list_pools()] == [None, None, None]


def test_a_newer_build_may_have_more_fields(store_url: str, clock: Clock) -> None:
    with closing(_opened(store_url, clock, NO_POOLS)) as store:
        store.pools.set_pool("shop", Pool(max=2), None)
        with store.database.writing() as conn:
            conn.execute(update(stored_pool).values(document={"max": 2, "burst": 9}))
        assert store.pools.known_pools().of("shop") == Pool(max=2)
