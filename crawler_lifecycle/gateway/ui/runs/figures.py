"""The figures of a run: the usual values in earlier runs, and the differences from another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.domain.results import EARLIER, LESS, comparable, run_seconds, usual
from crawler_lifecycle.gateway.runs.answers import RunDetail
from crawler_lifecycle.gateway.ui.parts.charts import Chart, chart
from crawler_lifecycle.gateway.ui.parts.formats import number, span
from crawler_lifecycle.ports.runs import Event, RecentRun, RunRow
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.subjects import plain

#: The number of runs that are read to find the earlier runs in the chart.
READ = 60
#: The maximum number of events that are read for the counters over time.
EVENTS = 300
#: The size of the chart of a counter over time, in units of the SVG.
WIDTH = 320
HEIGHT = 48
COUNTERS = ("pages", "items", "errors")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run as text, and its usual value. ``bad`` is true if it is far too low."""

    name: str
    value: str
    usual: str | None = None
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Earlier:
    """The earlier runs of a run's crawler, and the ``good`` ones that define what is usual.

    ``alike`` is true if these runs had the same arguments and settings.
    """

    runs: Sequence[RecentRun]
    alike: bool
    good: Sequence[RecentRun]

    @classmethod
    def read(cls, runs: RunReader, row: RunRow) -> Earlier:
        """Read the earlier runs of the same project with the same arguments and settings or, if
        there are none, any earlier runs. This call blocks.
        """
        with narrowed(row.project):
            found = runs.brief_runs(READ, crawler=row.crawler, before_id=row.run_id + 1)
        before = found[1:]
        alike = [run for run in before if run.work_hash and run.work_hash == found[0].work_hash]
        good = comparable(found[0], before) if found else []
        return cls((alike or before)[:EARLIER], bool(alike), good)

    def chart(self, row: RunRow) -> Chart:
        """Return the chart of the run and the earlier runs."""
        return chart([row, *self.runs], EARLIER + 1, usual(self.good))


def figures(run: RunDetail, earlier: Earlier, now: datetime) -> list[Figure]:
    """Return the counters and the times of the run."""
    found = []
    for name in COUNTERS:
        value = getattr(run, name)
        middle = usual(earlier.good, name)
        less = run.status.terminal and name != "errors" and (value or 0) < LESS * (middle or 0)
        shown = None if middle is None else number(int(middle))
        found.append(Figure(name, number(value), shown, less))
    took = usual(earlier.good, "duration")
    passed = run_seconds(run, now)
    if passed is not None:
        found.append(Figure("took", span(passed), None if took is None else span(took)))
    if run.started_at is not None:
        waited = (run.started_at - run.created_at).total_seconds()
        if run.attempt == 1:
            found.append(Figure("waited", f"{span(waited)}, pool {run.pool}"))
    if run.pages_per_minute is not None:
        found.append(Figure("pages a minute", number(run.pages_per_minute)))
    return found


def counters_over_time(
    run: RunDetail, events: Sequence[Event], now: datetime
) -> list[tuple[str, int, str]]:
    """Return the name, the largest value and the points of each counter in the present attempt.

    Each change of status is an event that includes the counters. ``events`` is sorted from newest
    to oldest.
    """
    known: list[tuple[datetime, Mapping[str, Any]]] = [
        (event.created_at, event.body)
        for event in reversed(events)
        if event.attempt == run.attempt and event.type in ("run.changed", "run.ended")
    ]
    last = run.ended_at or min(run.last_progress_at or now, now)
    known.append((last, {name: getattr(run, name) for name in COUNTERS}))
    lines = []
    for name in COUNTERS:
        values: list[tuple[datetime, int]] = [
            (at, body[name]) for at, body in known if type(body.get(name)) is int
        ]
        length = (max(at for at, _ in values) - values[0][0]).total_seconds() if values else 0
        most = max((value for _, value in values), default=0)
        if length > 0 and most > 0:
            points = " ".join(
                f"{WIDTH * (at - values[0][0]).total_seconds() / length:.1f},"
                f"{HEIGHT * (1 - value / most):.1f}"
                for at, value in values
            )
            lines.append((name, most, points))
    return lines


def differences(row: RunRow, other: RunRow) -> list[tuple[str, str, str]]:
    """Return the fields in which two requests differ: the name, and both values as text."""
    mine = _flat(row.request)
    theirs = _flat(other.request)
    names = sorted({*mine, *theirs} - {"request_id"})
    found = [(name, mine.get(name), theirs.get(name)) for name in names]
    return [(name, plain(left), plain(right)) for name, left, right in found if left != right]


def _flat(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request. The members of an object count as separate fields."""
    found: dict[str, Any] = {}
    for name, value in request.items():
        members = value.items() if isinstance(value, Mapping) else ()
        found |= {f"{name}.{key}": member for key, member in members}
        if not isinstance(value, Mapping):
            found[name] = value
    return found
