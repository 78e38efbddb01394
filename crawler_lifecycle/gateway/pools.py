"""Pools and quotas: the routes and the web page that list them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.pools import DEFAULT, POOL_NAME, Pool
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.domain.quotas import Limit
from crawler_lifecycle.gateway.access.operations import caller_key, signed
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.runs.commands import existing
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.requests import BodyOf, SignedBody
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
from crawler_lifecycle.settings import PoolLimits
from crawler_lifecycle.store.runs.pools import PoolStore
from crawler_lifecycle.store.runs.quotas import QuotaStore
from crawler_lifecycle.subjects import POOL

logger = logging.getLogger(__name__)

PoolName = Annotated[str, Path(pattern=f"^{POOL_NAME.pattern}$")]
_Pool = Annotated[str, Query(pattern=f"^{POOL_NAME.pattern}$", description="the pool of the run")]


class PoolList(BaseModel):
    """All pools by name, including pools that are no longer in the settings while runs still wait
    in them.
    """

    pools: list[PoolRow]


class PutPool(PoolLimits, SignedBody):
    """Body of ``PUT /v1/pools/{pool}``, where an omitted field has its default, and of ``PATCH``,
    where a pool keeps it.
    """

    def pool(self) -> Pool:
        """Return the pool."""
        return Pool(**self.model_dump(exclude={"requested_by"}))


@dataclass(frozen=True, slots=True)
class ChangedPool(PoolRow):
    """A pool after a command."""

    note: str = ""


def add_pools(app: FastAPI, pools: PoolStore, crawlers: Crawlers) -> None:
    """Add the routes of pools."""

    def find(name: str) -> PoolRow:
        known = {row.name: row for row in pools.list_pools() if row.origin is not None}
        return existing("pool", name, known.get(name), known)

    def record(name: str, note: str) -> None:
        """Record a change that was made, also if what follows fails."""
        present_call().about.append(("pool", name, note, True))
        try:
            pools.adopt()
        except LifecycleError as error:
            logger.warning("pool %s: a worker will move its waiting runs: %s", name, error)

    def change(name: str, body: PutPool, keep: Collection[str] = ()) -> ChangedPool:
        before, new = pools.set_pool(name, body.pool(), body.requested_by, keep)
        note = "Nothing changed."
        if before != new:
            note = _changes(before, new)
            record(name, note)
        return ChangedPool(**asdict(find(name)), note=note)

    @app.get("/v1/pools", **documents(PoolList))
    def list_pools(request: Request) -> Response:
        """The pools of the installation: their settings, the runs that hold their slots, and the
        runs that wait for one.
        """
        return conditional(request, PoolList(pools=pools.list_pools()))

    @app.put("/v1/pools/{pool}")
    def put_pool(pool: PoolName, body: BodyOf[PutPool]) -> ChangedPool:
        """Create a pool, or replace its limits. They apply to the next slot. A lower maximum stops
        no task.

        A pool of the settings (LIFECYCLE_POOLS) cannot be changed here.
        """
        return change(pool, signed(body))

    @app.patch("/v1/pools/{pool}")
    def patch_pool(pool: PoolName, body: BodyOf[PutPool]) -> ChangedPool:
        """Change the given limits of a pool, or create it with these limits. They hold for the next
        slot.

        A pool of the settings (LIFECYCLE_POOLS) cannot be changed here.
        """
        return change(pool, signed(body), PoolLimits.model_fields.keys() - body.model_fields_set)

    @app.delete("/v1/pools/{pool}")
    async def delete_pool(pool: PoolName) -> ChangedPool:
        """Delete a pool of the database that no live run, and nothing that starts runs later,
        names.
        """
        # A crawler that is not known yet may name the pool, too.
        known = await crawlers.all()
        users = [name for name, crawler in sorted(known.items()) if crawler.pool == pool]

        def delete() -> ChangedPool:
            row = find(pool)
            pools.delete_pool(pool, users)
            record(pool, "deleted")
            return ChangedPool(**asdict(row), note="deleted")

        return await run_in_threadpool(delete)


def _changes(before: Pool | None, after: Pool) -> str:
    """Return a text that names each field that differs, such as ``max: none → 2``.

    The access log keeps only its beginning, so the project comes first.
    """
    old = asdict(before or Pool())
    new = {"project": after.project, **asdict(after)}
    shown = [
        f"{name}: {_shown(old[name])} → {_shown(value)}"
        for name, value in new.items()
        if value != old[name]
    ]
    return ", ".join(shown) or "created"


def _shown(value: float | str | None) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else f"{value:.10g}"


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
    "This installation has no pools, so the cluster decides the order. crawlctl pool set creates "
    "pools."
)


def add_pool_page(app: FastAPI, pools: PoolStore, clock: Clock) -> None:
    """Add the web page of pools."""

    @app.get("/pools")
    def show_pools(request: Request) -> Response:
        """List the pools, and who holds the slots of those in which runs wait."""
        found = pools.list_pools()
        waiting = [row.name for row in found if row.waiting_runs]
        intro = _COUNTED if pools.known_pools().counted else _NOT_COUNTED
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


class QuotaList(BaseModel):
    """The limits for a start by the caller."""

    quotas: list[Limit]


def add_quotas(app: FastAPI, quotas: QuotaStore) -> None:
    """Add ``GET /v1/quotas``."""

    @app.get("/v1/quotas")
    def list_quotas(pool: _Pool = DEFAULT) -> QuotaList:
        """The quotas for a start by this caller in this pool, and their present use."""
        quotas.known_pools().check(pool)
        return QuotaList(
            quotas=quotas.quotas_of({"caller": caller_key(), "pool": pool, "project": chosen(None)})
        )
