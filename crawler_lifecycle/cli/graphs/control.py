"""Verbs that change a graph or wait for it: stop, force-stop, retry, watch, wait."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.output import clean, emit
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import current, user
from crawler_lifecycle.cli.subjects import Kind, await_end, be_sure, each

from . import tables

GRAPH = Kind("graph", tables.STATE, tables.line, field="id", again="retry")

Key = Annotated[str, Parameter(help="the graph's id")]
Steps = Annotated[list[str] | None, Parameter(name="--step", help="this step, by its path, and what is in it")]
Reason = Annotated[str | None, Parameter(help="written into the record")]
By = Annotated[str | None, Parameter(help="who asks for it; default: you")]


def stop(
    graph: Key,
    /,
    *graphs: Annotated[str, Parameter(help="more graphs")],
    step: Steps = None,
    reason: Reason = None,
    force: Annotated[bool, Parameter(negative=(), help="kill what it executes")] = False,
    by: By = None,
    wait: Annotated[bool, Parameter(negative=(), help="wait for the proof that nothing of it executes")] = False,
) -> int:
    """Ask graphs to end with all that they execute. With --step only cancel that and what depends on it."""
    body: dict[str, Any] = {"reason": reason, "requested_by": by or user()}
    if step:
        if graphs or force or wait:
            raise CommandFailed(Exit.USAGE, "--step goes with one graph, without --force and --wait")
        return _change(graph, "cancel", body | {"names": step}, "cancelled")
    return each(GRAPH, (graph, *graphs), GRAPH.ask("stop", body | {"force": force or None}), wait=wait)


def force_stop(
    graph: Key,
    /,
    *graphs: Annotated[str, Parameter(help="more graphs")],
    reason: Reason = None,
    yes: Annotated[bool, Parameter(negative=(), help="do not ask; needed without a terminal")] = False,
    by: By = None,
    wait: Annotated[bool, Parameter(negative=(), help="wait for the proof that nothing of it executes")] = False,
) -> int:
    """End graphs at once, killing the functions and crawlers that they execute."""
    be_sure(GRAPH, (graph, *graphs), "whatever is executed by graph", yes=yes)
    return stop(graph, *graphs, reason=reason, force=True, by=by, wait=wait)


def retry(
    graph: Key,
    /,
    *,
    step: Steps = None,
    cascade: Annotated[
        bool, Parameter(negative="--no-cascade", help="with the dependents that were cancelled because of them")
    ] = True,
    fresh: Annotated[bool, Parameter(negative=(), help="crawls begin a new run instead of resuming theirs")] = False,
    by: By = None,
    wait: Annotated[bool, Parameter(negative=(), help="wait for its end; the exit code tells how it ended")] = False,
) -> int:
    """Let steps begin anew: those that failed, were cancelled, or wait for their next try; completed ones by name."""
    body: dict[str, Any] = {"names": step, "cascade": cascade, "fresh": fresh, "requested_by": by or user()}
    code = _change(graph, "retry", body, "retried")
    if not wait or code != Exit.DONE:
        return code
    with current().gateway() as gateway:
        return await_end(GRAPH, gateway, graph)


def wait(
    graph: Key,
    /,
    *,
    goal: Annotated[Literal["completed", "ended"], Parameter(name="--for", help="what to wait for")] = "completed",
) -> int:
    """Wait for a graph; give up after --timeout (exit 7), without it never.

    With --for completed the exit code tells how it ended: 0 completed, 5 discarded, 6 cancelled.
    """
    with current().gateway() as gateway:
        return await_end(GRAPH, gateway, graph, goal)


def watch(graph: Key, /) -> int:
    """Watch a graph to its end; the exit code tells how it ended: 0 completed, 5 discarded, 6 cancelled."""
    from crawler_lifecycle.cli.watching import watch_one  # with what draws runs

    with current().gateway() as gateway:
        return watch_one(GRAPH, gateway, graph)


def _change(graph: str, action: str, body: dict[str, object], what: str) -> int:
    """Change steps, and tell how many."""
    session = current()
    with session.gateway() as gateway:
        answer = GRAPH.ask(action, body)(gateway, graph)
    count = answer.get("count") or 0
    steps = "1 step" if count == 1 else f"{count:,} steps"
    emit(session, answer, names=[graph], table=lambda: print(f"graph {clean(graph)}: {steps} {what}"))
    if answer.get("note"):
        session.say(f"graph {graph}: {clean(answer['note'])}")
    session.say(f"next: {GRAPH.call('watch', graph)} · {GRAPH.call('describe', graph)}")
    return Exit.DONE
