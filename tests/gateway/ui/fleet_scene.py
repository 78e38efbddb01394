"""A fleet of 513 crawlers: most are healthy, some are not, and some names are hostile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import sqlalchemy as sa

from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.store.runs.tables import run_history
from tests.gateway.gateway_harness import Harness
from tests.support.filling import fill_runs

CRAWLERS = 513
EACH = 10
LONG = "W" * 190
CAUSE = "KeyError: " + "price" * 160
#: The kinds of incidents of crawlers, and the crawlers that have them.
SICK = {
    "crawler_failing": ["shop-437", LONG],
    "crawler_flaky": ["shop-100"],
    "crawler_less": ["shop-7", "shop-8"],
}
#: The kinds of incidents, each with its subject, its sentence and its action.
TROUBLES = [
    ("crawler_failing", "crawlers/crawler-3", "crawler-3 fails", "Open"),
    ("crawler_flaky", "crawlers/crawler-4", "crawler-4 is flaky", "Open"),
    ("crawler_less", "crawlers/crawler-5", "crawler-5 brings less", "Open"),
    ("crawler_empty", "crawlers/crawler-6", "crawler-6 brings empty fields", "Open"),
    ("schedule_paused", "schedules/nightly", "Schedule nightly stopped itself", "Resume"),
    ("schedule_missed", "schedules/left", "Schedule left starts nothing", "Open"),
    ("schedule_idle", "schedules/once", "Schedule once is never due again", "Open"),
    ("pool_full", "pools/batch", "Pool batch is full", "Open"),
    ("graph_failed", "graphs/7", "Graph 7 failed", "Retry steps"),
    ("manager_failed", "managers/8", "Manager 8 failed", "Open"),
    ("manager_stuck", "managers/9", "Manager 9 is stuck", "Open"),
    ("webhook_failing", "webhooks/chat", "Webhook chat fails", "Send again now"),
    ("webhook_paused", "webhooks/alerts", "Webhook alerts is paused", "Resume"),
    ("worker_silent", "parts/one", "Worker one is silent", "Open"),
    ("part_unwell", "parts/task queues", "Not working: task queues", "Open"),
    ("poll_overdue", "parts/polls", "Polls are overdue", "Open"),
]


def names() -> list[str]:
    """The names of all crawlers that have runs."""
    return [f"shop-{n}" for n in range(CRAWLERS - 1)] + [LONG]


def fill_good(harness: Harness, names: Sequence[str]) -> int:
    """Record ``EACH`` good runs of each of these crawlers. Return the number of the first run.

    The runs of all crawlers alternate. The newest ones began four hours ago.
    """
    known = harness.scheduler.catalogue.crawlers
    known.clear()
    for name in (*names, "new"):
        known[name] = CrawlerDefinition(name, CrawlerKind.COMMAND, command=["true"])
    h, now, many = run_history.c, harness.clock.now, len(names)
    with harness.store.database.writer.begin() as connection:
        first = fill_runs(connection, many * EACH)
        for n, name in enumerate(names):
            mine = h.run_id.in_(range(first + n, first + many * EACH, many))
            connection.execute(sa.update(run_history).where(mine).values(crawler=name))
        for n in range(EACH):
            since = first + many * n
            some = sa.and_(h.run_id >= since, h.run_id < since + many)
            at = now - timedelta(hours=4 * (EACH - n))
            times = {"created_at": at, "started_at": at, "ended_at": at + timedelta(minutes=n + 1)}
            values = {**times, "status": "COMPLETED", "outcome": "finished", "items": 1000 + n}
            values["work_hash"] = "same"
            connection.execute(sa.update(run_history).where(some).values(**values))
    return first


def fill_fleet(harness: Harness) -> None:
    """Record runs of each crawler, incidents, and runs that wait."""
    first = fill_good(harness, names())
    del harness.scheduler.catalogue.crawlers[names()[0]]
    h = run_history.c
    with harness.store.database.writer.begin() as connection:
        newest = h.run_id >= first + CRAWLERS * (EACH - 3)
        bad = h.crawler.in_(SICK["crawler_failing"]) & newest
        failed = {"status": "FAILED", "outcome": "failed", "cause": CAUSE, "items": 0}
        connection.execute(sa.update(run_history).where(bad).values(**failed))
        last = h.run_id >= first + CRAWLERS * (EACH - 1)
        live = {"status": "INITIALIZING", "ended_at": None, "outcome": None, "owner_run_id": None}
        waits = h.crawler.in_(["shop-20", "shop-21"]) & last
        connection.execute(sa.update(run_history).where(waits).values(**live))
        runs = h.crawler.in_(["shop-30"]) & last
        live = {"status": "PROCESSING", "ended_at": None, "outcome": None}
        connection.execute(sa.update(run_history).where(runs).values(**live))
    conditions = [
        condition(harness, kind, f"crawlers/{name}") for kind in SICK for name in SICK[kind]
    ]
    conditions.append(condition(harness, "schedule_paused", "schedules/nightly"))
    conditions.append(condition(harness, "pool_full", "pools/batch"))
    harness.store.incidents.record_conditions(conditions, lambda row: True)


def fill_healthy(harness: Harness) -> None:
    """Record good runs of 20 crawlers. Another one has never run."""
    known = harness.scheduler.catalogue.crawlers
    known.clear()
    known["new"] = CrawlerDefinition("new", CrawlerKind.COMMAND, command=["true"])
    good = {"status": "COMPLETED", "outcome": "finished", "created_at": harness.clock.now}
    with harness.store.database.writer.begin() as connection:
        fill_runs(connection, 20)
        connection.execute(sa.update(run_history).values(good))


def condition(harness: Harness, kind: str, subject: str) -> IncidentCondition:
    """A condition that holds for nine hours."""
    since = harness.clock.now - timedelta(hours=9)
    at = harness.clock.now - timedelta(hours=1)
    return IncidentCondition(kind, subject, "default", CAUSE, since, at, count=3)
