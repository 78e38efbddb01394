"""The pace of a crawl: average pages per minute, from recorded values only."""

from __future__ import annotations

from datetime import datetime

#: Of a shorter time no average is told: it would be the noise of the first moments.
LEAST_S = 1.0


def pages_per_minute(pages: int | None, started_at: datetime | None, until: datetime | None) -> float | None:
    """The average from the start to ``until``: the end, or while there is none the newest progress.

    ``None`` where it is unknown: nobody counts, no start or no progress is on record, or there was no time yet.
    """
    if pages is None or pages < 0 or started_at is None or until is None:
        return None
    seconds = (until - started_at).total_seconds()
    return None if seconds < LEAST_S else round(pages * 60 / seconds, 1)
