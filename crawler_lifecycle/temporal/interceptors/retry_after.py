"""Interceptor for retry-after: a failed try waits as long as the other side asked, within its retry policy.

Whoever is asked knows best when to come back ("Retry-After"). Adapters put that into ``LifecycleError.retry_after_s``;
here it becomes Temporal's delay of the next try. What is short by that wish is not taken at its word: an overloaded
server that says one second to everybody, every time, would be asked by everybody every second. Nor is what exceeds the
policy's longest wait: a stop is tried again after 15 s, whatever an overloaded API server would rather have.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from crawler_lifecycle.domain.errors import LifecycleError


class RetryAfterInterceptor(Interceptor):
    """The interceptor of our workers."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Activity(next)


class _Activity(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except LifecycleError as error:
            if not error.retryable or error.retry_after_s is None:
                raise
            info = activity.info()
            asked = min(timedelta(seconds=error.retry_after_s), longest(info.retry_policy))
            delay = max(asked, interval(info.retry_policy, info.attempt))
            later = ApplicationError(str(error), type=error.code, next_retry_delay=delay)
            raise later.with_traceback(error.__traceback__) from error.__cause__


def longest(policy: RetryPolicy | None) -> timedelta:
    """The longest wait between two tries that the policy knows."""
    if policy is None:
        return timedelta.max
    return policy.maximum_interval or 100 * policy.initial_interval  # the default of Temporal's server


def interval(policy: RetryPolicy | None, attempt: int) -> timedelta:
    """What the policy waits after this try (they count from 1)."""
    if policy is None:
        return timedelta(0)
    most = longest(policy)
    grown = policy.initial_interval.total_seconds()
    for _ in range(attempt - 1):
        if grown >= most.total_seconds() or policy.backoff_coefficient <= 1:
            break
        grown *= policy.backoff_coefficient
    return min(timedelta(seconds=grown), most)
