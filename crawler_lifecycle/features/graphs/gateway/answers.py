"""Answers about graphs: filters of lists, bodies of answers, and the class that reads the
graphs.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.status_words import state_word
from crawler_lifecycle.domain.waiting import ASK_DOCTOR
from crawler_lifecycle.gateway.api.lists import ResultPage
from crawler_lifecycle.gateway.api.paging import Paging, SearchParameters, SearchText, one_of, order
from crawler_lifecycle.gateway.api.rows import OfRow
from crawler_lifecycle.gateway.cursors import decode, encode
from crawler_lifecycle.gateway.owned import OwnedViews
from crawler_lifecycle.gateway.runs.answers import Stop
from crawler_lifecycle.gateway.runs.commands import existing
from crawler_lifecycle.subjects import GRAPH
from crawler_lifecycle.web.problems import Problem

from ..domain.spec import NAME_MAX, PATH_MAX, GraphOptions, GraphState, StepKind, StepState
from ..ports import GraphRow, StepRow
from ..store.graphs import GraphStore
from ..store.reads import StepQuery
from ..store.unit import SORTS
from .commands import OPEN

Path = Annotated[str, Field(min_length=1, max_length=PATH_MAX)]


def _states(kind: type[StrEnum]) -> BeforeValidator:
    """Return a check of a state, given by the word that people see or by its name in the API."""
    return one_of({state_word(state): state for state in kind} | {state: state for state in kind})


class _Pages(Paging):
    page_size: int = Field(default=50, ge=1, le=500)


class GraphFilters(_Pages, SearchParameters):
    """Filters of ``GET /v1/graphs``; ``state`` and ``id`` may be given several times."""

    sort: Annotated[str, order(SORTS)] | None = None
    state: list[Annotated[GraphState, _states(GraphState)]] = Field(default_factory=list)
    id: list[str] = Field(default_factory=list, max_length=50)
    name: str | None = Field(default=None, max_length=NAME_MAX)

    def check(self) -> None:
        """Raise ``InvalidRequest`` for ids together with a search or an order."""
        if self.id and (self.search or self.sort):
            raise InvalidRequest("id: selects these graphs; leave out search and sort")


class StepFilters(_Pages):
    """Filters of steps; ``path`` selects the step and all steps in it, and ``search`` the steps
    with this text in their path.

    Each of the other filters may be given several times.
    """

    search: SearchText = None
    state: list[Annotated[StepState, _states(StepState)]] = Field(default_factory=list)
    kind: list[StepKind] = Field(default_factory=list)
    path: list[Path] = Field(default_factory=list, max_length=50)

    @property
    def wanted(self) -> StepQuery:
        """Return the filters by the names that the store uses."""
        return {"states": self.state, "kinds": self.kind, "search": self.search}


class Graph(OfRow):
    """One graph."""

    id: str
    graph_id: int
    graph_uid: str
    """The graph's identity. After a restore of the database, a number may be used again, but never
    a uid.
    """
    name: str | None
    project: str
    workflow_id: str
    """The id of the graph's workflow, which is the ``parent`` of the graph's runs."""
    state: GraphState
    attempt: int
    """The number of the graph's attempt. The first attempt is 1, and each retry of an ended graph
    begins the next attempt.
    """
    total: int
    """The number of the graph's jobs, which are all steps except those that only contain other
    steps.
    """
    counts: dict[str, int]
    """The number of jobs in each state."""
    waiting: str | None
    """A sentence about the reason why no step is executing."""
    cause: str | None
    """The reason why the graph was discarded or cancelled."""
    stop: Stop | None
    options: GraphOptions
    pages: int
    """The number of pages in which the graph was sent."""
    tags: list[str]
    requested_by: str | None
    parent: str | None
    created_at: datetime
    started_at: datetime | None
    """The time at which the graph's first step began."""
    ended_at: datetime | None
    updated_at: datetime
    pruned_at: datetime | None
    """The time when the graph's steps and results were removed, long after its end."""
    unreadable: str | None
    """The error in the graph's row that another program wrote, and the fix."""

    @classmethod
    def of(cls, row: GraphRow, why: str | None = None, **more: Any) -> Self:
        """Build the body from a row.

        ``why`` is the reason why its workflow cannot continue, and ``more`` are further fields.
        """
        return cls.from_row(
            row,
            id=row.key,
            total=sum(row.counts.values()),
            counts={state.value: count for state, count in row.counts.items() if count},
            waiting=why or waiting(row),
            **more,
        )


def waiting(row: GraphRow) -> str | None:
    """Return a sentence about what a graph waits for, or ``None`` if the graph is not waiting."""
    if row.state not in OPEN or row.unreadable:
        return None
    if row.state is GraphState.DRAFT:
        return (
            f"waiting for its {row.pages} {'page' if row.pages == 1 else 'pages'}, and then for "
            "its start"
        )
    if row.owner_run_id is None:
        return f"waiting for a worker{ASK_DOCTOR}"
    if row.stop:
        return row.waiting_for or "it is being stopped, and is waiting for the end of its steps"
    given = row.counts.get(StepState.AVAILABLE, 0)
    if row.waiting_for is None and given and not row.counts.get(StepState.EXECUTING):
        what = "1 function is" if given == 1 else f"{given:,} functions are"
        return (
            f"{what} offered to workers, but no worker has begun; "
            "open one of these steps to see which workers"
        )
    return row.waiting_for


class AcceptedGraph(Graph):
    """A graph after a command."""

    note: str | None = None
    """A note for the caller, for example that the command takes effect later."""


class GraphPage(ResultPage):
    """A page of graphs."""

    graphs: list[Graph]


def as_sent(row: StepRow) -> StepRow:
    """Return a step for an answer: its dependencies have only their names, as they were sent."""
    return replace(row, deps=[dep.rpartition("/")[2] for dep in row.deps])


class StepPage(BaseModel):
    """A page of steps, in the order in which they were added."""

    steps: list[StepRow]
    next_page_token: str | None


class Level(BaseModel):
    """The progress of a graph, or of a sub-graph."""

    name: str | None
    state: str
    total: int
    counts: dict[str, int]
    started_at: datetime | None
    stopped_at: datetime | None
    subs: dict[str, Level]


class GraphStatus(Level):
    """The progress of a graph and of its sub-graphs."""

    id: str

    @classmethod
    def of(cls, row: GraphRow, found: dict[str, Any]) -> Self:
        """Build the body from the steps.

        The state always comes from the row, and so do the counts and times of a pruned graph.
        """
        counts = {state.value: count for state, count in row.counts.items() if count}
        left = {
            "total": sum(counts.values()),
            "counts": counts,
            "started_at": row.started_at,
            "stopped_at": row.ended_at,
        }
        return cls.model_validate(
            found | (left if row.pruned_at else {}) | {"id": row.key, "state": str(row.state)}
        )


class PictureFormat(StrEnum):
    """The format of a picture."""

    JSON = "json"
    DOT = "dot"
    MERMAID = "mermaid"


class ContextAnswer(BaseModel):
    """The context of a cascade: values that the cascade receives in addition to results. Null if no
    context was set.
    """

    context: dict[str, Any] | None


def step_token(last: int | None) -> str | None:
    """Return the token of the next page of steps, or ``None`` if there is no next page."""
    return None if last is None else encode("step", last + 1)


class GraphViews(OwnedViews[GraphFilters, GraphPage, Graph]):
    """Reads a page of graphs, one graph or its steps for answers."""

    store: GraphStore
    subject = GRAPH
    pages = GraphPage
    brief = Graph
    whole = Graph

    def found(self, key: str) -> GraphRow:
        return existing("graph", key, self.store.find_graph(key))

    def named(self, filters: GraphFilters) -> list[GraphRow] | None:
        if not filters.id:
            return None
        rows = [
            row for row in map(self.store.find_graph, dict.fromkeys(filters.id)) if row is not None
        ]
        fitting = [row for row in rows if not filters.state or row.state in filters.state]
        return sorted(fitting, key=lambda row: -row.graph_id)[: filters.page_size]

    def steps(self, graph_id: int, filters: StepFilters) -> tuple[list[StepRow], int | None]:
        """Return a page of steps, and the number after which the next page begins. This blocks."""
        graphs = self.store
        place = decode("step", filters.page_token)
        size = filters.page_size
        after = -1 if place is None else place - 1
        wanted = filters.wanted
        if not filters.path:
            rows = graphs.list_steps(graph_id, after, size + 1, **wanted)
            return rows[:size], rows[size - 1].number if len(rows) > size else None
        named = graphs.list_steps(graph_id, limit=len(filters.path), paths=filters.path)
        given = graphs.given(graph_id, [row.number for row in named])
        inside = [step for step in given if step.number > after]
        if not inside:
            return [], None
        paths = [step.path for step in inside[:size]]
        rows = graphs.list_steps(graph_id, limit=size, paths=paths, **wanted)
        return rows, inside[size - 1].number if len(inside) > size else None

    def step(self, row: GraphRow, path: str) -> StepRow:
        """Return one step. This blocks. Raises ``Problem`` 404."""
        named = self.store.list_steps(row.graph_id, limit=1, paths=[path])
        if not named:
            detail = (
                f"graph {row.key!r} has no step {path[:200]!r}; GET /v1/graphs/{{id}}/steps "
                "lists its steps"
            )
            raise Problem(404, "step_not_found", detail)
        return named[0]
