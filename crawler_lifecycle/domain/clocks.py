"""Limits for the difference between the clocks of two machines.

A deployment call expires by the clock of the machine that creates the task. Another machine proves
by its own clock that no task will appear. With a slow clock, a task could still appear after that
proof. In the same way a node dates the end of a crawler, and other machines date the possible
causes. Times of one machine are compared directly. Times of two machines are compared only with the
functions here. ``crawlctl doctor`` reports a clock beyond the limit.
"""

from __future__ import annotations

from datetime import datetime, timedelta

#: Seconds by which a machine's clock may differ from another clock (of the API server, of the
#: database). A person has to correct a clock with a larger difference.
CLOCK_OFF_MAX_S = 3.0
#: Seconds that a proof waits beyond a time of another machine. Two clocks may be wrong in opposite
#: directions. Each may be wrong by up to 2 s more than is measured, because the API server sends
#: whole seconds.
CLOCK_MARGIN_S = 2 * (CLOCK_OFF_MAX_S + 2)
CLOCK_MARGIN = timedelta(seconds=CLOCK_MARGIN_S)
#: A recorded time that is further ahead of our clock proves nothing: one of the two clocks is
#: wrong.
AHEAD_MAX = timedelta(seconds=5)


def not_ahead(at: datetime | None, now: datetime) -> datetime | None:
    """Return a time that another machine recorded; ``None`` if it did not come yet, so that it is
    unknown.
    """
    return None if at is None or at - now > AHEAD_MAX else at


def surely_before(one: datetime, other: datetime) -> bool:
    """Return whether ``one`` certainly came before ``other``. Two machines dated the two."""
    return other - one > CLOCK_MARGIN


def may_be_before(one: datetime, other: datetime) -> bool:
    """Return whether ``one`` may have come before ``other`` or at the same time.

    Two machines dated the two.
    """
    return not surely_before(other, one)
