"""Stall detection: measuring for how long an executing run has shown no sign of life.

Only time that polls confirm is counted. Two consecutive successful polls confirm the time between
them, up to the planned time, if the run was executing at both polls and no counter changed. While
polls are impossible (there is no worker, or no answer from the cluster), the state is unknown, and
no run is stopped because of this time. Any progress resets the time to zero.

A run with counters is judged only by its counters, because many crawlers write a log line every
minute even if they make no progress. A run without counters is judged by the output of its
crawlers, which their runners monitor. If the output of a crawler is unknown, or if a crawler never
wrote anything, the run never stalls.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

#: A poll that begins at most this many seconds after its planned time confirms all the time since
#: the previous poll.
PUNCTUAL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The progress of a run, as one successful poll found it."""

    observed_at: datetime
    executing: bool
    """True if a task is executing and the poll could read the task's signs of life."""
    moved: bool
    """True if a counter has changed since the previous poll."""
    counted: bool
    """True if a counter was above zero at any poll."""
    silent: timedelta | None = None
    """The time for which no executing task has written anything, or ``None`` if this time is
    unknown for one of the tasks.
    """


def quiet_time(
    before: timedelta,
    last_poll_at: datetime | None,
    planned_at: datetime | None,
    failed: bool,
    now: Reading,
) -> timedelta:
    """Return the confirmed time without progress up to the poll at ``now``. This time is never
    negative. ``before`` is the result at the previous successful poll, ``last_poll_at`` is the time
    of that poll, and ``planned_at`` is the time for which that poll planned this one. If ``failed``
    is true, a poll has failed between the two polls, so the time between them is not counted.
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
    """Return whether a run that was quiet for this long has to be stopped. If ``stall_timeout_s``
    is ``None``, the run never has to be stopped.
    """
    return stall_timeout_s is not None and quiet >= timedelta(seconds=stall_timeout_s)
