"""``crawlctl watch``, and the option ``--watch`` of other verbs: show changes as they happen.

On a terminal, a view is redrawn. Output that does not go to a terminal gets one plain line per
change, without control codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.cli.output import STYLES, build_table, clean, emit_list, milliseconds, number
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current
from crawler_lifecycle.cli.subjects import Entry, is_news, verdict, watch_changes
from crawler_lifecycle.domain.status_words import status_word
from crawler_lifecycle.subjects import TERMINAL, Column, Document

from . import tables
from .texts import (
    RUN,
    counters,
    counts_of,
    run_line,
    stop_words,
    task_line,
    truth_words,
    waiting_clause,
    why_of,
)

if TYPE_CHECKING:
    from crawler_lifecycle.cli.client.gateway import Gateway

LIVE = ("INITIALIZING", "PROCESSING", "STOPPING")
#: The maximum number of tasks that are shown individually. All further tasks are only counted.
TASKS_PAGE = 200
#: The maximum number of ended runs that stay in the table of live runs.
ENDED_SHOWN = 10
STAGES = ("initiation", "deployment", "reconciliation", "completion")
#: The number of lines in the view, excluding the lines for tasks.
FRAME = 14
#: The order of tasks if not all tasks fit on the screen: executing and failed tasks come first.
_RANK = {
    "STOPPING": 0,
    "RUNNING": 1,
    "PENDING": 2,
    "LOST": 3,
    "FAILED": 4,
    "CANCELLED": 5,
    "QUEUED": 6,
}


@dataclass(slots=True)
class WatchedRun:
    """The latest documents about a run."""

    run: Document = field(default_factory=dict)
    tasks: Sequence[Document] = ()
    corrections: Sequence[Document] = ()


def watch(run: int | None = None, /) -> int:
    """Watch a run until its end, or the table of live runs until Ctrl-C.

    The exit code shows the outcome of the run: 0 completed, 5 failed, 6 stopped; 7 if --timeout
    expired first.

    Parameters
    ----------
    run
        the run's id; default: all live runs
    """
    with current().gateway() as gateway:
        if run is None:
            return watch_list(gateway, {"status": list(LIVE)}, TASKS_PAGE)
        return watch_run(gateway, run)


# --- one run --------------------------------------------------------------------------------------


def watch_run(gateway: Gateway, run_id: int, *, after: Document | None = None) -> int:
    """Show a run until its end.

    Return the exit code. Attempts before the attempt in ``after`` are ignored.
    """
    seen = WatchedRun()
    _, code = watch_changes(
        lambda: _read(gateway, run_id, seen),
        _entries,
        picture=lambda seen: draw(seen, get_terminal_size().lines),
        end=lambda seen: verdict(seen.run, "completed") if is_news(seen.run, after) else None,
    )
    return RUN.seen_to_its_end(seen.run, code)


def _read(gateway: Gateway, run_id: int, seen: WatchedRun) -> WatchedRun:
    run = gateway.poll(f"/v1/runs/{run_id}")
    tasks = gateway.poll(f"/v1/runs/{run_id}/tasks", page_size=TASKS_PAGE).get("tasks", [])
    if _moved(run) != _moved(seen.run) or len(tasks) != len(seen.tasks):
        seen.corrections = gateway.rows(f"/v1/runs/{run_id}/corrections", limit=TASKS_PAGE)
    seen.run = run
    seen.tasks = tasks
    return seen


def _moved(run: Document) -> tuple[object, ...]:
    return run.get("status"), run.get("attempt"), run.get("tasks")


def _entries(seen: WatchedRun) -> list[Entry]:
    """Return a line for the run, and one for each task and correction."""
    document = {**seen.run, "task_rows": list(seen.tasks), "corrections": list(seen.corrections)}
    lines = {"run": run_line(seen.run)}
    if len(seen.tasks) < TASKS_PAGE:
        lines |= {f"task {task.get('task_id')}": task_line(task) for task in seen.tasks}
    else:
        lines["counts"] = f"tasks {counts_of(seen.run, seen.tasks)}"
    for wrong in seen.corrections:
        believed = (
            f"{clean(wrong.get('believed'))} was untrue for {milliseconds(wrong.get('lag_ms'))}"
        )
        where = f"task {wrong['task_id']} " if wrong.get("task_id") else ""
        truth = f"{clean(wrong.get('kind'))}, it was {clean(wrong.get('truth'))}"
        lines[f"correction {wrong.get('id')}"] = f"correction: {where}{believed}: {truth}"
    return [(key, line, document) for key, line in lines.items()]


def watch_tasks(gateway: Gateway, run_id: int, limit: int) -> int:
    """Show the tasks of a run until the run has ended. Return the exit code, which shows the run's
    outcome.
    """

    def ask() -> tuple[Document, list[dict[str, Any]]]:
        run = gateway.poll(f"/v1/runs/{run_id}")
        if limit > TASKS_PAGE:
            return run, gateway.tasks(run_id, limit=limit)
        return run, gateway.poll(f"/v1/runs/{run_id}/tasks", page_size=limit).get("tasks", [])

    (run, rows), code = watch_changes(
        ask,
        lambda found: [(row.get("task_id"), task_line(row), row) for row in found[1]],
        picture=lambda found: _rows(found[1], tables.TASKS),
        end=lambda found: verdict(found[0], "completed"),
    )
    if code is None:
        raise RUN.gave_up(run_id, f"{status_word(run)}, {run.get('stage')}")
    if current().output in ("json", "yaml", "name"):
        emit_list("tasks", rows, tables.TASKS, name="task_id", empty="")
    return code


# --- all runs -------------------------------------------------------------------------------------


def watch_list(
    gateway: Gateway, filters: Mapping[str, str | Sequence[str] | None], limit: int
) -> int:
    """Show the runs that match the filters until Ctrl-C or ``--timeout``.

    A run that no longer matches is shown once more, with its new state.
    """
    if not current().for_people and current().output != "jsonl":
        fix = "use -o table or -o jsonl, which write line by line"
        raise WrongUsage(f"-o {current().output} cannot be used to watch a list", fix)
    gone: dict[object, Document] = {}
    last: list[object] = []

    def ask() -> Sequence[Document]:
        rows = gateway.runs(limit=limit, **filters)
        present = [row.get("run_id") for row in rows]
        left = [_left(gateway, line) for line in last if line not in present and line not in gone]
        gone.update({run["run_id"]: run for run in left if run and run.get("status") in TERMINAL})
        for run_id in gone.keys() & set(present):
            del gone[run_id]
        last[:] = present
        # Show a live run that no longer matches only once.
        going_on = [run for run in left if run and run.get("status") not in TERMINAL]
        shown = (*rows, *going_on, *list(gone.values())[-ENDED_SHOWN:])
        return sorted(shown, key=lambda row: -int(row.get("run_id") or 0))

    watch_changes(
        ask,
        lambda rows: [(row.get("run_id"), run_line(row), row) for row in rows],
        picture=lambda rows: _rows(rows, RUN.subject.columns) if rows else "no live runs",
        nothing="no live runs yet; next: crawlctl crawler list",
    )
    return Exit.DONE


def _left(gateway: Gateway, run_id: object) -> Document | None:
    """Return the current state of a run that is no longer listed; ``None`` if the run no longer
    exists.
    """
    try:
        return gateway.run(int(str(run_id)))
    except CommandFailed as failure:
        if failure.code is Exit.NOT_FOUND:
            return None
        raise


def _rows(rows: Sequence[Document], shown: Sequence[Column]) -> Any:
    """Return a table that fits on the terminal, and the number of rows that do not fit."""
    from rich.console import Group

    most = max(1, get_terminal_size().lines - 3)
    table = build_table(rows[:most], shown)
    return table if len(rows) <= most else Group(table, f"… {len(rows) - most} more")


# --- the tree -------------------------------------------------------------------------------------


def draw(seen: WatchedRun, height: int) -> Any:
    """Return a tree for a run that fits on a terminal of this height: the run's four stages, with
    its tasks.
    """
    from rich.console import Group
    from rich.text import Text
    from rich.tree import Tree

    run = seen.run
    status = str(run.get("status"))
    title = Text(f"run {run.get('run_id')}  {clean(run.get('crawler'))}  ", style="bold")
    word = status_word(run)
    title.append(word, style=STYLES.get(word, ""))
    if run.get("outcome"):
        title.append(f"  {clean(run['outcome'])}")
    if int(run.get("attempt") or 1) > 1:
        title.append(f"  attempt {run['attempt']}", style="not bold")
    tree = Tree(title, guide_style="dim")
    reached = STAGES.index(str(run.get("stage"))) if run.get("stage") in STAGES else 0
    for position, stage in enumerate(STAGES):
        over = status in TERMINAL or position < reached
        word = "done" if over else "now" if position == reached else "-"
        branch = tree.add(
            Text(stage.ljust(15)).append(word, style="cyan" if word == "now" else "dim")
        )
        if word == "now" and waiting_clause(run):
            branch.add(Text(waiting_clause(run)))
        if stage == "reconciliation" and seen.tasks:
            _add_tasks(branch, seen, max(1, height - FRAME))
    return Group(tree, *(Text(line) for line in _below(run, seen.corrections)))


def _add_tasks(branch: Any, seen: WatchedRun, most: int) -> None:
    from rich.text import Text

    branch.add(Text(counts_of(seen.run, seen.tasks)))
    first = sorted(seen.tasks, key=lambda task: _RANK.get(str(task.get("status")), 9))[:most]
    for task in sorted(first, key=lambda task: int(task.get("task_index") or 0)):
        status = str(task.get("status"))
        line = Text(f"{task.get('task_index')}".rjust(4) + "  ").append(
            status.ljust(9), style=STYLES.get(status, "")
        )
        line.append(f"  {number(task.get('pages'))} pages, {number(task.get('items'))} items")
        why = why_of(task)
        branch.add(line.append(f"  {why}", style="dim") if why else line)
    counted = (
        sum((seen.run.get("tasks") or {}).values())
        if isinstance(seen.run.get("tasks"), dict)
        else 0
    )
    left = max(counted, len(seen.tasks)) - len(first)
    if left > 0:
        branch.add(Text(f"… {left} more: crawlctl tasks {seen.run.get('run_id')}"))


def _below(run: Mapping[str, Any], corrections: Sequence[Document]) -> list[str]:
    ended = run.get("status") in TERMINAL
    stop = run.get("stop")
    lines = [counters(run), stop_words(stop) if stop else "", clean(run.get("cause"))]
    lines.append(waiting_clause(run) if ended else truth_words(run))
    for wrong in list(corrections)[-3:]:
        untrue = (
            f"{clean(wrong.get('believed'))} was untrue for {milliseconds(wrong.get('lag_ms'))}"
        )
        lines.append(f"correction: {untrue}: {clean(wrong.get('kind'))}")
    return [line for line in lines if line]
