"""The pools that people set. The settings have others, which have no row."""

from __future__ import annotations

import functools

from pydantic import TypeAdapter
from sqlalchemy import Column, Connection, String, select, type_coerce

from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.store.columns import Json, UtcTime, Words, new_table, required

from .rows import validated

_POOL = TypeAdapter(Pool)

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

    Raises ``RowUnreadable``.
    """
    fix = "set the pool again (crawlctl pool set)"
    stored = {
        row["name"]: validated(_read, stored_pool, row, "document", "pool", fix)
        for row in conn.execute(_POOLS).mappings()
    }
    return pools.with_stored(stored)


@functools.lru_cache(1000)
def _read(document: str) -> Pool:
    return _POOL.validate_json(document)
