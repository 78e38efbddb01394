"""Counters of a run over time, as far as they are recorded: each change of status is an event that
includes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from crawler_lifecycle.gateway.runs.answers import RunDetail
from crawler_lifecycle.ports.runs import Event

#: The maximum number of events that are read.
READ = 300
#: The maximum number of points that are shown.
POINTS = 50
#: The width of a chart.
WIDTH = 320
#: The height of a chart.
HEIGHT = 60


@dataclass(frozen=True, slots=True)
class Line:
    """One counter: its name, its largest value, and its points in units of the SVG."""

    name: str
    most: int
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Counters:
    """The lines, and the rows of the table with a time and the value of each counter."""

    lines: list[Line]
    rows: list[tuple[datetime, list[int | None]]]
    whole: bool
    """False if changes before the first row were not read."""


def counters_of(run: RunDetail, events: Sequence[Event], now: datetime) -> Counters | None:
    """Draw the counters of the present attempt, or return ``None`` if they are known for fewer than
    two times.

    ``events`` has the newest events.
    """
    names = ("pages", "items", "errors")
    found = [
        (
            event.created_at,
            [value if type(value := event.body.get(name)) is int else None for name in names],
        )
        for event in events
        if event.attempt == run.attempt and event.type in ("run.changed", "run.ended")
    ]
    found.append(
        (
            run.ended_at or min(run.last_progress_at or now, now),
            [getattr(run, name) for name in names],
        )
    )
    rows = [
        row
        for row in sorted(found, key=lambda row: row[0])
        if any(one is not None for one in row[1])
    ]
    rows = [
        row
        for n, row in enumerate(rows)
        if n == 0 or row[1] != rows[n - 1][1] or n == len(rows) - 1
    ]
    rows = (
        [rows[n * (len(rows) - 1) // (POINTS - 1)] for n in range(POINTS)]
        if len(rows) > POINTS
        else rows
    )
    if len(rows) < 2 or (length := (rows[-1][0] - rows[0][0]).total_seconds()) <= 0:
        return None
    lines = []
    for n, name in enumerate(names):
        known = [((at - rows[0][0]).total_seconds(), values[n]) for at, values in rows]
        most = max((value or 0 for _, value in known), default=0)
        drawn = [(x, value) for x, value in known if value is not None]
        points = [
            (round(WIDTH * x / length, 1), round(HEIGHT * (1 - y / max(most, 1)), 1))
            for x, y in drawn
        ]
        lines += [Line(name, most, points)] if points else []
    return Counters(lines, rows, len(events) < READ)
