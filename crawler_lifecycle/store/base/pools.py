"""The pools that people set. The settings have others, which have no row."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter
from sqlalchemy import Column, Connection, String, select

from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.store.columns import Json, UtcTime, Words, new_table, required

from .rows import Row, validated

_POOL = TypeAdapter(Pool)

stored_pool = new_table(
    "pool",
    Column("name", String(63), primary_key=True),
    # The fields of domain/pools.py, Pool.
    required("document", Json),
    required("changed_at", UtcTime),
    Column("changed_by", Words(255)),
)


def stored_rows(conn: Connection) -> Mapping[str, Row]:
    """Return the rows of all pools by name."""
    return {row["name"]: row for row in conn.execute(select(stored_pool)).mappings()}


def pool_of(row: Row) -> Pool:
    """Return the pool of a row. Raises ``RowUnreadable``."""
    fix = "set the pool again (crawlctl pool set)"
    return validated(_POOL.validate_python, stored_pool, row, "document", "pool", fix)


def with_stored(conn: Connection, pools: Pools) -> Pools:
    """Return the pools of the settings together with those that the database has now."""
    return pools.with_stored({name: pool_of(row) for name, row in stored_rows(conn).items()})
