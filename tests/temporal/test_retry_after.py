"""How long a failed try waits if the other side said how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    UnsandboxedWorkflowRunner,
    Worker,
)

from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, TooManyRequests
from crawler_lifecycle.domain.errors import ClusterUnavailable, InvalidRequest
from crawler_lifecycle.temporal.interceptors import Observing, interval
from crawler_lifecycle.temporal.plugin import RedactingFailureConverter
from tests.support.temporal import temporal_server

POLICY = RetryPolicy(
    initial_interval=timedelta(seconds=2),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=60),
)


class _Raises(ActivityInboundInterceptor):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        raise self.error


async def _outcome(error: BaseException, attempt: int = 1) -> BaseException:
    environment = ActivityEnvironment()
    environment.info = environment.default_info()
    environment.info = type(environment.info)(
        **{**vars(environment.info), "retry_policy": POLICY, "attempt": attempt}
    )
    around = Observing().intercept_activity(_Raises(error))

    async def tried() -> Any:
        return await around.execute_activity(ExecuteActivityInput(tried, [], None, {}))

    with pytest.raises(Exception) as caught:  # noqa: PT011
        await environment.run(tried)
    return caught.value


@pytest.mark.parametrize(
    ("attempt", "asked", "waits"),
    [(1, 7.0, 7), (1, 1.0, 2), (4, 7.0, 16), (40, 7.0, 60), (1, 90.0, 60)],
)
async def test_the_longer_of_what_was_asked_and_the_policy_up_to_its_longest(
    attempt: int, asked: float, waits: int
) -> None:
    cause = OSError("socket")
    error = TooManyRequests("slow down", status=429, retry_after_s=asked)
    error.__cause__ = cause
    told = await _outcome(error, attempt)
    assert isinstance(told, ApplicationError)
    assert told.next_retry_delay == timedelta(seconds=waits)
    assert (told.type, told.message, told.non_retryable) == (
        "ClusterUnavailable",
        "slow down",
        False,
    )
    assert told.__cause__ is cause


@pytest.mark.parametrize(
    "error", [ClusterUnavailable("no"), InvalidRequest("no"), RuntimeError("a bug")]
)
async def test_what_nobody_asked_us_to_wait_for_passes_as_it_is(error: Exception) -> None:
    assert await _outcome(error) is error


async def test_what_no_retry_mends_is_not_delayed() -> None:
    error = InvalidRequest("no")
    error.retry_after_s = 7.0
    assert await _outcome(error) is error


@given(attempt=st.integers(1, 10**6), factor=st.floats(1.0, 10.0), first=st.floats(0.01, 100.0))
def test_the_policys_interval_never_exceeds_its_limit(
    attempt: int, factor: float, first: float
) -> None:
    policy = RetryPolicy(
        initial_interval=timedelta(seconds=first),
        backoff_coefficient=factor,
        maximum_interval=timedelta(seconds=100),
    )
    waits = interval(policy, attempt)
    assert timedelta(0) < waits <= timedelta(seconds=100)
    assert interval(policy, attempt + 1) >= waits


def test_without_a_policy_nothing_is_added() -> None:
    assert interval(None, 3) == timedelta(0)


def _kinds(of: type[ApiError]) -> list[type[ApiError]]:
    return [of, *(found for sub in of.__subclasses__() for found in _kinds(sub))]


@pytest.mark.parametrize("kind", _kinds(ApiError), ids=lambda kind: kind.__name__)
def test_an_adapters_own_kinds_of_an_error_travel_under_the_domains_name(
    kind: Callable[[str], ApiError],
) -> None:
    from temporalio.api.failure.v1 import Failure

    failure = Failure()
    error = RuntimeError("outer")
    error.__cause__ = kind("inner")
    RedactingFailureConverter().to_failure(error, PayloadConverter.default, failure)
    assert failure.application_failure_info.type == "RuntimeError"
    assert failure.cause.application_failure_info.type == "ClusterUnavailable"
    assert failure.cause.message == "inner"


@activity.defn
async def asked_to_wait() -> None:
    """An activity that is always told to come back in fifty seconds."""
    raise TooManyRequests("busy", status=429, retry_after_s=50)


@workflow.defn(sandboxed=False)
class Waits:
    """A workflow with that activity."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(
            asked_to_wait, start_to_close_timeout=timedelta(seconds=10), retry_policy=POLICY
        )


async def test_temporal_waits_as_long_as_was_asked() -> None:
    async with (
        temporal_server(skipping=False) as server,
        Worker(
            server.client, task_queue="waits", workflows=[Waits], activities=[asked_to_wait],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
    ):  # fmt: skip
        handle = await server.client.start_workflow(Waits.run, id="waits", task_queue="waits")
        while True:
            pending = (await handle.describe()).raw_description.pending_activities
            if pending and pending[0].HasField("last_failure"):
                break
            await asyncio.sleep(0.05)
        assert pending[0].last_failure.application_failure_info.type == "ClusterUnavailable"
        assert (
            pending[0]
            .last_failure.application_failure_info.next_retry_delay.ToTimedelta()
            .total_seconds()
            == 50
        )
        await handle.terminate()
