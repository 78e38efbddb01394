"""Verbs that show what is recorded of managers: list, describe, logs."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.output import Document, clean, emit, emit_list, show_facts, show_rows
from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.cli.session import current
from crawler_lifecycle.cli.states import TERMINAL

from . import tables
from .control import MANAGER, ManagerId

Limit = Annotated[int, Parameter(help="at most so many")]
State = Literal["all", "buffered", "delayed", "queued", "starting", "started", "ended", "skipped"]


def list_managers(
    *,
    status: Annotated[str | None, Parameter(help="INITIALIZING, PROCESSING, STOPPING, COMPLETED or FAILED")] = None,
    name: Annotated[str | None, Parameter(help="only managers of this name")] = None,
    flow: Annotated[str | None, Parameter(help="only that of this flow; goes with --name")] = None,
    limit: Limit = 50,
) -> int:
    """List managers, newest first."""
    session = current()
    filters = {"status": status.upper() if status else None, "name": name, "flow_id": flow}
    with session.gateway() as gateway:
        rows = gateway.rows("/v1/managers", limit=limit, **filters)
    empty = "no managers; next: crawlctl manager start --help"
    emit_list(session, "managers", rows, tables.MANAGERS, name="manager_id", empty=empty)
    return Exit.DONE


def describe(
    manager: ManagerId,
    /,
    *,
    jobs: Annotated[State | None, Parameter(help="list its jobs in this state as well; skipped: with why")] = None,
    limit: Limit = 50,
) -> int:
    """Show everything about a manager on one screen, and its jobs."""
    session = current()
    with session.gateway() as gateway:
        found = gateway.get(MANAGER.path(manager))
        state = None if jobs == "all" else jobs
        rows = [] if jobs is None else gateway.rows(MANAGER.path(manager, "/jobs"), state=state, limit=limit)

    def table() -> None:
        show_facts(session, tables.facts(found))
        if jobs is not None:
            print()
            show_rows(session, rows, tables.JOBS, empty="no such jobs")

    document = found if jobs is None else {**found, "job_rows": rows}
    emit(session, document, names=[manager], table=table)
    session.say(f"next: {' · '.join(_next_steps(found))}")
    return Exit.DONE


def logs(manager: ManagerId, /) -> int:
    """Show what the class of a manager printed last, at most 16 KiB."""
    session = current()
    with session.gateway() as gateway:
        text = gateway.text(MANAGER.path(manager, "/logs"))
    print(clean(text, lines=True), end="")
    if not text:
        session.say("it has printed nothing yet")
    return Exit.DONE


def _next_steps(row: Document) -> list[str]:
    one = row.get("manager_id")
    looks = [state for name, state in (("skipped", "skipped"), ("bad", "ended")) if tables.jobs(row).get(name)]
    why = [f"crawlctl manager describe {one} --jobs {state}" for state in looks]
    begun = any(tables.jobs(row).get(state) for state in ("started", "ended"))
    runs = [f"crawlctl list --parent {row.get('workflow_id')}"] if begun else []
    if row.get("status") in TERMINAL or row.get("paused"):
        return [*why, *runs, f"crawlctl manager resume {one}"]
    return [*why, f"crawlctl manager watch {one}", *runs, f"crawlctl manager stop {one}"]
