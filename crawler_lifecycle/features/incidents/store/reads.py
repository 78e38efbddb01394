"""Queries of incidents."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.features.incidents.ports import IncidentRow
from crawler_lifecycle.store.base.rows import made, seen
from crawler_lifecycle.store.base.unit import StorePart

from .tables import incident

_i = incident.c


class IncidentReader(StorePart):
    """The reading methods of ``IncidentStore``. A caller of one project sees its own incidents."""

    def get_incident(self, incident_id: int) -> IncidentRow | None:
        """Return the incident with this number."""
        if not 0 < incident_id <= ID_MAX:
            return None
        rows = self._rows(select(incident).where(_i.incident_id == incident_id, *seen(incident)))
        return made(IncidentRow, rows[0]) if rows else None

    def open_incidents(self, limit: int) -> list[IncidentRow]:
        """Return open incidents: the bad ones first, and among equal ones that with the newest
        occurrence.
        """
        query = select(incident).where(_i.state == "open", *seen(incident, leads=True))
        query = query.order_by(_i.level, _i.last_at.desc()).limit(limit)
        return [made(IncidentRow, row) for row in self._rows(query)]

    def open_counts(self) -> Mapping[str, int]:
        """Return how many incidents of each kind are open."""
        mine = (_i.state == "open", *seen(incident, leads=True))
        query = select(_i.kind, func.count().label("incidents")).where(*mine).group_by(_i.kind)
        return {row["kind"]: row["incidents"] for row in self._rows(query)}
