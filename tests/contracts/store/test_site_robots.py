"""The robots.txt of origins: who fetches it, how long it is valid, and what it limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.features.sites.domain.robots import CLAIM_S, FAILED_S, VALID_S
from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.store.entries import entries_for
from crawler_lifecycle.features.sites.store.leases import LeaseCall, LeaseStore, SiteReport
from crawler_lifecycle.features.sites.store.robots import FetchedFile, RobotsAnswer, RobotsStore
from crawler_lifecycle.features.sites.store.sites import BLOCKS_KEPT_S
from crawler_lifecycle.features.sites.store.tables import (
    run_robots,
    run_site,
    site,
    site_robots,
)
from crawler_lifecycle.store.runs.tables import run_history
from tests.contracts.store.harness import Harness

SHOP = "shop.example"
ORIGIN = "https://shop.example"
FIVE = FetchedFile(200, b"User-agent: *\nCrawl-delay: 5\n")


class Fleet:
    """Runs that visit the site."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.store = harness.store
        self.robots = RobotsStore(self.store.database)

    def visit(self, name: str, host: str = SHOP) -> LeaseCall:
        fence = self.harness.deployed(name)
        with self.store.database.writing() as conn:
            conn.execute(insert(run_site).values(run_id=fence.run_id, host=host, site=SHOP))
        return LeaseCall(fence.run_id, fence.run_uid, 0, 1, {})

    def fetch(self, task: LeaseCall, file: FetchedFile = FIVE, origin: str = ORIGIN) -> Any:
        answer = self.robots.ask(task, origin)
        assert answer is not None
        assert answer.fetch
        return self.robots.report(task, origin, "bot", file, None)

    def rows(self, table: Any) -> list[dict[str, Any]]:
        with self.store.database.reading() as conn:
            return [dict(row) for row in conn.execute(select(table)).mappings()]

    def age(self, seconds: float) -> None:
        """Make everything older."""
        changed = {
            name: site_robots.c[name] - seconds
            for name in ("claimed_until", "fetched_at", "valid_until")
        }
        with self.store.database.writing() as conn:
            conn.execute(update(site_robots).values(**changed))

    def rate(self, host: str = SHOP) -> float | None:
        with self.store.database.reading() as conn:
            return entries_for(conn, [host])[host][1].requests_per_s


@pytest.fixture
def fleet(harness: Harness) -> Fleet:
    return Fleet(harness)


def test_many_tasks_at_once_fetch_once(fleet: Fleet) -> None:
    tasks = [fleet.visit(f"run-{number}") for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda task: fleet.robots.ask(task, ORIGIN), tasks))
    assert [answer.fetch for answer in answers if answer is not None].count(True) == 1
    assert sum(answer is not None and answer.wait_s is not None for answer in answers) == 5
    assert len(fleet.rows(run_robots)) == 6


def test_a_copy_is_valid_for_a_day_and_a_failure_for_minutes(fleet: Fleet) -> None:
    first = fleet.visit("first")
    second = fleet.visit("second")
    fleet.fetch(first)
    fleet.age(VALID_S - 5)
    known = fleet.robots.ask(second, ORIGIN)
    assert known is not None
    assert (known.status, known.body, known.delayed) == (200, FIVE.body, True)
    fleet.age(10)
    failed = fleet.fetch(second, FetchedFile(None))
    assert (failed.status, failed.body) == (None, b"")
    assert fleet.rate() == 0.2, "the last known rules hold"
    fleet.age(FAILED_S - 5)
    unknown = fleet.robots.ask(first, ORIGIN)
    assert unknown is not None
    assert not unknown.fetch
    fleet.age(10)
    fleet.fetch(first, FetchedFile(404, b"Crawl-delay: 5"))
    assert fleet.rate() is None
    [row] = fleet.rows(site_robots)
    assert (row["sha256"], row["body"], row["run_id"]) == (None, None, first.run_id)


def test_a_claim_ends_by_itself(fleet: Fleet) -> None:
    first = fleet.visit("first")
    second = fleet.visit("second")
    assert fleet.robots.ask(first, ORIGIN).fetch  # type: ignore[union-attr]
    fleet.age(CLAIM_S + 1)
    fleet.fetch(second)
    with pytest.raises(NotInThisState, match=f"run {first.run_id} does not fetch"):
        fleet.robots.report(first, ORIGIN, "bot", FIVE, None)


def test_the_longest_delay_of_a_site_holds_and_follows_its_entries(fleet: Fleet) -> None:
    task = fleet.visit("first")
    fleet.fetch(task)
    fleet.fetch(
        task, FetchedFile(200, b"User-agent: *\nCrawl-delay: 2\n"), "http://de.shop.example"
    )
    assert fleet.rate() == fleet.rate("de.shop.example") == 0.2
    sites = fleet.store.sites
    sites.set_limits("de.shop.example", SiteLimits(tasks=1), "ann")
    fleet.store.caps.adopt()
    assert fleet.rate("de.shop.example") is None, "until its files are fetched again"
    other = fleet.visit("other", "de.shop.example")
    with fleet.store.database.writing() as conn:
        conn.execute(update(run_site).where(run_site.c.host != SHOP).values(site="de.shop.example"))
    fleet.age(CLAIM_S)
    fleet.fetch(
        other, FetchedFile(200, b"User-agent: *\nCrawl-delay: 2\n"), "http://de.shop.example"
    )
    assert (fleet.rate(), fleet.rate("de.shop.example")) == (0.2, 0.5)
    sites.set_limits(SHOP, SiteLimits(requests_per_s=0.1), "ann")
    assert fleet.rate() == 0.1, "it is lower"
    row = sites.get_site(SHOP)
    assert row is not None
    assert (row.delay_s, row.rate) == (None, 0.1)


def test_it_is_forgotten_after_a_month(fleet: Fleet) -> None:
    fleet.fetch(fleet.visit("first"))
    fleet.age(BLOCKS_KEPT_S)
    fleet.store.sites.remove_old()
    assert len(fleet.rows(site_robots)) == 1
    fleet.age(VALID_S + 1)
    fleet.store.sites.remove_old()
    assert fleet.rows(site_robots) == []
    assert fleet.rows(site) == [], "its crawl delay went with it"
    assert fleet.rate() is None


def test_a_run_that_does_not_name_a_site_publishes_no_rules_for_other_projects(
    fleet: Fleet,
) -> None:
    """It may not fetch while they name the site, and what it fetched before does not hold for
    them.
    """
    fleet.store.sites.set_limits(SHOP, SiteLimits(connections=4), "ann")
    leases = LeaseStore(fleet.store.database)
    fence = fleet.harness.deployed("stranger")
    with fleet.store.database.writing() as conn:
        conn.execute(update(run_history).values(project="b"))
    stranger = LeaseCall(fence.run_id, fence.run_uid, 0, 1, {SHOP: SiteReport(SHOP, 1)})
    [answers] = leases.answer([stranger])
    assert answers is not None
    assert answers[SHOP].lanes
    fleet.fetch(stranger)
    owner = fleet.visit("owner")
    fleet.age(CLAIM_S)
    fleet.fetch(owner, FetchedFile(200, b"User-agent: *\n"))
    assert fleet.rate() is None
    known = fleet.robots.ask(stranger, ORIGIN)
    assert known is not None
    assert known.status == 200
    fleet.age(VALID_S + 1)
    assert fleet.robots.ask(stranger, ORIGIN) == RobotsAnswer()
    with pytest.raises(NotInThisState, match="runs of another project name"):
        fleet.robots.reserve(stranger, ORIGIN, None)
    fleet.fetch(owner)


def test_a_clock_that_was_set_back_keeps_nothing_forever(fleet: Fleet) -> None:
    task = fleet.visit("first")
    fleet.fetch(task)
    fleet.age(-30 * VALID_S)
    assert fleet.robots.ask(fleet.visit("second"), ORIGIN).fetch  # type: ignore[union-attr]
