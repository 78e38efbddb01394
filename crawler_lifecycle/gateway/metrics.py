"""Metrics of the gateway for Prometheus.

Some are counted in the process, and others are read from the database.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from fastapi import FastAPI
from prometheus_client import Counter, Gauge, Histogram
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.pools import DEFAULT
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features import INCIDENT_KINDS
from crawler_lifecycle.features.schedules.ports import UNTOLD
from crawler_lifecycle.features.webhooks.domain.definition import WEBHOOKS_MAX
from crawler_lifecycle.observability.metrics import Figures, QueryGauge, Values
from crawler_lifecycle.store.store import Store

#: Seconds for which answers of the database and of Temporal are reused.
FRESH_S = 5.0
_WEEK = timedelta(days=7)
#: The maximum number of a project's packages whose current versions are metrics: the first by name.
PACKAGES_MAX = 500
_LAG_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: Returns the result of each check by its name: ``ok`` or the error.
Checks = Callable[[], Awaitable[Mapping[str, str]]]


class Metrics(Figures):
    """The metrics of one gateway process."""

    def __init__(self) -> None:
        super().__init__("gateway")
        name = self.prefix
        registry = self.registry
        self.readers = Gauge(
            f"{name}_stream_readers",
            "Clients that are reading or waiting",
            ["stream"],
            registry=registry,
        )
        self.dropped = Counter(
            f"{name}_stream_dropped",
            "Clients disconnected because they stopped reading",
            ["stream"],
            registry=registry,
        )
        self.stream_lag = Histogram(
            f"{name}_stream_lag_seconds",
            "Seconds from the commit of an event until readers can get it",
            buckets=_LAG_BUCKETS,
            registry=registry,
        )
        self.available = Gauge(
            f"{name}_available",
            "1 if this part answers, and 0 if it does not",
            ["part"],
            registry=registry,
        )
        self.blocked = Gauge(
            "lifecycle_runs_blocked",
            "Open workflows whose next step keeps failing; NaN while the number is unknown",
            registry=registry,
        )
        self.blocked.set(math.nan)
        self.readers.labels("waits")
        for stream in ("events", "log", "page"):
            self.readers.labels(stream)
            self.dropped.labels(stream)


def add_metrics(
    app: FastAPI, metrics: Metrics, checks: Checks, projects: Callable[[], Collection[str]]
) -> None:
    """Add ``GET /metrics``.

    A scrape asks the database and Temporal again if their last answers are too old.
    """
    asked_at: float | None = None

    def renewed() -> None:
        known: Collection[str] = ()
        with suppress(LifecycleError):  # the values of projects that are already known become NaN
            known = projects()
        metrics.renew(known)

    @app.get(
        "/metrics",
        operation_id="metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def read_metrics() -> Any:
        """The gateway's metrics in the text format of Prometheus.

        A token of one project gets only the metrics that have its label ``project``.
        """
        nonlocal asked_at
        now = time.monotonic()
        if asked_at is None or now - asked_at > FRESH_S:
            asked_at = now
            for part, answer in (await checks()).items():
                metrics.available.labels(part).set(answer == "ok")
            await run_in_threadpool(renewed)
        return metrics.answer()


def _ask_about_pools(metrics: Metrics, store: Store, clock: Clock) -> None:
    """Add the metrics of pools."""
    names = [DEFAULT]

    def places() -> Values:
        now = clock()
        is_counted = store.pools.known_pools().counted
        rows = {row.name: row for row in (store.pools.list_pools() if is_counted else ())}
        # A pool that was deleted stays, without slots.
        names.extend(sorted(rows.keys() - {*names}))
        return (
            {name: row.in_use for name, row in rows.items()},
            dict.fromkeys(names, math.nan)
            | {name: row.max for name, row in rows.items() if row.max is not None},
            {name: row.reserved for name, row in rows.items()},
            {name: row.waiting_tasks for name, row in rows.items()},
            {
                name: (now - row.oldest_wait_at).total_seconds()
                for name, row in rows.items()
                if row.oldest_wait_at
            },
        )

    of_pool = "pool", names
    metrics.ask(
        places,
        QueryGauge(
            "lifecycle_pool_slots_in_use",
            "Slots that tasks hold; NaN while the database does not answer",
            *of_pool,
        ),
        QueryGauge(
            "lifecycle_pool_slots_max",
            "Most slots of the pool at once; NaN without a limit",
            *of_pool,
        ),
        QueryGauge(
            "lifecycle_pool_slots_reserved", "Slots that other pools leave free for it", *of_pool
        ),
        QueryGauge("lifecycle_pool_waiting_tasks", "Tasks that are waiting for slots", *of_pool),
        QueryGauge(
            "lifecycle_pool_oldest_wait_seconds",
            "Age of the oldest waiting run; 0 if there is none",
            *of_pool,
        ),
        everywhere=True,
    )


def ask_the_database(metrics: Metrics, store: Store, clock: Clock) -> None:
    """Add the metrics that are read from the database. They are NaN while it does not answer."""

    _ask_about_pools(metrics, store, clock)
    metrics.info(
        "lifecycle_package_info",
        "Always 1; the current version of each package, and its digest",
        ("package", "version", "digest"),
        lambda: (
            (row.package, row.version, row.digest)
            for row in store.packages.list_packages(0, PACKAGES_MAX)
        ),
    )

    def managers() -> Values:
        found = store.managers.live_managers()
        return found.by_status, found.failing, found.jobs

    metrics.ask(
        managers,
        QueryGauge(
            "lifecycle_managers",
            "Crawl managers that have not ended; NaN while the database does not answer",
            "status",
            [status for status in RunStatus if not status.terminal],
        ),
        QueryGauge("lifecycle_managers_failing", "Open managers whose class failed recently"),
        QueryGauge("lifecycle_manager_jobs_live", "Jobs of open managers that hold a slot"),
    )
    metrics.ask(
        lambda: [store.graphs.count_graphs()],
        QueryGauge(
            "lifecycle_graphs", "Graphs that have not ended; NaN while the database does not answer"
        ),
    )

    def schedules() -> Values:
        found = store.schedules.count_schedules(clock() - UNTOLD)
        return {"active": found.active, "paused": found.paused}, found.untold

    metrics.ask(
        schedules,
        QueryGauge(
            "lifecycle_schedules",
            "Schedules, active and paused; NaN while the database does not answer",
            "state",
            ("active", "paused"),
        ),
        QueryGauge(
            "lifecycle_schedules_unsynced",
            "Schedules whose change has not reached Temporal for ten minutes",
        ),
    )

    def webhooks() -> Values:
        rows = store.webhooks.page(0, WEBHOOKS_MAX)
        newest = store.events.last_event_seq()
        behind = max((newest - row.through_seq for row in rows if row.paused_at is None), default=0)
        return collections.Counter(row.state for row in rows), behind

    metrics.ask(
        webhooks,
        QueryGauge(
            "lifecycle_webhooks",
            "Webhooks by state; NaN while the database does not answer",
            "state",
            ("active", "failing", "paused"),
        ),
        QueryGauge(
            "lifecycle_webhook_behind_events", "Events that the slowest webhook has not handled yet"
        ),
    )

    metrics.ask(
        lambda: [store.incidents.open_counts()],
        QueryGauge(
            "lifecycle_incidents_open",
            "Open incidents by kind; NaN while the database does not answer",
            "kind",
            tuple(INCIDENT_KINDS),
        ),
    )

    def ledger() -> Values:
        now = clock()
        kinds = store.corrections.correction_summary(now - _WEEK).kinds
        late = store.overdue.overdue_polls(now)
        late_s = (now - late.since).total_seconds() if late.since else 0
        worst = {total.kind: (total.worst_ms or 0) / 1000 for total in kinds}
        return {total.kind: total.count for total in kinds}, worst, late.count, late_s

    metrics.ask(
        ledger,
        QueryGauge(
            "lifecycle_week_corrections",
            "Corrections of the last seven days, by kind; NaN while the database does not answer",
            "kind",
            list(CorrectionKind),
        ),
        QueryGauge(
            "lifecycle_week_wrong_seconds_max",
            "Longest time of an untrue status in the last seven days, by kind of correction, "
            "without lag",
            "kind",
            list(CorrectionKind),
        ),
        QueryGauge(
            "lifecycle_polls_overdue",
            "Polls that are overdue by 30 s or more; NaN while the database does not answer",
        ),
        QueryGauge(
            "lifecycle_poll_overdue_seconds_max", "Seconds since the oldest overdue poll was due"
        ),
    )
    metrics.ask(
        lambda: [store.overdue.overdue_polls(clock()).lost],
        QueryGauge(
            "lifecycle_without_workflow",
            "Managers, graphs, firings and webhooks without their workflow; NaN while the database "
            "does not answer",
        ),
        everywhere=True,
    )
