"""The leases of sites on each database."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import insert, select

from crawler_lifecycle.features.sites.domain.closing import Block
from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.sites.store.entries import FRESH
from crawler_lifecycle.features.sites.store.leases import (
    LeaseCall,
    LeaseStore,
    SiteAnswer,
    SiteReport,
)
from crawler_lifecycle.features.sites.store.tables import site, site_block, site_lease, site_minute
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import Harness


def test_lanes_are_leased_renewed_and_closed(store: Store, harness: Harness) -> None:
    fence = harness.deployed()
    limits = SiteLimits(requests_per_s=10, connections=3).to_json()
    with store.database.writing() as conn:
        conn.execute(insert(site).values(site="shop.example", limits=limits, origin="x", **FRESH))
    leases = LeaseStore(store.database)

    def ask(**report: Any) -> SiteAnswer:
        call = LeaseCall(
            fence.run_id, harness.row(fence).run_uid, 0, 1, {"shop.example": SiteReport(**report)}
        )
        [answers] = leases.answer([call])
        assert answers is not None
        return answers["shop.example"]

    first = ask(wanted=2)
    assert [lease.lane for lease, *_ in first.lanes] == [0, 1]
    time.sleep(0.01)
    again = ask(wanted=3, kept=[0, 1], statuses={"200": 3})
    assert [lease.lane for lease, *_ in again.lanes] == [0, 1, 2]
    assert again.lanes[0][0].until > first.lanes[0][0].until
    closed = ask(wanted=1, block=Block(429, 20.0), statuses={"429": 1})
    assert 19 < closed.closed_s <= 20
    assert not closed.lanes
    with store.database.reading() as conn:
        assert not conn.execute(select(site_lease)).all()
        [block] = conn.execute(select(site_block)).mappings()
        minutes = conn.execute(select(site_minute.c.requests)).scalars().all()
    assert (block["run_id"], block["status"]) == (fence.run_id, 429)
    assert sum(minutes) == 4
    stranger = LeaseCall(fence.run_id, "f" * 32, 0, 1, {})
    assert leases.answer([stranger]) == [None]
