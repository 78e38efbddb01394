"""Verbs that show managers, control them or wait for them."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.output import clean, emit, show_facts, show_rows
from crawler_lifecycle.cli.problems import Exit
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
)
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.status_words import status_word
from crawler_lifecycle.subjects import JOB, TERMINAL, WAITING, Document, jobs
from crawler_lifecycle.subjects import MANAGER as SUBJECT


def _line(row: Document) -> str:
    """Return one line about a manager, for ``watch`` and ``wait``."""
    counts = jobs(row)
    waits = sum(counts.get(name, 0) for name in WAITING)
    words = [
        f"manager {row.get('manager_id')} {status_word(row)}",
        f"{row.get('live') or 0} live",
        f"{waits} wait",
    ]
    words += [f"{counts[name]} {name}" for name in ("good", "bad", "skipped") if counts.get(name)]
    said = row.get("error") or (
        row.get("cause") if row.get("status") in TERMINAL else row.get("waiting")
    )
    outcome = f" {row['outcome']}" if row.get("outcome") else ""
    return clean(f"{words[0]}{outcome}, {', '.join(words[1:])}" + (f": {said}" if said else ""))


MANAGER = Kind(SUBJECT, _line)

ManagerId = Annotated[int, Parameter(help="the manager's id")]
ManagerIds = Annotated[int, Parameter(help="more managers")]
Goal = Literal["completed", "ended"]
State = Literal["all", "buffered", "delayed", "queued", "starting", "started", "ended", "skipped"]


def list_managers(
    *,
    status: list[str] | None = None,
    name: str | None = None,
    flow: str | None = None,
    search: Search = None,
    sort: Sort = None,
    project: Project = None,
    limit: Limit = 50,
) -> None:
    """List managers, newest first.

    Parameters
    ----------
    status
        INITIALIZING, PROCESSING, STOPPING, COMPLETED, FAILED, stopped or paused
    name
        only managers with this name
    flow
        only the manager of this flow; needs --name
    """
    MANAGER.list_all(
        limit, status=status, name=name, flow_id=flow, search=search, sort=sort, project=project
    )


def describe(
    manager: ManagerId,
    /,
    *,
    jobs: State | None = None,
    limit: Limit = 50,
) -> None:
    """Show everything about a manager on one screen, and its jobs.

    Parameters
    ----------
    jobs
        also list the jobs in this state
    """
    with current().gateway() as gateway:
        found = gateway.get(MANAGER.path(manager))
        state = None if jobs == "all" else jobs
        rows = (
            []
            if jobs is None
            else gateway.rows(MANAGER.path(manager, "/jobs"), state=state, limit=limit)
        )

    def table() -> None:
        show_facts(SUBJECT.known(found))
        if jobs is not None:
            print()
            show_rows(rows, JOB.columns, empty="no such jobs")

    document = found if jobs is None else {**found, "job_rows": rows}
    emit(document, names=[manager], table=table)
    say(f"next: {' · '.join(_next_steps(found))}")


def logs(manager: ManagerId, /) -> None:
    """Show the last output of a manager's class, at most 16 KiB."""
    with current().gateway() as gateway:
        text = gateway.text(MANAGER.path(manager, "/logs"))
    print(clean(text, lines=True), end="")
    if not text:
        say("it has printed nothing yet")


def _next_steps(row: Document) -> list[str]:
    one = row.get("manager_id")
    polls = [
        state for name, state in (("skipped", "skipped"), ("bad", "ended")) if jobs(row).get(name)
    ]
    why = [f"crawlctl manager describe {one} --jobs {state}" for state in polls]
    begun = any(jobs(row).get(state) for state in ("started", "ended"))
    runs = [f"crawlctl list --parent {row.get('workflow_id')}"] if begun else []
    if row.get("status") in TERMINAL or row.get("paused"):
        return [*why, *runs, f"crawlctl manager resume {one}"]
    return [*why, f"crawlctl manager watch {one}", *runs, f"crawlctl manager stop {one}"]


# --- control --------------------------------------------------------------------------------------


def stop(
    manager: ManagerId,
    /,
    *managers: ManagerIds,
    reason: Reason = None,
    leave: bool = False,
    force: Force = False,
    by: By = None,
    wait: Proof = False,
) -> int:
    """Ask managers and their runs to end. The managers start and retry no more runs.

    Parameters
    ----------
    leave
        do not stop the runs
    """
    body = {
        "force": force or None,
        "leave": leave or None,
        "reason": reason,
        "requested_by": by or user(),
    }
    return MANAGER.each((manager, *managers), "stop", body, wait=wait)


def force_stop(
    manager: ManagerId,
    /,
    *managers: ManagerIds,
    reason: Reason = None,
    yes: Yes = False,
    by: By = None,
    wait: Proof = False,
) -> int:
    """End managers and their runs at once by killing the crawlers."""
    MANAGER.be_sure((manager, *managers), "every run of manager", yes=yes)
    return stop(manager, *managers, reason=reason, force=True, by=by, wait=wait)


def pause(manager: ManagerId, /, *managers: ManagerIds) -> int:
    """Pause managers: they start no more runs until they are resumed.

    Their current runs continue.
    """
    return MANAGER.each((manager, *managers), "pause")


def resume(
    manager: ManagerId,
    /,
    *,
    redo: bool = False,
    wait: End = False,
) -> int:
    """Resume a paused manager, or start the next attempt of one that has ended.

    Parameters
    ----------
    redo
        also continue the runs that the stop of the manager ended
    """
    with current().gateway() as gateway:
        answer = gateway.post(MANAGER.path(manager, "/resume"), {"redo": True} if redo else None)
    if wait:
        return MANAGER.await_end(manager, after=answer)
    MANAGER.show([answer])
    say(f"next: crawlctl manager watch {manager}")
    return Exit.DONE


def set_limit(manager: ManagerId, most: int, /) -> int:
    """Set how many runs a manager may have at once. A lower limit does not end any runs.

    Parameters
    ----------
    most
        number of runs; with 0, the class decides
    """
    return MANAGER.each((manager,), "limit", {"cap": most})


def wait(
    manager: ManagerId, /, *, goal: Annotated[Goal, Parameter(name="--for")] = "completed"
) -> int:
    """Wait for the end of a manager, but not longer than --timeout (exit code 7).

    With --for completed, the exit code shows its outcome: 0 completed, 5 failed, 6 stopped.

    Parameters
    ----------
    goal
        the state to wait for
    """
    return MANAGER.await_end(manager, goal)


def watch(manager: ManagerId, /) -> int:
    """Watch a manager until it ends.

    The exit code shows its outcome: 0 completed, 5 failed, 6 stopped.
    """
    return MANAGER.watch_one(manager)
