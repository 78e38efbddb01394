"""Exceptions on their way into a history or a trace: whatever they contain, no secret arrives."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio import activity, workflow
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.redaction import MASK
from crawler_lifecycle.temporal.codec import Encryption
from crawler_lifecycle.temporal.plugin import (
    FAILURE_BYTES,
    HidingFailureConverter,
    RedactingFailureConverter,
)
from tests.support.examples import examples
from tests.support.temporal import temporal_server

CANARY = "canary/of+the=failures"


@pytest.fixture(autouse=True)
def knowing() -> Iterator[None]:
    redaction.learn([CANARY])
    yield
    redaction.forget()


@activity.defn
async def leaks() -> None:
    """Raise an error with the secret in message, cause, details and a line of the traceback."""
    try:
        raise ValueError(f"cannot log in with {CANARY}")
    except ValueError as error:
        raise ApplicationError(
            f"password={CANARY}", {"url": f"https://u:{CANARY}@h", "token": 7}
        ) from error


@workflow.defn(sandboxed=False)
class Leaking:
    """Fails as its activity does."""

    @workflow.run
    async def run(self) -> None:
        try:
            await workflow.execute_activity(
                leaks,
                start_to_close_timeout=timedelta(seconds=120),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except FailureError as error:
            raise ApplicationError(f"the workflow knows {CANARY}, too", [CANARY]) from error


async def test_no_secret_of_a_failed_activity_is_in_the_history() -> None:
    async with temporal_server(skipping=False) as server:
        async with Worker(
            server.client, task_queue="leaks", workflows=[Leaking], activities=[leaks],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):  # fmt: skip
            handle = await server.client.start_workflow(Leaking.run, id="leaks", task_queue="leaks")
            with pytest.raises(WorkflowFailureError) as caught:
                await handle.result()
        history = (await handle.fetch_history()).to_json()
    raw = CANARY.encode()
    forms = {CANARY, base64.b64encode(raw).decode(), raw.hex(), json.dumps(CANARY)[1:-1], "canary"}
    decoded = "\n".join(
        base64.b64decode(data).decode("utf-8", "replace") for data in _data(json.loads(history))
    )
    assert [form for form in forms if form in history + decoded] == []
    assert history.count(MASK) >= 3
    assert "cannot log in with" in history
    assert "token" in decoded
    assert CANARY not in str(caught.value.cause)


def _data(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["data"]] if isinstance(value.get("data"), str) else []
        return own + [found for member in value.values() for found in _data(member)]
    return [found for member in value for found in _data(member)] if isinstance(value, list) else []


@given(
    message=st.text(max_size=50),
    detail=st.recursive(st.none() | st.text() | st.floats(allow_nan=False), st.lists),
)
def test_any_failure_can_be_told(message: str, detail: object) -> None:
    redaction.learn([CANARY])
    failure = Failure()
    error = ApplicationError(
        message.encode("utf-8", "replace").decode() + CANARY, [detail, CANARY], type="X"
    )
    RedactingFailureConverter().to_failure(error, PayloadConverter.default, failure)
    assert CANARY not in str(failure)
    assert failure.application_failure_info.type == "X"
    back = RedactingFailureConverter().from_failure(failure, PayloadConverter.default)
    assert isinstance(back, ApplicationError)


class Odd(Exception):
    """A foreign exception."""


texts = st.text(
    alphabet=st.characters() | st.sampled_from("\ud800\udfff\0\n\x7f\U0001f577"), max_size=30
)


@given(
    message=texts,
    times=st.sampled_from([1, 100, 10_000]),
    causes=st.integers(0, 12),
    details=st.sampled_from([[], ["x"], ["x" * 50_000], list(range(100))]),
    kind=st.sampled_from([ApplicationError, Odd, StoreUnavailable, TimeoutError]),
    depth=st.sampled_from([0, 40]),
    hidden=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_failed_the_server_keeps_the_failure_and_its_type(
    message: str,
    times: int,
    causes: int,
    details: list[Any],
    kind: type[Exception],
    depth: int,
    hidden: bool,
) -> None:
    def deep(n: int, left: int) -> None:
        if n:
            deep(n - 1, left)
        try:
            if left:
                deep(depth, left - 1)
        finally:
            if kind is ApplicationError:
                raise ApplicationError(message * times, *details, type="Kept", non_retryable=True)
            raise kind(message * times)

    converter = HidingFailureConverter() if hidden else RedactingFailureConverter()
    failure = Failure()
    try:
        deep(depth, causes)
    except Exception as error:
        converter.to_failure(error, PayloadConverter.default, failure)
    assert failure.ByteSize() <= FAILURE_BYTES
    told = "Kept" if kind is ApplicationError else getattr(kind, "code", kind.__name__)
    assert failure.application_failure_info.type == told
    assert failure.application_failure_info.non_retryable == (kind is ApplicationError)
    asyncio.run(Encryption({"k" * 40: bytes(32)}).encode_failure(failure))
    assert failure.ByteSize() <= 4_096, "also when a key encrypts it"


def test_a_cut_failure_tells_its_beginning_and_the_innermost_calls() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise RuntimeError("begin " + "x" * 10**6)

    failure = Failure()
    try:
        deep(300)
    except RuntimeError as error:
        RedactingFailureConverter().to_failure(error, PayloadConverter.default, failure)
    assert failure.message.startswith("begin xxx")
    assert failure.stack_trace.rstrip().endswith('raise RuntimeError("begin " + "x" * 10**6)')
    assert len(failure.message) > FAILURE_BYTES // 4


@activity.defn
async def fails_at_length() -> None:
    """Fail with more text than the server keeps of a try."""
    raise StoreUnavailable("x" * 50_000) from ValueError("y" * 50_000)


@workflow.defn(sandboxed=False)
class Retrying:
    """Waits for the next try of its activity."""

    @workflow.run
    async def run(self) -> None:
        policy = RetryPolicy(initial_interval=timedelta(hours=1))
        await workflow.execute_activity(
            fails_at_length, start_to_close_timeout=timedelta(seconds=120), retry_policy=policy
        )


async def test_the_server_shows_what_a_try_failed_with() -> None:
    plain = UnsandboxedWorkflowRunner()
    async with (
        temporal_server(skipping=False) as server,
        Worker(
            server.client,
            task_queue="long",
            workflows=[Retrying],
            activities=[fails_at_length],
            workflow_runner=plain,
        ),
    ):
        handle = await server.client.start_workflow(Retrying.run, id="long", task_queue="long")
        pending: Any = []
        while not (pending and pending[0].HasField("last_failure")):
            await asyncio.sleep(0.05)
            pending = (await handle.describe()).raw_description.pending_activities
        failure = pending[0].last_failure
        await handle.terminate()
    assert failure.application_failure_info.type == "StoreUnavailable"
    assert failure.message.startswith("xxx")
    assert failure.cause.message.startswith("yyy")
