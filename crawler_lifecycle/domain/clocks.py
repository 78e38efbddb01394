"""Limits of how far clocks of machines may be apart: for proofs, and for the complaint of ``crawlctl doctor``.

A deployment call expires by the clock of the machine that creates; its absence is proved by the clock of the machine
that looks.

If one clock is slow, a task could appear after the proof that none will. In the same way a node dates the end of a
crawler, and other machines date the possible causes. Times of one machine are compared directly. Times of two machines
are compared only here.
"""

from __future__ import annotations

from datetime import datetime, timedelta

#: Seconds by which a machine's clock may differ from another one (the API server, the database) before somebody has to
#: correct it.
CLOCK_OFF_MAX_S = 3.0
#: Seconds that a proof waits beyond a time of another machine. Two clocks may be wrong in opposite directions, and each
#: by up to 2 s more than is measured: the API server sends whole seconds.
CLOCK_MARGIN_S = 2 * (CLOCK_OFF_MAX_S + 2)
CLOCK_MARGIN = timedelta(seconds=CLOCK_MARGIN_S)


def surely_before(one: datetime, other: datetime) -> bool:
    """Return whether ``one`` surely came first, although ``other`` is dated by another machine."""
    return other - one > CLOCK_MARGIN


def may_be_before(one: datetime, other: datetime) -> bool:
    """Return whether ``one`` may have come first, or at the same time, as far as two clocks can show it."""
    return not surely_before(other, one)
