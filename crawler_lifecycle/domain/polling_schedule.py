"""The polling schedule, that is, the times between polls of the cluster (1, 2, 3, 5, 8, 15
minutes), and the rules for these times. All functions are pure. Their parameters and results are
seconds, except those of ``poll_minutes``.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Minutes between polls; the last value repeats. A new run is polled more often than an old run.
POLLING_MINUTES: tuple[float, ...] = (1, 2, 3, 5, 8, 15)
#: Seconds between polls while the end of a stopped run is not proved; the last value repeats.
STOP_POLLING_SECONDS: tuple[float, ...] = (1, 2, 3, 5, 8, 15, 30, 60)
#: The maximum time between two polls while a task is waiting for its code.
CODE_SECONDS = 15.0
#: The minimum time between two polls of a run.
MIN_GAP_SECONDS = 1.0
#: The largest factor by which an interval is stretched, and the longest stretched interval in
#: seconds, which is the longest interval in the polling schedule.
STRETCH_MAX = 10.0
STRETCHED_MAX_SECONDS = POLLING_MINUTES[-1] * 60.0
#: A poll that begins this many seconds late shows that the workers or Temporal are overloaded.
OVERLOADED_S = 0.25
#: In addition, a poll counts as late only if it is late by this share of its interval. So a short
#: delay does not double an interval of a minute.
OVERLOADED_SHARE = 0.2
#: A late poll multiplies the run's stretch by the first number. A poll that is on time restores
#: part of the planned rate: the share in the second number. Because of the large steps up and the
#: small steps down, all runs reach about the same stretch.
STRETCH_GROWS = 2.0
RATE_GROWS = 0.1
#: A change that is found within this many seconds after its due poll is lag. A change that is found
#: after this time is a correction.
LATE_TOLERANCE_SECONDS = 5.0


def interval(step: int, polling_schedule: Sequence[float]) -> float:
    """Return the value at the position ``step`` of a polling schedule, whose last value repeats."""
    return polling_schedule[min(step, len(polling_schedule) - 1)]


def poll_interval(
    step: int, poll_minutes: Sequence[float] | None, last_poll_seconds: float = 0.0
) -> float:
    """Return the seconds to wait before the poll at the position ``step``.

    ``last_poll_seconds`` is the duration of the last poll. The wait is at least twice as long as
    that duration, so that polls do not load a slow cluster all the time. It is never shorter than
    ``MIN_GAP_SECONDS``.
    """
    minutes = interval(step, poll_minutes or POLLING_MINUTES)
    return max(minutes * 60.0, MIN_GAP_SECONDS, 2.0 * last_poll_seconds)


def stretched(gap_s: float, before: float, late_s: float) -> float:
    """Return the seconds to the next poll: the planned ``gap_s``, or more after a poll that came
    ``late_s`` late.

    ``before`` is the stretch of the run's last interval, where 1 means none. Each poll changes the
    stretch by one step. So an outage, after which all polls begin at once, stretches each interval
    only a little, and a lasting overload stretches the intervals as far as necessary.
    """
    overloaded = late_s >= max(OVERLOADED_S, gap_s * OVERLOADED_SHARE)
    factor = before * STRETCH_GROWS if overloaded else 1 / (1 / before + RATE_GROWS)
    return max(gap_s, min(gap_s * min(factor, STRETCH_MAX), STRETCHED_MAX_SECONDS))


def stop_interval(step: int, last_poll_seconds: float) -> float:
    """Return the seconds to wait before the next poll that may prove a stop."""
    return max(interval(step, STOP_POLLING_SECONDS), MIN_GAP_SECONDS, 2.0 * last_poll_seconds)


def start_check_interval(tries: int, start_check_s: float) -> float:
    """Return the seconds between two checks of whether the main task has started.

    The first ten waits take ``start_check_s``. Each further wait is 1.5 times as long as the
    previous wait, up to a minute.
    """
    if tries <= 10:
        return max(start_check_s, 0.05)
    return max(min(max(start_check_s, 0.05) * 1.5 ** min(tries - 10, 40), 60.0), start_check_s)
