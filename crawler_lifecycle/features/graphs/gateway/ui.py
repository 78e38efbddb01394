"""The web pages of graphs: a list, and for each graph a page with its drawing, steps and
buttons.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.status_words import STATE_WORDS, state_word
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.ui.parts.choosing import WORK_TABS, Chooser
from crawler_lifecycle.gateway.ui.parts.chosen import CHOSEN, ChosenForm, add_list, press_one
from crawler_lifecycle.gateway.ui.parts.forms import ActionForm, query_of
from crawler_lifecycle.gateway.ui.parts.rendering import answer, next_page
from crawler_lifecycle.subjects import GRAPH, Subject

from ..domain.spec import GraphState
from ..store.unit import SORTS
from .answers import Graph, GraphFilters, StepFilters, step_token
from .commands import (
    CancelGraph,
    GraphCommands,
    Reason,
    RetryGraph,
    StopGraphBody,
)

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
    tabs=WORK_TABS,
    links=[("pressStartGraph", "/start/graph", "Start a graph")],
    newest_first=True,
)


class GraphsForm(ChosenForm):
    """The form with actions on selected graphs."""

    subject: ClassVar[Subject] = GRAPH
    acts = ("stop", "retry", "force")
    graph: Annotated[
        list[Annotated[str, StringConstraints(pattern=CHOSEN)]], Field(default_factory=list)
    ]
    step: ClassVar[tuple[str, ...]] = ()
    reason: Reason | None = None


class GraphForm(ActionForm):
    """The form with actions on a graph. Without steps, the action applies to the whole graph."""

    subject: ClassVar[Subject] = GRAPH
    attempt: int | None = None
    """The attempt that the form showed; a page of an incident shows none."""
    step: Annotated[list[str], Field(default_factory=list, max_length=500)]
    reason: Reason | None = None


def add_graphs(app: FastAPI, gateway: Gateway) -> None:
    """Add the web pages of graphs."""
    commands = gateway.graph_commands
    views = gateway.graph_views
    once = gateway.once
    clock = views.clock

    do = partial(_carried_out, commands)
    add_list(app, CHOOSER, GraphFilters, GraphsForm, views, commands.find, do, once)

    @app.get("/graphs/{id}")
    async def show_graph(id: str, request: Request) -> Response:
        """Show one graph: its progress, its drawing and its steps."""
        filters = query_of(request, StepFilters)
        return await run_in_threadpool(shown, request, await views.one(id), filters)

    def shown(request: Request, graph: Graph, filters: StepFilters) -> Response:
        steps, last = views.steps(graph.graph_id, filters)
        return answer(
            request,
            "graph.html",
            graph=graph,
            steps=steps,
            filters=filters,
            words=STATE_WORDS,
            more=next_page(filters, step_token(last)),
            address=GRAPH.path(graph.id),
            temporal=gateway.temporal_page("workflows", graph.workflow_id),
            now=clock(),
        )

    @app.post("/graphs/{id}")
    async def press_graph(id: str, request: Request) -> Response:
        """Stop a graph, or cancel or retry some of its steps."""
        return await press_one(request, GraphForm, id, commands.find, do, once)


async def _carried_out(commands: GraphCommands, key: str, asked: GraphForm | GraphsForm) -> str:
    """Carry out the action of the form. Return a sentence about the result."""
    own = asked.action.body
    if asked.action.path == "stop":
        done = await commands.stop(key, signed(StopGraphBody(**own, reason=asked.reason)))
        return asked.sentence(done.fresh, done.note)
    names = list(asked.step) or None
    request_id = asked.request_key
    if asked.do == "cancel":
        changed = await commands.cancel(
            key, signed(CancelGraph(names=names, reason=asked.reason)), request_id
        )
    else:
        changed = await commands.retry(key, signed(RetryGraph(**own, names=names)), request_id)
    text = f"{count(changed.count, 'step')} changed; the graph is {state_word(changed.state)}."
    return " ".join(filter(None, (text, changed.note)))
