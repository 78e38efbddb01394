"""``crawlctl tasks``: lists the tasks of a run, and adds tasks to a live run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from crawler_lifecycle.cli.inputs import Given, pairs
from crawler_lifecycle.cli.output import clean, emit, emit_list, show_facts
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.cli.subjects import Limit
from crawler_lifecycle.subjects import Cell, Document

from . import tables
from .start import read_tasks
from .texts import RunId

if TYPE_CHECKING:
    from crawler_lifecycle.cli.client.gateway import Gateway

#: The maximum number of tasks in one request. Temporal limits the size of a request.
PAGE = 500

app = App(name="tasks", help="List the tasks of a run, or add tasks to it.")


@app.default
def tasks(
    run: RunId,
    /,
    *,
    limit: Limit = 500,
    superseded: bool = False,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"])] = False,
) -> int:
    """List the tasks of a run.

    Parameters
    ----------
    superseded
        include tasks that a later attempt replaced
    watch
        show changes until the run has ended
    """
    with current().gateway() as gateway:
        if watch:
            from .watch import watch_tasks

            return watch_tasks(gateway, run, limit)
        rows = gateway.tasks(run, limit=limit, superseded="true" if superseded else None)
    emit_list("tasks", rows, tables.TASKS, name="task_id", empty=f"run {run} has no tasks")
    return Exit.DONE


@app.command
def add(
    run: RunId,
    /,
    *,
    arg: Given = None,
    file: Path | None = None,
    request_id: str | None = None,
) -> None:
    """Add tasks to a live run: one task with -a, or many tasks with --file.

    If the same command is repeated, even after an interruption, no task is added twice. To add the
    same tasks once more, give a different --request-id.

    Parameters
    ----------
    arg
        argument of one more task, name=value
    file
        file with a JSON object for each task; -: standard input
    request_id
        the same id adds nothing twice; default: a hash of the tasks
    """
    if (arg is None) == (file is None):
        raise WrongUsage(
            "give either -a or --file",
            "give -a name=value for one task, or --file F.jsonl for many",
        )
    wanted = [{"args": pairs(arg, "-a")}] if file is None else read_tasks(file, "--file")
    args: list[dict[str, str]] = [task["args"] for task in wanted]
    stem = request_id or fingerprint(run, args)
    added: list[Document] = []
    notes: list[str] = []
    with current().gateway() as gateway:
        present = _present(gateway, run)
        for first in range(0, len(args), PAGE):
            page = args[first : first + PAGE]
            try:
                body = {"tasks": [{"args": row} for row in page]}
                answer = gateway.post(f"/v1/runs/{run}/tasks", body, f"{stem}-{first // PAGE}")
            except CommandFailed as failure:
                raise _stopped(failure, first, len(args)) from None
            added += answer.get("tasks", [])
            if answer.get("note"):
                notes.append(clean(answer["note"]))
    document: dict[str, Any] = {"run_id": run, "tasks": added, "request_id": stem}
    lines: list[tuple[str, Cell]] = [("run", run), ("tasks", f"{len(added)} ({_indexes(added)})")]
    emit(
        document,
        names=[task.get("task_id") for task in added],
        table=lambda: show_facts(lines),
        rows=added,
    )
    # Indexes are assigned in order. Tasks with an index below ``present`` existed before this
    # command.
    known = sum(1 for task in added if int(task.get("index", present)) < present)
    if known:
        say(
            f"{known} of them were added earlier; to add the same tasks once more, give a "
            "different --request-id"
        )
    for note in dict.fromkeys(notes):
        say(note)
    say(f"next: crawlctl tasks {run} · crawlctl watch {run}")


def _present(gateway: Gateway, run: int) -> int:
    """Return the number of the run's tasks; 0 if this token may not read the run.

    A crawler has such a token, which may only add tasks to the crawler's own run.
    """
    try:
        counts = gateway.run(run).get("tasks")
    except CommandFailed as failure:
        if failure.code is Exit.NOT_AUTHORISED:
            return 0
        raise
    return sum(counts.values()) if isinstance(counts, dict) else 0


def fingerprint(run_id: int, args: list[dict[str, str]]) -> str:
    """Return the request id for adding these tasks to this run. The same tasks always get the same
    id.
    """
    text = json.dumps([run_id, args], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _stopped(failure: CommandFailed, done: int, total: int) -> CommandFailed:
    if total > PAGE:
        failure.what = f"{failure.what} ({done} of {total} tasks were already added)"
    if failure.code is Exit.UNREACHABLE:
        failure.next_step = "repeat the command: it only adds the missing tasks"
    return failure


def _indexes(added: list[Document]) -> str:
    found = sorted(int(task["index"]) for task in added if isinstance(task.get("index"), int))
    if not found:
        return "none"
    whole = found[-1] - found[0] + 1 == len(found)
    return (
        f"index {found[0]}"
        if len(found) == 1
        else f"indexes {found[0]} to {found[-1]}{'' if whole else ', gaps'}"
    )
