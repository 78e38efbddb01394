"""Limits for the difference between the clocks of two machines.

A deployment call expires by the clock on the machine that creates the task, while another machine
proves by its own clock that no task will appear. If the first clock is slow, a task could still
appear after that proof. Similarly, a node dates the end of a crawler, and other machines date its
possible causes.

Times from one machine are compared directly. Times from two machines are compared only with the
functions here. ``crawlctl doctor`` reports a clock whose difference is above the limit.
"""

from __future__ import annotations

from datetime import datetime, timedelta

#: Seconds by which a machine's clock may differ from the clock of the API server or the database.
#: If the difference is larger, a person has to correct the clock.
CLOCK_OFF_MAX_S = 3.0
#: Seconds that a proof waits after a time from another machine. Two clocks may be wrong in opposite
#: directions, each by up to 2 s more than was measured, because the API server sends whole seconds.
CLOCK_MARGIN_S = 2 * (CLOCK_OFF_MAX_S + 2)
CLOCK_MARGIN = timedelta(seconds=CLOCK_MARGIN_S)
#: A recorded time that is further than this ahead of our clock proves nothing: one of the clocks is
#: wrong.
AHEAD_MAX = timedelta(seconds=5)


def not_ahead(at: datetime | None, now: datetime) -> datetime | None:
    """Return a time that another machine recorded, or ``None`` if the time is so far in the future
    that it cannot be correct.
    """
    return None if at is None or at - now > AHEAD_MAX else at


def surely_before(one: datetime, other: datetime) -> bool:
    """Return whether ``one`` certainly came before ``other``.

    The times were taken on two machines.
    """
    return other - one > CLOCK_MARGIN


def may_be_before(one: datetime, other: datetime) -> bool:
    """Return whether ``one`` may have come before ``other`` or at the same time.

    The times were taken on two machines.
    """
    return not surely_before(other, one)
