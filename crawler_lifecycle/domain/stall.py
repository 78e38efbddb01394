"""Stall detection: measuring for how long an executing run has shown no sign of life.

Only time that polls confirm counts. Two consecutive successful polls confirm the time between them,
up to the planned time, if the run executed at both and no counter changed. If nobody could poll (no
worker, or no answer from the cluster), the state is unknown, and no run is stopped because of that.
Any progress resets the time to zero.

A run with counters is judged by its counters alone, because many crawlers write a log line every
minute without any progress. A run without counters is judged by the output of its crawlers, which
their runners watch. If the output of one of them is unknown, or if one never wrote anything, the
run never stalls.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

#: A poll that comes at most this many seconds after its planned time confirms all the time since
#: the previous poll.
PUNCTUAL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The progress of a run according to one successful poll."""

    observed_at: datetime
    executing: bool
    """True if a task executes and the poll could read its signs of life."""
    moved: bool
    """True if a counter has changed since the previous poll."""
    counted: bool
    """True if a counter was above zero at any poll."""
    silent: timedelta | None = None
    """The time for which no executing task has written anything, or ``None`` if it is unknown for
    one of them.
    """


def quiet_time(
    before: timedelta,
    last_poll_at: datetime | None,
    planned_at: datetime | None,
    failed: bool,
    now: Reading,
) -> timedelta:
    """Return the confirmed time without progress up to the poll at ``now``.

    It is never negative. ``before`` is the result at the previous poll, ``last_poll_at`` is the
    time of that poll, and ``planned_at`` is the time for which it planned this poll. If ``failed``
    is true, a poll has failed since then, so the time between is not counted.
    """
    if now.moved or not now.executing:
        return timedelta(0)
    quiet = before
    if last_poll_at is not None and not failed:
        since = max(now.observed_at - last_poll_at, timedelta(0))
        if planned_at is not None:
            planned = max(planned_at - last_poll_at, timedelta(0))
            since = min(since, planned + timedelta(seconds=PUNCTUAL_SECONDS))
        quiet += since
    if now.counted:
        return quiet
    return timedelta(0) if now.silent is None else max(timedelta(0), min(quiet, now.silent))


def stalled(quiet: timedelta, stall_timeout_s: float | None) -> bool:
    """Return whether a run that was quiet for this long has to be stopped.

    If ``stall_timeout_s`` is ``None``, it never has to be.
    """
    return stall_timeout_s is not None and quiet >= timedelta(seconds=stall_timeout_s)
