"""Crawl managers under the names of shub-workflow: what users import and derive from.

It needs nothing beside the standard library and ``domain``, so a class can be tried anywhere (``managers.testing``).
"""

from crawler_lifecycle.managers.base import (
    BaseLoopScript,
    BaseScript,
    CachedFinishedJobsMixin,
    WorkFlowManager,
)
from crawler_lifecycle.managers.crawl import (
    AsyncSchedulerCrawlManagerMixin,
    CrawlManager,
    GeneratorCrawlManager,
    PeriodicCrawlManager,
)
from crawler_lifecycle.managers.stats import SpiderStatsAggregatorMixin
from crawler_lifecycle.managers.types import FullJobParams, JobParams, ScheduleArgs, StopRetry

__all__ = [
    "AsyncSchedulerCrawlManagerMixin",
    "BaseLoopScript",
    "BaseScript",
    "CachedFinishedJobsMixin",
    "CrawlManager",
    "FullJobParams",
    "GeneratorCrawlManager",
    "JobParams",
    "PeriodicCrawlManager",
    "ScheduleArgs",
    "SpiderStatsAggregatorMixin",
    "StopRetry",
    "WorkFlowManager",
]
