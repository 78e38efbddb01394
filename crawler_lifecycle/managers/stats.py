"""Statistics of a manager, including sums of the statistics of its jobs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.managers.domain.manager import STAT_NAME_MAX, STATS_MAX

#: The prefixes of those spider statistics that every manager of this kind adds up.
BASE_TARGET_SPIDER_STATS = (
    "downloader/response_status_count/",
    "downloader/response_count",
    "item_scraped_count",
    "spider_exceptions/",
    "scrapy-zyte-api/429",
    "zyte_api_proxy/response/status/429",
)


class Stats:
    """Numbers by name, with the methods of Scrapy's stats collector.

    These numbers are stored with the manager.
    """

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        self._values: dict[str, float] = dict(values or {})

    def get_value(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def get_stats(self) -> dict[str, float]:
        """Return a copy of all numbers."""
        return dict(self._values)

    def restore(self, values: Mapping[str, float]) -> None:
        """Restore the numbers that ``get_stats`` returned before."""
        self._values = dict(values)

    def set_value(self, key: str, value: float) -> None:
        """Set a number.

        Raises ``InvalidRequest`` for another type, a bad name, and too many names.
        """
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise refusal(f"stats.{key}", value, "give a number")
        if not isinstance(key, str) or not 0 < len(key) <= STAT_NAME_MAX:
            raise refusal("stats", key, f"give a name of 1 to {STAT_NAME_MAX} characters")
        if key not in self._values and len(self._values) >= STATS_MAX:
            raise refusal("stats", key, f"there are already {STATS_MAX} names; use fewer names")
        self._values[key] = value

    def inc_value(self, key: str, count: float = 1, start: float = 0) -> None:
        self.set_value(key, self._values.get(key, start) + count)

    def max_value(self, key: str, value: float) -> None:
        self.set_value(key, max(self._values.get(key, value), value))

    def min_value(self, key: str, value: float) -> None:
        self.set_value(key, min(self._values.get(key, value), value))


class SpiderStatsAggregatorMixin:
    """Adds the statistics of each ended job once to the statistics of the manager (S-15).

    >>> from crawler_lifecycle.managers import CrawlManager
    >>> from crawler_lifecycle.managers.testing import simulate
    >>> class Shop(CrawlManager):
    ...     name, spider, loop_mode, target_spider_stats = "shop", "shop.com", 60, ("price/",)
    >>> stats = {"price/missing": 2, "item_scraped_count": 7, "log_count/INFO": 9}
    >>> simulate(Shop, stats=stats).stats
    {'price/missing/total': 2, 'item_scraped_count/total': 7}
    """

    #: Further prefixes of statistics to add up, as regular expressions.
    target_spider_stats: tuple[str, ...] = ()
    #: If True, only ``<name>/total`` is added up. If False, ``<name>/<spider>`` too.
    stats_only_total = True
    stats: Stats

    def aggregate_spider_stats(
        self, jobdict: Mapping[str, Any], stats_added_prefix: str = ""
    ) -> None:
        """Add the ``scrapystats`` of one job. Statistics that ``Stats`` refuses are ignored."""
        prefixes = (*self.target_spider_stats, *BASE_TARGET_SPIDER_STATS)
        for name, value in (jobdict.get("scrapystats") or {}).items():
            if isinstance(value, int | float) and any(
                re.match(prefix, name) for prefix in prefixes
            ):
                whole = f"{stats_added_prefix}/{name}".strip("/")
                with suppress(InvalidRequest):
                    self.stats.inc_value(f"{whole}/total", value)
                    if not self.stats_only_total:
                        self.stats.inc_value(f"{whole}/{jobdict.get('spider')}", value)
