"""The reports of tasks about sites: by minute, and by day and proxy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, delete, select

from crawler_lifecycle.store.base.bulk import change_in, insert_mappings, rows_in

from .tables import site_day, site_minute

#: The maximum number of proxies that are counted for a site and day. The others are counted
#: together under this name.
PROXIES_MAX = 100
OTHERS = "others"

#: The number of responses by status, by proxy.
Proxies = Mapping[str, Mapping[str, int]]


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


def count_proxies(conn: Connection, counted: Mapping[str, Sequence[Proxies]], now: float) -> None:
    """Add the numbers of responses by proxy to the present day of each site."""
    new = {name: added(reports) for name, reports in counted.items() if reports}
    if not new:
        return
    day = int(now // 86_400)
    d = site_day.c
    query = select(site_day).where(d.day == day).order_by(d.site).with_for_update()
    before = {row["site"]: row["proxies"] for row in rows_in(conn, query, d.site, new)}
    rows = [
        {"site": name, "proxies": _first(added((before.get(name, {}), proxies)))}
        for name, proxies in new.items()
    ]
    change_in(conn, delete(site_day).where(d.day == day), d.site, new)
    insert_mappings(conn, site_day, rows, day=day)


def added(reports: Iterable[Proxies]) -> dict[str, Counter[str]]:
    """Return the sums of these reports, in the order in which the proxies appear."""
    sums: dict[str, Counter[str]] = {}
    for report in reports:
        for proxy, statuses in report.items():
            sums.setdefault(proxy, Counter()).update(statuses)
    return sums


def _first(sums: Mapping[str, Counter[str]]) -> Proxies:
    """Return the first ``PROXIES_MAX`` proxies, and the sum of the others."""
    found: dict[str, Counter[str]] = {}
    for proxy, statuses in sums.items():
        named = found.keys() - {OTHERS}
        name = proxy if len(named) < PROXIES_MAX else OTHERS
        found.setdefault(name, Counter()).update(statuses)
    return found
