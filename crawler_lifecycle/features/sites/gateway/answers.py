"""Responses about sites, and the figures that they contain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import Path
from pydantic import BaseModel, Field

from crawler_lifecycle.gateway.api.paging import Choice, Paging, SearchText

from ..ports import SiteBlock, SiteMinute, SiteProxy, SiteRobots, SiteRow, SiteRun
from ..store.sites import SiteStore

SiteName = Annotated[str, Path(max_length=300)]
#: The number of blocks in the response about one site.
BLOCKS = 20
#: The chart shows the requests of these hours, and a bar stands for some minutes.
CHART_HOURS = 6
BAR_MINUTES = 5
#: The size of the chart, and the width of a bar, in units of the SVG.
HEIGHT = 72
WIDTH = 10


class SiteFilters(Paging):
    """Filters of ``GET /v1/sites``."""

    search: SearchText = None
    show: Literal["closed", "limited", "busy"] | None = None
    """``closed`` now, ``limited`` by an entry of their own, or ``busy`` in the last 24 hours."""


class SitePage(BaseModel):
    """A page of sites, by name."""

    sites: list[SiteRow]
    next_page_token: str | None


class Hours(Choice):
    """Parameters of ``GET /v1/sites/{site}``."""

    minutes: int = Field(default=60, ge=1, le=24 * 60)


@dataclass(frozen=True, slots=True)
class Site(SiteRow):
    """One site with its figures."""

    use: float | None
    """The part of `requests_per_s` that was used between the first and the last of these minutes,
    from 0 to 1; null if it has no such limit.
    """
    statuses: Mapping[str, int]
    """The responses of these minutes by status; `error` counts requests without a response."""
    minutes: list[SiteMinute]
    """The last minutes with requests, oldest first; empty for a token of one project."""
    proxies: list[SiteProxy]
    """The requests through each proxy in the last 7 days; empty for a token of one project."""
    blocks: list[SiteBlock]
    """The last blocks, newest first."""
    robots: list[SiteRobots]
    """The robots.txt of its origins: at most 100."""
    runs: list[SiteRun]
    """Runs whose tasks execute on it, and those that wait for it: at most 100 of each."""


@dataclass(frozen=True, slots=True)
class ChangedSite(SiteRow):
    """The site after a command. ``note`` is a sentence about what changed."""

    note: str | None


@dataclass(frozen=True, slots=True)
class RateChart:
    """The requests per second in the last hours, as the path of an SVG."""

    path: str
    line: float | None
    """The position of the limit, measured from the top; null if it is unknown."""
    most: float
    """The requests per second that the full height stands for."""
    width: int = CHART_HOURS * 60 // BAR_MINUTES * WIDTH
    height: int = HEIGHT
    hours: int = CHART_HOURS


def site_of(store: SiteStore, row: SiteRow, most: int) -> Site:
    """Return the response about one site, with the figures of the last ``most`` minutes."""
    minutes = store.minutes(row.site, most)
    blocks = store.blocks(row.site, limit=BLOCKS)
    robots = store.robots(row.site)
    runs = store.site_runs(row.site)
    known = {**asdict(row), "blocks": blocks, "robots": robots, "runs": runs}
    proxies = store.proxies(row.site)
    use = use_of(row, minutes)
    return Site(**known, use=use, statuses=statuses_of(minutes), minutes=minutes, proxies=proxies)


def use_of(row: SiteRow, minutes: Sequence[SiteMinute]) -> float | None:
    """Return the part of the limit of requests that was used between the first and the last of
    these minutes, so that hours without crawls do not count.
    """
    rate = row.rate
    if rate is None or row.last_minute is None:
        return None
    if not minutes:
        return 0.0
    count = (minutes[-1].at - minutes[0].at) // timedelta(minutes=1) + 1
    requests = sum(minute.requests for minute in minutes)
    return round(requests / (rate * 60 * count), 4)


def statuses_of(minutes: Sequence[SiteMinute]) -> dict[str, int]:
    """Return how many responses had each status, most frequent first."""
    found = Counter[str]()
    for minute in minutes:
        found.update(minute.statuses)
    return dict(found.most_common())


def rate_chart(
    minutes: Sequence[SiteMinute], rate: float | None, now: datetime
) -> RateChart | None:
    """Return the chart of the last ``CHART_HOURS``; ``None`` without any requests."""
    bars = Counter[int]()
    for minute in minutes:
        age = (now - minute.at) // timedelta(minutes=BAR_MINUTES)
        bars[age] += minute.requests
    rates = {age: requests / (BAR_MINUTES * 60) for age, requests in bars.items()}
    highest = max(rates.values(), default=0.0)
    if not highest:
        return None
    most = max(highest, rate or 0.0)
    parts = []
    count = CHART_HOURS * 60 // BAR_MINUTES
    for age, value in sorted(rates.items()):
        if 0 <= age < count:
            high = max(round(HEIGHT * value / most, 1), 1)
            left = (count - 1 - age) * WIDTH
            parts.append(f"M{left} {HEIGHT}v-{high}h{WIDTH - 2}v{high}z")
    line = None if rate is None else round(HEIGHT * (1 - rate / most), 1)
    return RateChart("".join(parts), line, most)
