"""The web pages of graphs: a list, and a page for each graph with its drawing, steps and buttons."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.graph.spec import GraphState, StepState
from crawler_lifecycle.gateway.access.operations import may, signed
from crawler_lifecycle.gateway.graphs.answers import Graph, GraphFilters, GraphViews, StepFilters, step_token
from crawler_lifecycle.gateway.graphs.commands import CancelGraph, GraphCommands, Reason, RetryGraph, StopGraphBody
from crawler_lifecycle.gateway.page.parts.choosing import Chooser
from crawler_lifecycle.gateway.page.parts.chosen import CHOSEN, ChosenForm, press
from crawler_lifecycle.gateway.page.parts.forms import ActionForm, Once, carry_out, check_shown, form, read
from crawler_lifecycle.gateway.page.parts.rendering import answer, next_page
from crawler_lifecycle.store.graphs.reads import SORTS
from crawler_lifecycle.subjects import GRAPH, Subject

CHOOSER = Chooser(
    GRAPH,
    "/graphs",
    "Id, name, tag",
    facets={"state": "State"},
    values={"state": list(GraphState)},
    sorts={name: name.capitalize() for name in SORTS} | {"id": "Graph"},
    presets={"All": {}, "Live": {"state": ["executing"]}, "Failed": {"state": ["discarded"]}},
    several=("state", "id"),
    largest=("took",),
)


class GraphsForm(ChosenForm):
    """The form of chosen graphs."""

    subject: ClassVar[Subject] = GRAPH
    acts = ("stop", "retry", "force")
    graph: Annotated[list[Annotated[str, StringConstraints(pattern=CHOSEN)]], Field(default_factory=list)]
    step: ClassVar[tuple[str, ...]] = ()
    reason: Reason | None = None


class GraphForm(ActionForm):
    """The form of a graph. Without steps, the action is for the whole graph."""

    subject: ClassVar[Subject] = GRAPH
    attempt: int
    step: Annotated[list[str], Field(default_factory=list, max_length=500)]
    reason: Reason | None = None


def add_graphs(app: FastAPI, commands: GraphCommands, views: GraphViews, once: Once) -> None:
    """Add the web pages of graphs."""
    clock = views.clock

    @app.get("/graphs")
    def show_graphs(request: Request) -> Response:
        """List graphs, newest first."""
        filters = read(GraphFilters, request.query_params.multi_items())
        page = views.page(filters)
        acts = GraphsForm.acts if may("pressGraphs") else ()
        values = CHOOSER.listed(filters, page, views.counted(filters, page), acts)
        return answer(request, "list.html", now=clock(), **values)

    @app.post("/graphs")
    async def press_graphs(request: Request) -> Response:
        """Stop the chosen graphs, or retry their failed steps."""
        asked = read(GraphsForm, await form(request))

        async def act(key: str, _: int) -> tuple[bool, str]:
            return True, await _carried_out(commands, key, asked)

        return await press(request, asked, commands.find, act, clock())

    @app.get("/graphs/{id}")
    async def show_graph(id: str, request: Request) -> Response:
        """Show one graph: its progress, its drawing and its steps."""
        filters = read(StepFilters, request.query_params.multi_items())
        return await run_in_threadpool(shown, request, await views.one(id), filters)

    def shown(request: Request, graph: Graph, filters: StepFilters) -> Response:
        steps, last = views.steps(graph.graph_id, filters)
        values: dict[str, Any] = {"graph": graph, "steps": steps, "filters": filters, "states": list(StepState)}
        values |= {"more": next_page(filters, step_token(last)), "address": GRAPH.path(graph.id), "now": clock()}
        return answer(request, "graph.html", **values)

    @app.post("/graphs/{id}")
    async def press_graph(id: str, request: Request) -> Response:
        """Stop a graph, or cancel or retry some of its steps."""
        asked = read(GraphForm, await form(request))

        async def act() -> str:
            row = await commands.find(id)
            check_shown(asked.attempt, row.attempt, row.state)
            return await _carried_out(commands, id, asked)

        return await carry_out(request, once, asked, id, act, clock())


async def _carried_out(commands: GraphCommands, key: str, asked: GraphForm | GraphsForm) -> str:
    """Carry out the action of the form. Return a sentence about the result."""
    own = asked.action.body
    if asked.action.path == "stop":
        done = await commands.stop(key, signed(StopGraphBody(**own, reason=asked.reason)))
        return asked.sentence(done.fresh, done.note)
    names, request_id = list(asked.step) or None, asked.request_key
    if asked.do == "cancel":
        changed = await commands.cancel(key, signed(CancelGraph(names=names, reason=asked.reason)), request_id)
    else:
        changed = await commands.retry(key, signed(RetryGraph(**own, names=names)), request_id)
    steps = "1 step" if changed.count == 1 else f"{changed.count} steps"
    return " ".join(filter(None, (f"{steps} changed; the graph is {changed.state}.", changed.note)))
