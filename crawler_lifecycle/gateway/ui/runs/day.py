"""The runs of the last 24 hours as bars: the number of runs accepted in each hour, and their
results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.gateway.ttl_cache import TtlCache
from crawler_lifecycle.gateway.ui.parts.choosing import LIVE
from crawler_lifecycle.gateway.ui.parts.rendering import number, query
from crawler_lifecycle.store.runs.reads import RunReader

#: The number of hours with a bar of their own, including the present one.
HOURS = 24
#: Seconds for which the numbers are reused.
FRESH_S = 10.0
#: The length of one bar.
HOUR = timedelta(hours=1)
#: The longest delay with which a run can appear in the list of an hour.
LATE = timedelta(minutes=10)
#: The width of a bar.
WIDTH = 24
#: The height of a bar.
HEIGHT = 40
#: The minimum height of a part, so that one failed run among thousands is visible.
LEAST = 3
#: The results of runs, from the bottom of a bar to its top. The width shows the same as the colour.
_WIDTHS = {"completed": 12, "open": 16, "stopped": 16, "failed": 22}


@dataclass(frozen=True, slots=True)
class Bar:
    """The runs of one hour."""

    x: int
    title: str
    link: str
    parts: list[tuple[str, int, int, int, int]]
    """The kind, x, y, width and height of each part."""


@dataclass(frozen=True, slots=True)
class Day:
    """The bars, and the totals as words with links."""

    bars: list[Bar]
    words: list[tuple[str, str]]


@dataclass(eq=False)
class LastDay:
    """Counts the runs of the last 24 hours. The result is reused for ``FRESH_S`` seconds.

    An hour that is over, and whose runs have all ended, changes only when somebody resumes one of
    these runs. Such hours are recounted in turn, one hour each time, because counting all runs of a
    day would cost a database too much.
    """

    runs: RunReader
    clock: Clock

    def __post_init__(self) -> None:
        self.kept = TtlCache(partial(run_in_threadpool, self._count), FRESH_S)
        #: The hours of each project, starting with the one that was counted longest ago. Each has
        #: the time of its count and the numbers.
        self._hours: dict[str | None, dict[datetime, tuple[datetime, Counter[str]]]] = {}

    def _count(self) -> Day:
        now = self.clock().astimezone(UTC)
        since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)
        hours = [since + timedelta(hours=n) for n in range(HOURS)]
        # Because the clocks of hosts differ, a run can appear late in an hour that is over.
        over = [
            (begin, (at, counts))
            for begin, (at, counts) in self._hours.get(only(), {}).items()
            if at >= begin + HOUR + LATE and not counts["open"] and begin in hours
        ]
        kept = dict(over[1:])
        kept |= {
            begin: (now, self.runs.runs_between(begin, begin + HOUR))
            for begin in hours
            if begin not in kept
        }
        self._hours[only()] = kept
        return drawn(since, [kept[begin][1] for begin in hours])


def drawn(since: datetime, hours: list[Counter[str]]) -> Day:
    """Draw the numbers of the hours from ``since`` on."""
    most = max((hour.total() for hour in hours), default=0)
    bars = [_bar(since, n, one, most) for n, one in enumerate(hours)]
    every = sum(hours, Counter())
    ended = every["failed"] + every["stopped"]
    counted = [
        ("completed", every["completed"], ["COMPLETED"]),
        ("failed or stopped", ended, ["FAILED"]),
    ]
    counted.append(("not ended", every["open"], LIVE))
    return Day(
        bars,
        [
            (f"{number(many)} {word}", _link(since, status=status))
            for word, many, status in counted
            if many
        ],
    )


def _bar(since: datetime, n: int, counts: Mapping[str, int], most: int) -> Bar:
    begin = since + timedelta(hours=n)
    top = HEIGHT
    parts = []
    for kind, width in _WIDTHS.items():
        if many := counts.get(kind, 0):
            high = max(round(many / most * (HEIGHT - LEAST * len(_WIDTHS))), LEAST)
            top -= high
            parts.append((kind, n * WIDTH + (WIDTH - width) // 2, top, width, high))
    said = (
        ", ".join(
            f"{number(counts[kind])} {kind}" for kind in reversed(_WIDTHS) if counts.get(kind)
        )
        or "no run"
    )
    until = begin + timedelta(hours=1)
    link = _link(begin, created_until=until.isoformat())
    return Bar(n * WIDTH, f"{begin:%H:%M} to {until:%H:%M} UTC: {said}", link, parts)


def _link(begin: datetime, **more: str | list[str]) -> str:
    return "/" + query({"created_from": begin.isoformat(), **more})
