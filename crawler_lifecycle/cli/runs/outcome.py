"""What a command that waited says about a run, and its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from crawler_lifecycle.cli.output import Document, clean, emit, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.runs.states import STATE, STOPPED, TERMINAL
from crawler_lifecycle.cli.session import Session

Goal = Literal["completed", "ended", "started"]


def verdict(run: Document, goal: Goal) -> Exit | None:
    """What a run's state means for somebody who waits for ``goal``; ``None`` to go on waiting."""
    status = run.get("status")
    if status not in TERMINAL:
        return Exit.DONE if goal == "started" and status != "INITIALIZING" else None
    if goal == "ended" or status == "COMPLETED":
        return Exit.DONE
    if goal == "started" and run.get("started_at"):
        return Exit.DONE
    return Exit.RUN_STOPPED if run.get("outcome") in STOPPED else Exit.RUN_FAILED


def gave_up(run_id: int, timeout_s: float | None, state: str) -> CommandFailed:
    """The end of a patience that was limited by ``--timeout``."""
    why = f"after {timeout_s:g} s it is {state or 'unknown'}"
    return CommandFailed(Exit.GAVE_UP_WAITING, "gave up waiting; the run goes on", why, f"crawlctl wait {run_id}")


def show_state(session: Session, run: Document, code: Exit) -> int:
    """Write one run, and say what to look at when it did not go well; its exit code."""
    _show(session, [run])
    if code is not Exit.DONE:
        session.say(f"next: crawlctl describe {run['run_id']} · crawlctl resume {run['run_id']}")
    return code


def _show(session: Session, runs: Sequence[Document]) -> None:
    document: Any = runs[0] if len(runs) == 1 else {"runs": list(runs)}
    names = [run.get("run_id") for run in runs]
    emit(session, document, names=names, table=lambda: show_rows(session, runs, STATE, empty="no run"))
    for run in runs:
        if run.get("note"):
            session.say(f"run {run.get('run_id')}: {clean(run['note'])}")
