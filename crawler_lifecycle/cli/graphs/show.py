"""Verbs that show graphs: list, describe, step, render."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.output import clean, emit, emit_list, show_facts, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import current
from crawler_lifecycle.cli.states import TERMINAL, status_of

from . import tables
from .control import GRAPH, Key

Limit = Annotated[int, Parameter(help="at most so many")]
State = Literal["draft", "executing", "completed", "cancelled", "discarded"]
StepState = Literal[
    "all", "suspended", "scheduled", "available", "executing", "retryable", "completed", "cancelled", "discarded"
]


def list_graphs(
    *,
    state: Annotated[list[State] | None, Parameter(help="only in this state; more than once: in any of them")] = None,
    name: Annotated[str | None, Parameter(help="only graphs of this name")] = None,
    limit: Limit = 50,
) -> int:
    """List graphs, newest first; drafts only with --state draft."""
    session = current()
    with session.gateway() as gateway:
        rows = gateway.rows("/v1/graphs", limit=limit, state=state, name=name)
    emit_list(session, "graphs", rows, tables.GRAPHS, name="id", empty="no graphs; next: crawlctl graph start --help")
    return Exit.DONE


def describe(
    graph: Key,
    /,
    *,
    steps: Annotated[StepState | None, Parameter(help="list its steps in this state as well")] = None,
    below: Annotated[str | None, Parameter(help="only those in this step, by its path")] = None,
    limit: Limit = 50,
) -> int:
    """Show everything about a graph on one screen, and its steps."""
    session = current()
    with session.gateway() as gateway:
        found = gateway.get(GRAPH.path(graph))
        listed = steps or ("all" if below else None)
        state = None if listed == "all" else listed
        path = GRAPH.path(graph, "/steps")
        rows = gateway.rows(path, limit=limit, state=state, path=below) if listed else []
        runs = gateway.runs(limit=1, parent=found.get("workflow_id"))

    def table() -> None:
        show_facts(session, tables.facts(found))
        if listed:
            print()
            show_rows(session, rows, tables.STEPS, empty="no such steps")

    emit(session, {**found, "steps": rows} if listed else found, names=[graph], table=table)
    ended = status_of(found)[0] in TERMINAL
    steps_of = [] if listed else [GRAPH.call("describe", graph) + " --steps all"]
    runs_of = [f"crawlctl list --parent '{found.get('workflow_id')}'"] if runs else []
    then = GRAPH.call("retry", graph) if ended else f"{GRAPH.call('watch', graph)} · {GRAPH.call('stop', graph)}"
    session.say(f"next: {' · '.join([*steps_of, *runs_of, then])}")
    return Exit.DONE


def step(
    graph: Key,
    path: Annotated[str, Parameter(help="the step's path: its name after those of the graphs it is in")],
    /,
    *,
    result: Annotated[bool, Parameter(negative=(), help="print what it recorded, as JSON, and nothing else")] = False,
) -> int:
    """Show one step: what it does, what it waits for, how its executions failed."""
    session = current()
    with session.gateway() as gateway:
        if result:
            print(gateway.text(GRAPH.path(graph, "/result"), path=path))
            return Exit.DONE
        found = gateway.get(GRAPH.path(graph, "/step"), path=path)
    emit(session, found, names=[path], table=lambda: show_facts(session, tables.step_facts(found)))
    if found.get("run_id") and found.get("kind") == "crawl":
        session.say(f"next: crawlctl describe {found['run_id']}")
    return Exit.DONE


def render(
    graph: Key,
    /,
    *,
    form: Annotated[Literal["mermaid", "dot"], Parameter(name="--format", help="for Mermaid, or Graphviz")] = "mermaid",
    expand: Annotated[
        list[str] | None, Parameter(help="draw all steps in this one; otherwise above 50 they are one box; '*': in all")
    ] = None,
) -> int:
    """Draw a graph with the states of its steps, as text for Graphviz or Mermaid."""
    session = current()
    if session.output != "table":
        raise CommandFailed(Exit.USAGE, "graph render gives a text of its own format", None, "leave -o out")
    with session.gateway() as gateway:
        text = gateway.text(GRAPH.path(graph, "/picture"), format=form, expand=expand)
    print(clean(text, lines=True), end="")
    return Exit.DONE
