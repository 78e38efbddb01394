"""Overdue polls: polls whose due time has passed without a record.

The recorded status comes from an earlier poll and may be out of date. So every answer with a status
reports whether a poll is overdue.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from crawler_lifecycle.domain.plurals import duration

#: A poll is overdue this many seconds after its due time, because a poll can take a few seconds.
#: All reports of overdue polls use this limit.
OVERDUE_S = 30.0
#: Seconds between two searches for overdue polls. Together with ``OVERDUE_S``, this ensures that a
#: poll begins at most 60 s after its due time.
SEARCH_S = 15.0


@dataclass(frozen=True, slots=True)
class OverduePolls:
    """The number of overdue polls, and the oldest overdue poll."""

    count: int = 0
    since: datetime | None = None
    """The due time of the oldest overdue poll."""
    run_id: int | None = None
    """The run that the oldest overdue poll belongs to."""
    verified_at: datetime | None = None
    """The time of the last poll of that run, or ``None`` if there was none."""
    error: str | None = None
    """The error of the last poll of that run, if that poll failed."""
    lost: int = 0
    """The number of managers, graphs, due times and webhooks that have no workflow."""
    lost_since: datetime | None = None
    """The time at which an audit found the first of these rows."""
    lost_what: str | None = None
    """The text of the audit's finding."""


#: The interval of polls for a run whose row has none.
GAP_S = 60.0


def verification_due(
    next_look_at: datetime | None, verified_at: datetime | None, gap_ms: int | None
) -> datetime | None:
    """Return the time by which the run should be polled, by its workflow or otherwise. Return
    ``None`` if no poll is planned. Polls that the workflow did not request follow at the same
    interval as polls that it requests.
    """
    if next_look_at is None or verified_at is None or verified_at < next_look_at:
        return next_look_at
    gap_s = GAP_S if gap_ms is None else gap_ms / 1000
    return verified_at + timedelta(seconds=gap_s)


def overdue_before(now: datetime) -> datetime:
    """Return the time before which a poll must have been due in order to be overdue now."""
    return now - timedelta(seconds=OVERDUE_S)


def overdue_words(polls: OverduePolls, now: datetime) -> str | None:
    """Return a phrase about overdue polls and rows without a workflow, or ``None`` if there are
    neither.

    Example: ``3 polls are overdue, the oldest (run 7) by 2 min 4 s: nothing after … is verified;
    manager 3 is PROCESSING, but its workflow was terminated``.
    """
    more = f"; and {polls.lost - 1} more without a workflow" if polls.lost > 1 else ""
    lost = f"{polls.lost_what}{more}" if polls.lost else None
    return "; ".join(filter(None, (_polls_words(polls, now), lost))) or None


def _polls_words(polls: OverduePolls, now: datetime) -> str | None:
    if not polls.count or polls.since is None:
        return None
    which = f"(run {polls.run_id}) by {duration((now - polls.since).total_seconds())}"
    many = (
        "1 poll is overdue" if polls.count == 1 else f"{polls.count} polls are overdue, the oldest"
    )
    after = f" after {polls.verified_at:%Y-%m-%dT%H:%M:%SZ}" if polls.verified_at else ""
    why = f" ({polls.error})" if polls.error else ""
    return f"{many} {which}: nothing{after} is verified{why}"
