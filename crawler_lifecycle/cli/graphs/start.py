"""``crawlctl graph start``."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from crawler_lifecycle.cli.output import as_json, clean, emit, show_facts
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import current, user
from crawler_lifecycle.cli.users_code import answer_of

from .control import GRAPH

if TYPE_CHECKING:
    from crawler_lifecycle.domain.graph.spec import GraphSpec

_FIELDS = ("id", "name", "tags", "options", "context", "steps")


def start(
    build: Annotated[str | None, Parameter(help="module:function that returns a Workflow, or module:workflow")] = None,
    /,
    *words: Annotated[str, Parameter(help="behind --: texts that the function is called with")],
    file: Annotated[Path | None, Parameter(help="instead: a graph as JSON; - is standard input")] = None,
    id: Annotated[str | None, Parameter(help="id of the graph; the same graph under it is started once")] = None,
    name: Annotated[str | None, Parameter(help="its name, for people")] = None,
    tag: Annotated[list[str] | None, Parameter(help="tag of the graph")] = None,
    parent: Annotated[str | None, Parameter(help="workflow id that is told when it has ended")] = None,
    by: Annotated[str | None, Parameter(help="who asks for it; default: you")] = None,
    wait: Annotated[bool, Parameter(negative=(), help="wait for its end; the exit code tells how it ended")] = False,
    watch: Annotated[bool, Parameter(negative=(), help="the same, with a line for each change")] = False,
    dry_run: Annotated[bool, Parameter(negative=(), help="only show the graph as JSON, as --file reads it")] = False,
) -> int:
    """Start a graph: of a module that builds it in a process beside this one, or of a file."""
    session = current()
    if (build is None) == (file is None):
        cure = "crawlctl graph start module:function, or crawlctl graph start --file graph.json"
        raise CommandFailed(Exit.USAGE, "give what builds the graph, or --file, and not both", None, cure)
    found = _built(build, words) if build is not None else _read(file or Path())
    given: dict[str, Any] = {"id": id, "name": name, "tags": tag}
    found |= {field: one for field, one in given.items() if one}
    spec, pages, whose = _checked(found)
    if dry_run:
        emit(session, found, names=[found.get("id")], table=lambda: print(as_json(found)))
        return Exit.DONE
    body: dict[str, Any] = {name: found[name] for name in ("id", "name", "tags") if found.get(name)}
    body |= {"options": asdict(spec.options), "pages": len(pages), "fingerprint": whose, "requested_by": by or user()}
    body |= {"parent": parent} if parent else {}
    with session.gateway() as gateway:
        started = gateway.send_graph(body, pages)
        key = started["id"]
        if started.get("note"):
            session.say(f"graph {key}: {clean(started['note'])}")
        if watch or wait:
            from crawler_lifecycle.cli.watching import follow

            return follow(GRAPH, gateway, key, watch=watch)
    facts = [(field, str(started.get(field))) for field in ("id", "workflow_id", "state", "total")]
    emit(session, started, names=[key], table=lambda: show_facts(session, facts))
    session.say(f"next: {GRAPH.call('watch', key)} · {GRAPH.call('stop', key)}")
    return Exit.DONE


def _built(build: str, words: tuple[str, ...]) -> dict[str, Any]:
    """What a module of the user builds: in a process of its own, which gets nothing from this one but the words."""
    content, code = answer_of("crawler_lifecycle.graphs.script", [build, *words])
    if code:
        why = f"the process that builds it ended with {code}; what it said stands above"
        again = shlex.join(["python", "-m", "crawler_lifecycle.graphs.script", build, *words])
        raise CommandFailed(Exit.USAGE, f"{build!r} gave no graph", why, again)
    return _document(build, content)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"--file {file} cannot be read", str(error)) from None
    return _document(str(file), content)


def _document(where: str, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CommandFailed(Exit.USAGE, f"{where}: this is no JSON", str(error)) from None
    if not isinstance(found, dict) or not isinstance(found.get("steps"), list) or not found.keys() <= set(_FIELDS):
        cure = f"give an object with steps, and any of {', '.join(_FIELDS[:-1])}"
        raise CommandFailed(Exit.USAGE, f"{where}: this is no graph", None, cure)
    return found


def _checked(found: dict[str, Any]) -> tuple[GraphSpec, list[bytes], str]:
    """The graph, the pages in which it travels, and its fingerprint. Raises ``CommandFailed``."""
    from crawler_lifecycle.domain.errors import InvalidRequest
    from crawler_lifecycle.domain.graph.checks import check
    from crawler_lifecycle.domain.graph.pages import encode_pages, fingerprint, step_from_json
    from crawler_lifecycle.domain.graph.spec import GraphOptions, GraphSpec

    options: Any = found.get("options") or {}
    try:
        steps = [step_from_json(one) for one in found["steps"]]
        spec = GraphSpec(steps, GraphOptions(**options), found.get("context") or {})
        check(spec)
        return spec, encode_pages(spec), fingerprint(spec)
    except (InvalidRequest, TypeError) as error:
        raise CommandFailed(Exit.USAGE, str(error), None, "crawlctl graph start --help") from None
