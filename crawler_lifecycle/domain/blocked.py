"""Refused requests that crawlers without leases report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from crawler_lifecycle.runner.inject.crawl_runner_retry_after import seconds_to_wait
from crawler_lifecycle.runner.reported import blocks


@dataclass(frozen=True, slots=True)
class BlockReport:
    """A site that refuses the requests of a crawler, as the crawler reported it."""

    host: str | None = None
    """The host, in any form. ``None`` if only the exit code reports the refusal."""
    status: int | None = None
    retry_after: float | str | None = None
    """The header ``Retry-After``: seconds or a date."""
    at: str | None = None
    """A text that differs if the same refusal happens again, such as its time."""

    def retry_after_s(self, now: datetime) -> float | None:
        """Return the seconds until the site may be visited; ``None`` if they are unknown."""
        if not isinstance(self.retry_after, str):
            return self.retry_after
        return seconds_to_wait(self.retry_after, now)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A refused request of one task of a run."""

    index: int
    attempt: int
    blocked: BlockReport


def read_blocked(value: object) -> tuple[BlockReport, ...] | None:
    """Return the refused requests in a crawler's report; ``None`` if there are none."""
    return tuple(BlockReport(**block) for block in blocks(value)) or None
