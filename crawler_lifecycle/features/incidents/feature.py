"""The record of this feature."""

from __future__ import annotations

from crawler_lifecycle.features.feature import Feature

INCIDENTS = Feature(
    "incidents",
    tables=("store.tables",),
    retain="store.incidents:RETENTION",
)
