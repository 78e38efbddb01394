"""Pools: the route and the web page that list them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.ui.parts.choosing import CAPACITY_TABS, LIVE, Chooser
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    filters_of,
    held,
    held_sorts,
    list_page,
)
from crawler_lifecycle.gateway.ui.runs.columns import parent_link
from crawler_lifecycle.ports.pools import PoolRow
from crawler_lifecycle.store.runs.pools import PoolStore
from crawler_lifecycle.subjects import POOL


class PoolList(BaseModel):
    """All pools by name, including pools that are no longer in the settings while runs still wait
    in them.
    """

    pools: list[PoolRow]


def add_pools(app: FastAPI, pools: PoolStore) -> None:
    """Add ``GET /v1/pools``."""

    @app.get("/v1/pools", **documents(PoolList))
    def list_pools(request: Request) -> Response:
        """The pools of the installation: their settings, the runs that hold their slots, and the
        runs that wait for one.
        """
        return conditional(request, PoolList(pools=pools.list_pools()))


#: The maximum number of runs that a page names as holders of a pool's slots.
HOLDERS_MAX = 10
CHOOSER = Chooser(
    POOL,
    "/pools",
    "Name, queue, problem",
    sorts=held_sorts(POOL.columns),
    tabs=CAPACITY_TABS,
)
_COUNTED = (
    "A task holds a slot of its pool from its offer to its end. Free slots go first to pools below "
    "their reserve, then to urgent runs, then to the pool that used least for its weight, then to "
    "the oldest run."
)
_NOT_COUNTED = (
    "This installation has no pools, so the cluster keeps its own order. LIFECYCLE_POOLS sets "
    "pools."
)


def add_pool_page(app: FastAPI, pools: PoolStore, clock: Clock) -> None:
    """Add the web page of pools."""

    @app.get("/pools")
    def show_pools(request: Request) -> Response:
        """List the pools, and who holds the slots of those in which runs wait."""
        found = pools.list_pools()
        waiting = [row.name for row in found if row.waiting_runs]
        intro = _COUNTED if pools.known_pools.counted else _NOT_COUNTED
        chooser = replace(CHOOSER, intro=intro)
        filters = filters_of(request, HeldFilters)
        rows = held(chooser, [asdict(row) for row in found])
        values = holders_of(pools, waiting)
        return list_page(
            request, chooser, filters, rows, now=clock(), template="pools.html", **values
        )


def holders_of(pools: PoolStore, names: Iterable[str]) -> dict[str, Any]:
    """Return the values for ``holders.html``: the runs that hold the most slots of these pools,
    each with a link to what started it.
    """
    holders = {name: pools.slot_holders(name, HOLDERS_MAX) for name in names}
    lines = {
        name: [(run, parent_link(run.parent)) for run in runs] for name, runs in holders.items()
    }
    return {"holders": lines, "live": LIVE}
