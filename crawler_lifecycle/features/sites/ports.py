"""The values that the store of sites returns: sites, their figures, their blocks and their runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

SiteState = Literal["open", "probing", "closed", "outside_hours"]


@dataclass(frozen=True, slots=True)
class SiteRow:
    """A site with its limits, and what happens on it now."""

    site: str
    """The host, the pattern `*.host`, or `*` for the limits of all sites without an entry."""
    state: SiteState
    """``probing``: the time of a closure is over, and one task finds out whether the site answers
    again.
    """
    limits: Mapping[str, Any]
    """The limits that apply to the site, which can be those of `*`."""
    origin: Literal["settings", "people"] | None
    """Who gave the site limits of its own; null if nobody did."""
    changed_at: datetime | None
    changed_by: str | None
    delay_s: float | None
    """The seconds between two requests that robots.txt demands, if this limits the site; null
    otherwise.
    """
    opens_at: datetime | None
    """When tasks may visit the site again; null if they may now."""
    closed_by_run: int | None
    closed_by: str | None
    """The person who closed it, with the reason; null if a run did."""
    closed_status: int | None
    """The status with which the site refused the request of that run."""
    tasks: int
    """Tasks that execute now."""
    waiting_runs: int
    waiting_tasks: int
    """Tasks of these runs that may not start yet."""
    lanes: int | None
    """Shares of the limits that tasks hold now."""
    last_minute: int | None
    """Requests in the last whole minute."""

    @property
    def rate(self) -> float | None:
        """The maximum number of requests per second; ``None`` without a limit."""
        return self.limits.get("requests_per_s") if self.delay_s is None else 1 / self.delay_s


@dataclass(frozen=True, slots=True)
class SiteRobots:
    """The robots.txt of an origin (scheme, host and port), as one task fetched it for all."""

    origin: str
    fetched_at: datetime
    run_id: int | None
    """The run whose task fetched it; null for a token of one project."""
    status: int | None
    """The status of the last response; null if there was none. After an error, the other values are
    older.
    """
    sha256: str | None
    """Null if the site has no rules."""
    size: int | None
    crawl_delay: float | None
    """The seconds between two requests that it demands."""
    tdm_reserved: bool | None
    """Whether `tdmrep.json` or a response reserves the rights of text and data mining for a part of
    the site.
    """
    tdm_policy: str | None
    """The address of the licences."""


@dataclass(frozen=True, slots=True)
class SiteMinute:
    """The requests of one minute."""

    at: datetime
    requests: int
    statuses: Mapping[str, int]
    """The number of responses by status; `error` counts requests without a response."""


@dataclass(frozen=True, slots=True)
class SiteProxy:
    """The requests of one day (UTC) through one proxy."""

    day: date
    """The day in UTC."""
    proxy: str
    """The host and port; `others` counts the rest of too many proxies."""
    requests: int
    statuses: Mapping[str, int]
    """The number of responses by status; `error` counts requests without a response."""


@dataclass(frozen=True, slots=True)
class SiteBlock:
    """A refused request that closed a site, or a person who closed or opened it."""

    block_id: int
    at: datetime
    run_id: int | None
    task_index: int | None
    person: str | None
    status: int | None
    retry_after_s: float | None
    closed_until: datetime | None
    """When the site opens by itself; null if a person opened it."""


@dataclass(frozen=True, slots=True)
class SiteClosure:
    """The last closure of a site by a refused request."""

    site: str
    since: datetime
    closed_until: datetime
    closed_by: str | None
    closed_by_run: int | None
    closed_status: int | None


@dataclass(frozen=True, slots=True)
class SiteRun:
    """A run that visits a site, or waits for it."""

    run_id: int
    crawler: str
    project: str
    status: str
    tasks: int = 0
    """Its tasks that execute now."""
    waiting_tasks: int = 0
    waiting_since: datetime | None = None
