"""``crawlctl watch``, and the ``--watch`` of other verbs: what changes, as it changes.

On a terminal the picture is redrawn in place. Anywhere else one plain line is written for each change, without control
codes, so that a log of it can be read.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from crawler_lifecycle.cli import output
from crawler_lifecycle.cli.client.polling import Polling
from crawler_lifecycle.cli.output import STYLES, as_json, build_table, clean, milliseconds, number, write_lines
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import Session, current
from crawler_lifecycle.cli.subjects import LONGEST_PAUSE_S, gave_up, look_further, lost, show_state, verdict
from crawler_lifecycle.domain.waiting import ageless
from crawler_lifecycle.subjects import TERMINAL, Column, Document, status_word

from . import tables
from .texts import RUN, counters, counts_of, run_line, stop_words, task_line, truth_words, waiting_clause, why_of

if TYPE_CHECKING:
    from crawler_lifecycle.cli.client.gateway import Gateway

LIVE = ("INITIALIZING", "PROCESSING", "STOPPING")
#: Of larger runs the first tasks are shown one by one, all of them as counts.
TASKS_PAGE = 200
#: Runs that ended while the table of live runs is watched stay in it, the newest of them.
ENDED_SHOWN = 10
STAGES = ("initiation", "deployment", "reconciliation", "completion")
#: Lines that everything but the tasks needs.
FRAME = 14
#: Which tasks are shown when not all of them find room: what executes or went wrong comes first.
_RANK = {"STOPPING": 0, "RUNNING": 1, "PENDING": 2, "LOST": 3, "FAILED": 4, "CANCELLED": 5, "QUEUED": 6}


@dataclass(slots=True)
class Seen:
    """The findings of the last round of questions, and the lines that were told of it and of those before."""

    run: Mapping[str, Any] = field(default_factory=dict)
    tasks: Sequence[Document] = ()
    corrections: Sequence[Document] = ()
    told: dict[str, str] = field(default_factory=dict)


def watch(
    run: Annotated[int | None, Parameter(help="the run's id; without it all live runs are shown")] = None, /
) -> int:
    """Watch a run to its end, or the table of live runs until Ctrl-C.

    The exit code tells how the run ended: 0 completed, 5 failed, 6 stopped. --timeout gives up earlier (7).
    """
    session = current()
    with session.gateway() as gateway:
        if run is None:
            return watch_list(session, gateway, {"status": list(LIVE)}, TASKS_PAGE)
        return watch_run(session, gateway, run)


# --- one run -------------------------------------------------------------------------------------------------------


def watch_run(session: Session, gateway: Gateway, run_id: int, *, attempt: int = 0) -> int:
    """Show a run until its end (of this attempt or a later one); the exit code that tells how it ended."""
    polling = Polling(timeout_s=session.timeout_s, longest_s=LONGEST_PAUSE_S)
    seen = Seen()
    with _screen(session) as show:
        for _ in polling.answers(lambda: _read(gateway, run_id, seen), silence=lost(session)):
            told = _told(session, seen)
            if show is not None:
                show(draw(session, seen, _height()))
            elif told:
                _write(session, seen, told)
            if told:
                polling.hurry()
            code = verdict(seen.run, "completed") if int(seen.run.get("attempt") or 0) >= attempt else None
            if code is not None:
                break
        else:
            raise gave_up(RUN, run_id, f"{status_word(seen.run)}, {seen.run.get('stage')}")
    if session.output in ("json", "yaml", "name"):
        return show_state(RUN, dict(seen.run), code)
    return look_further(RUN, run_id, code)


def _read(gateway: Gateway, run_id: int, seen: Seen) -> None:
    run = gateway.poll(f"/v1/runs/{run_id}")
    tasks = gateway.poll(f"/v1/runs/{run_id}/tasks", page_size=TASKS_PAGE).get("tasks", [])
    if _moved(run) != _moved(seen.run) or len(tasks) != len(seen.tasks):
        seen.corrections = gateway.rows(f"/v1/runs/{run_id}/corrections", limit=TASKS_PAGE)
    seen.run, seen.tasks = run, tasks


def _moved(run: Mapping[str, Any]) -> tuple[object, ...]:
    return run.get("status"), run.get("attempt"), run.get("tasks")


def _told(session: Session, seen: Seen) -> list[str]:
    """A line for each thing that is not what was told last."""
    lines = []
    entries: list[tuple[str, str]] = [("run", run_line(seen.run))]
    if len(seen.tasks) < TASKS_PAGE:
        entries += [(f"task {task.get('task_id')}", task_line(task)) for task in seen.tasks]
    else:
        entries += [("counts", f"tasks {counts_of(seen.run, seen.tasks)}")]
    for wrong in seen.corrections:
        believed = f"{clean(wrong.get('believed'))} was untrue for {milliseconds(wrong.get('lag_ms'))}"
        where = f"task {wrong['task_id']} " if wrong.get("task_id") else ""
        truth = f"{clean(wrong.get('kind'))}, it was {clean(wrong.get('truth'))}"
        entries.append((f"correction {wrong.get('id')}", f"correction: {where}{believed}: {truth}"))
    for key, line in entries:
        if seen.told.get(key) != ageless(line):
            seen.told[key] = ageless(line)
            lines.append(line)
    return lines


def _write(session: Session, seen: Seen, lines: Sequence[str]) -> None:
    if session.output == "jsonl":
        print(as_json({**seen.run, "task_rows": list(seen.tasks), "corrections": list(seen.corrections)}, indent=None))
        sys.stdout.flush()
    else:
        write_lines(session, lines)


def watch_tasks(session: Session, gateway: Gateway, run_id: int, limit: int) -> int:
    """Show the tasks of a run until it has ended; the exit code that tells how it ended."""
    polling = Polling(timeout_s=session.timeout_s, longest_s=LONGEST_PAUSE_S)
    told: dict[object, str] = {}
    run: Mapping[str, Any] = {}
    rows: list[dict[str, Any]] = []

    def ask() -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
        size = min(limit, TASKS_PAGE)
        if limit > TASKS_PAGE:
            return gateway.poll(f"/v1/runs/{run_id}"), gateway.tasks(run_id, limit=limit)
        page = gateway.poll(f"/v1/runs/{run_id}/tasks", page_size=size)
        return gateway.poll(f"/v1/runs/{run_id}"), page.get("tasks", [])

    with _screen(session) as show:
        for run, rows in polling.answers(ask, silence=lost(session)):
            changed = _changed(told, rows, "task_id", task_line)
            if show is not None:
                show(_rows(session, rows, tables.TASKS))
            elif changed:
                _write_rows(session, changed, task_line)
            if changed:
                polling.hurry()
            code = verdict(run, "completed")
            if code is not None:
                break
        else:
            raise gave_up(RUN, run_id, f"{status_word(run)}, {run.get('stage')}")
    if session.output in ("json", "yaml", "name"):
        output.emit_list(session, "tasks", rows, tables.TASKS, name="task_id", empty="")
    return code


# --- all runs ------------------------------------------------------------------------------------------------------


def watch_list(
    session: Session, gateway: Gateway, filters: Mapping[str, str | Sequence[str] | None], limit: int
) -> int:
    """Show the runs that fit until Ctrl-C or ``--timeout``. A run that no longer fits is shown as it is then."""
    if not session.for_people and session.output != "jsonl":
        cure = "-o table or -o jsonl, which write line by line"
        raise CommandFailed(Exit.USAGE, f"a list that is watched has no end for -o {session.output}", None, cure)
    polling = Polling(timeout_s=session.timeout_s, longest_s=LONGEST_PAUSE_S)
    told: dict[object, str] = {}
    gone: dict[object, Document] = {}
    last: list[object] = []

    def ask() -> tuple[Sequence[Document], Sequence[Document]]:
        rows = gateway.runs(limit=limit, **filters)
        present = {row.get("run_id") for row in rows}
        left = [_left(gateway, one) for one in last if one not in present and one not in gone]
        gone.update({run["run_id"]: run for run in left if run and run.get("status") in TERMINAL})
        for run_id in present & gone.keys():
            del gone[run_id]
        # Those that no longer fit but go on are told once; nobody asks for them afterwards.
        return rows, [run for run in left if run and run.get("status") not in TERMINAL]

    with _screen(session) as show:
        for rows, left in polling.answers(ask, silence=lost(session)):
            last = [row.get("run_id") for row in rows]
            ended = list(gone.values())[-ENDED_SHOWN:]
            shown = sorted((*rows, *left, *ended), key=lambda row: -int(row.get("run_id") or 0))
            changed = _changed(told, shown, "run_id", run_line)
            if show is not None:
                show(_rows(session, shown, RUN.subject.columns) if shown else _text("no live runs"))
            elif changed:
                _write_rows(session, changed, run_line)
            elif not told:
                session.say("no live runs yet; next: crawlctl crawler list")
                told[None] = ""
            if changed:
                polling.hurry()
    return Exit.DONE


def _left(gateway: Gateway, run_id: object) -> Document | None:
    """A run that is no longer listed, as it is now. ``None`` when it is gone altogether."""
    try:
        return gateway.run(int(str(run_id)))
    except CommandFailed as failure:
        if failure.code is Exit.NOT_FOUND:
            return None
        raise


# --- what they share -----------------------------------------------------------------------------------------------


def _changed(
    told: dict[object, str], rows: Sequence[Document], key: str, line: Callable[[Document], str]
) -> list[Document]:
    changed = []
    for row in rows:
        text = ageless(line(row))
        if told.get(row.get(key)) != text:
            told[row.get(key)] = text
            changed.append(row)
    return changed


def _write_rows(session: Session, rows: Sequence[Document], line: Callable[[Document], str]) -> None:
    if session.output == "jsonl":
        for row in rows:
            print(as_json(row, indent=None))
        sys.stdout.flush()
    else:
        write_lines(session, [line(row) for row in rows])


@contextlib.contextmanager
def _screen(session: Session) -> Iterator[Callable[[Any], None] | None]:
    """Something that redraws the terminal; ``None`` where lines are to be written instead."""
    terminal = output.console(session)
    if not session.for_people or not sys.stdout.isatty() or terminal.is_dumb_terminal:
        yield None
        return
    from rich.live import Live

    with Live(console=terminal, auto_refresh=False, vertical_overflow="crop", redirect_stdout=False) as live:
        yield lambda picture: live.update(picture, refresh=True)


def _rows(session: Session, rows: Sequence[Document], shown: Sequence[Column]) -> Any:
    """A table that fits the terminal; what is cut off is counted."""
    from rich.console import Group

    room = max(1, _height() - 3)
    table = build_table(session, rows[:room], shown)
    return table if len(rows) <= room else Group(table, _text(f"… {len(rows) - room} more"))


def _text(words: str) -> Any:
    from rich.text import Text

    return Text(words)


def _height() -> int:
    from shutil import get_terminal_size

    return get_terminal_size().lines


# --- the tree ---------------------------------------------------------------------------------------------------------


def draw(session: Session, seen: Seen, height: int) -> Any:
    """A run as a tree for a terminal of this height: its four stages, and the tasks inside of them."""
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
    for place, stage in enumerate(STAGES):
        over = status in TERMINAL or place < reached
        word = "done" if over else "now" if place == reached else "-"
        branch = tree.add(Text(stage.ljust(15)).append(word, style="cyan" if word == "now" else "dim"))
        if word == "now" and waiting_clause(run):
            branch.add(Text(waiting_clause(run)))
        if stage == "reconciliation" and seen.tasks:
            _add_tasks(branch, seen, max(1, height - FRAME))
    return Group(tree, *(Text(line) for line in _below(run, seen.corrections)))


def _add_tasks(branch: Any, seen: Seen, room: int) -> None:
    from rich.text import Text

    branch.add(Text(counts_of(seen.run, seen.tasks)))
    first = sorted(seen.tasks, key=lambda task: _RANK.get(str(task.get("status")), 9))[:room]
    for task in sorted(first, key=lambda task: int(task.get("task_index") or 0)):
        status = str(task.get("status"))
        line = Text(f"{task.get('task_index')}".rjust(4) + "  ").append(status.ljust(9), style=STYLES.get(status, ""))
        line.append(f"  {number(task.get('pages'))} pages, {number(task.get('items'))} items")
        why = why_of(task)
        branch.add(line.append(f"  {why}", style="dim") if why else line)
    counted = sum((seen.run.get("tasks") or {}).values()) if isinstance(seen.run.get("tasks"), dict) else 0
    left = max(counted, len(seen.tasks)) - len(first)
    if left > 0:
        branch.add(Text(f"… {left} more: crawlctl tasks {seen.run.get('run_id')}"))


def _below(run: Mapping[str, Any], corrections: Sequence[Document]) -> list[str]:
    lines = []
    if counters(run):
        lines.append(counters(run))
    if run.get("stop"):
        lines.append(stop_words(run["stop"]))
    if run.get("cause"):
        lines.append(clean(run["cause"]))
    if run.get("status") not in TERMINAL:
        lines.append(truth_words(run))
    elif waiting_clause(run):
        lines.append(waiting_clause(run))
    for wrong in list(corrections)[-3:]:
        untrue = f"{clean(wrong.get('believed'))} was untrue for {milliseconds(wrong.get('lag_ms'))}"
        lines.append(f"correction: {untrue}: {clean(wrong.get('kind'))}")
    return lines
