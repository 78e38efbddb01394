"""What stands there of things whose changes no event tells of, so that pages about them move all the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.audits.overdue import overdue_before
from crawler_lifecycle.gateway.api.answers import WEEK
from crawler_lifecycle.gateway.runs.recent import RecentRuns
from crawler_lifecycle.store.store import Store

#: By what pages say that they are about: what stands there now. Two answers that are equal look alike on the page.
Topics = Mapping[str, Callable[[], Awaitable[object]]]

Row = TypeVar("Row")
#: Rows that one statement reads.
_PAGE = 200


def topics(store: Store, recent: RecentRuns, clock: Callable[[], datetime]) -> Topics:
    """Each asks the database once, whatever the number of those who look."""

    async def crawlers() -> object:
        # Counters of a run that goes on move all the time; its beginning and its end are what a chart is read for.
        found = await recent.read()
        return [(one.crawler, one.less, [(run.run_id, run.attempt, run.status) for run in one.runs])
                for one in found.crawlers]  # fmt: skip

    def corrections() -> object:
        now = clock()
        late = store.overdue.overdue_looks(overdue_before(now))
        return store.corrections.correction_summary(now - WEEK).kinds, late.count, late.lost

    def audit() -> object:
        report = store.findings.last_audit()
        return None if report is None else report.audit_id

    def schedules() -> object:
        return every(store.schedules.list_schedules, lambda row: row.schedule_id)

    def webhooks() -> object:
        # How far it has followed the outbox moves with events that are none of its.
        rows = every(store.webhooks.list_webhooks, lambda row: row.webhook_id)
        return [replace(row, through_seq=0, follower=None, updated_at=row.created_at) for row in rows]

    in_threads = {"audit": audit, "corrections": corrections, "schedules": schedules, "webhooks": webhooks}
    return {"crawlers": crawlers, **{name: _threaded(ask) for name, ask in in_threads.items()}}


def every(page: Callable[[int, int], list[Row]], key: Callable[[Row], int]) -> list[Row]:
    """All rows of a list that is read behind a key."""
    found: list[Row] = []
    while rows := page(key(found[-1]) if found else 0, _PAGE):
        found += rows
    return found


def _threaded(ask: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    return lambda: run_in_threadpool(ask)
