"""Routes of graphs, and the bodies of their answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self
from urllib.parse import quote

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from pydantic import BaseModel, Field, RootModel, TypeAdapter
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.responses import PlainTextResponse

from crawler_lifecycle.activities.graphs.questions import explained
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.graph.pages import PAGES_MAX
from crawler_lifecycle.domain.graph.render import Picture, picture, to_dot, to_mermaid
from crawler_lifecycle.domain.graph.spec import NAME_MAX, PATH_MAX, GraphOptions, GraphState, StepState
from crawler_lifecycle.domain.graph.status import status_document
from crawler_lifecycle.domain.names import graph_subject, graph_workflow_id
from crawler_lifecycle.domain.values import unpacked
from crawler_lifecycle.domain.waiting import ASK_DOCTOR
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.long_poll import NOT_MODIFIED, WAIT_MAX_S, conditional, moments, next_answer
from crawler_lifecycle.gateway.api.paging import Paging, cut
from crawler_lifecycle.gateway.cursors import decode, encode
from crawler_lifecycle.gateway.graphs.commands import (
    OPEN,
    CancelGraph,
    ChangedSteps,
    GraphCommands,
    RetryGraph,
    StartGraph,
    StopGraphBody,
    not_found,
)
from crawler_lifecycle.gateway.runs.answers import Stop
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.runs.commands import Commanded
from crawler_lifecycle.gateway.runs.requests import same_id
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.responses import Streamed
from crawler_lifecycle.ports.graphs import GraphRow, StepRow
from crawler_lifecycle.store.graphs.graphs import GraphStore
from crawler_lifecycle.web.problems import JsonBody, Problem

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
    """The graph's identity: a number comes again where a database was restored, a uid never."""
    name: str | None
    workflow_id: str
    """Also the ``parent`` of its runs."""
    state: GraphState
    attempt: int
    """It ended so often, and went on after a retry, and once more."""
    total: int
    """Jobs: its steps without those that only hold others."""
    counts: dict[str, int]
    """State -> jobs in it."""
    waiting: str | None
    """A sentence about what it waits for, when nothing of it executes."""
    cause: str | None
    """The reason why it was discarded or cancelled."""
    stop: Stop | None
    options: GraphOptions
    pages: int
    """In which it was sent."""
    tags: list[str]
    requested_by: str | None
    parent: str | None
    created_at: datetime
    started_at: datetime | None
    """The time at which its first step began."""
    ended_at: datetime | None
    updated_at: datetime
    pruned_at: datetime | None
    """The time at which its steps and results were removed, long after its end."""
    unreadable: str | None
    """The error in the graph's row, which another program wrote, and the cure."""

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
    """Say in a sentence what a graph waits for."""
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
    """A note for the caller, such as that it takes effect later."""


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
    """The progress of a graph, or of a graph within it."""

    name: str | None
    state: str
    total: int
    counts: dict[str, int]
    started_at: datetime | None
    stopped_at: datetime | None
    subs: dict[str, Level]


class GraphStatus(Level):
    """The progress of a graph, with the graphs within it."""

    id: str

    @classmethod
    def of(cls, row: GraphRow, found: dict[str, Any]) -> Self:
        """Out of its steps; the state, and what is left when these were removed, stand in its row."""
        counts = {state.value: count for state, count in row.counts.items() if count}
        left = {"total": sum(counts.values()), "counts": counts, "started_at": row.started_at}
        left["stopped_at"] = row.ended_at
        return cls.model_validate(found | (left if row.pruned_at else {}) | {"id": row.key, "state": str(row.state)})


class Form(StrEnum):
    """The format of a picture."""

    JSON = "json"
    DOT = "dot"
    MERMAID = "mermaid"


class ContextAnswer(BaseModel):
    """The values that cascades get beside results; null when nothing was ever set."""

    context: dict[str, Any] | None


_START = JsonBody(StartGraph)
_CANCEL = JsonBody(CancelGraph, optional=True)
_RETRY = JsonBody(RetryGraph, optional=True)
_STOP = JsonBody(StopGraphBody, optional=True)

#: A page of steps is read as it is: values may be nested more deeply than other bodies.
_PAGE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "context": {"type": "object"},
                        "steps": {"type": "array", "items": {"type": "object"}},
                    },
                    "required": ["steps"],
                    "additionalProperties": False,
                }
            }
        },
    }
}
#: What pictures show of a job.
_DRAWN = ("label", "call", "crawler", "plan", "name")
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
#: Bytes of results, as they were before compression, after which a page of them ends; and of jobs in a page of steps.
RESULTS_BYTES, STEPS_BYTES = 8 * 1024 * 1024, 8 * 1024 * 1024

IdempotencyKey = Annotated[str | None, Header()]
Wait = Annotated[int, Query(ge=0, le=WAIT_MAX_S)]


def add_graph_commands(app: FastAPI, commands: GraphCommands) -> None:
    """Add start, pages of a draft, cancel, retry, append and stop."""

    def answer(done: Commanded[GraphRow], response: Response) -> AcceptedGraph:
        response.status_code = 202 if done.fresh else 200
        return AcceptedGraph.of(done.row, note=done.note)

    same: dict[int | str, dict[str, Any]] = {
        200: {"model": AcceptedGraph, "description": "It was so already; nothing was changed"}
    }

    @app.post("/v1/graphs", operation_id="startGraph", status_code=202, openapi_extra=_START.openapi)
    async def start_graph(
        body: Annotated[StartGraph, Depends(_START)], response: Response, idempotency_key: IdempotencyKey = None
    ) -> AcceptedGraph:
        """Start a graph; or announce a large one as a draft, whose pages follow and which `start` makes whole.

        The `id` says which graph it is: the same graph again is found, another one under the id is refused. Without
        `id` it is the `Idempotency-Key`.
        """
        done = await commands.start(signed(body), same_id(body.request_id, idempotency_key))
        response.headers["Location"] = f"/v1/graphs/{quote(done.row.key, safe='')}"
        if not done.fresh:
            response.headers["Idempotency-Replayed"] = "true"
        return AcceptedGraph.of(done.row, note=done.note)

    @app.put("/v1/graphs/{id}/pages/{page}", operation_id="addGraphPage", status_code=202, openapi_extra=_PAGE)
    async def add_page(id: str, page: int, request: Request) -> AcceptedGraph:
        """Send one page of a draft, at most 2 MiB: its steps, and in page 0 its context. Again the same is nothing."""
        if not 0 <= page < PAGES_MAX:
            raise InvalidRequest(f"page: {page} is not allowed; give 0 to {PAGES_MAX - 1}")
        done = await commands.add_page(id, page, await request.body())
        return AcceptedGraph.of(done.row, note=done.note)

    @app.post("/v1/graphs/{id}/start", operation_id="startDraft", status_code=202, responses=same)
    async def start_draft(id: str, response: Response) -> AcceptedGraph:
        """Make a draft that has all its pages a graph, wholly or not at all, and start it."""
        return answer(await commands.start_draft(id), response)

    @app.post("/v1/graphs/{id}/cancel", operation_id="cancelSteps", openapi_extra=_CANCEL.openapi)
    async def cancel(
        id: str, body: Annotated[CancelGraph, Depends(_CANCEL)], idempotency_key: IdempotencyKey = None
    ) -> ChangedSteps:
        """Cancel steps, what is in them and what depends on them; the others go on. Tells how many had not ended."""
        return await commands.cancel(id, signed(body), same_id(body.request_id, idempotency_key))

    @app.post("/v1/graphs/{id}/retry", operation_id="retrySteps", openapi_extra=_RETRY.openapi)
    async def retry(
        id: str, body: Annotated[RetryGraph, Depends(_RETRY)], idempotency_key: IdempotencyKey = None
    ) -> ChangedSteps:
        """Let steps begin anew: those that were discarded or cancelled, or wait for their next try; completed ones
        only by name. With `cascade` their cancelled dependents too. `fresh` makes new runs instead of resuming.

        A graph that has ended goes on as its next attempt.
        """
        return await commands.retry(id, signed(body), same_id(body.request_id, idempotency_key))

    @app.post("/v1/graphs/{id}/append", operation_id="appendSteps", openapi_extra=_PAGE)
    async def append(id: str, request: Request, idempotency_key: IdempotencyKey = None) -> ChangedSteps:
        """Add steps to a graph, also to one that has ended; a page as for a draft, without a context."""
        return await commands.append(id, await request.body(), same_id(None, idempotency_key))

    @app.post(
        "/v1/graphs/{id}/stop",
        operation_id="stopGraph",
        status_code=202,
        responses=same,
        openapi_extra=_STOP.openapi,
    )
    async def stop_graph(id: str, body: Annotated[StopGraphBody, Depends(_STOP)], response: Response) -> AcceptedGraph:
        """Stop a graph with all that it executes, gracefully or by force.

        The stop is on record before this is answered, and nothing more starts.
        """
        return answer(await commands.stop(id, signed(body)), response)


class GraphViews:
    """Graphs as they are answered: a page of them, and one."""

    def __init__(self, graphs: GraphStore, blocked: Blocked) -> None:
        self._graphs, self._blocked = graphs, blocked

    def page(self, filters: GraphFilters) -> GraphPage:
        """Graphs, newest first, that fit. Blocks."""
        before = decode("graph", filters.page_token)
        if filters.id:
            found = [row for row in map(self._graphs.find_graph, dict.fromkeys(filters.id)) if row is not None]
            fitting = [row for row in found if not filters.state or row.state in filters.state]
            rows = sorted(fitting, key=lambda row: -row.graph_id)[: filters.page_size]
        else:
            rows = self._graphs.list_graphs(before, filters.page_size + 1, states=filters.state, name=filters.name)
        page, token = cut("graph", rows, filters.page_size, lambda row: row.graph_id)
        answers = [Graph.of(row, self._blocked.listed_workflow(graph_workflow_id(row.key))) for row in page]
        return GraphPage(graphs=answers, next_page_token=token)

    async def one(self, key: str) -> Graph:
        """One graph. Raises ``Problem`` 404."""
        row = await run_in_threadpool(_found, self._graphs, key)
        return Graph.of(row, await self._blocked.of_workflow(graph_workflow_id(row.key), is_open=row.state in OPEN))


def add_graph_readers(app: FastAPI, graphs: GraphStore, views: GraphViews, feed: Feed) -> None:
    """Add lists, details, steps, results and what is waited for."""
    _add_graphs(app, graphs, views, feed)
    _add_steps(app, graphs)
    _add_results(app, graphs)


def _found(graphs: GraphStore, key: str) -> GraphRow:
    row = graphs.find_graph(key)
    if row is None:
        raise not_found(key)
    return row


def _add_graphs(app: FastAPI, graphs: GraphStore, views: GraphViews, feed: Feed) -> None:
    @app.get("/v1/graphs", operation_id="listGraphs", response_model=GraphPage, responses=NOT_MODIFIED)
    def list_graphs(filters: Annotated[GraphFilters, Query()], request: Request) -> Response:
        """Graphs, newest first, that fit every given filter; drafts only when their state is asked for."""
        return conditional(request, views.page(filters))

    @app.get("/v1/graphs/{id}", operation_id="getGraph", response_model=Graph, responses=NOT_MODIFIED)
    async def get_graph(id: str, request: Request, wait: Wait = 0) -> Response:
        """One graph: its state, its jobs by state, what it waits for, and why it ended as it did.

        With ``wait`` the answer comes as soon as it is another one than ``If-None-Match`` names, or after so many
        seconds (then 304). Without that header: as soon as anything changes; at once if it has ended.
        """

        async def read() -> Graph:
            return await views.one(id)

        if not wait:
            return conditional(request, await read())
        return await next_answer(request, feed, graph_subject(id), wait, read, lambda graph: graph.state not in OPEN)

    @app.get(
        "/v1/graphs/{id}/status", operation_id="getGraphStatus", response_model=GraphStatus, responses=NOT_MODIFIED
    )
    async def get_status(id: str, request: Request, wait: Wait = 0) -> Response:
        """The progress of a graph, with the graphs within it. With ``wait`` the answer comes when the graph has ended,
        or after so many seconds."""
        async with aclosing(moments(request, feed, graph_subject(id), wait)) as news:
            async for _ in news:
                row = await run_in_threadpool(_found, graphs, id)
                if row.state not in OPEN:
                    break

        def status() -> GraphStatus:
            return GraphStatus.of(row, status_document(row.name, graphs.outline(row.graph_id)))

        return conditional(request, await run_in_threadpool(status))

    @app.get(
        "/v1/graphs/{id}/picture",
        operation_id="getGraphPicture",
        response_model=Picture,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    def get_picture(
        id: str,
        expand: Annotated[list[str], Query(max_length=50)] = [],  # noqa: B006 - FastAPI copies it
        form: Annotated[Form, Query(alias="format")] = Form.JSON,
    ) -> Response:
        """The graph as nodes and edges, at most 2,000 and 10,000: a graph with more than 50 steps in it is one box with
        their number, and so is a fan-out of more than 10 steps that do the same, unless `expand` names its path, or
        that of the first step of the fan-out, or is `*`. `format`: `dot` for Graphviz, `mermaid`."""
        graph = _found(graphs, id)
        steps = list(_drawn(graphs, graph.graph_id))
        states, chosen = {step.path: str(step.state) for step in steps}, "*" in expand or expand
        if form is Form.DOT:
            return PlainTextResponse(to_dot(steps, graph.name, states, expand=chosen), headers=_HEADERS)
        if form is Form.MERMAID:
            return PlainTextResponse(to_mermaid(steps, states, expand=chosen), headers=_HEADERS)
        found = TypeAdapter(Picture).dump_json(picture(steps, states, expand=chosen))
        return Response(found, media_type="application/json")

    @app.get("/v1/graphs/{id}/logs", operation_id="getGraphLog", response_class=PlainTextResponse)
    def get_log(id: str) -> Response:
        """The last output of the functions of a graph: 16 KiB at most, over all its processes."""
        return PlainTextResponse(graphs.graph_output(_found(graphs, id).graph_id), headers=_HEADERS)


def _drawn(graphs: GraphStore, graph_id: int) -> Iterator[StepRow]:
    """All steps, with that of their jobs which is drawn: all of it may be large."""
    after = -1
    while rows := graphs.list_steps(graph_id, after):
        for row in rows:
            job = {name: row.job[name] for name in _DRAWN if name in row.job}
            yield replace(told(row), job=job)
        after = rows[-1].number


def _step(graphs: GraphStore, row: GraphRow, path: str) -> StepRow:
    """Raises ``Problem``."""
    found = graphs.list_steps(row.graph_id, limit=1, paths=[path])
    if not found:
        detail = f"graph {row.key!r} has no step {path[:200]!r}; GET /v1/graphs/{{id}}/steps lists its steps"
        raise Problem(404, "step_not_found", detail)
    return found[0]


def _add_steps(app: FastAPI, graphs: GraphStore) -> None:
    @app.get("/v1/graphs/{id}/steps", operation_id="listSteps", response_model=StepPage, responses=NOT_MODIFIED)
    def list_steps(id: str, filters: Annotated[StepFilters, Query()], request: Request) -> Response:
        """Steps of a graph in the order in which they were added, with what they do and how they ended; of those that
        `path` names also what they wait for."""
        graph = _found(graphs, id)
        rows, last = _page(graphs, graph, filters)
        rows = explained(graphs, graph.graph_id, rows) if filters.path else rows
        steps, size = list[StepRow](), 0
        for row in rows:
            size += len(json.dumps(row.job))
            if steps and size > STEPS_BYTES:
                last = steps[-1].number
                break
            steps.append(told(row))
        return conditional(request, StepPage(steps=steps, next_page_token=_token("step", last)))

    @app.get("/v1/graphs/{id}/step", operation_id="getStep", response_model=StepRow, responses=NOT_MODIFIED)
    def get_step(id: str, path: Annotated[Path, Query()], request: Request) -> Response:
        """One step: what it does, what it waits for, how its executions failed, how it ended."""
        graph = _found(graphs, id)
        [row] = explained(graphs, graph.graph_id, [_step(graphs, graph, path)])
        return conditional(request, RootModel(told(row)))


def _add_results(app: FastAPI, graphs: GraphStore) -> None:
    @app.get("/v1/graphs/{id}/result", operation_id="getStepResult", response_class=Response)
    async def get_result(id: str, path: Annotated[Path, Query()]) -> Streamed:
        """The value that a step recorded, as JSON; of a crawl, how it ended. A value that JSON has no word for is
        tagged: `{"$date": "2026-11-22"}`."""

        def found() -> Iterator[bytes]:
            graph = _found(graphs, id)
            row = _step(graphs, graph, path)
            if row.result_bytes is None:
                raise Problem(404, "result_not_found", f"step {path[:200]!r} has no result; it is {row.state}")
            return unpacked(graphs.result(graph.graph_id, row.number))

        return _streamed(await run_in_threadpool(found))

    @app.get("/v1/graphs/{id}/results", operation_id="listResults", response_class=Response)
    async def list_results(id: str, filters: Annotated[StepFilters, Query()]) -> Streamed:
        """Values that steps recorded: `{"results": {path: value}, "next_page_token": …}`, in pages of some
        megabytes each."""

        def found() -> tuple[int, list[StepRow], int | None]:
            graph = _found(graphs, id)
            rows, last = _page(graphs, graph, filters)
            given = [row for row in rows if row.result_bytes is not None]
            sizes = itertools.accumulate(one.result_bytes or 0 for one in given)
            fit = sum(1 for size in sizes if size <= RESULTS_BYTES) or 1
            return graph.graph_id, given[:fit], given[fit - 1].number if fit < len(given) else last

        graph_id, given, last = await run_in_threadpool(found)

        def document() -> Iterator[bytes]:
            yield b'{"results":{'
            for n, (one, value) in enumerate(_values(graphs, graph_id, given)):
                yield (b"," if n else b"") + json.dumps(one.path).encode() + b":"
                yield from value
            yield b'},"next_page_token":' + json.dumps(_token("step", last)).encode() + b"}"

        return _streamed(document())

    @app.get("/v1/graphs/{id}/context", operation_id="getContext")
    def get_context(id: str, path: Annotated[str, Query(max_length=1000)] = "") -> ContextAnswer:
        """Values that the cascades of a graph, or of the graph within it that ``path`` names, get beside results."""
        graph = _found(graphs, id)
        number = _step(graphs, graph, path).number if path else None
        levels = [json.loads(one) for one in graphs.context(graph.graph_id, number)]
        return ContextAnswer(context={name: value for level in levels for name, value in level.items()} or None)


def _page(graphs: GraphStore, graph: GraphRow, filters: StepFilters) -> tuple[list[StepRow], int | None]:
    """A page of steps, and the number behind which the next one begins."""
    place, size = decode("step", filters.page_token), filters.page_size
    after = -1 if place is None else place - 1
    if not filters.path:
        rows = graphs.list_steps(graph.graph_id, after, size + 1, states=filters.state)
        return rows[:size], rows[size - 1].number if len(rows) > size else None
    named = graphs.list_steps(graph.graph_id, limit=len(filters.path), paths=filters.path)
    given = graphs.given(graph.graph_id, [row.number for row in named])
    inside = [one for one in given if one.number > after]
    if not inside:
        return [], None
    paths = [one.path for one in inside[:size]]
    rows = graphs.list_steps(graph.graph_id, limit=size, states=filters.state, paths=paths)
    return rows, inside[size - 1].number if len(inside) > size else None


def _token(kind: str, last: int | None) -> str | None:
    return None if last is None else encode(kind, last + 1)


def _values(graphs: GraphStore, graph_id: int, given: list[StepRow]) -> Iterator[tuple[StepRow, Iterator[bytes]]]:
    """The values that these steps recorded, as JSON in chunks."""
    recorded = {one.number: one for one in given}
    for number, parts in itertools.groupby(graphs.results(graph_id, list(recorded)), key=lambda part: part[0]):
        yield recorded[number], unpacked(data for _, data in parts)


def _streamed(chunks: Iterator[bytes]) -> Streamed:
    async def stream() -> AsyncGenerator[bytes, None]:
        async for chunk in iterate_in_threadpool(chunks):
            yield chunk

    return Streamed(stream(), "application/json", _HEADERS)
