"""The pools that people set. The settings have others, which have no row."""

from __future__ import annotations

import functools
import math

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Column, Connection, String, select, type_coerce

from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.store.columns import Json, UtcTime, Words, new_table, required

_POOL = TypeAdapter(Pool)
#: Stands for a pool whose row this build cannot read. It gives no slots, and all other pools work.
UNREADABLE = Pool(max=0)

stored_pool = new_table(
    "pool",
    Column("name", String(63), primary_key=True),
    # The fields of domain/pools.py, Pool.
    required("document", Json),
    required("changed_at", UtcTime),
    Column("changed_by", Words(255)),
)


#: Each transaction about slots reads all pools, so their documents are texts, which are read once.
_POOLS = select(stored_pool.c.name, type_coerce(stored_pool.c.document, String).label("document"))


def with_stored(conn: Connection, pools: Pools) -> Pools:
    """Return the pools of the settings together with those that the database has now.

    An unreadable row is ``UNREADABLE``.
    """
    rows = conn.execute(_POOLS).mappings()
    return pools.with_stored({row["name"]: _read(row["document"]) for row in rows})


@functools.lru_cache(1000)
def _read(document: str) -> Pool:
    try:
        pool = _POOL.validate_json(document)
    except ValidationError:
        return UNREADABLE
    # The division by an impossible weight, for example, would stop all pools.
    most = math.inf if pool.max is None else pool.max
    possible = most >= 1 and 0.01 <= pool.weight <= 1000 and 0 <= pool.reserved <= most
    return pool if possible else UNREADABLE
