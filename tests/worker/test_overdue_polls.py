"""The search for overdue polls: one run with a problem delays no other.

``workflows/audit`` tests it over Temporal.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from crawler_lifecycle.domain.audits.audit import LiveRun, ReportedFinding
from crawler_lifecycle.domain.audits.overdue import OverduePolls
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.store.audits.reads import OverdueStore
from crawler_lifecycle.worker.overdue_polls import FAILED_MAX, STARTS_MAX, Overdue
from tests.support.run_refs import run_ref

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def late(run_id: int) -> LiveRun:
    due = NOW - timedelta(hours=1) + timedelta(seconds=run_id)
    return LiveRun(
        run_id,
        run_ref(run_id).uid,
        1,
        "PROCESSING",
        "books",
        str(run_id),
        NOW,
        due_at=due,
        planned=True,
    )


class Store:
    """A store with this number of runs whose poll is overdue."""

    def __init__(self, count: int) -> None:
        self.runs = [late(n) for n in range(1, count + 1)]

    def overdue_polls(self, now: datetime) -> Any:
        return OverduePolls(len(self.runs))

    def overdue_runs(
        self, before: datetime, after: tuple[datetime, int] | None, limit: int
    ) -> list[LiveRun]:
        behind = [run for run in self.runs if after is None or (run.due_at, run.run_id) > after]
        return behind[:limit]


@pytest.mark.parametrize("odd", [1, FAILED_MAX, FAILED_MAX + 2])
def test_runs_in_trouble_hold_up_no_other(odd: int) -> None:
    seen: set[int] = set()

    def take_over(run: LiveRun) -> ReportedFinding | None:
        if run.run_id <= odd:
            raise TemporalUnavailable("of this one alone")
        seen.add(run.run_id)
        return None

    async def wake(workflow_id: str) -> bool:
        return True

    search = Overdue(cast(OverdueStore, Store(odd + 3)), take_over, wake, clock=lambda: NOW)
    for _ in range(3):
        with contextlib.suppress(TemporalUnavailable):
            asyncio.run(search.turn())
    assert seen == {odd + 1, odd + 2, odd + 3}


def test_starts_that_wait_for_long_are_put_first_some_in_each_turn() -> None:
    first: list[str] = []
    store = Store(STARTS_MAX + 5)
    owned, *others = store.runs
    store.runs = [
        replace(owned, owner_run_id="chain"),
        *(replace(run, planned=False) for run in others),
    ]

    async def begin(workflow_id: str) -> None:
        first.append(workflow_id)

    async def wake(workflow_id: str) -> bool:
        raise AssertionError(workflow_id)

    search = Overdue(
        cast(OverdueStore, store), lambda run: None, wake, clock=lambda: NOW, begin=begin
    )
    asyncio.run(search.turn())
    assert first == [f"crawl/books/{run.run_id}" for run in others[:STARTS_MAX]]
