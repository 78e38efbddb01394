"""Charts of the last runs of a crawler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crawler_lifecycle.domain.code_changes import CodeChange
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.results import is_good, run_seconds
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.runs import RecentRun, RunRow, ShortRun

from .formats import number, span

#: A run that a chart can show.
Run = RecentRun | RunRow
#: The height of the items in a tall chart, and the width of one run, in units of the SVG.
HEIGHT = 72
WIDTH = 16
#: The minimum height of a bar, so that a run without items is visible.
LEAST = 3


@dataclass(frozen=True, slots=True)
class Bar:
    """One run in a chart."""

    run: Run
    kind: str
    """The end of the run: ``completed``, ``less``, ``failed``, ``stopped`` by a person, or
    ``open``.
    """
    x: int
    items: float
    """The height of the bar for the items. The run with the most items has the full height."""
    duration: float
    title: str
    change: str | None = None
    """A sentence if the run executed other code than the run before it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A tall chart: bars for the items above a line, and bars for the durations below it."""

    bars: list[Bar]
    most: int
    """The number of items that the full height stands for."""
    usual: float | None
    """The usual number of items, which is drawn as a line; ``None`` if it is unknown."""
    line: float
    """The position of this line, measured from the top."""
    room: int
    """The width, which does not depend on the number of runs."""
    height: int = HEIGHT
    width: int = WIDTH


def chart(
    runs: Sequence[Run],
    room: int,
    usual: float | None,
    changes: Sequence[CodeChange] = (),
) -> Chart:
    """Return the chart of at most ``room`` runs, with a mark for each change of their code.

    ``runs`` is sorted from newest to oldest; the newest run is on the right. The full height stands
    for the most items of one run, or for the ``usual`` number if that is more.
    """
    most = max([int(usual or 0), *(run.items or 0 for run in runs)])
    line = HEIGHT * (1 - (usual or 0) / most) if most else HEIGHT
    longest = max((run_seconds(run) or 0.0 for run in runs), default=0.0)
    marks = {change.run_id: change.title for change in changes}
    made = []
    for n, run in enumerate(reversed(runs)):
        took = run_seconds(run)
        items = HEIGHT * (run.items or 0) / most if most else 0.0
        duration = HEIGHT * (took or 0.0) / longest if longest else 0.0
        words = [
            f"run {run.run_id}: {run.status}",
            run.outcome or "",
            f"{number(run.items)} items",
            f"{number(run.errors)} errors",
            span(took) if took is not None else "",
        ]
        title = ", ".join(word for word in words if word)
        made.append(
            Bar(
                run,
                run_kind(run),
                x=n * WIDTH,
                items=round(max(items, LEAST), 1),
                duration=round(duration, 1),
                title=title,
                change=marks.get(run.run_id),
            )
        )
    return Chart(made, most, usual, round(line, 1), room * WIDTH)


def bar_paths(runs: Sequence[ShortRun], height: int, width: int) -> Mapping[str, str]:
    """Return the bars of each kind as one SVG path, because a page has a hundred such charts."""
    most = max((run.items or 0 for run in runs), default=0) or 1
    paths: dict[str, str] = {}
    for n, run in enumerate(reversed(runs)):
        high = max(round(height * (run.items or 0) / most), LEAST)
        path = f"M{n * width} {height}v-{high}h{width - 2}v{high}z"
        kind = run_kind(run)
        paths[kind] = paths.get(kind, "") + path
    return paths


def run_kind(run: ShortRun | RunRow) -> str:
    """Return the kind of a run's bar."""
    if run.status == RunStatus.FAILED:
        return "stopped" if run.ended_by == EndedBy.PERSON else "failed"
    if run.status != RunStatus.COMPLETED:
        return "open"
    return "completed" if is_good(run) else "less"
