"""Reports from crawlers: the limits for their numbers, and the finish reasons that are failures.

The service uses these definitions, too. This module uses only the standard library.
"""

from __future__ import annotations

import json

#: The highest value of one task's counter. The sum over all tasks of a run (at most 100,000) still
#: fits into a BIGINT.
COUNT_MAX = (2**63 - 1) // 100_000
#: The limits of a crawler's own statistics: bytes of JSON, characters of a name, and the largest
#: number.
STATISTICS_MAX = 8192
STATISTIC_NAME_MAX = 120
STATISTIC_MAX = 2**63 - 1
#: Finish reasons that, according to the contract with crawlers (docs/contract.md), count as
#: failures regardless of the exit code.
FAILED_WORDS = ("memusage_exceeded", "start_error")


def statistics(value: object) -> dict[str, int | float]:
    """Return the numbers among a crawler's own statistics, in order, up to ``STATISTICS_MAX`` bytes
    of JSON.
    """
    good: dict[str, int | float] = {}
    left = STATISTICS_MAX - 2
    for name, number in value.items() if isinstance(value, dict) else ():
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= STATISTIC_NAME_MAX
            or not name.isprintable()
        ):
            continue
        # False for NaN.
        if type(number) not in (int, float) or not -STATISTIC_MAX <= number <= STATISTIC_MAX:
            continue
        left -= len(json.dumps({name: number}))
        if left < 0:
            break
        good[name] = number
    return good
