"""Stall detection: when a run that executes shows no sign of life.

Only time that looks confirm counts. Two successful looks in a row, with the run executing and readable at both and no
changed counter between them, confirm the time between them, but never more than was planned: while nobody could look
(no worker, no answer of the cluster) the state is unknown, and a run must not be ended for that. Any progress sets the
time back to zero.

A run that counts is judged by its counters alone: crawlers print every minute that nothing happens. One that never
counted anything is judged by what its crawlers write, as their runners see it; it is quiet for no longer than they are.
Where nobody sees that, or one of them never wrote anything, the run never stalls.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

#: A look may come so many seconds later than planned and still confirm all of the time since the one before.
PUNCTUAL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The report of one successful look about a run's progress."""

    observed_at: datetime
    executing: bool
    """True when it saw an executing task whose signs of life it could read."""
    moved: bool
    """True when any counter differs from what was known before."""
    counted: bool
    """True when any counter was ever above zero."""
    silent: timedelta | None = None
    """Seconds for which no executing task has written anything; ``None``: this is unknown for one of them."""


def quiet_time(
    before: timedelta, last_look_at: datetime | None, planned_at: datetime | None, failed: bool, now: Reading
) -> timedelta:
    """The confirmed time without progress, up to and including the look ``now``.

    ``before`` is that time at the look before, which was at ``last_look_at`` and planned this one for ``planned_at``.
    ``failed`` says that looks failed since then: the time between counts for nothing. Never negative.
    """
    if now.moved or not now.executing:
        return timedelta(0)
    quiet = _vouched(before, last_look_at, planned_at, failed, now)
    if now.counted:
        return quiet
    return timedelta(0) if now.silent is None else max(timedelta(0), min(quiet, now.silent))


def _vouched(
    before: timedelta, last_look_at: datetime | None, planned_at: datetime | None, failed: bool, now: Reading
) -> timedelta:
    if last_look_at is None or failed:
        return before
    since = max(now.observed_at - last_look_at, timedelta(0))
    if planned_at is not None:
        planned = max(planned_at - last_look_at, timedelta(0)) + timedelta(seconds=PUNCTUAL_SECONDS)
        since = min(since, planned)
    return before + since


def stalled(quiet: timedelta, stall_timeout_s: float | None) -> bool:
    """Return whether a run that was quiet for so long is to be stopped. ``None`` seconds: never."""
    return stall_timeout_s is not None and quiet >= timedelta(seconds=stall_timeout_s)
