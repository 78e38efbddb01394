"""The registration of this feature."""

from __future__ import annotations

from crawler_lifecycle.features.feature import Feature

SITES = Feature(
    "sites",
    tables=("store.tables",),
    retain="store.retention:RETENTION",
    cap="store.caps:SiteCap",
    routes=("gateway.leases:add_leases",),
)
