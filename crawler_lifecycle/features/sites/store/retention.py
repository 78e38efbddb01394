"""Removal of the hosts of deleted runs."""

from __future__ import annotations

from sqlalchemy import delete

from crawler_lifecycle.store.retention.parts import FeatureRetention
from crawler_lifecycle.store.runs.unit import Unit

from .tables import run_robots, run_site


def delete_hosts(unit: Unit) -> None:
    """Remove the hosts that a deleted run visited."""
    for table in (run_site, run_robots):
        unit.conn.execute(delete(table).where(table.c.run_id == unit.run_id))


RETENTION = FeatureRetention(delete_texts=delete_hosts)
