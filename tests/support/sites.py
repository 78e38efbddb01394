"""Limits and states of sites, as if people and crawlers had set them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import update

from crawler_lifecycle.features.sites.store.entries import db_now, lock_sites
from crawler_lifecycle.features.sites.store.tables import site
from crawler_lifecycle.store.store import Store


def limit(store: Store, name: str, **limits: Any) -> None:
    """Give a site these limits; without any, its entry is removed."""
    with store.database.writing() as conn:
        lock_sites(conn, [name])
        conn.execute(update(site).where(site.c.site == name).values(limits=limits or None))


def close(store: Store, name: str, for_s: float, **values: Any) -> None:
    """Close a site for this number of seconds, or end its closure."""
    with store.database.writing() as conn:
        lock_sites(conn, [name])
        values = {"closures": 1, "closed_until": db_now(conn) + for_s} | values
        conn.execute(update(site).where(site.c.site == name).values(**values))
