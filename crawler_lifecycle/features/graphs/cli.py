"""``crawlctl graph``: verbs that start, show, control and watch graphs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.inputs import answer_of, content_of, filled, json_of
from crawler_lifecycle.cli.output import as_json, clean, emit, say_note, show_facts, show_rows
from crawler_lifecycle.cli.problems import Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.cli.subjects import (
    By,
    End,
    Force,
    Kind,
    Limit,
    Project,
    Proof,
    Reason,
    Search,
    Sort,
    Yes,
    status_of,
)
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.status_words import state_word
from crawler_lifecycle.subjects import GRAPH as SUBJECT
from crawler_lifecycle.subjects import STEP, TERMINAL, At, Cell, Document, does, plain, steps

if TYPE_CHECKING:
    from .domain.spec import GraphSpec


def _line(row: Document) -> str:
    """Return one line about a graph, for ``watch`` and ``wait``."""
    said = row.get("cause") or row.get("waiting")
    head = f"graph {row.get('id')} {state_word(row.get('state'))}, {steps(row) or 'no steps'}"
    return clean(head + (f": {said}" if said else ""))


GRAPH = Kind(SUBJECT, _line, again="retry")

Key = Annotated[str, Parameter(help="the graph's id")]
Keys = Annotated[str, Parameter(help="more graphs")]
Steps = Annotated[
    list[str] | None, Parameter(name="--step", help="path of a step; includes the steps inside it")
]

_FIELDS = ("id", "name", "tags", "options", "context", "steps")


# --- starting -------------------------------------------------------------------------------------


def start(
    build: str | None = None,
    /,
    *words: str,
    file: Path | None = None,
    id: str | None = None,
    name: str | None = None,
    tag: list[str] | None = None,
    parent: str | None = None,
    project: Project = None,
    by: By = None,
    wait: End = False,
    watch: bool = False,
    dry_run: bool = False,
) -> int:
    """Start a graph that a module builds in a separate process, or a graph from a file.

    Parameters
    ----------
    build
        module:function that returns a Workflow, or module:workflow
    words
        arguments of the function, given after --
    file
        start the graph in this JSON file; - is standard input
    id
        id of the graph; a second start with the same id does nothing
    name
        name of the graph for people
    tag
        tag of the graph
    parent
        id of the workflow to notify when the graph ends
    watch
        wait, and print a line for each change
    dry_run
        only show the graph, as JSON for --file
    """
    if (build is None) == (file is None):
        raise WrongUsage(
            "give either module:function or --file",
            "crawlctl graph start module:function, or crawlctl graph start --file graph.json",
        )
    found = (
        _built(build, words)
        if build is not None
        else _document(str(file), content_of(file or Path()))
    )
    found |= filled({"id": id or None, "name": name or None, "tags": tag})
    spec, pages, whose = _checked(found)
    if dry_run:
        emit(found, names=[found.get("id")], table=lambda: print(as_json(found)))
        return Exit.DONE
    body = {
        **{name: found[name] for name in ("id", "name", "tags") if found.get(name)},
        "options": asdict(spec.options),
        "pages": len(pages),
        "fingerprint": whose,
        "requested_by": by or user(),
        **filled({"parent": parent or None, "project": project or None}),
    }
    with current().gateway() as gateway:
        started = gateway.send_graph(body, pages)
        key = started["id"]
        say_note(started, f"graph {key}")
    if watch or wait:
        return GRAPH.follow(key, watch=watch)
    facts = [
        (field, str(state_word(started.get(field))))
        for field in ("id", "workflow_id", "state", "total")
    ]
    emit(started, names=[key], table=lambda: show_facts(facts))
    say(f"next: {GRAPH.call('watch', key)} · {GRAPH.call('stop', key)}")
    return Exit.DONE


def _built(build: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Return the graph that a user's module builds.

    The module runs in a separate process, which receives only the arguments.
    """
    content, code = answer_of("crawler_lifecycle.features.user_code.graph", [build, *words])
    if code:
        why = content.decode().strip() or f"its process ended with exit code {code}"
        raise WrongUsage(f"{build!r} returned no graph", "correct it, and try again", why=why)
    return _document(build, content)


def _document(where: str, content: bytes) -> dict[str, Any]:
    found = json_of(where, content)
    if (
        not isinstance(found, dict)
        or not isinstance(found.get("steps"), list)
        or not found.keys() <= set(_FIELDS)
    ):
        raise WrongUsage(
            f"{where}: this is not a graph",
            f"give a JSON object with steps, and optionally {', '.join(_FIELDS[:-1])}",
        )
    return found


def _checked(found: dict[str, Any]) -> tuple[GraphSpec, list[bytes], str]:
    """Return the graph, its pages for the gateway and its fingerprint.

    Raises ``CommandFailed``.
    """
    from crawler_lifecycle.domain.errors import InvalidRequest

    from .domain.checks import check
    from .domain.pages import encode_pages, fingerprint, step_from_json
    from .domain.spec import GraphOptions, GraphSpec

    options: Any = found.get("options") or {}
    try:
        steps = [step_from_json(step) for step in found["steps"]]
        spec = GraphSpec(steps, GraphOptions(**options), found.get("context") or {})
        check(spec)
        return spec, encode_pages(spec), fingerprint(spec)
    except (InvalidRequest, TypeError) as error:
        raise WrongUsage(str(error), "crawlctl graph start --help") from None


# --- showing --------------------------------------------------------------------------------------


def list_graphs(
    *,
    state: list[str] | None = None,
    name: str | None = None,
    search: Search = None,
    sort: Sort = None,
    project: Project = None,
    limit: Limit = 50,
) -> None:
    """List graphs, newest first. Drafts are listed only with --state draft.

    Parameters
    ----------
    state
        draft, running, completed, cancelled or failed; may be repeated
    name
        only graphs with this name
    """
    GRAPH.list_all(limit, state=state, name=name, search=search, sort=sort, project=project)


def describe(
    graph: Key,
    /,
    *,
    steps: str | None = None,
    below: str | None = None,
    limit: Limit = 50,
) -> None:
    """Show everything about a graph on one screen, and its steps.

    Parameters
    ----------
    steps
        also list the steps in this state: waiting, scheduled, ready, running, retrying,
        completed, cancelled, failed or all
    below
        only list the steps inside the step with this path
    """
    with current().gateway() as gateway:
        found = gateway.get(GRAPH.path(graph))
        listed = steps or ("all" if below else None)
        state = None if listed == "all" else listed
        path = GRAPH.path(graph, "/steps")
        rows = gateway.rows(path, limit=limit, state=state, path=below) if listed else []
        runs = gateway.runs(limit=1, parent=found.get("workflow_id"))

    def table() -> None:
        show_facts(SUBJECT.known(found))
        if listed:
            print()
            show_rows(rows, STEP.columns, empty="no such steps")

    emit({**found, "steps": rows} if listed else found, names=[graph], table=table)
    ended = status_of(found)[0] in TERMINAL
    steps_of = [] if listed else [GRAPH.call("describe", graph) + " --steps all"]
    runs_of = [f"crawlctl list --parent '{found.get('workflow_id')}'"] if runs else []
    then = (
        GRAPH.call("retry", graph)
        if ended
        else f"{GRAPH.call('watch', graph)} · {GRAPH.call('stop', graph)}"
    )
    say(f"next: {' · '.join([*steps_of, *runs_of, then])}")


def step(
    graph: Key,
    path: str,
    /,
    *,
    result: bool = False,
) -> None:
    """Show one step: what it executes, what it is waiting for, and the errors from its executions.

    Parameters
    ----------
    path
        the step's path: the names of the graphs around it, and its own name
    result
        only print its recorded result, as JSON
    """
    with current().gateway() as gateway:
        if result:
            print(gateway.text(GRAPH.path(graph, "/result"), path=path))
            return
        found = gateway.get(GRAPH.path(graph, "/step"), path=path)
    emit(found, names=[path], table=lambda: show_facts(_step_facts(found)))
    if found.get("run_id") and found.get("kind") == "crawl":
        say(f"next: crawlctl describe {found['run_id']}")


def _step_facts(row: Document) -> list[tuple[str, Cell]]:
    lines = [
        ("step", row.get("path")),
        ("kind", row.get("kind")),
        ("does", does(row)),
        ("arguments", plain((row.get("job") or {}).get("args") or {})),
        ("after", " ".join(row.get("deps") or ())),
        ("state", f"{state_word(row.get('state'))} {row.get('outcome') or ''}".strip()),
        ("ending", "it may still run" if row.get("ending") else None),
        ("reason", row.get("reason")),
        ("tries", f"{row.get('tries')} of {row.get('max_attempts')}"),
        ("run", row.get("run_id")),
        ("not before", row.get("not_before")),
        ("started", At(row.get("started_at"))),
        ("ended", At(row.get("ended_at"))),
        (
            "result",
            f"{row['result_bytes']:,} bytes" if row.get("result_bytes") is not None else None,
        ),
        *(
            ("error", f"attempt {error.get('attempt')}: {error.get('error')}")
            for error in row.get("errors") or ()
        ),
    ]
    return [(name, value) for name, value in lines if value not in (None, "", At(None))]


def render(
    graph: Key,
    /,
    *,
    form: Annotated[Literal["mermaid", "dot"], Parameter(name="--format")] = "mermaid",
    expand: list[str] | None = None,
) -> None:
    """Draw a graph with the states of its steps, as text for Graphviz or Mermaid.

    Parameters
    ----------
    form
        the format; dot is for Graphviz
    expand
        draw all steps inside this step, or '*' for all; by default, a graph with more than 50 steps
        is a box
    """
    if current().output != "table":
        raise WrongUsage("graph render does not support -o", "use --format instead of -o")
    with current().gateway() as gateway:
        text = gateway.text(GRAPH.path(graph, "/picture"), format=form, expand=expand)
    print(clean(text, lines=True), end="")


# --- control --------------------------------------------------------------------------------------


def stop(
    graph: Key,
    /,
    *graphs: Keys,
    step: Steps = None,
    reason: Reason = None,
    force: Force = False,
    by: By = None,
    wait: Proof = False,
) -> int:
    """Ask graphs and everything that they execute to end.

    With --step, only cancel these steps and the steps that depend on them.
    """
    body = {"reason": reason, "requested_by": by or user()}
    if step:
        if graphs or force or wait:
            raise WrongUsage("--step cannot be used with several graphs, --force or --wait")
        return _change(graph, "cancel", body | {"names": step}, "cancelled")
    return GRAPH.each((graph, *graphs), "stop", body | {"force": force or None}, wait=wait)


def force_stop(
    graph: Key,
    /,
    *graphs: Keys,
    reason: Reason = None,
    yes: Yes = False,
    by: By = None,
    wait: Proof = False,
) -> int:
    """End graphs at once by killing the functions and crawlers that they execute."""
    GRAPH.be_sure((graph, *graphs), "everything that this graph is executing:", yes=yes)
    return stop(graph, *graphs, reason=reason, force=True, by=by, wait=wait)


def retry(
    graph: Key,
    /,
    *,
    step: Steps = None,
    cascade: Annotated[bool, Parameter(negative="--no-cascade")] = True,
    fresh: bool = False,
    by: By = None,
    wait: End = False,
) -> int:
    """Retry those steps of a graph that failed, were cancelled, or are waiting for their next try.

    A completed step is only retried with --step.

    Parameters
    ----------
    cascade
        also retry steps that were cancelled because these steps failed
    fresh
        start new runs instead of resuming the old ones
    """
    body: dict[str, Any] = {
        "names": step,
        "cascade": cascade,
        "fresh": fresh,
        "requested_by": by or user(),
    }
    code = _change(graph, "retry", body, "retried")
    if not wait or code != Exit.DONE:
        return code
    return GRAPH.await_end(graph)


def approve(
    graph: Key,
    path: str,
    /,
    *,
    reject: bool = False,
    note: str | None = None,
    by: By = None,
) -> int:
    """Approve a step that is waiting for approval; with --reject, the step fails.

    Parameters
    ----------
    path
        the step's path: the names of the graphs around it, and its own name
    reject
        reject the step
    note
        a note for people, which is recorded with the decision
    """
    body = {"step": path, "approved": not reject, "note": note, "requested_by": by or user()}
    return _change(graph, "approve", body, "rejected" if reject else "approved")


def wait(
    graph: Key,
    /,
    *,
    goal: Annotated[Literal["completed", "ended"], Parameter(name="--for")] = "completed",
) -> int:
    """Wait for the end of a graph, but not longer than --timeout (exit code 7).

    With --for completed, the exit code shows its outcome: 0 completed, 5 failed, 6 cancelled.

    Parameters
    ----------
    goal
        the state to wait for
    """
    return GRAPH.await_end(graph, goal)


def watch(graph: Key, /) -> int:
    """Watch a graph until it ends.

    The exit code shows its outcome: 0 completed, 5 failed, 6 cancelled.
    """
    return GRAPH.watch_one(graph)


def _change(graph: str, action: str, body: dict[str, object], what: str) -> int:
    """Change steps, and print how many were changed."""
    with current().gateway() as gateway:
        answer = gateway.post(GRAPH.path(graph, f"/{action}"), body)
    steps = count(answer.get("count") or 0, "step")
    emit(answer, names=[graph], table=lambda: print(f"graph {clean(graph)}: {steps} {what}"))
    say_note(answer, f"graph {graph}")
    say(f"next: {GRAPH.call('watch', graph)} · {GRAPH.call('describe', graph)}")
    return Exit.DONE
