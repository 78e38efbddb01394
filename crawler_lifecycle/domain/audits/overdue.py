"""Overdue looks: the due time of a look has passed, and no look was recorded.

The recorded status comes from an earlier look and may be untrue by now. So every answer with a
status also says that the look is overdue.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

#: A look is overdue this many seconds after its due time, because it may take some seconds. All
#: parts use this limit.
OVERDUE_S = 30.0
#: Seconds between two searches for overdue looks. Together with ``OVERDUE_S``: a look comes at most
#: 60 s after its due time.
SEARCH_S = 15.0


@dataclass(frozen=True, slots=True)
class OverdueLooks:
    """The number of overdue looks, and the oldest of them."""

    count: int = 0
    since: datetime | None = None
    """The due time of the oldest overdue look."""
    run_id: int | None = None
    """The run whose look is overdue."""
    verified_at: datetime | None = None
    """The time of the last look at that run; ``None``: there was none."""
    lost: int = 0
    """The number of managers, graphs, due times and webhooks without a workflow."""
    lost_since: datetime | None = None
    """The time at which an audit found the first of them."""
    lost_what: str | None = None
    """The text of the audit's finding."""


#: The interval of looks of a run whose row does not say it.
GAP_S = 60.0


def verification_due(
    next_look_at: datetime | None, verified_at: datetime | None, gap_ms: int | None
) -> datetime | None:
    """Return the time by which a run should be looked at, whoever does it; ``None``: no look is
    planned.

    Looks that the workflow did not order keep the interval of those that it orders.
    """
    if next_look_at is None or verified_at is None or verified_at < next_look_at:
        return next_look_at
    gap_s = GAP_S if gap_ms is None else gap_ms / 1000
    return verified_at + timedelta(seconds=gap_s)


def overdue_before(now: datetime) -> datetime:
    """Return the time before which a due look is overdue."""
    return now - timedelta(seconds=OVERDUE_S)


def overdue_words(looks: OverdueLooks, now: datetime) -> str | None:
    """Return a text about overdue looks and about rows without a workflow; ``None``: there are
    none.

    Example: ``3 looks are overdue, the oldest (run 7) by 2 min 4 s: nothing after … is verified;
    manager 3 is PROCESSING, but its workflow was terminated``.
    """
    more = f"; and {looks.lost - 1} more without a workflow" if looks.lost > 1 else ""
    lost = f"{looks.lost_what}{more}" if looks.lost else None
    return "; ".join(filter(None, (_looks_words(looks, now), lost))) or None


def _looks_words(looks: OverdueLooks, now: datetime) -> str | None:
    if not looks.count or looks.since is None:
        return None
    which = f"(run {looks.run_id}) by {_span((now - looks.since).total_seconds())}"
    many = (
        "1 look is overdue" if looks.count == 1 else f"{looks.count} looks are overdue, the oldest"
    )
    after = f" after {looks.verified_at:%Y-%m-%dT%H:%M:%SZ}" if looks.verified_at else ""
    return f"{many} {which}: nothing{after} is verified"


def _span(seconds: float) -> str:
    """Return a duration as text: ``44 s``, ``2 min 44 s``, ``3 h 2 min`` or ``5 d 1 h``."""
    whole = max(0, int(seconds))
    for large, name, small, part in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {name}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"
