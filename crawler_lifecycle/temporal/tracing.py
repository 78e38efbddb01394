"""Traces with OpenTelemetry, which are optional (extra ``otel``) and off unless an endpoint is set.

OpenTelemetry's own variables set the endpoint and all other options
(``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_SERVICE_NAME``,
``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_TRACES_SAMPLER`` …).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from temporalio.client import Plugin

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
#: Milliseconds that a process waits at shutdown to send the last spans.
FLUSH_MS = 3000


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether an endpoint is set and OpenTelemetry's own variables do not disable traces."""
    if (
        environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environment.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return False
    return any(environment.get(name) for name in ENDPOINTS)


@dataclass(frozen=True)
class Tracing:
    """The traces of a process, from ``start`` to ``close``. Without an endpoint, this class does
    nothing.
    """

    provider: Any = None
    plugins: Sequence[Plugin] = ()
    """Plugins for ``temporal.plugin.connect``. Workers take them from their client."""

    def close(self) -> None:
        """Send the remaining spans, for at most ``FLUSH_MS``."""
        if self.provider is not None:
            self.provider.force_flush(FLUSH_MS)
            self.provider.shutdown()


def start(service: str) -> Tracing:
    """Begin tracing if an endpoint is set.

    Raises ``InvalidRequest`` if an endpoint is set but the extra is missing.
    """
    if not wanted():
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        name = next(name for name in ENDPOINTS if os.environ.get(name))
        raise InvalidRequest(
            f"{name}: {os.environ[name]!r} is set, but this installation has no OpenTelemetry; "
            "install the extra (pip install 'crawler-lifecycle[otel]'), or unset the variable"
        ) from None
    return _start(service, OTLPSpanExporter())


def _start(service: str, exporter: SpanExporter) -> Tracing:
    import opentelemetry.trace
    from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from temporalio.contrib.opentelemetry import OpenTelemetryPlugin, create_tracer_provider

    name = os.environ.get("OTEL_SERVICE_NAME") or f"crawler-lifecycle-{service}"
    resource = Resource.create({SERVICE_NAME: name, SERVICE_INSTANCE_ID: str(os.getpid())})
    provider = create_tracer_provider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(_redacting(exporter)))
    opentelemetry.trace.set_tracer_provider(provider)
    return Tracing(provider, [OpenTelemetryPlugin(add_temporal_spans=True)])


def _redacting(exporter: SpanExporter) -> SpanExporter:
    """Return an exporter that removes secrets first, because spans contain messages and tracebacks
    of exceptions.
    """
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Status

    def clean(span: ReadableSpan) -> ReadableSpan:
        description = span.status.description
        shown = redaction.current().text(description) if description else description
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=_clean(span.attributes),
            events=[
                Event(event.name, _clean(event.attributes), event.timestamp)
                for event in span.events
            ],
            links=span.links,
            kind=span.kind,
            status=Status(span.status.status_code, shown),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    class Redacting(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return exporter.export([clean(span) for span in spans])

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = FLUSH_MS) -> bool:
            return exporter.force_flush(timeout_millis)

    return Redacting()


def _clean(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    redactor = redaction.current()
    return {name: redactor.value(value, name) for name, value in (attributes or {}).items()}
