"""The runs of the last 24 hours as bars: how many were accepted in each hour, and what became of
them.
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

#: Hours with a bar of their own, the present one included; seconds for which the numbers are
#: reused.
HOURS = 24
FRESH_S = 10.0
#: How late a run may appear in the list of an hour.
HOUR = timedelta(hours=1)
LATE = timedelta(minutes=10)
#: The size of a bar, and the least height of a part, so that one failed run among thousands is
#: seen.
WIDTH = 24
HEIGHT = 40
LEAST = 3
#: What becomes of a run, from the bottom of a bar to its top; its width shows the same as its
#: colour.
_WIDTHS = {"completed": 12, "open": 16, "stopped": 16, "failed": 22}


@dataclass(frozen=True, slots=True)
class Bar:
    """The runs of one hour."""

    x: int
    title: str
    link: str
    parts: list[tuple[str, int, int, int, int]]
    """Kind, x, y, width and height of each part."""


@dataclass(frozen=True, slots=True)
class Day:
    """The bars, and words with links that count all of them."""

    bars: list[Bar]
    words: list[tuple[str, str]]


@dataclass(eq=False)
class LastDay:
    """Counts the runs of the last 24 hours. The answer is reused for ``FRESH_S`` seconds.

    An hour that is over, and whose runs have all ended, changes only when somebody resumes one of
    them. Each time, only one such hour is counted again, in turn: to count all runs of a day would
    cost a database too much.
    """

    runs: RunReader
    clock: Clock

    def __post_init__(self) -> None:
        self.kept = TtlCache(partial(run_in_threadpool, self._count), FRESH_S)
        #: By project: the hours, the one that was counted longest ago first. Each has its time of
        #: counting and numbers.
        self._hours: dict[str | None, dict[datetime, tuple[datetime, Counter[str]]]] = {}

    def _count(self) -> Day:
        now = self.clock().astimezone(UTC)
        since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)
        hours = [since + timedelta(hours=n) for n in range(HOURS)]
        # The clocks of hosts differ: a run may appear late in an hour that is over.
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
