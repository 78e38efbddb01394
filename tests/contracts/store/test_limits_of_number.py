"""The maximum numbers of open managers, graphs, schedules and webhooks: one more is refused, with
the limit.
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
from tests.contracts.store.harness import Clock, Harness
from tests.contracts.store.managing import NEW, Managed

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
def few(small: Store, clock: Clock) -> Harness:
    return Harness(small, clock)


def _manager(harness: Harness, n: int) -> object:
    return harness.store.managers.reserve_manager(replace(NEW, flow_id=f"flow-{n}"))


def _graph(harness: Harness, n: int) -> object:
    return Graphed.made(harness, [step("a")], key=f"g{n}")


def _schedule(harness: Harness, n: int) -> object:
    return harness.store.schedules.put(f"s{n}", TARGET, "ann")


def _webhook(harness: Harness, n: int) -> object:
    return harness.store.webhooks.put(f"w{n}", HOOK, "ann")


def _end_manager(harness: Harness) -> None:
    row, _ = harness.store.managers.reserve_manager(replace(NEW, flow_id="flow-0"))
    fence = Managed.claimed(harness, row.manager_id, Owner("manager/shops/flow-0", "chain")).fence
    harness.store.managers.end_manager(fence, RunStatus.COMPLETED, "finished", "it is done")


def _end_graph(harness: Harness) -> None:
    row = harness.store.graphs.find_graph("g0")
    graph = Graphed.claimed(harness, row.graph_id, Owner("graph/g0", "chain-again"))
    graph.execute()
    harness.store.graphs.end_graph(graph.fence, None)


Make, End = Callable[[Harness, int], object], Callable[[Harness], object]
KINDS: dict[str, tuple[Make, End]] = {
    "manager": (_manager, _end_manager),
    "graph": (_graph, _end_graph),
    "schedule": (_schedule, lambda harness: harness.store.schedules.delete("s0")),
    "webhook": (_webhook, lambda harness: harness.store.webhooks.delete("w0")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_more_is_refused_until_one_has_ended(few: Harness, kind: str) -> None:
    make, end = KINDS[kind]
    make(few, 0), make(few, 1)
    text = rf"^at most 2 {kind}s may be open \(LIFECYCLE_LIMITS__{kind.upper()}S\), and this limit is reached; end or delete one"
    with pytest.raises(TooManyOpen, match=text):
        make(few, 2)
    if kind != "graph":  # whose pages are sent once
        make(few, 1)  # an existing one is not an additional one
    end(few)
    make(few, 2)
    with pytest.raises(TooManyOpen):
        make(few, 3)


def test_what_has_ended_is_not_opened_again_beyond_the_limit(few: Harness) -> None:
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
def test_of_many_at_once_no_one_too_many_is_made(small: Store, few: Harness, kind: str) -> None:
    make, _ = KINDS[kind]

    def one(n: int) -> bool:
        with suppress(TooManyOpen):
            make(few, n)
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(8))) == MOST


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_below_its_share_is_not_refused_because_of_another(
    few: Harness, kind: str
) -> None:
    make, _ = KINDS[kind]
    with limited("b"):
        make(few, 0), make(few, 1)
    with limited("a"):
        make(few, 2)
        with pytest.raises(
            TooManyOpen, match=r"this limit is reached \(1 of project a\); end or delete one"
        ):
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
        harness = Harness(store, clock)
        with limited("default"):
            make(harness, 0)
            with pytest.raises(
                QuotaReached,
                match=rf"^quota {kind}s of project default: 1 of 1 in use; end or delete",
            ):
                make(harness, 1)
            end(harness)
            make(harness, 2)
        with (
            limited("other"),
            pytest.raises(QuotaReached, match=rf"^quota {kind}s of project other: 0 of 0 in use"),
        ):
            make(harness, 3)
    finally:
        store.close()


@pytest.mark.parametrize("kind", ["manager", "schedule", "webhook"])
def test_two_that_make_the_same_at_once_make_one(few: Harness, kind: str) -> None:
    make, _ = KINDS[kind]
    with ThreadPoolExecutor(8) as pool:
        made: list[Any] = list(pool.map(lambda _: make(few, 0), range(16)))
    assert len({getattr(row, f"{kind}_id") for row, _ in made}) == 1
    assert sum(new for _, new in made) == 1
