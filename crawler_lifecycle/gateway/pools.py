"""Pools: the route and the web page that list them."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.ui.parts.rendering import answer
from crawler_lifecycle.ports.pools import PoolRow
from crawler_lifecycle.store.runs.pools import PoolStore


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


def add_pool_page(app: FastAPI, pools: PoolStore, clock: Clock) -> None:
    """Add the web page of pools."""

    @app.get("/pools")
    def show_pools(request: Request) -> Response:
        """List the pools."""
        rows = [asdict(row) for row in pools.list_pools()]
        return answer(
            request, "pools.html", rows=rows, counted=pools.known_pools.counted, now=clock()
        )
