"""Reports from crawlers: the limits for their numbers, and the finish reasons that are failures.

The service uses these definitions, too. This module uses only the standard library.
"""

from __future__ import annotations

import json
from typing import Any

#: The highest value of one task's counter. The sum over all tasks of a run (at most 100,000) still
#: fits into a BIGINT.
COUNT_MAX = (2**63 - 1) // 100_000
#: The limits of a crawler's own statistics: bytes of JSON, characters of a name, and the largest
#: number.
STATISTICS_MAX = 8192
STATISTIC_NAME_MAX = 120
STATISTIC_MAX = 2**63 - 1
#: The limits of refused requests in one report: how many, bytes of JSON, and characters of a host
#: and of other texts.
BLOCKS_MAX = 20
BLOCKS_BYTES = 1024
_HOST_MAX = 253
_TEXT_MAX = 64
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


def blocks(value: object) -> list[dict[str, Any]]:
    """Return the refused requests that a crawler reports, as one object or as a list of objects.

    Wrong ones are left out. Of too many, the last ones are returned, up to ``BLOCKS_MAX`` and
    ``BLOCKS_BYTES`` of JSON.
    """
    given = value if isinstance(value, list) else [value]
    good: list[dict[str, Any]] = []
    left = BLOCKS_BYTES
    for entry in reversed(given[-BLOCKS_MAX:]):
        block = _block(entry) if isinstance(entry, dict) else None
        if block is not None:
            left -= len(json.dumps(block)) + 2
            if left < 0:
                break
            good.insert(0, block)
    return good


def _block(given: dict[str, Any]) -> dict[str, Any] | None:
    """Return the valid fields of a refused request; ``None`` without a host."""
    good: dict[str, Any] = {}
    for name, most in (("host", _HOST_MAX), ("retry_after", _TEXT_MAX), ("at", _TEXT_MAX)):
        text = given.get(name)
        if type(text) is str and 0 < len(text) <= most and text.isprintable():
            good[name] = text
    status = given.get("status")
    if type(status) is int and 400 <= status <= 599:
        good["status"] = status
    seconds: Any = given.get("retry_after")
    # False for NaN.
    if type(seconds) in (int, float) and 0 <= seconds <= STATISTIC_MAX:
        good["retry_after"] = seconds
    return good if "host" in good else None
