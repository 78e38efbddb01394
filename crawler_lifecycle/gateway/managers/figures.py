"""Figures of crawl managers, graphs and schedules for Prometheus, out of the database."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.ports.schedules import UNTOLD, ScheduleCounts
from crawler_lifecycle.store.graphs.graphs import GraphStore
from crawler_lifecycle.store.managers.managers import ManagerStore
from crawler_lifecycle.store.schedules.schedules import ScheduleStore


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
