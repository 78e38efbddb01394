"""Pools: the route and the web page that list them."""

from __future__ import annotations

from dataclasses import asdict, replace

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    filters_of,
    held,
    held_sorts,
    list_page,
)
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


CHOOSER = Chooser(POOL, "/pools", "Name, queue, problem", sorts=held_sorts(POOL.columns))
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
        """List the pools."""
        rows = [asdict(row) for row in pools.list_pools()]
        intro = _COUNTED if pools.known_pools.counted else _NOT_COUNTED
        chooser = replace(CHOOSER, intro=intro)
        filters = filters_of(request, HeldFilters)
        return list_page(request, chooser, filters, held(chooser, rows), now=clock())
