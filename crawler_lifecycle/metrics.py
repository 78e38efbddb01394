"""The figures of our HTTP services in Prometheus' text format, and of what Python itself does.

A worker's figures come from the SDK (``activities/meters.py``); each process has exactly one endpoint.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Seconds of an HTTP request.
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def build() -> dict[str, str]:
    """Version and build of this installation, as the metric ``lifecycle_build_info`` tells them."""
    try:
        known = version("crawler-lifecycle")
    except PackageNotFoundError:
        known = "unknown"
    return {"version": known, "build": os.environ.get("TEMPORAL_WORKER_BUILD_ID", "")}


class HttpMetrics:
    """The registry of one HTTP service. Labels are closed sets: routes are templates, never paths."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        info = Gauge("lifecycle_build_info", "Always 1; version and build", tuple(build()), registry=self.registry)
        info.labels(**build()).set(1)
        self._requests = Counter(
            "lifecycle_http_requests", "Answered requests", ("method", "route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "lifecycle_http_request_seconds",
            "Duration of requests until their answer was sent",
            ("method", "route"),
            registry=self.registry,
            buckets=REQUEST_BUCKETS,
        )
        self._open = Gauge("lifecycle_http_requests_open", "Requests that are being served", registry=self.registry)

    async def endpoint(self, _: Request) -> Response:
        """``GET /metrics``."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """The app, with its requests counted."""

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status, began = 0, time.perf_counter()

            async def seen(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            with self._open.track_inprogress():
                try:
                    await app(scope, receive, seen)
                finally:
                    method = scope["method"] if scope["method"] in METHODS else "other"
                    route = getattr(scope.get("route"), "path", None) or "none"
                    self._requests.labels(method, route, str(status or "none")).inc()
                    self._seconds.labels(method, route).observe(time.perf_counter() - began)

        return measured
