"""Shortcuts for graphs in tests, and a worker that follows instructions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from crawler_lifecycle.features.graphs.domain.engine import Graph, StepEnd
from crawler_lifecycle.features.graphs.domain.spec import (
    GraphOptions,
    GraphSpec,
    GraphState,
    StepKind,
    StepSpec,
    StepState,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def step(path: str, *deps: str, **more: Any) -> StepSpec:
    """A function."""
    return StepSpec(path, StepKind.FUNCTION, {"call": "shop.steps:work"}, deps=deps, **more)


def crawl(path: str, *deps: str, **more: Any) -> StepSpec:
    return StepSpec(path, StepKind.CRAWL, {"crawler": "books"}, deps=deps, **more)


def approval(path: str, *deps: str, **job: Any) -> StepSpec:
    return StepSpec(path, StepKind.APPROVAL, job, deps=deps)


def group(path: str, *deps: str, **more: Any) -> StepSpec:
    return StepSpec(path, StepKind.GRAPH, deps=deps, **more)


def graph(*steps: StepSpec, **options: Any) -> Graph:
    return Graph.of(GraphSpec(steps, GraphOptions(**options)))


def states(of: Graph) -> dict[str, str]:
    return {one.path: one.state.value for one in of.steps}


def at(of: Graph, path: str) -> int:
    return of.numbers([path])[0]


def begin(of: Graph, path: str) -> int:
    """Let a call begin a step, as ``GraphStore.record`` does. Return its number."""
    one = of.steps[at(of, path)]
    assert one.state is StepState.AVAILABLE, (path, one.state)
    one.state, one.attempt, one.tries = StepState.EXECUTING, one.attempt + 1, one.tries + 1
    return one.number


def end(of: Graph, path: str, state: StepState = StepState.COMPLETED, **more: Any) -> None:
    number = at(of, path)
    of.ended([StepEnd(number, of.steps[number].attempt, state, **more)])


def run(
    of: Graph, discarded: Collection[str] = (), cancelled: Collection[str] = (), most: int = 1000
) -> list[str]:
    """Execute everything that can be executed. Return the order."""
    order: list[str] = []
    ends = {
        **dict.fromkeys(discarded, StepState.DISCARDED),
        **dict.fromkeys(cancelled, StepState.CANCELLED),
    }
    while of.state is GraphState.EXECUTING and len(order) < most:
        picked = of.pick(NOW, batches=500, begin=500)
        asked = [
            one.path
            for one in of.steps
            if one.kind is StepKind.APPROVAL and one.state is StepState.EXECUTING
        ]
        if not (picked.batches or picked.begin or asked):
            break
        for batch in picked.batches:
            order += _worked(of, batch.steps, ends)
        for path in [*(of.steps[number].path for number in picked.begin), *asked]:
            order.append(path)
            end(of, path, ends.get(path, StepState.COMPLETED))
        of.released([batch.number for batch in picked.batches])
    return order


def _worked(of: Graph, numbers: Sequence[int], ends: dict[str, StepState]) -> list[str]:
    order = []
    for number in numbers:
        path = of.steps[number].path
        if of.steps[number].state is StepState.AVAILABLE:
            begin(of, path)
            order.append(path)
            end(of, path, ends.get(path, StepState.COMPLETED))
    return order
