"""Metrics of the scheduler service, and of Python itself, for Prometheus.

A worker's figures come from the SDK (``activities/meters.py``), the gateway has its own (``gateway/metrics.py``); each
process has exactly one endpoint. Labels are closed sets: operations of ours, never paths.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Seconds of an answer.
ANSWER_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


def build() -> dict[str, str]:
    """Version and build of this installation, as the metrics ``…_build_info`` tell them."""
    try:
        known = version("crawler-lifecycle")
    except PackageNotFoundError:
        known = "unknown"
    return {"version": known, "build": os.environ.get("TEMPORAL_WORKER_BUILD_ID", "")}


class SchedulerMetrics:
    """The scheduler service's figures, in a registry of their own: two services in one process do not share them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        name = "crawler_lifecycle_scheduler"
        info = Gauge(f"{name}_build_info", "Always 1; version and build", tuple(build()), registry=self.registry)
        info.labels(**build()).set(1)
        self._requests = Counter(
            f"{name}_requests", "Requests that were answered", ("operation", "status"), registry=self.registry
        )
        self._answer = Histogram(
            f"{name}_answer_seconds",
            "From the head of a request to the head of its answer",
            ("operation",),
            registry=self.registry,
            buckets=ANSWER_BUCKETS,
        )
        self._tasks = Counter(
            f"{name}_tasks", "Tasks that were offered, by what became of them", ("state",), registry=self.registry
        )
        for state in ("created", "existing", "deferred", "refused"):
            self._tasks.labels(state)

    def offered(self, state: str) -> None:
        """A task was offered to the cluster; ``state`` as in the answer."""
        self._tasks.labels(state).inc()

    def answer(self) -> Response:
        """Everything in Prometheus' text format."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def requests(self, app: ASGIApp) -> ASGIApp:
        """ASGI middleware that counts requests by operation and status, and times their answers.

        A request that reached no operation (unknown path, refused before) counts under ``none``.
        """

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = time.perf_counter()

            async def seen(message: Message) -> None:
                if message["type"] == "http.response.start":
                    operation = getattr(scope.get("route"), "operation_id", None) or "none"
                    self._requests.labels(operation, str(message["status"])).inc()
                    self._answer.labels(operation).observe(time.perf_counter() - began)
                await send(message)

            await app(scope, receive, seen)

        return measured
