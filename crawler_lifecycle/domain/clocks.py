"""How far the clocks of our machines may be apart: what proofs allow for, and what ``crawlctl doctor`` calls bad.

A deployment call expires by the clock of whoever creates; that nothing was created is proved by the clock of whoever
looks. If one lags behind the other a task could come to life after it was proved that none will.
"""

from __future__ import annotations

#: Seconds by which a machine may be seen to be off another one (the API server, the database) before it has to be put
#: right.
CLOCK_OFF_MAX_S = 3.0
#: Seconds that a proof waits beyond a time which another machine keeps. Two machines may be off in opposite directions,
#: and each by up to 2 s more than is seen for certain: the API server tells its time in whole seconds.
CLOCK_MARGIN_S = 2 * (CLOCK_OFF_MAX_S + 2)
