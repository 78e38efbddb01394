"""Sites: their limits, their closures, and their figures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, insert, select

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.gateway.conditions import conditions
from crawler_lifecycle.features.sites.store.entries import db_now, lock_sites
from crawler_lifecycle.features.sites.store.sites import BLOCKS_KEPT_S, MINUTES_KEPT_S
from crawler_lifecycle.features.sites.store.tables import (
    run_site,
    site,
    site_block,
    site_minute,
    site_ticket,
)
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import START, Harness

NAME = "shop.example"


def test_limits_replace_each_other_and_settings_win(store: Store) -> None:
    sites = store.sites
    assert sites.set_limits(NAME, SiteLimits(tasks=2), "ann") == (None, True)
    assert sites.set_limits(NAME, SiteLimits(tasks=2), "ann") == (SiteLimits(tasks=2), False)
    two = SiteLimits(requests_per_s=0.5, hours="00:00-00:00")
    assert sites.set_limits(NAME, two, "bob") == (SiteLimits(tasks=2), True)
    row = sites.get_site(NAME)
    assert row is not None
    assert (row.origin, row.changed_by, row.limits) == ("people", "bob", two.to_json())
    assert sites.apply_settings({NAME: SiteLimits(tasks=1), "*": two}) == [NAME]
    assert sites.apply_settings({NAME: SiteLimits(tasks=1), "*": two}) == []
    for change in (
        lambda: sites.set_limits(NAME, two, None),
        lambda: sites.remove_limits(NAME, None),
    ):
        with pytest.raises(NotInThisState, match="LIFECYCLE_SITES"):
            change()
    assert sites.apply_settings({"*": two}) == []
    assert sites.remove_limits(NAME, None) == (None, False)
    row = sites.get_site(NAME)
    assert row is not None
    assert (row.origin, row.limits) == (None, two.to_json()), "those of all others"


def test_people_close_and_open(store: Store) -> None:
    sites = store.sites
    sites.close_site(NAME, 60, "ann: a sale")
    with pytest.raises(NotInThisState, match="already closed"):
        sites.close_site(NAME, 30, "bob")
    [closed] = sites.list_sites(0, 10, show="closed")
    assert (closed.state, closed.closed_by, closed.opens_at is None) == (
        "closed",
        "ann: a sale",
        False,
    )
    assert sites.closed_sites(10) == [], "a person closed it"
    assert sites.open_site(NAME, "bob")
    assert not sites.open_site(NAME, "bob")
    assert [(block.person, block.closed_until is None) for block in sites.blocks(NAME)] == [
        ("bob", True),
        ("ann: a sale", False),
    ]


def test_many_may_insert_the_same_row_at_once(store: Store) -> None:
    def lock(number: int) -> None:
        with store.database.writing() as conn:
            lock_sites(conn, [f"{number // 8}.example"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lock, range(160)))
    assert len(store.sites.list_sites(0, 100)) == 20


def test_changed_entries_open_no_site(store: Store) -> None:
    """A new entry takes over the closure of the site to which the host belonged."""
    sites = store.sites
    sites.close_site(NAME, 60, "ann")
    for name in (f"de.{NAME}", f"*.de.{NAME}"):
        sites.set_limits(name, SiteLimits(tasks=2), "bob")
        row = sites.get_site(name)
        assert row is not None
        assert (row.state, row.closed_by) == ("closed", "ann")
        with pytest.raises(NotInThisState, match="open it first"):
            sites.remove_limits(name, "bob")
        assert sites.open_site(name, "bob")
        assert sites.remove_limits(name, "bob")[1]
    sites.set_limits(NAME, SiteLimits(tasks=2), "bob")
    sites.remove_limits(NAME, "bob")
    assert sites.list_sites(0, 10, show="closed")[0].site == NAME


def test_the_figures_of_a_site(harness: Harness) -> None:
    store = harness.store
    fence = harness.executing("r", tasks=2)
    waits = harness.executing("w")
    with store.database.writing() as conn:
        now = db_now(conn)
        lock_sites(conn, [NAME, "other.example"])
        for host in ("a", "b"):
            conn.execute(insert(run_site).values(run_id=fence.run_id, host=host, site=NAME))
        ticket = {"priority": 3, "since": harness.clock.now, "wanted": 5}
        conn.execute(insert(site_ticket).values(run_id=waits.run_id, site=NAME, **ticket))
        conn.execute(site.update().where(site.c.site == NAME).values(has_tickets=True))
        values = {"requests": 120, "statuses": {"200": 119, "error": 1}}
        # One of these is the last whole minute whenever it is read.
        for minute in (int(now // 60) - 1, int(now // 60)):
            conn.execute(insert(site_minute).values(site=NAME, minute=minute, **values))
        block = {"at": now, "run_id": fence.run_id, "status": 429, "closed_until": now + 90}
        conn.execute(insert(site_block).values(site=NAME, **block))
    [row] = store.sites.list_sites(0, 10, show="busy")
    assert (row.tasks, row.waiting_runs, row.waiting_tasks, row.last_minute) == (2, 1, 5, 120)
    assert [one.site for one in store.sites.list_sites(1, 10, search="EXAMPLE")] == [NAME]
    assert [one.statuses for one in store.sites.minutes(NAME, 5)] == [{"200": 119, "error": 1}] * 2
    runs = store.sites.site_runs(NAME)
    assert [(one.run_id, one.tasks, one.waiting_tasks) for one in runs] == [
        (fence.run_id, 2, 0),
        (waits.run_id, 0, 5),
    ]
    assert store.sites.sites_of("www.shop.example") == [NAME]
    with limited("another"):
        assert store.sites.list_sites(0, 10) == []
        assert store.sites.get_site(NAME) is None
        assert store.sites.blocks(NAME) == []
        assert store.sites.site_runs(NAME) == []
        assert store.sites.minutes(NAME, 5) == []
    with limited("default"):
        assert [one.last_minute for one in store.sites.list_sites(0, 10)] == [None]
        assert len(store.sites.blocks(NAME)) == 1


@pytest.mark.parametrize(
    ("closures", "ends_in_s", "found"), [(1, 90, 1), (1, -60, 1), (1, -700, 0), (0, 90, 0)]
)
def test_a_closed_site_stays_closed_while_it_is_probed(
    store: Store, closures: int, ends_in_s: float, found: int
) -> None:
    with store.database.writing() as conn:
        now = db_now(conn)
        lock_sites(conn, [NAME])
        values = {"closures": closures, "closed_until": now + ends_in_s, "closed_status": 429}
        conn.execute(site.update().where(site.c.site == NAME).values(**values))
        block = {"at": now + ends_in_s - 120, "status": 429, "closed_until": now + ends_in_s}
        conn.execute(insert(site_block).values(site=NAME, **block))
    closed = list(conditions(store, START))
    assert [one.subject for one in closed] == [f"sites/{NAME}"] * found
    for condition in closed:
        assert "after 429" in condition.cause


def test_old_figures_are_removed(store: Store) -> None:
    with store.database.writing() as conn:
        now = db_now(conn)
        for age_s in (60, MINUTES_KEPT_S + 60, 10 * MINUTES_KEPT_S):
            minute = int((now - age_s) // 60)
            conn.execute(
                insert(site_minute).values(site=NAME, minute=minute, requests=1, statuses={})
            )
        for age_s in (60, BLOCKS_KEPT_S + 60, 10 * BLOCKS_KEPT_S):
            values = {"at": now - age_s, "closed_until": now - age_s}
            conn.execute(insert(site_block).values(site=NAME, person="ann", **values))
    for _ in range(2):
        store.sites.remove_old()
        with store.database.reading() as conn:
            for table in (site_minute, site_block):
                assert conn.execute(select(func.count()).select_from(table)).scalar_one() == 1
