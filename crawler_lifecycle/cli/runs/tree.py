"""A run as a tree on a terminal: its four stages, and the tasks inside of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crawler_lifecycle.cli.output import STYLES, Document, clean, milliseconds, number
from crawler_lifecycle.cli.session import Session
from crawler_lifecycle.cli.states import TERMINAL, status_word

from .texts import counters, counts_of, stop_words, truth_words, waiting_clause, why_of

STAGES = ("initiation", "deployment", "reconciliation", "completion")
#: Lines that everything but the tasks needs.
FRAME = 14
#: Which tasks are shown when not all of them find room: what executes or went wrong comes first.
_RANK = {"STOPPING": 0, "RUNNING": 1, "PENDING": 2, "LOST": 3, "FAILED": 4, "CANCELLED": 5, "QUEUED": 6}


@dataclass(slots=True)
class Seen:
    """What the last round of questions found, and the lines that were told of it and of those before."""

    run: Mapping[str, Any] = field(default_factory=dict)
    tasks: Sequence[Document] = ()
    corrections: Sequence[Document] = ()
    told: dict[str, str] = field(default_factory=dict)


def draw(session: Session, seen: Seen, height: int) -> Any:
    """The tree for a terminal of this height."""
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
