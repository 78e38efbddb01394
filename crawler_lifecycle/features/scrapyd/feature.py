"""The registration of this feature."""

from crawler_lifecycle.features.feature import Feature

SCRAPYD = Feature(
    "scrapyd", routes=("gateway.routes:add_scrapyd",), middleware=("gateway.routes:add_dialect",)
)
