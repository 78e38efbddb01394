"""The leases of sites on each database."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from crawler_lifecycle.features.sites.domain.closing import STRANGER_MAX_S, Block
from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.store.entries import FRESH, db_now
from crawler_lifecycle.features.sites.store.leases import (
    LEFT_MAX,
    REPORT_S,
    LeaseCall,
    LeaseStore,
    SiteAnswer,
    SiteReport,
)
from crawler_lifecycle.features.sites.store.tables import (
    run_site,
    site,
    site_block,
    site_lease,
    site_minute,
)
from tests.contracts.store.harness import Harness

SHOP = "shop.example"


class Visits:
    """Tasks that ask about the hosts of a site with limits."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.store = harness.store
        self.leases = LeaseStore(self.store.database)

    def limit(self, name: str = SHOP, **limits: Any) -> None:
        given = SiteLimits(**limits).to_json()
        with self.store.database.writing() as conn:
            conn.execute(insert(site).values(site=name, limits=given, origin="people", **FRESH))

    def start(self, name: str, *, names_site: bool = False) -> LeaseCall:
        """Return a call of the task of a new run."""
        fence = self.harness.deployed(name)
        if names_site:
            with self.store.database.writing() as conn:
                conn.execute(insert(run_site).values(run_id=fence.run_id, host=SHOP, site=SHOP))
        return LeaseCall(fence.run_id, self.harness.row(fence).run_uid, 0, 1, {})

    def ask(
        self, task: LeaseCall, host: str = SHOP, wanted: int = 1, *, process: str = "", **more: Any
    ) -> SiteAnswer:
        report = SiteReport(host, wanted, **more)
        call = LeaseCall(task.run_id, task.uid, 0, 1, {host: report}, process)
        [answers] = self.leases.answer([call])
        assert answers is not None
        return answers[host]

    def rows(self, table: Any) -> list[dict[str, Any]]:
        with self.store.database.reading() as conn:
            return [dict(row) for row in conn.execute(select(table)).mappings()]


@pytest.fixture
def visits(harness: Harness) -> Visits:
    return Visits(harness)


def test_lanes_are_leased_renewed_and_closed(visits: Visits) -> None:
    visits.limit(requests_per_s=10, connections=3)
    task = visits.start("first")
    first = visits.ask(task, wanted=2)
    assert [lease.lane for lease, *_ in first.lanes] == [0, 1]
    time.sleep(0.01)
    again = visits.ask(task, wanted=3, kept=[0, 1], statuses={"200": 3})
    assert [lease.lane for lease, *_ in again.lanes] == [0, 1, 2]
    assert again.lanes[0][0].until > first.lanes[0][0].until
    closed = visits.ask(task, block=Block(429, 20.0), statuses={"429": 1})
    assert 19 < closed.closed_s <= 20
    assert not closed.lanes
    [left] = visits.rows(site_lease)
    assert left["holder"] == task.task
    [block] = visits.rows(site_block)
    assert (block["run_id"], block["status"]) == (task.run_id, 429)
    assert sum(row["requests"] for row in visits.rows(site_minute)) == 4
    stranger = LeaseCall(task.run_id, "f" * 32, 0, 1, {})
    assert visits.leases.answer([stranger]) == [None]


@pytest.mark.parametrize("seed", range(4))
def test_no_lane_is_given_to_two_hosts_processes_or_tasks(visits: Visits, seed: int) -> None:
    """All of them together keep the limits, however they ask, keep and return lanes."""
    chance = random.Random(seed)
    visits.limit(requests_per_s=10, connections=chance.choice((1, 4, 7)))
    [row] = visits.rows(site)
    hosts = [SHOP, "a.shop.example", "b.shop.example"]
    # One process may also write a host in two ways.
    asked = {"A.Shop.example": "a.shop.example", **{host: host for host in hosts}}
    tasks = [visits.start(f"run-{number}") for number in range(3)]
    held: dict[tuple[int, str, str], dict[int, float]] = {}
    for _ in range(60):
        task = chance.choice(tasks)
        process = chance.choice(("", "x1", "x2"))
        reports = {}
        for written in chance.sample([*asked], chance.randint(1, len(asked))):
            mine = [*held.get((task.run_id, process, written), ())]
            kept = chance.sample(mine, chance.randint(0, len(mine)))
            wanted = chance.randint(0, 4)
            reports[written] = SiteReport(asked[written], wanted, kept)
        [answers] = visits.leases.answer([LeaseCall(task.run_id, task.uid, 0, 1, reports, process)])
        assert answers is not None
        for written, answer in answers.items():
            lanes = {lease.lane: table.every_s for lease, table, _ in answer.lanes}
            held[task.run_id, process, written] = lanes
        lanes_held = [lane for lanes in held.values() for lane in lanes]
        assert len(lanes_held) == len(set(lanes_held)) <= row["limits"]["connections"]
        assert sum(1 / every_s for lanes in held.values() for every_s in lanes.values()) <= 10


def test_a_refusal_that_is_late_closes_the_site(visits: Visits) -> None:
    """The task returned its lane while the request was in progress, and another one holds it."""
    visits.limit(requests_per_s=1)
    task = visits.start("first")
    other = visits.start("other")
    assert visits.ask(task).lanes
    visits.ask(task, wanted=0)
    assert visits.ask(other).lanes
    assert visits.ask(task, wanted=0, block=Block(429, 20.0)).closed_s > 19


def test_a_task_that_left_a_site_long_ago_does_not_close_it(visits: Visits) -> None:
    visits.limit(requests_per_s=1)
    task = visits.start("first")
    visits.ask(task)
    visits.ask(task, wanted=0)
    with visits.store.database.writing() as conn:
        conn.execute(update(site_lease).values(until=db_now(conn) - REPORT_S - 1))
    assert visits.ask(task, wanted=0, block=Block(429, 20.0)).closed_s == 0
    visits.ask(visits.start("second"))
    assert {row["holder"].partition("/")[0] for row in visits.rows(site_lease)} != {task.task}


def test_the_latest_end_of_the_leases_of_a_task_counts(visits: Visits) -> None:
    visits.limit(connections=2)
    task = visits.start("first")
    visits.ask(task, wanted=2)
    with visits.store.database.writing() as conn:
        now = db_now(conn)
        ended = update(site_lease).where(site_lease.c.lane == 1).values(until=now - REPORT_S + 5)
        conn.execute(ended)
    visits.ask(task, wanted=0)
    [left] = visits.rows(site_lease)
    assert left["until"] > now - 1


def test_a_late_success_on_another_host_does_not_open_a_site_that_is_probed(
    visits: Visits,
) -> None:
    visits.limit(connections=2)
    task = visits.start("first")
    visits.ask(task, block=Block(429, 20.0), passed=True)
    with visits.store.database.writing() as conn:
        conn.execute(update(site).values(closed_until=1.0, closures=1))
    assert visits.ask(task).probe
    assert visits.ask(task, "a.shop.example", wanted=0, passed=True).probe
    assert not visits.ask(task, kept=[0], passed=True).probe


def test_the_tasks_that_left_a_site_are_few_rows(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.features.sites.store.leases.LEFT_MAX", 2)
    assert LEFT_MAX < 100
    visits.limit(requests_per_s=1)
    tasks = [visits.start(f"run-{number}") for number in range(4)]
    for task in tasks:
        assert visits.ask(task, "a.shop.example").lanes
        visits.ask(task, "a.shop.example", wanted=0)
    assert [row["holder"] for row in visits.rows(site_lease)] == [tasks[3].task, tasks[2].task]
    assert visits.store.sites.get_site(SHOP).lanes == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("names_site", [False, True])
def test_only_a_run_that_names_a_site_closes_it_for_long(visits: Visits, names_site: bool) -> None:
    """A run of another project may visit the site, too."""
    visits.limit(connections=1)
    task = visits.start("first", names_site=names_site)
    visits.ask(task)
    closed = visits.ask(task, block=Block(429, 40_000.0))
    assert closed.closed_s == pytest.approx(40_000 if names_site else STRANGER_MAX_S, abs=5)


def test_sites_without_limits_are_forgotten_when_nothing_is_known_about_them(
    visits: Visits,
) -> None:
    """With limits for all sites, each host that a crawl visits has rows."""
    visits.limit("*", connections=8)
    visits.limit("limited.example", tasks=1)
    task = visits.start("first")
    hosts = [f"shop-{number}.example" for number in range(3)]
    for host in hosts:
        assert visits.ask(task, host).lanes
    visits.ask(task, hosts[1], statuses={"200": 1})
    visits.store.sites.remove_old()
    assert len(visits.rows(site)) == 5, "their leases have not ended"
    with visits.store.database.writing() as conn:
        conn.execute(update(site_lease).values(until=db_now(conn) - REPORT_S - 1))
    visits.store.sites.remove_old()
    assert visits.rows(site_lease) == []
    assert {row["site"] for row in visits.rows(site)} == {"*", "limited.example", hosts[1]}
