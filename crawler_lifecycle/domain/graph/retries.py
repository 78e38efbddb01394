"""What a failure of a step leads to: another try, or its end."""

from __future__ import annotations

from datetime import datetime, timedelta

from crawler_lifecycle.domain.graph.spec import StepState

#: The longest wait between two tries, in seconds.
BACKOFF_MAX_S = 3600.0


def after_failure(tries: int, max_attempts: int, backoff_s: float, now: datetime) -> tuple[StepState, datetime | None]:
    """``RETRYABLE`` and from when on it may begin again, or ``DISCARDED`` when its tries are spent.

    ``tries``: those that count, the one that failed included. Each wait is twice the one before.
    """
    if tries >= max_attempts:
        return StepState.DISCARDED, None
    wait = min(BACKOFF_MAX_S, backoff_s * 2.0 ** min(max(tries, 1) - 1, 40))
    return StepState.RETRYABLE, now + timedelta(seconds=wait)
