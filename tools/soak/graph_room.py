"""Finds moments at which more executed than ``max_parallel`` and resources allow, by the ledgers of
functions and crawls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from crawler_lifecycle.features.graphs.domain.spec import StepKind
from tools.soak.checks import CLOCK_S
from tools.soak.graph_records import GraphCase

#: The time for which a step executed.
_Spans = list[tuple[float, float]]


def room(case: GraphCase) -> Iterator[str]:
    """Return the first moment at which each limit or resource was exceeded."""
    spans = {
        path: _shrunk(case, path)
        for path in case.rows
        if case.specs[path].kind is not StepKind.GRAPH
    }
    for graph, most in _caps(case):
        inside = {path: Fraction(1) for path in spans if not graph or path.startswith(f"{graph}/")}
        if (found := _exceeded(spans, inside, Fraction(most))) is not None:
            yield (
                f"these executed at one time in {graph or 'the graph'}, which has {most} places: "
                f"{found}"
            )
    for name, amount in case.plan.spec.options.pools.items():
        needs = {
            path: Fraction(one[name])
            for path in spans
            for one in case.specs[path].resources
            if name in one
        }
        if (found := _exceeded(spans, needs, max([Fraction(amount), *needs.values()]))) is not None:
            yield f"these held more {name} at one time than the {amount} that there are: {found}"


def _shrunk(case: GraphCase, path: str) -> _Spans:
    return [(begin, end - CLOCK_S) for begin, end, _ in case.spans(path) if end - CLOCK_S > begin]


def _caps(case: GraphCase) -> Iterator[tuple[str, int]]:
    if case.plan.spec.options.max_parallel is not None:
        yield "", case.plan.spec.options.max_parallel
    for path in case.rows:
        if (most := case.specs[path].max_parallel) is not None:
            yield path, most


def _exceeded(
    spans: Mapping[str, _Spans], needs: Mapping[str, Fraction], most: Fraction
) -> str | None:
    """Return the steps that needed more than this at one moment, or ``None`` if there was no such
    moment.

    A step counts once, however many of its crawls execute.
    """
    edges = [
        (at, begins, path)
        for path in needs
        for span in spans[path]
        for at, begins in zip(span, (1, 0), strict=True)
    ]
    live: dict[str, int] = {}
    for _, begins, path in sorted(edges):
        live[path] = live.get(path, 0) + (1 if begins else -1)
        now = [one for one, times in live.items() if times]
        if sum(needs[one] for one in now) > most:
            return ", ".join(sorted(now))
    return None
