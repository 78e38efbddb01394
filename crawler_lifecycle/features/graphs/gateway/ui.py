"""The web pages of graphs: a list, and for each graph an overview with its drawing, its steps and
its runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.status_words import STATE_WORDS, state_word
from crawler_lifecycle.gateway.access.operations import may, signed
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.ui.parts.choosing import WORK_TABS, Chooser
from crawler_lifecycle.gateway.ui.parts.chosen import (
    CHOSEN,
    ChosenForm,
    add_list,
    listed_by,
    press_one,
)
from crawler_lifecycle.gateway.ui.parts.formats import number
from crawler_lifecycle.gateway.ui.parts.forms import (
    ActionForm,
    carry_out,
    check_shown,
    form,
    read,
)
from crawler_lifecycle.gateway.ui.parts.lists import RowPage, filters_of, list_page
from crawler_lifecycle.gateway.ui.parts.rendering import answer, query
from crawler_lifecycle.gateway.ui.parts.tabs import tab_path, tabs_of
from crawler_lifecycle.subjects import GRAPH, STEP, Subject

from ..activities.questions import explained
from ..domain.kinds import CONTAINING
from ..domain.spec import GraphState, StepKind, StepState
from ..ports import StepRow
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
    reason: Reason | None = None


class GraphForm(ActionForm):
    """The form with actions on a graph."""

    subject: ClassVar[Subject] = GRAPH
    apart = ("reason",)
    attempt: int | None = None
    """The attempt that the form showed; a page of an incident shows none."""
    reason: Reason | None = None


STEPS = Chooser(
    STEP,
    "",
    "Path",
    facets={"state": "State", "kind": "Kind", "path": "Inside"},
    values={"state": list(StepState), "kind": list(StepKind)},
    presets={
        "All": {},
        "Failed": {"state": ["discarded"]},
        "Running": {"state": ["executing"]},
        "Waiting": {"state": ["suspended", "scheduled", "available", "retryable"]},
    },
    several=("state", "kind", "path"),
    typed=("path",),
)
#: States of the steps on the overview, and their maximum number.
FAILING = [StepState.DISCARDED, StepState.RETRYABLE]
FAILING_MAX = 10

_CONTAINING = "Steps that only contain other steps are listed too."


class PageSteps(StepFilters):
    """Filters in the address of a graph's steps.

    With ``all``, all matching steps are listed and selected, up to the limit.
    """

    all: bool = False


class StepsForm(ChosenForm):
    """The form with actions on selected steps. Each has the attempt of the graph that was shown."""

    subject: ClassVar[Subject] = STEP
    acts = ("retry", "fresh", "cancel")
    apart = ("step", "reason")
    step: Annotated[
        list[Annotated[str, StringConstraints(pattern=CHOSEN)]], Field(default_factory=list)
    ]
    reason: Reason | None = None


def add_graphs(app: FastAPI, gateway: Gateway) -> None:
    """Add the web pages of graphs."""
    commands = gateway.graph_commands
    views = gateway.graph_views
    graphs = views.store
    runs = gateway.run_list
    once = gateway.once
    clock = views.clock

    do = partial(_carried_out, commands)
    found = listed_by(views, "graphs")
    add_list(app, CHOOSER, GraphFilters, GraphsForm, found, clock, commands.find, do, once)

    async def head(id: str) -> tuple[Graph, dict[str, Any]]:
        """Return the graph, and the values that all its tabs show."""
        graph = await views.one(id)
        return graph, await run_in_threadpool(values_of, graph)

    def values_of(graph: Graph) -> dict[str, Any]:
        counts = {
            "Overview": None,
            "Steps": number(graph.total),
            "Runs": runs.counted(parent=graph.workflow_id),
        }
        return {
            "head": "graph_head.html",
            "graph": graph,
            "tabs": tabs_of(GRAPH.path(graph.id), counts),
            "address": GRAPH.path(graph.id),
            "temporal": gateway.temporal_page("workflows", graph.workflow_id),
            "now": clock(),
        }

    def rows_of(graph: Graph, steps: Sequence[StepRow]) -> list[dict[str, Any]]:
        """Return rows for a table. A selection contains the attempt of the graph."""
        return [
            asdict(step)
            | {
                "step_id": step.number,
                "attempt": graph.attempt,
                "href": GRAPH.path(graph.id, "/steps") + query({"path": step.path}),
            }
            for step in steps
        ]

    @app.get("/graphs/{id}")
    async def show_graph(id: str, request: Request) -> Response:
        """Show one graph: its drawing, its failing steps, and the facts about it. Filters of steps
        redirect to the list of its steps.
        """
        graph, values = await head(id)
        if request.query_params.keys() & StepFilters.model_fields.keys():
            steps = tab_path(values["tabs"], "Steps")
            return RedirectResponse(f"{steps}?{request.url.query}", 307)
        values |= {"words": STATE_WORDS, "step_columns": STEP.columns}
        failing = await run_in_threadpool(failing_of, graph)
        return answer(request, "graph.html", failing=rows_of(graph, failing), **values)

    def failing_of(graph: Graph) -> list[StepRow]:
        """Return failing steps. Without any, the steps are not read, because there may be many."""
        states = [state for state in FAILING if graph.counts.get(state)]
        if not states:
            return []
        return graphs.list_steps(graph.graph_id, limit=FAILING_MAX, states=states)

    @app.get("/graphs/{id}/steps")
    async def show_graph_steps(id: str, request: Request) -> Response:
        """Show the steps of a graph that match the filters of the address."""
        filters = filters_of(request, PageSteps)
        graph, values = await head(id)
        acts = StepsForm.acts if may("pressGraphSteps") else ()
        page = partial(list_page, tab="Steps", acts=acts, **values)
        return await run_in_threadpool(page, request, STEPS, filters, partial(steps_of, graph))

    def steps_of(graph: Graph, filters: PageSteps) -> RowPage:
        rows, last = views.steps(graph.graph_id, filters)
        if filters.path:
            rows = explained(graphs, graph.graph_id, rows)

        def total() -> str:
            return number(graphs.count_listed_steps(graph.graph_id, **filters.wanted))

        counted = None if filters.path else total
        note = _CONTAINING if any(row.kind in CONTAINING for row in rows) else None
        return RowPage(rows_of(graph, rows), step_token(last), note, counted)

    @app.post("/graphs/{id}/steps")
    async def press_graph_steps(id: str, request: Request) -> Response:
        """Cancel or retry the selected steps with one command."""
        asked = read(StepsForm, await form(request))
        shown = dict(asked.chosen())

        async def act() -> str:
            for attempt in {*shown.values()}:
                check_shown(attempt, await commands.find(id))
            return await _carried_out(commands, id, asked, list(shown))

        return await carry_out(request, once, asked, id, act, GRAPH)

    @app.get("/graphs/{id}/runs")
    async def show_graph_runs(id: str, request: Request) -> Response:
        """Show the runs that a graph started."""
        graph, values = await head(id)
        within = {"parent": graph.workflow_id}
        return await runs.shown(request, within=within, tab="Runs", **values)

    @app.post("/graphs/{id}/runs")
    async def press_graph_runs(id: str, request: Request) -> Response:
        """Carry out an action for each selected run of a graph."""
        return await runs.pressed(request, partial(show_graph_runs, id))

    @app.post("/graphs/{id}")
    async def press_graph(id: str, request: Request) -> Response:
        """Stop a graph, or cancel or retry all its steps for which this is possible."""
        return await press_one(request, GraphForm, id, commands.find, do, once)


async def _carried_out(
    commands: GraphCommands,
    key: str,
    asked: GraphForm | GraphsForm | StepsForm,
    names: list[str] | None = None,
) -> str:
    """Carry out the action of the form for the steps ``names``, or for the whole graph. Return a
    sentence about the result.
    """
    own = asked.action.body
    if asked.action.path == "stop":
        done = await commands.stop(key, signed(StopGraphBody(**own, reason=asked.reason)))
        return asked.sentence(done.fresh, done.note)
    request_id = asked.request_key
    if asked.do == "cancel":
        changed = await commands.cancel(
            key, signed(CancelGraph(names=names, reason=asked.reason)), request_id
        )
    else:
        changed = await commands.retry(key, signed(RetryGraph(**own, names=names)), request_id)
    text = f"{count(changed.count, 'step')} changed; the graph is {state_word(changed.state)}."
    return " ".join(filter(None, (text, changed.note)))
