"""Types for managers' classes: parameters of jobs, listed jobs, and exceptions."""

from __future__ import annotations

from typing import Any, TypedDict

#: The id of a run as a string, or the id of its request before the run exists.
JobKey = str
SpiderName = str
Outcome = str
#: The record of a job, which maps fields to values (docs/managers.md).
JobMeta = dict[str, Any]
#: A yield of ``set_parameters_gen``: arguments of the spider, and optionally keys of
#: ``FullJobParams``.
ScheduleArgs = dict[str, Any]


class JobParams(TypedDict, total=False):
    """Parameters of a job without its spider."""

    units: int
    tags: list[str]
    job_settings: dict[str, str]
    project_id: str
    spider_args: dict[str, str]
    priority: int
    pool: str
    version: str


class FullJobParams(JobParams, total=False):
    """Parameters of a job with its spider."""

    spider: SpiderName


class JobDict(TypedDict, total=False):
    """A job in lists and in resume hooks. Times are milliseconds since the epoch."""

    key: JobKey
    spider: SpiderName
    spider_args: dict[str, str]
    job_settings: dict[str, str]
    tags: list[str]
    units: int | None
    project_id: str | None
    state: str
    close_reason: Outcome | None
    pending_time: int | None
    running_time: int | None
    finished_time: int | None
    scrapystats: dict[str, float]
    items: int | None
    pages: int | None
    errors: int | None
    run_id: int | None
    attempt: int
    cause: str | None


class StopRetry(Exception):
    """Raised by ``get_retry_override`` to end the retries of a job.

    >>> from crawler_lifecycle.managers import GeneratorCrawlManager, StopRetry
    >>> from crawler_lifecycle.managers.testing import simulate
    >>> class Shops(GeneratorCrawlManager):
    ...     name, spider, loop_mode, MAX_RETRIES = "shops", "shop.com", 60, 5
    ...     def set_parameters_gen(self):
    ...         yield {"country": "de"}
    ...     def get_retry_override(self, spider, outcome, job_args_override, jobkey):
    ...         if outcome == "banned":
    ...             raise StopRetry("another try would be banned as well")
    ...         return {"spider_args": {"slow": "true"}}
    >>> simulate(Shops, outcomes=["timed_out", "banned"]).args
    [{'country': 'de'}, {'country': 'de', 'retry_num': '1', 'slow': 'true'}]
    """


class ClassError(Exception):
    """Raised for an error of a user's class. The message contains the position, the problem and the
    fix."""
