"""The registration of this feature."""

from crawler_lifecycle.features.feature import Feature

CANARIES = Feature("canaries", tables=("store.tables",), choose="store.rows:choose")
