"""Crawl managers under the names of shub-workflow: classes for users to import and derive from.

The package needs only the standard library and ``domain``, so a class can be tested anywhere
(``managers.testing``). docs/managers.md lists the names of shub-workflow that are left
out.
"""

from .base import BaseLoopScript, BaseScript
from .crawl import CrawlManager, PeriodicCrawlManager
from .generator import AsyncSchedulerCrawlManagerMixin, GeneratorCrawlManager
from .manager import CachedFinishedJobsMixin, WorkFlowManager
from .stats import SpiderStatsAggregatorMixin
from .types import (
    FullJobParams,
    JobDict,
    JobKey,
    JobMeta,
    JobParams,
    Outcome,
    ScheduleArgs,
    SpiderName,
    StopRetry,
)

#: The package and version whose names this package has.
FOLLOWS = "shub-workflow 1.14.44.3"
__all__ = [
    "AsyncSchedulerCrawlManagerMixin",
    "BaseLoopScript",
    "BaseScript",
    "CachedFinishedJobsMixin",
    "CrawlManager",
    "FullJobParams",
    "GeneratorCrawlManager",
    "JobDict",
    "JobKey",
    "JobMeta",
    "JobParams",
    "Outcome",
    "PeriodicCrawlManager",
    "ScheduleArgs",
    "SpiderName",
    "SpiderStatsAggregatorMixin",
    "StopRetry",
    "WorkFlowManager",
]
