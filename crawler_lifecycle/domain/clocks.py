"""Limits of how far clocks of machines may be apart: for proofs, and for the complaint of ``crawlctl doctor``.

A deployment call expires by the clock of whoever creates; that nothing was created is proved by the clock of whoever
looks. If one lags behind the other a task could come to life after it was proved that none will. In the same way a
node dates the end of a crawler, and other machines date what may have ended it.

Two stamps of one machine are compared as they are. Those of two machines are compared here and nowhere else.
"""

from __future__ import annotations

from datetime import datetime, timedelta

#: Seconds by which a machine may be seen to be off another one (the API server, the database) before it has to be put
#: right.
CLOCK_OFF_MAX_S = 3.0
#: Seconds that a proof waits beyond a time which another machine keeps. Two machines may be off in opposite directions,
#: and each by up to 2 s more than is seen for certain: the API server tells its time in whole seconds.
CLOCK_MARGIN_S = 2 * (CLOCK_OFF_MAX_S + 2)
CLOCK_MARGIN = timedelta(seconds=CLOCK_MARGIN_S)


def surely_before(one: datetime, other: datetime) -> bool:
    """Tell whether ``one`` came first, although another machine keeps the time of ``other``."""
    return other - one > CLOCK_MARGIN


def may_be_before(one: datetime, other: datetime) -> bool:
    """Tell whether ``one`` may have come first, or in the same moment, as far as two machines can tell."""
    return not surely_before(other, one)
