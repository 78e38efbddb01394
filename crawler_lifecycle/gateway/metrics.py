"""Figures of the gateway for Prometheus: requests as they come, and what the database is asked for."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.webhooks.definition import WEBHOOKS_MAX
from crawler_lifecycle.ports.schedules import UNTOLD, ScheduleCounts
from crawler_lifecycle.store.events import EventStore
from crawler_lifecycle.store.graphs.graphs import GraphStore
from crawler_lifecycle.store.managers.managers import ManagerStore
from crawler_lifecycle.store.schedules.schedules import ScheduleStore
from crawler_lifecycle.store.webhooks import WebhookStore

#: Seconds for which what was asked of others is good enough.
FRESH_S = 5.0
_ANSWER_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LAG_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: Answers of each check by its name: ``ok`` or what is wrong.
Checks = Callable[[], Awaitable[Mapping[str, str]]]


class Metrics:
    """The gateway's numbers, in a registry of their own: two gateways in one process do not share them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        name = "crawler_lifecycle_gateway"
        self.requests = Counter(
            f"{name}_requests", "Requests that were answered", ["operation", "status"], registry=self.registry
        )
        self.answer = Histogram(
            f"{name}_answer_seconds",
            "From the head of a request to the head of its answer",
            ["operation"],
            buckets=_ANSWER_BUCKETS,
            registry=self.registry,
        )
        self.readers = Gauge(
            f"{name}_stream_readers",
            "Clients that read or wait",
            ["stream"],
            registry=self.registry,
        )
        self.dropped = Counter(
            f"{name}_stream_dropped", "Clients cut because they stopped reading", ["stream"], registry=self.registry
        )
        self.stream_lag = Histogram(
            f"{name}_stream_lag_seconds",
            "From the commit of an event to its hand-over to the readers",
            buckets=_LAG_BUCKETS,
            registry=self.registry,
        )
        self.available = Gauge(
            f"{name}_available", "Whether what the gateway needs answers (1) or not (0)", ["part"],
            registry=self.registry,
        )  # fmt: skip
        self.blocked = Gauge(
            "lifecycle_runs_blocked",
            "Open workflows whose next step fails again and again; NaN while nobody can tell",
            registry=self.registry,
        )
        self.blocked.set(math.nan)
        self.schedules = Gauge(
            "lifecycle_schedules",
            "Schedules, active and paused; NaN while the database does not answer",
            ["state"],
            registry=self.registry,
        )
        self.schedules_untold = Gauge(
            "lifecycle_schedules_untold",
            "Those of which Temporal has not been told for ten minutes what the database says",
            registry=self.registry,
        )
        self.managers = Gauge(
            "lifecycle_managers",
            "Crawl managers that have not ended; NaN while the database does not answer",
            ["status"],
            registry=self.registry,
        )
        self.managers_failing = Gauge(
            "lifecycle_managers_failing", "Those of them whose class did something wrong lately", registry=self.registry
        )
        self.manager_jobs_live = Gauge(
            "lifecycle_manager_jobs_live", "Jobs of theirs that hold a slot", registry=self.registry
        )
        self.graphs = Gauge(
            "lifecycle_graphs",
            "Graphs that have not ended; NaN while the database does not answer",
            registry=self.registry,
        )
        self.webhooks = Gauge(
            "lifecycle_webhooks",
            "Webhooks by state; NaN while the database does not answer",
            ["state"],
            registry=self.registry,
        )
        self.webhook_behind = Gauge(
            "lifecycle_webhook_behind_events",
            "Events that the webhook which is furthest behind has not passed",
            registry=self.registry,
        )
        self.refreshed_by: list[Callable[[], None]] = []
        """Calls that bring other figures up to date before they are told; they may block, and never raise."""
        self.readers.labels("waits")
        for stream in ("events", "log", "page"):
            self.readers.labels(stream)
            self.dropped.labels(stream)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class Measured:
    """ASGI middleware around all others that counts requests by operation and status, and times their answers.

    A request that reached no operation (unknown path, refused before) counts under ``none``.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                operation = getattr(scope.get("route"), "operation_id", None) or "none"
                self._metrics.requests.labels(operation, str(message["status"])).inc()
                self._metrics.answer.labels(operation).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, watched)


def add_metrics(app: FastAPI, metrics: Metrics, checks: Checks) -> None:
    """Add ``GET /metrics``. Database and Temporal are asked when somebody scrapes, and not at every scrape."""
    asked_at: float | None = None

    @app.get(
        "/metrics",
        operation_id="metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def read_metrics() -> Any:
        """The gateway's own metrics in Prometheus' text format."""
        nonlocal asked_at
        now = time.monotonic()
        if asked_at is None or now - asked_at > FRESH_S:
            asked_at = now
            for part, answer in (await checks()).items():
                metrics.available.labels(part).set(answer == "ok")
            for refresh in metrics.refreshed_by:
                await run_in_threadpool(refresh)
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def count_managers(managers: ManagerStore, metrics: Metrics) -> None:
    """Bring the gauges up to date. Blocks. A database that does not answer makes them unknown, not zero."""
    try:
        found = managers.live_managers()
    except LifecycleError:
        found = None
    for status in (status for status in RunStatus if not status.terminal):
        metrics.managers.labels(status).set(math.nan if found is None else found.by_status.get(status, 0))
    metrics.managers_failing.set(math.nan if found is None else found.failing)
    metrics.manager_jobs_live.set(math.nan if found is None else found.jobs)


def count_graphs(graphs: GraphStore, metrics: Metrics) -> None:
    """The same of graphs."""
    try:
        metrics.graphs.set(graphs.count_graphs())
    except LifecycleError:
        metrics.graphs.set(math.nan)


def count_schedules(schedules: ScheduleStore, metrics: Metrics, clock: Callable[[], datetime]) -> None:
    """The same of schedules."""
    try:
        found: ScheduleCounts | None = schedules.count_schedules(clock() - UNTOLD)
    except LifecycleError:
        found = None
    metrics.schedules.labels("active").set(math.nan if found is None else found.active)
    metrics.schedules.labels("paused").set(math.nan if found is None else found.paused)
    metrics.schedules_untold.set(math.nan if found is None else found.untold)


def count_webhooks(webhooks: WebhookStore, events: EventStore, metrics: Metrics) -> None:
    """Bring the gauges up to date. Blocks. A database that does not answer makes them unknown, not zero."""
    try:
        rows, newest = webhooks.list_webhooks(0, WEBHOOKS_MAX), events.last_event_seq()
        states: Mapping[str, float] = collections.Counter(row.state for row in rows)
        behind: float = max((newest - row.through_seq for row in rows if row.paused_at is None), default=0)
    except LifecycleError:
        states, behind = dict.fromkeys(("active", "failing", "paused"), math.nan), math.nan
    for state in ("active", "failing", "paused"):
        metrics.webhooks.labels(state).set(states.get(state, 0))
    metrics.webhook_behind.set(behind)
