"""The store of incidents."""

from __future__ import annotations

from crawler_lifecycle.domain.retention import incident_stays
from crawler_lifecycle.store.retention.parts import FeatureRetention, Source

from .reads import IncidentReader
from .tables import incident

_i = incident.c


class IncidentStore(IncidentReader):
    """Incidents: what needs a person."""


RETENTION = FeatureRetention(
    sources=(
        Source(
            incident,
            columns=(_i.state, _i.closed_at),
            rule=lambda row, owner, before: incident_stays(row["state"], row["closed_at"], before),
            # It may be opened again.
            still=lambda before: (_i.state == "closed", _i.closed_at < before),
            marks=False,
        ),
    )
)
