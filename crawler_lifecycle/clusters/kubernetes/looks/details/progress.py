"""Progress lines: what a running crawler counted, read from the end of its log; and its last statistics.

Nobody can read a file inside a pod, so our runner prints a line ``{"crawl_progress": {…}}`` every 30 s and at the end,
and before that last one ``{"crawl_stats": {…}}``.
Whatever else a crawler prints may stand beside it, also half a line at either end. Nothing of it is trusted: what is
not a number that can be counted is left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.task import Counters, Observation

_PROGRESS, _STATISTICS = "crawl_progress", "crawl_stats"


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
    found = _last(log, _PROGRESS)
    return None if found is None else _progress(found[2])


def split_statistics(log: bytes) -> tuple[bytes, dict[str, int | float] | None]:
    """The log without its newest line of statistics, and what that says; ``None`` when there is none."""
    found = _last(log, _STATISTICS)
    if found is None:
        return log, None
    begin, end, said = found
    return log[:begin] + log[end:], bounds.statistics(said)


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


def _last(log: bytes, kind: str) -> tuple[int, int, dict[str, object]] | None:
    """Where the newest line of this kind begins and ends, and what it says."""
    mark, before = f'{{"{kind}": {{'.encode(), len(log)
    while (begin := log.rfind(mark, 0, before)) >= 0:
        line = log[begin:].partition(b"\n")
        said = _body(line[0], kind)
        if said is not None:
            return begin, begin + len(line[0]) + len(line[1]), said
        before = begin
    return None


def _body(line: bytes, kind: str) -> dict[str, object] | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    said = body.get(kind) if isinstance(body, dict) else None
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
