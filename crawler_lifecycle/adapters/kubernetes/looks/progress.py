"""Progress lines: what a running crawler counted, read from the end of its log.

Nobody can read a file inside a pod, so our runner prints a line ``{"crawl_progress": {…}}`` every 30 s and at the end.
Whatever else a crawler prints may stand beside it, also half a line at either end. Nothing of it is trusted: what is
not a number that can be counted is left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.task import Counters, Observation

_MARK = b'{"crawl_progress": {'


@dataclass(frozen=True, slots=True)
class Progress:
    """The last line of progress in a piece of log."""

    counters: Counters
    at: datetime | None = None
    """When the crawler last wrote its counters."""
    quiet: timedelta | None = None
    """For how long the crawler had written nothing when the line was printed, if it ever wrote anything."""
    resumed: bool | None = None
    resume_note: str | None = None


def last_progress(log: bytes) -> Progress | None:
    """The newest progress in this piece of log; ``None`` when there is none, which is not zero."""
    end = len(log)
    while (begin := log.rfind(_MARK, 0, end)) >= 0:
        line = log[begin:].partition(b"\n")[0]
        said = _body(line)
        if said is not None:
            return _progress(said)
        end = begin
    return None


def with_progress(seen: Observation, progress: Progress) -> Observation:
    """The observation with what its crawler has counted so far."""
    later = seen.attempt > 1  # a first attempt has nothing to resume
    return replace(
        seen,
        counters=progress.counters,
        progress_at=progress.at,
        quiet=progress.quiet,
        resumed=progress.resumed if later else None,
        resume_note=progress.resume_note if later else None,
    )


def _body(line: bytes) -> dict[str, object] | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    said = body.get("crawl_progress") if isinstance(body, dict) else None
    return said if isinstance(said, dict) else None


def _progress(said: dict[str, object]) -> Progress:
    resumed, quiet_s = said.get("resumed"), bounds.count(said.get("quiet_s"))
    return Progress(
        Counters(*(bounds.count(said.get(name)) for name in ("pages", "items", "errors", "bytes"))),
        bounds.moment(said.get("updated_at")),
        None if quiet_s is None else timedelta(seconds=min(quiet_s, bounds.YEAR_S)),
        resumed if isinstance(resumed, bool) else None,
        bounds.words(said.get("resume_note"), bounds.NOTE_MAX),
    )
