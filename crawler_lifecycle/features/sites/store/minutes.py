"""The reports of tasks about sites, minute by minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, delete, select

from crawler_lifecycle.store.base.bulk import change_in, insert_mappings, rows_in

from .tables import site_minute


def count_statuses(
    conn: Connection, counted: Mapping[str, Sequence[Mapping[str, int]]], now: float
) -> None:
    """Add the numbers of responses by status to the present minute of each site."""
    minute = int(now // 60)
    sums = {name: sum(map(Counter, reports), Counter[str]()) for name, reports in counted.items()}
    new = {name: statuses for name, statuses in sums.items() if statuses}
    if not new:
        return
    m = site_minute.c
    query = select(site_minute).where(m.minute == minute).order_by(m.site).with_for_update()
    for row in rows_in(conn, query, m.site, new):
        new[row["site"]] += Counter(row["statuses"])
    change_in(conn, delete(site_minute).where(m.minute == minute), m.site, new)
    rows = [
        {"site": name, "requests": sum(statuses.values()), "statuses": dict(statuses)}
        for name, statuses in new.items()
    ]
    insert_mappings(conn, site_minute, rows, minute=minute)
