"""How many managers, graphs, schedules and webhooks may be open: one more is refused, and the limit
is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import QuotaReached, TooManyOpen
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.graphs.domain.engine import Graph
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store.store import Store, open_store
from tests.contracts.store.graphing import Graphed, step
from tests.contracts.store.managing import NEW, Managed
from tests.contracts.store.world import Clock, World

MOST = 2
HOOK = WebhookSpec("https://hooks.example.com/x", ["env:HOOK"]).document()
TARGET = {"run": {"crawler": "services"}, "every_s": 3600}


@pytest.fixture
def small(store_url: str, clock: Clock) -> Iterator[Store]:
    """An installation that allows two of each."""
    most = dict.fromkeys(("managers", "graphs", "schedules", "webhooks"), MOST)
    store = open_store(store_url, pool_size=10, clock=clock, most=most)
    yield store
    store.close()


@pytest.fixture
def few(small: Store, clock: Clock) -> World:
    return World(small, clock)


def _manager(world: World, n: int) -> object:
    return world.store.managers.reserve_manager(replace(NEW, flow_id=f"flow-{n}"))


def _graph(world: World, n: int) -> object:
    return Graphed.made(world, [step("a")], key=f"g{n}")


def _schedule(world: World, n: int) -> object:
    return world.store.schedules.put(f"s{n}", TARGET, "ann")


def _webhook(world: World, n: int) -> object:
    return world.store.webhooks.put(f"w{n}", HOOK, "ann")


def _end_manager(world: World) -> None:
    row, _ = world.store.managers.reserve_manager(replace(NEW, flow_id="flow-0"))
    fence = Managed.claimed(world, row.manager_id, Owner("manager/shops/flow-0", "chain")).fence
    world.store.managers.end_manager(fence, RunStatus.COMPLETED, "finished", "it is done")


def _end_graph(world: World) -> None:
    row = world.store.graphs.find_graph("g0")
    graph = Graphed.claimed(world, row.graph_id, Owner("graph/g0", "chain-again"))
    graph.execute()
    world.store.graphs.end_graph(graph.fence, None)


Make, End = Callable[[World, int], object], Callable[[World], object]
KINDS: dict[str, tuple[Make, End]] = {
    "manager": (_manager, _end_manager),
    "graph": (_graph, _end_graph),
    "schedule": (_schedule, lambda world: world.store.schedules.delete("s0")),
    "webhook": (_webhook, lambda world: world.store.webhooks.delete("w0")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_more_is_refused_until_one_has_ended(few: World, kind: str) -> None:
    make, end = KINDS[kind]
    make(few, 0), make(few, 1)
    text = rf"^at most 2 {kind}s may be open \(LIFECYCLE_LIMITS__{kind.upper()}S\), and as many are; end or delete one"
    with pytest.raises(TooManyOpen, match=text):
        make(few, 2)
    if kind != "graph":  # whose pages are sent once
        make(few, 1)  # what is there already is no other one
    end(few)
    make(few, 2)
    with pytest.raises(TooManyOpen):
        make(few, 3)


def test_what_has_ended_is_not_opened_again_beyond_the_limit(few: World) -> None:
    for make, end in (KINDS["manager"], KINDS["graph"]):
        make(few, 0), make(few, 1)
        end(few)
        make(few, 2)
    with pytest.raises(TooManyOpen):
        _manager(few, 0)
    row = few.store.graphs.find_graph("g0")
    assert row is not None
    again: Callable[[Graph], int] = lambda graph: graph.retry([0], cascade=True, fresh=False)  # noqa: E731
    with pytest.raises(TooManyOpen):
        few.store.graphs.command(row.graph_id, "again", again)


@pytest.mark.parametrize("kind", KINDS)
def test_of_many_at_once_no_one_too_many_is_made(small: Store, few: World, kind: str) -> None:
    make, _ = KINDS[kind]

    def one(n: int) -> bool:
        with suppress(TooManyOpen):
            make(few, n)
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(8))) == MOST


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_below_its_share_is_not_refused_because_of_another(few: World, kind: str) -> None:
    make, _ = KINDS[kind]
    with limited("b"):
        make(few, 0), make(few, 1)
    with limited("a"):
        make(few, 2)
        with pytest.raises(TooManyOpen, match=r"as many are \(1 of project a\); end or delete one"):
            make(few, 3)
    with limited("b"), pytest.raises(TooManyOpen):
        make(few, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_quota_of_a_project_counts_what_is_open(store_url: str, clock: Clock, kind: str) -> None:
    make, end = KINDS[kind]
    store = open_store(
        store_url,
        clock=clock,
        quotas={"project:default": {f"{kind}s": 1}, "project:*": {f"{kind}s": 0}},
    )
    try:
        world = World(store, clock)
        with limited("default"):
            make(world, 0)
            with pytest.raises(
                QuotaReached,
                match=rf"^quota {kind}s of project default: 1 of 1 in use; end or delete",
            ):
                make(world, 1)
            end(world)
            make(world, 2)
        with (
            limited("other"),
            pytest.raises(QuotaReached, match=rf"^quota {kind}s of project other: 0 of 0 in use"),
        ):
            make(world, 3)
    finally:
        store.close()


@pytest.mark.parametrize("kind", ["manager", "schedule", "webhook"])
def test_two_that_make_the_same_at_once_make_one(few: World, kind: str) -> None:
    make, _ = KINDS[kind]
    with ThreadPoolExecutor(8) as pool:
        made: list[Any] = list(pool.map(lambda _: make(few, 0), range(16)))
    assert len({getattr(row, f"{kind}_id") for row, _ in made}) == 1
    assert sum(new for _, new in made) == 1
