"""Routes of graphs."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Query, Request, Response
from pydantic import RootModel, TypeAdapter
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.responses import PlainTextResponse

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import graph_subject
from crawler_lifecycle.domain.values import unpacked
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.long_poll import (
    Wait,
    conditional,
    documents,
    moments,
    next_answer,
)
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.commands import CommandResult
from crawler_lifecycle.gateway.runs.requests import BodyOf, IdempotencyKey, OptionalBodyOf, same_id
from crawler_lifecycle.gateway.streams.responses import StreamedResponse
from crawler_lifecycle.web.problems import Problem
from crawler_lifecycle.web.turns import turn

from ..activities.questions import explained, values_of
from ..domain.pages import PAGES_MAX
from ..domain.render import Picture, picture, to_dot, to_mermaid
from ..domain.rows import StepFacts, status_document
from ..ports import GraphRow, StepRow
from ..store.graphs import GraphStore
from .answers import (
    AcceptedGraph,
    ContextAnswer,
    Graph,
    GraphFilters,
    GraphPage,
    GraphStatus,
    Path,
    PictureFormat,
    StepFilters,
    StepPage,
    as_sent,
    step_token,
)
from .commands import (
    FINGERPRINT,
    OPEN,
    ApproveGraphStep,
    CancelGraph,
    ChangedSteps,
    RetryGraph,
    StartGraph,
    StopGraphBody,
)

#: The body of a page of steps. ``JsonBody`` does not read it, because its values may be nested too
#: deeply for it.
_FIELDS = {"context": {"type": "object"}, "steps": {"type": "array", "items": {"type": "object"}}}
_SCHEMA = {
    "type": "object",
    "properties": _FIELDS,
    "required": ["steps"],
    "additionalProperties": False,
}
_PAGE: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": _SCHEMA}}}
}
#: The fields of a job that pictures show.
_DRAWN = ("label", "call", "crawler", "plan", "name")
#: Senders of different graphs may use the same id at the same time, so each sender gives the
#: fingerprint of its graph.
_Whose = Annotated[str | None, Query(alias="fingerprint", pattern=FINGERPRINT)]
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
#: The maximum number of bytes in one page of results (before compression), and of jobs in a page of
#: steps.
RESULTS_BYTES = 8 * 1024 * 1024
STEPS_BYTES = 8 * 1024 * 1024


def add_commands(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of commands: start, pages of a draft, cancel, retry, append and stop."""
    commands = gateway.graph_commands

    def answer(done: CommandResult[GraphRow], response: Response) -> AcceptedGraph:
        response.status_code = 202 if done.fresh else 200
        return AcceptedGraph.of(done.row, note=done.note)

    same: dict[int | str, dict[str, Any]] = {
        200: {
            "model": AcceptedGraph,
            "description": "This repeats an earlier request; nothing was changed",
        }
    }

    @app.post("/v1/graphs", status_code=202)
    async def start_graph(
        body: BodyOf[StartGraph], response: Response, idempotency_key: IdempotencyKey = None
    ) -> AcceptedGraph:
        """Start a graph, or create a draft of a large graph. Then send the pages of the draft, and
        `start` it. A draft that is not started within a day is removed.

        `id` identifies the graph. A repeat with the same id and content finds the graph; different
        content is refused. The default of `id` is the `Idempotency-Key`.
        """
        async with turn():  # the database takes a long time to store its steps
            done = await commands.start(signed(body), same_id(body.request_id, idempotency_key))
        done.mark(response, f"/v1/graphs/{quote(done.row.key, safe='')}")
        return AcceptedGraph.of(done.row, note=done.note)

    @app.put(
        "/v1/graphs/{id}/pages/{page}",
        operation_id="addGraphPage",
        status_code=202,
        openapi_extra=_PAGE,
    )
    async def add_page(id: str, page: int, request: Request, whose: _Whose = None) -> AcceptedGraph:
        """Send one page of a draft, at most 2 MiB: steps, and in page 0 also the context.

        A repeat changes nothing; with `fingerprint`, it is also allowed after the start. If a step
        is refused, the draft is removed.
        """
        if not 0 <= page < PAGES_MAX:
            raise InvalidRequest(f"page: {page} is not allowed; give 0 to {PAGES_MAX - 1}")
        data = await request.body()
        async with turn():
            done = await commands.add_page(id, page, data, whose)
        return AcceptedGraph.of(done.row, note=done.note)

    @app.post("/v1/graphs/{id}/start", status_code=202, responses=same)
    async def start_draft(id: str, response: Response, whose: _Whose = None) -> AcceptedGraph:
        """Start a draft that has all its pages.

        If a check fails, nothing starts, and the draft is removed.
        """
        async with turn():
            return answer(await commands.start_draft(id, whose), response)

    @app.post("/v1/graphs/{id}/cancel", operation_id="cancelSteps")
    async def cancel(
        id: str, body: OptionalBodyOf[CancelGraph], idempotency_key: IdempotencyKey = None
    ) -> ChangedSteps:
        """Cancel steps, the steps inside them and the steps that depend on them.

        All other steps continue.

        `count` is the number of cancelled steps that had not ended.
        """
        return await commands.cancel(id, signed(body), same_id(body.request_id, idempotency_key))

    @app.post("/v1/graphs/{id}/retry", operation_id="retrySteps")
    async def retry(
        id: str, body: OptionalBodyOf[RetryGraph], idempotency_key: IdempotencyKey = None
    ) -> ChangedSteps:
        """Execute steps again that were discarded or cancelled, or that wait for their next try.
        Completed steps are repeated only if they are named. `cascade` also repeats the cancelled
        steps that depend on them. `fresh` starts new runs instead of resuming the old ones.

        A graph that has ended continues as its next attempt.
        """
        return await commands.retry(id, signed(body), same_id(body.request_id, idempotency_key))

    @app.post("/v1/graphs/{id}/approve", operation_id="approveStep")
    async def approve(
        id: str, body: BodyOf[ApproveGraphStep], idempotency_key: IdempotencyKey = None
    ) -> ChangedSteps:
        """Approve or reject a step that waits for an approval.

        With `approved: false` the step is discarded.

        The step records who decided, when and with which `note`. A repeat of the same decision
        returns the `count` 0. A different decision is refused: retry the step first, so that the
        step asks again.
        """
        return await commands.approve(id, signed(body), same_id(body.request_id, idempotency_key))

    @app.post("/v1/graphs/{id}/append", operation_id="appendSteps", openapi_extra=_PAGE)
    async def append(
        id: str, request: Request, draft: str | None = None, idempotency_key: IdempotencyKey = None
    ) -> ChangedSteps:
        """Add steps to a graph, even if it has ended.

        The body is a page as for a draft, but without a context. To add more steps than fit into a
        page, send these steps as the pages of a draft, and give the draft's id as `draft`: either
        all steps are added or none.
        """
        data = await request.body()
        async with turn():
            return await commands.append(id, data, same_id(None, idempotency_key), draft)

    @app.post("/v1/graphs/{id}/stop", status_code=202, responses=same)
    async def stop_graph(
        id: str, body: OptionalBodyOf[StopGraphBody], response: Response
    ) -> AcceptedGraph:
        """Stop a graph and all its runs, managers and functions, gracefully or by force.

        A draft is removed.

        The answer comes after the stop has been recorded. From then on, no step starts.
        """
        return answer(await commands.stop(id, signed(body)), response)


def add_graphs(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes that read graphs."""
    feed = gateway.feed
    views = gateway.graph_views
    graphs = views.store

    @app.get("/v1/graphs", **documents(GraphPage))
    def list_graphs(filters: Annotated[GraphFilters, Query()], request: Request) -> Response:
        """The graphs that match all given filters, newest first.

        Drafts are listed only if `state` asks for them.

        ``search`` selects graphs that contain this text in their id, name or tags; case is ignored.
        ``sort`` selects another order: id, name, state or took, with a ``-`` in front for the
        largest first. Both cover the newest 2,000 graphs that pass the other filters. A search also
        finds older graphs by their name; ``note`` describes what was left out.
        """
        return conditional(request, views.page(filters).with_total(filters, views.counted))

    @app.get("/v1/graphs/{id}", **documents(Graph))
    async def get_graph(id: str, request: Request, wait: Wait = 0) -> Response:
        """One graph, with its state, the number of jobs in each state, the reason why the graph
        waits, and the cause of its end.

        With ``wait``, the answer comes as soon as it differs from the version that
        ``If-None-Match`` names, or after ``wait`` seconds with status 304. Without that header, the
        answer comes after the next change, or at once if the graph has ended.
        """
        read, ended = partial(views.one, id), lambda graph: graph.state not in OPEN
        return await next_answer(request, feed, graph_subject(id), wait, read, ended)

    @app.get("/v1/graphs/{id}/status", operation_id="getGraphStatus", **documents(GraphStatus))
    async def get_status(id: str, request: Request, wait: Wait = 0) -> Response:
        """The progress of a graph and of its sub-graphs.

        With ``wait``, the answer comes when the graph has ended, or after ``wait`` seconds."""
        async with aclosing(moments(request, feed, graph_subject(id), wait)) as news:
            async for _ in news:
                row = await run_in_threadpool(views.found, id)
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
        expand: Annotated[list[str], Query(max_length=50)] = [],  # noqa: B006
        form: Annotated[PictureFormat, Query(alias="format")] = PictureFormat.JSON,
    ) -> Response:
        """The graph as at most 20,000 nodes and 200,000 edges.

        A sub-graph of more than 50 steps becomes one box with the number of its steps. A fan-out of
        more than 10 equal steps also becomes one box. `expand` shows the steps of a box: give the
        path of the sub-graph, or of the first step of the fan-out, or `*` for all. `format` may be
        `dot` (Graphviz) or `mermaid`."""
        graph = views.found(id)
        steps = list(_drawn(graphs, graph.graph_id))
        states = {step.path: str(step.state) for step in steps}
        chosen = "*" in expand or expand
        if form is PictureFormat.DOT:
            return PlainTextResponse(
                to_dot(steps, graph.name, states, expand=chosen), headers=_HEADERS
            )
        if form is PictureFormat.MERMAID:
            return PlainTextResponse(to_mermaid(steps, states, expand=chosen), headers=_HEADERS)
        drawn = TypeAdapter(Picture).dump_json(picture(steps, states, expand=chosen))
        return Response(drawn, media_type="application/json")

    @app.get("/v1/graphs/{id}/logs", operation_id="getGraphLog", response_class=PlainTextResponse)
    def get_log(id: str) -> Response:
        """The last output of the functions of a graph: at most 16 KiB for all its processes
        together.
        """
        return PlainTextResponse(graphs.output(views.found(id).graph_id), headers=_HEADERS)


def _drawn(graphs: GraphStore, graph_id: int) -> Iterator[StepRow]:
    """Yield all steps, with only those fields of their jobs that pictures show, because a whole job
    may be large.
    """
    after = -1
    while rows := graphs.list_steps(graph_id, after):
        for row in rows:
            job = {name: row.job[name] for name in _DRAWN if name in row.job}
            yield replace(as_sent(row), job=job)
        after = rows[-1].number


def add_steps(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes that read steps."""
    views = gateway.graph_views
    graphs = views.store

    @app.get("/v1/graphs/{id}/steps", **documents(StepPage))
    def list_steps(id: str, filters: Annotated[StepFilters, Query()], request: Request) -> Response:
        """The steps of a graph in the order in which they were added, each with its job and its
        end. With `path`, the answer also shows what the steps wait for. ``search`` selects steps
        that contain this text in their path.
        """
        graph = views.found(id)
        rows, last = views.steps(graph.graph_id, filters)
        rows = explained(graphs, graph.graph_id, rows) if filters.path else rows
        steps = list[StepRow]()
        size = 0
        for row in rows:
            size += len(json.dumps(row.job))
            if steps and size > STEPS_BYTES:
                last = steps[-1].number
                break
            steps.append(as_sent(row))
        return conditional(request, StepPage(steps=steps, next_page_token=step_token(last)))

    @app.get("/v1/graphs/{id}/step", **documents(StepRow))
    def get_step(id: str, path: Annotated[Path, Query()], request: Request) -> Response:
        """One step, with its job, the reason why the step waits, the errors of its executions, and
        its end.
        """
        graph = views.found(id)
        [row] = explained(graphs, graph.graph_id, [views.step(graph, path)])
        return conditional(request, RootModel(as_sent(row)))


def add_results(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes that read results and contexts."""
    views = gateway.graph_views
    graphs = views.store

    @app.get("/v1/graphs/{id}/result", operation_id="getStepResult", response_class=Response)
    async def get_result(id: str, path: Annotated[Path, Query()]) -> StreamedResponse:
        """A step's result as JSON. A crawl's result describes the end of its run. A value of a type
        that JSON does not have is tagged: `{"$date": "2026-11-22"}`.
        """

        def value() -> Iterator[bytes]:
            graph = views.found(id)
            row = views.step(graph, path)
            if row.result_bytes is None:
                raise Problem(
                    404, "result_not_found", f"step {path[:200]!r} has no result; it is {row.state}"
                )
            return unpacked(graphs.result(graph.graph_id, row.number))

        return _streamed(await run_in_threadpool(value))

    @app.get("/v1/graphs/{id}/results", response_class=Response)
    async def list_results(id: str, filters: Annotated[StepFilters, Query()]) -> StreamedResponse:
        """The results of steps: `{"results": {path: value}, "next_page_token": …}`, in pages of
        some megabytes each, in the order in which the steps were added. The value of a graph is
        `{}`, and the value of a step that completed without a result is `null`. Steps that have not
        completed are left out.
        """

        def recorded() -> tuple[int, list[StepFacts], int | None]:
            graph = views.found(id)
            rows, last = views.steps(graph.graph_id, filters)
            given = graphs.given(graph.graph_id, [row.number for row in rows], depth=0)
            sizes = itertools.accumulate(step.result_bytes or 0 for step in given)
            fit = sum(1 for size in sizes if size <= RESULTS_BYTES) or 1
            return graph.graph_id, given[:fit], given[fit - 1].number if fit < len(given) else last

        graph_id, given, last = await run_in_threadpool(recorded)

        def document() -> Iterator[bytes]:
            yield b'{"results":{'
            for n, (step, value) in enumerate(values_of(graphs, graph_id, given)):
                yield (b"," if n else b"") + json.dumps(step.path).encode() + b":"
                yield from value
            yield b'},"next_page_token":' + json.dumps(step_token(last)).encode() + b"}"

        return _streamed(document())

    @app.get("/v1/graphs/{id}/context")
    def get_context(id: str, path: Annotated[str, Query(max_length=1000)] = "") -> ContextAnswer:
        """The context of a graph, or of the sub-graph at ``path``: values that its cascades receive
        in addition to results.
        """
        graph = views.found(id)
        number = views.step(graph, path).number if path else None
        levels = [json.loads(level) for level in graphs.context(graph.graph_id, number)]
        return ContextAnswer(
            context={name: value for level in levels for name, value in level.items()} or None
        )


def _streamed(chunks: Iterator[bytes]) -> StreamedResponse:
    async def stream() -> AsyncGenerator[bytes, None]:
        async for chunk in iterate_in_threadpool(chunks):
            yield chunk

    return StreamedResponse(stream(), "application/json", _HEADERS)
