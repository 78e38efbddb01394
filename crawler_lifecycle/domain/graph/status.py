"""The progress of a graph, with the graphs within it: one document, made of the rows of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from .render import Named
from .spec import GraphState, StepKind, StepState

#: Which end of a step shows in the state of what it is in.
_WORST_FIRST = (StepState.DISCARDED, StepState.CANCELLED)


class Row(Named, Protocol):
    """The fields that are needed of the row of a step."""

    @property
    def state(self) -> StepState | str: ...
    @property
    def ending(self) -> bool: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def ended_at(self) -> datetime | None: ...


@dataclass
class _Level:
    name: str | None = None
    open: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    starts: list[datetime] = field(default_factory=list)
    ends: list[datetime] = field(default_factory=list)
    subs: dict[str, _Level] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        worst = next((state for state in _WORST_FIRST if self.counts[state]), StepState.COMPLETED)
        return {
            "name": self.name,
            "state": GraphState.EXECUTING.value if self.open else worst.value,
            "total": self.counts.total(),
            "counts": {str(state.value): self.counts[state] for state in StepState if self.counts[state]},
            "started_at": min(self.starts, default=None),
            "stopped_at": None if self.open else max(self.ends, default=None),
            "subs": {name: level.document() for name, level in self.subs.items()},
        }


def status_document(name: str | None, rows: Iterable[Row]) -> dict[str, Any]:
    """``name``, ``state`` (executing while a step is not final, or may run still; else discarded before cancelled
    before completed), ``total`` and ``counts`` of jobs, ``started_at``, ``stopped_at``; ``subs``: the same by name."""
    whole = _Level(name)
    for row in rows:
        *above, last = row.path.split("/")
        levels = [whole]
        for one in above:
            levels.append(levels[-1].subs.setdefault(one, _Level()))
        if row.kind == StepKind.GRAPH:
            levels.append(levels[-1].subs.setdefault(last, _Level()))
            levels[-1].name = row.job.get("name")
        state = StepState(row.state)
        for level in levels:
            level.open = level.open or row.ending or not state.final
            if row.kind != StepKind.GRAPH:
                level.counts[state] += 1
                level.starts += [row.started_at] if row.started_at else []
                level.ends += [row.ended_at] if row.ended_at else []
    return whole.document()
