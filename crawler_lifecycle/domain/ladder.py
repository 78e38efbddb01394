"""The times to look at the cluster: the ladder 1, 2, 3, 5, 8, 15 minutes, and its rules.

All functions are pure and take and give seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Minutes between looks; the last value repeats. Fibonacci-like: a fresh run is watched closely, a long one cheaply.
LADDER_MINUTES: tuple[float, ...] = (1, 2, 3, 5, 8, 15)
#: Seconds between looks while a stop waits for its proof; the last value repeats.
STOP_LADDER_SECONDS: tuple[float, ...] = (1, 2, 3, 5, 8, 15, 30, 60)
#: No two looks of one run are closer together than this.
MIN_GAP_SECONDS = 1.0
#: A change found later than the look that was due, plus this, is a correction and not mere lag.
LATE_TOLERANCE_SECONDS = 5.0


def interval(rung: int, ladder: Sequence[float]) -> float:
    """The value at ``rung`` of a ladder whose last value repeats."""
    return ladder[min(rung, len(ladder) - 1)]


def poll_interval(rung: int, poll_minutes: Sequence[float] | None, last_look_seconds: float = 0.0) -> float:
    """Seconds to wait before the look at ``rung``.

    ``last_look_seconds`` is how long the last look took: the gap is at least twice that, so that looks use at most half
    of the time of a slow cluster, and at least ``MIN_GAP_SECONDS``.
    """
    minutes = interval(rung, poll_minutes or LADDER_MINUTES)
    return max(minutes * 60.0, MIN_GAP_SECONDS, 2.0 * last_look_seconds)


def stop_interval(rung: int, last_look_seconds: float = 0.0) -> float:
    """Seconds to wait before the next look for the proof of a stop."""
    return max(interval(rung, STOP_LADDER_SECONDS), MIN_GAP_SECONDS, 2.0 * last_look_seconds)


def start_check_interval(tries: int, start_check_s: float) -> float:
    """Seconds between checks for the main task's start: ten times ``start_check_s``, then x 1.5 up to a minute."""
    if tries <= 10:
        return max(start_check_s, 0.05)
    return max(min(max(start_check_s, 0.05) * 1.5 ** min(tries - 10, 40), 60.0), start_check_s)
