"""Bodies of answers about graphs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field

from crawler_lifecycle.domain.graph.spec import NAME_MAX, PATH_MAX, GraphOptions, GraphState, StepState
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.waiting import ASK_DOCTOR
from crawler_lifecycle.gateway.graphs.commands import OPEN
from crawler_lifecycle.ports.graphs import GraphRow, StepRow

from .answers import Stop
from .paging import Paging

Path = Annotated[str, Field(min_length=1, max_length=PATH_MAX)]


class _Pages(Paging):
    page_size: int = Field(default=50, ge=1, le=500)


class GraphFilters(_Pages):
    """Filters of ``GET /v1/graphs``; ``state`` and ``id`` may be given several times."""

    state: list[GraphState] = Field(default_factory=list)
    id: list[str] = Field(default_factory=list, max_length=50)
    name: str | None = Field(default=None, max_length=NAME_MAX)


class StepFilters(_Pages):
    """Filters of steps; ``path`` stands for the step and all that is in it. Both may be given several times."""

    state: list[StepState] = Field(default_factory=list)
    path: list[Path] = Field(default_factory=list, max_length=50)


class Graph(BaseModel):
    """One graph."""

    id: str
    graph_id: int
    graph_uid: str
    """Who it is: a number comes again where a database was restored, a uid never."""
    name: str | None
    workflow_id: str
    """Also the ``parent`` of its runs."""
    state: GraphState | str
    """Another text than a state only in a list, in a row that is ``unreadable``."""
    attempt: int
    """It ended so often, and went on after a retry, and once more."""
    total: int
    """Jobs: its steps without those that only hold others."""
    counts: dict[str, int]
    """State -> jobs in it."""
    waiting: str | None
    """What it waits for, in a sentence, when nothing of it executes."""
    cause: str | None
    """Why it was discarded or cancelled."""
    stop: Stop | None
    options: GraphOptions
    pages: int
    """In which it was sent."""
    tags: list[str]
    requested_by: str | None
    parent: str | None
    created_at: datetime
    started_at: datetime | None
    """When its first step began."""
    ended_at: datetime | None
    updated_at: datetime
    pruned_at: datetime | None
    """When its steps and results were removed, long after its end."""
    unreadable: str | None
    """What cannot be in the graph's row, because another program wrote it, and the cure."""

    @classmethod
    def of(cls, row: GraphRow, why: str | None = None, **more: Any) -> Self:
        """The row as it is; ``why`` its workflow cannot go on; ``more`` is what the row does not tell."""
        same = {name: getattr(row, name) for name in cls.model_fields if hasattr(row, name)}
        return cls(
            **same
            | {
                "id": row.key,
                "workflow_id": graph_workflow_id(row.key),
                "total": sum(row.counts.values()),
                "counts": {state.value: count for state, count in row.counts.items() if count},
                "waiting": why or waiting(row),
                "stop": Stop.of(row.stop) if row.stop else None,
                "tags": list(row.tags),
                **more,
            }
        )


def waiting(row: GraphRow) -> str | None:
    """What a graph waits for, in a sentence."""
    if row.state not in OPEN or row.unreadable:
        return None
    if row.state is GraphState.DRAFT:
        return f"its {row.pages} {'page' if row.pages == 1 else 'pages'}, and then its start"
    if row.owner_run_id is None:
        return f"waiting for a worker{ASK_DOCTOR}"
    if row.stop:
        return row.waiting_for or "the end of what it executes: it is being stopped"
    given = row.counts.get(StepState.AVAILABLE, 0)
    if row.waiting_for is None and given and not row.counts.get(StepState.EXECUTING):
        what = "1 function is" if given == 1 else f"{given:,} functions are"
        return f"{what} given to workers, and none has begun one; a look at such a step tells which workers"
    return row.waiting_for


class AcceptedGraph(Graph):
    """A graph after a command."""

    note: str | None = None
    """What the caller should know, such as that it takes effect later."""


class GraphPage(BaseModel):
    """A page of graphs."""

    graphs: list[Graph]
    next_page_token: str | None


def told(row: StepRow) -> StepRow:
    """A step as it is told: dependencies by their names, as they were sent."""
    return replace(row, deps=[dep.rpartition("/")[2] for dep in row.deps])


class StepPage(BaseModel):
    """A page of steps, in the order in which they were added."""

    steps: list[StepRow]
    next_page_token: str | None


class Level(BaseModel):
    """How far a graph, or a graph within it, has come."""

    name: str | None
    state: str
    total: int
    counts: dict[str, int]
    started_at: datetime | None
    stopped_at: datetime | None
    subs: dict[str, Level]


class GraphStatus(Level):
    """How far a graph has come, with the graphs within it."""

    id: str

    @classmethod
    def of(cls, row: GraphRow, found: dict[str, Any]) -> Self:
        """Out of its steps; the state, and what is left when these were removed, stand in its row."""
        counts = {state.value: count for state, count in row.counts.items() if count}
        left = {"total": sum(counts.values()), "counts": counts, "started_at": row.started_at}
        left["stopped_at"] = row.ended_at
        return cls.model_validate(found | (left if row.pruned_at else {}) | {"id": row.key, "state": str(row.state)})


class Form(StrEnum):
    """How a picture is told."""

    JSON = "json"
    DOT = "dot"
    MERMAID = "mermaid"


class ContextAnswer(BaseModel):
    """What cascades get beside results; null when nothing was ever set."""

    context: dict[str, Any] | None
