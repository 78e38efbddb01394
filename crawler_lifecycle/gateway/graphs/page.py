"""The pages of graphs: a list, and one with its drawing, steps and buttons."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.graph.spec import GraphState, StepState
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.paging import cut
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.graphs.commands import CancelGraph, GraphCommands, Reason, RetryGraph, StopGraphBody
from crawler_lifecycle.gateway.graphs.routes import Graph, GraphFilters, GraphViews, StepFilters
from crawler_lifecycle.gateway.page.parts.forms import ActionForm, Once, Told, form, read, tell, went_on
from crawler_lifecycle.gateway.page.parts.rendering import answer, query
from crawler_lifecycle.store.graphs.graphs import GraphStore
from crawler_lifecycle.subjects import GRAPH, Subject


class GraphForm(ActionForm):
    """The form of a graph; without steps all of it is meant."""

    subject: ClassVar[Subject] = GRAPH
    attempt: int
    step: Annotated[list[str], Field(default_factory=list, max_length=500)]
    reason: Reason | None = None


def add_graphs(
    app: FastAPI,
    commands: GraphCommands,
    graphs: GraphStore,
    views: GraphViews,
    once: Once,
    clock: Callable[[], datetime],
) -> None:
    """Add the pages of graphs."""

    @app.get("/graphs", operation_id="showGraphs", include_in_schema=False)
    def show_graphs(request: Request) -> Response:
        """Graphs, newest first."""
        filters = read(GraphFilters, request.query_params.multi_items())
        page = views.page(filters)
        asked = filters.model_dump(mode="json", exclude_defaults=True, exclude={"page_token"})
        token = page.next_page_token
        more = "/graphs" + query({**asked, "page_token": token}) if token else None
        rows = [one.model_dump() for one in page.graphs]
        values: dict[str, Any] = {"rows": rows, "more": more, "filters": filters, "states": list(GraphState)}
        return answer(request, "graphs.html", now=clock(), **values)

    @app.get("/graphs/{id}", operation_id="showGraph", include_in_schema=False)
    async def show_graph(id: str, request: Request) -> Response:
        """One graph: how far it has come, its drawing, and its steps."""
        filters = read(StepFilters, request.query_params.multi_items())
        return await run_in_threadpool(shown, request, await views.one(id), filters)

    def shown(request: Request, graph: Graph, filters: StepFilters) -> Response:
        after = decode("step", filters.page_token)
        after = -1 if after is None else after
        size = filters.page_size + 1
        rows = graphs.list_steps(graph.graph_id, after, size, states=filters.state, paths=filters.path)
        page, token = cut("step", rows, filters.page_size, lambda row: row.number)
        asked = filters.model_dump(mode="json", exclude_defaults=True, exclude={"page_token"})
        values: dict[str, Any] = {"graph": graph, "steps": page, "filters": filters, "states": list(StepState)}
        values |= {"more": query({**asked, "page_token": token}) if token else None}
        values |= {"address": f"/graphs/{quote(graph.id, safe='')}", "now": clock()}
        return answer(request, "graph.html", **values)

    @app.post("/graphs/{id}", operation_id="pressGraph", include_in_schema=False)
    async def press_graph(id: str, request: Request) -> Response:
        """Stop a graph, or cancel or retry steps of it."""
        pressed = read(GraphForm, await form(request))

        async def act() -> Told:
            row = await commands.find(id)
            name, href = f"graph {id}", f"/graphs/{quote(id, safe='')}"
            if row.attempt != pressed.attempt:
                return went_on(name, href, row.state, row.attempt)
            return Told(name, href, True, await _carried_out(commands, id, pressed))

        return tell(request, pressed.action.title, [await once(f"{pressed.key}.{pressed.do}", act)], clock())


async def _carried_out(commands: GraphCommands, key: str, pressed: GraphForm) -> str:
    """Carry out what was pressed, and say in a sentence what became of it."""
    own = pressed.action.body
    if pressed.action.path == "stop":
        done = await commands.stop(key, signed(StopGraphBody(**own, reason=pressed.reason)))
        return pressed.said(done.fresh, done.note)
    names, request_id = pressed.step or None, f"{pressed.key}.{pressed.do}"
    if pressed.do == "cancel":
        changed = await commands.cancel(key, signed(CancelGraph(names=names, reason=pressed.reason)), request_id)
    else:
        changed = await commands.retry(key, signed(RetryGraph(**own, names=names)), request_id)
    steps = "1 step" if changed.count == 1 else f"{changed.count} steps"
    return " ".join(filter(None, (f"It changed {steps}; the graph is {changed.state}.", changed.note)))
