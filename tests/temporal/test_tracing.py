"""Traces: off unless an endpoint is set, and without secrets."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.temporal import tracing

CANARY = "canary/of+the=traces"


@pytest.fixture(autouse=True)
def secret() -> Iterator[None]:
    redaction.learn([CANARY])
    yield
    redaction.forget()


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
    with (
        pytest.raises(ValueError, match="canary"),
        tracer.start_as_current_span("x", attributes={"a": CANARY}),
    ):
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
def test_traces_are_off_unless_an_endpoint_is_set(
    environment: dict[str, str], wanted: bool
) -> None:
    assert tracing.wanted(environment) is wanted


def test_an_endpoint_without_the_extra_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(
        InvalidRequest, match=r"OTEL_EXPORTER_OTLP_ENDPOINT.*crawler-lifecycle\[otel\]"
    ):
        tracing.start("tests")
