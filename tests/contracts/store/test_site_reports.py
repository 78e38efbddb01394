"""Refused requests that crawlers without leases report in their statistics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from sqlalchemy import func, select, update

from crawler_lifecycle.domain.blocked import BlockReport
from crawler_lifecycle.domain.ends import Ends, reading
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters, End, Phase, reconcile
from crawler_lifecycle.features.sites.store.entries import db_now
from crawler_lifecycle.features.sites.store.tables import site, site_block, site_report
from crawler_lifecycle.ports.polls import LiveCounters, Poll, TaskFinding
from crawler_lifecycle.ports.runs import Fence
from tests.contracts.store.harness import Harness, good_end, seen
from tests.support.sites import close

SHOP = "shop.example"
REFUSED = BlockReport(f"www.{SHOP}", 429, 20.0)


def poll(harness: Harness, fence: Fence, *blocked: BlockReport, **fields: Any) -> None:
    [task] = harness.store.polls.found_state(fence).tasks
    told = {"uid": task.uid, "phase": Phase.EXECUTING, **fields}
    phase = told.pop("phase")
    harness.poll(fence, [seen(task, phase, harness.clock.now, blocked=blocked or None, **told)])


def state(harness: Harness, name: str = SHOP) -> tuple[float, int]:
    """Return how long the site is closed, in seconds, and how many times in a row it closed."""
    with harness.store.database.reading() as conn:
        row = conn.execute(select(site).where(site.c.site == name)).mappings().one_or_none()
        if row is None:
            return 0.0, 0
        return max(0.0, row["closed_until"] - db_now(conn)), row["closures"]


def reopen(harness: Harness) -> None:
    with harness.store.database.writing() as conn:
        conn.execute(update(site).values(closed_until=db_now(conn) - 1))


def test_each_report_closes_its_site_once(harness: Harness) -> None:
    fence = harness.executing("r", sites=[SHOP])
    for _ in range(2):
        poll(harness, fence, REFUSED)
        closed_s, closures = state(harness)
        assert (15 < closed_s <= 20, closures) == (True, 1)
    [block] = harness.store.sites.blocks(SHOP)
    assert (block.run_id, block.task_index, block.status, block.retry_after_s) == (
        fence.run_id, 0, 429, 20.0,
    )  # fmt: skip
    row = harness.store.sites.get_site(SHOP)
    assert row is not None
    assert (row.closed_by_run, row.closed_status) == (fence.run_id, 429)
    reopen(harness)
    poll(harness, fence, REFUSED)
    assert state(harness) == (0.0, 1), "the same report again"
    ref = RunRef(fence.run_id, fence.run_uid)
    again = (REFUSED, BlockReport(SHOP, 403, at="later"))
    for _ in range(2):
        told = LiveCounters(ref, 1, 0, Counters(), None, again)
        harness.store.live_counters.record_counts(ref, [told])
    closed_s, closures = state(harness)
    assert (100 < closed_s <= 120, closures) == (True, 2), "the rest doubles"


def test_a_date_and_a_day_at_most(harness: Harness) -> None:
    fence = harness.executing("r", sites=[SHOP])
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=300))
    poll(harness, fence, BlockReport(SHOP, 503, date))
    assert 290 < state(harness)[0] <= 300
    poll(harness, fence, BlockReport(SHOP, 503, 1e9))
    assert 86_000 < state(harness)[0] <= 86_400


@pytest.mark.parametrize("host", ["other.example", "no host", "\ud800"])
def test_other_hosts_are_ignored(harness: Harness, host: str) -> None:
    fence = harness.executing("r", sites=[SHOP])
    poll(harness, fence, BlockReport(host, 429))
    with harness.store.database.reading() as conn:
        assert conn.execute(select(func.count()).select_from(site_block)).scalar_one() == 0
    assert state(harness, "other.example") == state(harness) == (0.0, 0)


@pytest.mark.parametrize("sites", [[SHOP], [SHOP, "other.example"]])
def test_the_exit_code_of_a_ban_closes_the_only_site(harness: Harness, sites: list[str]) -> None:
    fence = harness.executing("r", sites=sites)
    found = harness.store.polls.found_state(fence)
    [task] = found.tasks
    now = harness.clock.now
    end = End(exit_code=18, reason="Error", finished_at=now)
    ended = seen(task, Phase.ENDED, now, uid=task.uid, end=end)
    browsertrix = reading(Ends(like="browsertrix"))
    change = reconcile(task, ended, None, due_at=now, ends=browsertrix)
    assert change is not None
    for _ in range(2):
        made = Poll(now, 0.1, [ended])
        harness.store.polls.record_poll(fence, made, [TaskFinding(change, ended)], None)
    closed_s, closures = state(harness)
    assert (closed_s > 50, closures) == ((True, 1) if len(sites) == 1 else (False, 0))


@pytest.mark.parametrize(("minutes", "closures"), [(2, 1), (0, 0)])
def test_a_task_that_began_after_the_closure_and_succeeds_opens_the_site(
    harness: Harness, minutes: int, closures: int
) -> None:
    fence = harness.executing("r", sites=[SHOP])
    close(harness.store, SHOP, -60)
    now = datetime.now(UTC)
    started = now - timedelta(minutes=minutes)
    poll(harness, fence, phase=Phase.ENDED, started_at=started, end=good_end(now))
    assert state(harness)[1] == closures


def test_old_reports_are_forgotten(harness: Harness) -> None:
    fence = harness.executing("r", sites=[SHOP])
    poll(harness, fence, REFUSED)
    with harness.store.database.writing() as conn:
        assert conn.execute(update(site_report).values(at=1.0)).rowcount == 1
    harness.store.sites.remove_old()
    with harness.store.database.reading() as conn:
        assert conn.execute(select(func.count()).select_from(site_report)).scalar_one() == 0
