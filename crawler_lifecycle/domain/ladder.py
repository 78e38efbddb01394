"""The times between looks at the cluster: the ladder 1, 2, 3, 5, 8, 15 minutes, and its rules.

All functions are pure. They take and return seconds, except for ``poll_minutes``.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Minutes between looks; the last value repeats. A new run is looked at often, an old run rarely.
LADDER_MINUTES: tuple[float, ...] = (1, 2, 3, 5, 8, 15)
#: Seconds between looks while a stop waits for its proof; the last value repeats.
STOP_LADDER_SECONDS: tuple[float, ...] = (1, 2, 3, 5, 8, 15, 30, 60)
#: No two looks of one run are closer together than this.
MIN_GAP_SECONDS = 1.0
#: A change that is found within this many seconds after its due look is lag. Found later, it is a correction.
LATE_TOLERANCE_SECONDS = 5.0


def interval(rung: int, ladder: Sequence[float]) -> float:
    """Return the value at the position ``rung`` of a ladder. The last value repeats."""
    return ladder[min(rung, len(ladder) - 1)]


def poll_interval(rung: int, poll_minutes: Sequence[float] | None, last_look_seconds: float = 0.0) -> float:
    """Return the seconds to wait before the look at the position ``rung``.

    ``last_look_seconds`` is the duration of the last look. The wait is at least twice as long, so that looks do not
    load a slow cluster all the time. It is also at least ``MIN_GAP_SECONDS``.
    """
    minutes = interval(rung, poll_minutes or LADDER_MINUTES)
    return max(minutes * 60.0, MIN_GAP_SECONDS, 2.0 * last_look_seconds)


def stop_interval(rung: int, last_look_seconds: float = 0.0) -> float:
    """Return the seconds to wait before the next look for the proof of a stop."""
    return max(interval(rung, STOP_LADDER_SECONDS), MIN_GAP_SECONDS, 2.0 * last_look_seconds)


def start_check_interval(tries: int, start_check_s: float) -> float:
    """Return the seconds between two checks whether the main task has started.

    The first ten waits take ``start_check_s``. Then each wait is 1.5 times as long, up to a minute.
    """
    if tries <= 10:
        return max(start_check_s, 0.05)
    return max(min(max(start_check_s, 0.05) * 1.5 ** min(tries - 10, 40), 60.0), start_check_s)
