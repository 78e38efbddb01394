"""Exceptions on their way into a history or a trace: whatever they carry, no secret arrives."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio import activity, workflow
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.observability import redaction, tracing
from crawler_lifecycle.observability.redaction import MASK
from crawler_lifecycle.temporal import FAILURE_MAX, STACK_MAX, RedactingFailureConverter
from tests.support.temporal import temporal_server

CANARY = "canary/of+the=failures"


@pytest.fixture(autouse=True)
def knowing() -> Iterator[None]:
    redaction.learn([CANARY])
    yield
    redaction.forget()


@activity.defn
async def leaks() -> None:
    """Tells the secret in message, cause, details and a line of the traceback."""
    try:
        raise ValueError(f"cannot log in with {CANARY}")
    except ValueError as error:
        raise ApplicationError(f"password={CANARY}", {"url": f"https://u:{CANARY}@h", "token": 7}) from error


@workflow.defn(sandboxed=False)
class Leaking:
    """Fails as its activity does."""

    @workflow.run
    async def run(self) -> None:
        try:
            await workflow.execute_activity(
                leaks, start_to_close_timeout=timedelta(seconds=120), retry_policy=RetryPolicy(maximum_attempts=1)
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
    decoded = "\n".join(base64.b64decode(data).decode("utf-8", "replace") for data in _data(json.loads(history)))
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


@given(message=st.text(max_size=50), detail=st.recursive(st.none() | st.text() | st.floats(allow_nan=False), st.lists))
def test_any_failure_can_be_told(message: str, detail: object) -> None:
    redaction.learn([CANARY])
    failure = Failure()
    error = ApplicationError(message.encode("utf-8", "replace").decode() + CANARY, [detail, CANARY], type="X")
    RedactingFailureConverter().to_failure(error, PayloadConverter.default, failure)
    assert CANARY not in str(failure)
    assert failure.application_failure_info.type == "X"
    back = RedactingFailureConverter().from_failure(failure, PayloadConverter.default)
    assert isinstance(back, ApplicationError)


def test_a_failure_is_small_enough_for_a_history() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise RuntimeError("x" * 10**6)

    failure = Failure()
    try:
        deep(300)
    except RuntimeError as error:
        RedactingFailureConverter().to_failure(error, PayloadConverter.default, failure)
    assert len(failure.message) < FAILURE_MAX + 20
    assert len(failure.stack_trace) < STACK_MAX + 20


# --- traces -----------------------------------------------------------------------------------------------------------


def test_spans_lose_their_secrets_before_they_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    import opentelemetry.trace
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    sent: list[ReadableSpan] = []

    class Memory(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            sent.extend(spans)
            return SpanExportResult.SUCCESS

    providers: list[Any] = []
    monkeypatch.setattr(opentelemetry.trace, "set_tracer_provider", providers.append)
    traces = tracing._start("tests", Memory())
    tracer = providers[0].get_tracer("tests")
    with pytest.raises(ValueError, match="canary"), tracer.start_as_current_span("x", attributes={"a": CANARY}):
        raise ValueError(f"with {CANARY}")
    traces.close()
    (span,) = sent
    assert CANARY not in span.to_json()
    assert span.resource.attributes["service.name"] == "crawler-lifecycle-tests"
    assert span.events[0].attributes is not None
    assert "Traceback" in str(span.events[0].attributes["exception.stacktrace"])


@pytest.mark.parametrize(("environment", "wanted"), [
    ({}, False),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
    ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
])  # fmt: skip
def test_traces_are_off_unless_an_endpoint_is_set(environment: dict[str, str], wanted: bool) -> None:
    assert tracing.wanted(environment) is wanted


def test_an_endpoint_without_the_extra_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(InvalidRequest, match=r"OTEL_EXPORTER_OTLP_ENDPOINT.*crawler-lifecycle\[otel\]"):
        tracing.start("tests")


def test_nothing_of_opentelemetry_is_imported_when_traces_are_off() -> None:
    code = (
        "import sys, crawler_lifecycle.worker as w; t = w.tracing.start('x'); t.close(); "
        "print([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    env = {"PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[]"
