"""Crawl managers that get a stream of jobs from a generator."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from copy import deepcopy
from inspect import isawaitable
from typing import Any, cast

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.features.managers.domain.jobs import (
    jobseq_of,
    merged,
    override_of,
    params_of,
    retry_delay,
    retry_params,
)
from crawler_lifecycle.features.managers.domain.manager import (
    CYCLE_PICKS,
    CYCLE_S,
    AddedJob,
    Job,
    JobState,
)
from crawler_lifecycle.features.managers.domain.manager import jobseq as jobseq_tag
from crawler_lifecycle.features.managers.domain.window import Later, Rules

from .crawl import CrawlManager, named_job
from .cycle import TURN, Turn
from .savepoint import no_coroutine, where
from .types import FullJobParams, JobKey, JobParams, Outcome, SpiderName, StopRetry

_LOG = logging.getLogger(__name__)


class GeneratorCrawlManager(CrawlManager):
    """Runs a job for each item of a generator, with at most ``max_running_jobs`` at once.

    >>> from crawler_lifecycle.managers import GeneratorCrawlManager
    >>> from crawler_lifecycle.managers.testing import simulate
    >>> class Shops(GeneratorCrawlManager):
    ...     name, spider, loop_mode, default_max_jobs, MAX_RETRIES = "shops", "shop.com", 60, 2, 1
    ...     def set_parameters_gen(self):
    ...         for country in ("de", "fr", "it"):
    ...             yield {"country": country}
    >>> record = simulate(Shops, outcomes={2: "banned"})
    >>> [(job.seq, job.retry, job.spider_args["country"]) for job in record.scheduled]
    [(1, 0, 'de'), (2, 0, 'fr'), (2, 1, 'fr'), (3, 0, 'it')]
    >>> record.close_reason, record.most_live
    ('finished', 2)
    """

    _inherits_outcomes = _reads_outcomes = False
    #: The maximum number of retries of a failed job.
    MAX_RETRIES = 0
    #: Seconds before the first retry. Each further retry waits ``retry_delay_factor`` times as
    #: long, up to the maximum.
    retry_delay: float = 0
    retry_delay_factor: float = 2
    retry_delay_max: float = 3600
    #: The maximum number of live jobs of each spider, or ``None`` for no limit.
    max_jobs_per_spider: int | None = None
    #: The maximum number of live jobs of each ``cap_key``: one number for all keys, numbers by key,
    #: or ``None`` for no limit.
    max_per_key: int | Mapping[str, int] | None = None
    #: The reaction to an invalid yield: ``stop`` the source, or ``skip`` the item. A skipped item
    #: is counted and listed.
    on_item_error = "stop"
    #: The reaction to new source code of the class while the manager is live: ``replay`` the
    #: generator, ``continue`` after its last position, or ``fail``. With ``continue``, every new
    #: process continues there.
    on_code_change = "replay"

    def __init__(self) -> None:
        self._acquired: set[str] = set()
        """Identities of jobs of other flows, which the manager does not run again."""
        super().__init__()

    # --- the source -------------------------------------------------------------------------------

    def set_parameters_gen(self) -> Iterable[Mapping[str, Any]]:
        """Yield a dictionary for each job.

        Users must override this method, which must yield the same items after a restart.

        The dictionary contains the spider's arguments. The keys ``spider``, ``units``, ``tags``,
        ``job_settings``, ``project_id``, ``priority``, ``pool`` and ``version`` are parameters of
        the job instead.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no set_parameters_gen; write one that yields dictionaries"
        )

    @classmethod
    def create_dupe_filter(cls) -> Any:
        """Return ``None``.

        The method has no effect, because the identities of jobs are stored with the jobs.
        """
        return None

    def add_job(self, spider: SpiderName, job_args_override: JobParams | None = None) -> None:
        """Queue a job, which starts before jobs of the generator. A job with known arguments is
        left out.

        A tag ``JOBSEQ=`` makes it the next try of that job (S-57).
        """
        override = override_of(job_args_override)
        number = jobseq_of(tag for tag in override.get("tags") or [] if isinstance(tag, str))
        if number is None:
            self._add(merged(override, spider, self._defaults()))
        else:
            self._add(
                merged(override, spider, self._defaults()), seq=number[0], retry=number[1] + 1
            )

    def _add(self, job: Job, **more: Any) -> bool:
        if self._known(job):
            _LOG.warning(
                "%s was already scheduled with the same arguments; it is skipped", named_job(job)
            )
            self.stats.inc_value("crawlmanager/duplicates")
            return False
        self._cycle.window.add(AddedJob(0, job, **more))
        return True

    def _known(self, job: Job) -> bool:
        return job.identity in self._acquired or super()._known(job)

    def resume_workflow(self) -> None:
        """Call the resume hooks.

        If ``acquire_all_jobs`` is true, note the jobs of other flows, which do not run again
        (S-63).
        """
        super().resume_workflow()
        if self.acquire_all_jobs:
            states = ["running", "pending"] + (
                [] if self.dont_acquire_finished_jobs else ["finished"]
            )
            for job in self._of_other_flows(states):
                self._acquired.add(Job(job["spider"], job["spider_args"]).identity)

    def add_delayed_jobs(self, params: FullJobParams) -> None:
        """Queue a job, as ``add_job`` does."""
        self.add_job(params["spider"], params)

    # --- jobs that may start ----------------------------------------------------------------------

    def can_schedule_job_with_params(self, params: FullJobParams) -> bool:
        """Return whether the job may start now. If not, the job waits for a later cycle. Users can
        override this method.
        """
        return True

    def cap_key(self, params: FullJobParams) -> str | None:
        """Return the job's key for ``max_per_key``, or ``None`` for no limit. Users can override
        this method.
        """
        return None

    def get_max_jobs_per_spider(self, spider: SpiderName) -> int | None:
        """Return the maximum number of live jobs of this spider, or ``None``. Users can override
        this method.
        """
        return self.max_jobs_per_spider

    def spider_running_count(self, spider: SpiderName) -> int:
        """Return the number of live jobs of this spider, including jobs that this cycle starts."""
        return self._cycle.window.live_by_spider[spider]

    def get_running_spiders(self) -> set[SpiderName]:
        return set(self._cycle.window.live_by_spider)

    def spider_delayed_count(self, spider: SpiderName) -> int:
        return self._cycle.window.delayed_by_spider[spider]

    def get_delayed_spiders(self) -> set[SpiderName]:
        return set(self._cycle.window.delayed_by_spider)

    def get_delayed_jobs(self) -> list[FullJobParams]:
        """Return copies of the jobs that were delayed when the cycle began."""
        jobs: list[FullJobParams] = []
        after = 0
        while page := self._platform.waiting_jobs(JobState.DELAYED, after):
            jobs += [cast(FullJobParams, params_of(waiting.job)) for waiting in page]
            after = page[-1].item_id
        return jobs

    def _rules(self) -> Rules:
        has_key = self._overrides("cap_key")
        has_predicate = self._overrides("can_schedule_job_with_params")
        return Rules(
            self._cap(),
            may_start=self._may_start if has_predicate else lambda job: True,
            spider_cap=lambda spider: _cap_of(
                "max_jobs_per_spider", self.get_max_jobs_per_spider(spider)
            ),
            key_of=self._key_of if has_key else lambda job: None,
            key_cap=self._key_cap,
        )

    def _may_start(self, job: Job) -> bool:
        name = "can_schedule_job_with_params"
        answer = self._ask(name, job)
        if answer is None:
            raise self._later(
                name, f"{name} of {named_job(job)} returned None; return True or False"
            )
        return bool(answer)

    def _key_of(self, job: Job) -> str | None:
        answer = self._ask("cap_key", job)
        if answer is not None and not isinstance(answer, str | int):
            raise self._later(
                "cap_key",
                f"cap_key of {named_job(job)} returned {answer!r:.60}; return a string or None",
            )
        return None if answer is None else str(answer)[:200]

    def _key_cap(self, key: str) -> float | None:
        most = self.max_per_key
        return _cap_of("max_per_key", most.get(key) if isinstance(most, Mapping) else most)

    def _ask(self, method: str, job: Job) -> Any:
        if self._cycle.took_s >= CYCLE_S:
            raise Later(f"its class took {CYCLE_S:g} s in this cycle; the next cycle continues")
        try:
            return no_coroutine(method, getattr(self, method)(params_of(job)))
        except (Exception, SystemExit) as error:
            raise self._later(method, f"{method} of {named_job(job)}: {where(error)}") from None

    def _later(self, method: str, error: str) -> Later:
        self._cycle.note(error)
        return Later(f"{method} failed")

    # --- ends and cycles --------------------------------------------------------------------------

    def bad_outcome_hook(
        self, spider: SpiderName, outcome: Outcome, job_args_override: JobParams, jobkey: JobKey
    ) -> None:
        """Handle a failed job. By default, the job is tried again, up to ``MAX_RETRIES`` times
        (S-58). Users can override this method.
        """
        ended = self._cycle.handled.get(jobkey)
        tagged = jobseq_of(job_args_override.get("tags") or [])
        seq, retry = (
            (ended.live.seq, ended.live.retry) if ended is not None else tagged or (None, 0)
        )
        final = outcome == "cancelled" if ended is None else not ended.retryable
        if final or retry >= self.MAX_RETRIES:
            return
        retry += 1
        params = retry_params(job_args_override, retry, jobkey, {})
        try:
            change = self.get_retry_override(
                spider, outcome, cast(JobParams, deepcopy(params)), jobkey
            )
        except StopRetry as why:
            _LOG.info("%s ended as %s and is not tried again: %s", jobkey, outcome, why)
            return
        job = merged(retry_params(params, retry, jobkey, change), spider, self._defaults())
        delay = retry_delay(self.retry_delay, self.retry_delay_factor, self.retry_delay_max, retry)
        not_before = self._cycle.facts.now + delay if delay > 0 else None
        if self._add(job, seq=seq, retry=retry, retry_of=jobkey, not_before=not_before):
            _LOG.info(
                "%s ended as %s: retry %d of %d follows", jobkey, outcome, retry, self.MAX_RETRIES
            )

    def get_retry_override(
        self, spider: SpiderName, outcome: Outcome, job_args_override: JobParams, jobkey: JobKey
    ) -> JobParams:
        """Return changed parameters for the next try. ``StopRetry`` ends the retries (S-59). Users
        can override this method.
        """
        return JobParams()

    def _job_tags(self, job: Job, seq: int, retry: int) -> list[str]:
        return sorted([*super()._job_tags(job, seq, retry), jobseq_tag(seq, retry)])

    def workflow_loop(self) -> Any:
        """Call the hooks and start jobs in free slots.

        If no job is left, the manager ends (S-52, S-61).
        """
        self.check_running_jobs()
        self._start_waiting()
        return not self._cycle.window.over


class AsyncSchedulerCrawlManagerMixin(GeneratorCrawlManager):
    """Schedules the jobs of a cycle concurrently; ``run`` is a coroutine (S-64).

    If the class overrides ``can_schedule_job_with_params``, the jobs are scheduled one after the
    other, because this method may count earlier jobs.

    >>> from crawler_lifecycle.managers import AsyncSchedulerCrawlManagerMixin
    >>> from crawler_lifecycle.managers.testing import simulate
    >>> class Shops(AsyncSchedulerCrawlManagerMixin):
    ...     name, spider, loop_mode = "shops", "shop.com", 60
    ...     def set_parameters_gen(self):
    ...         yield from ({"page": page} for page in range(3))
    >>> simulate(Shops).args
    [{'page': '0'}, {'page': '1'}, {'page': '2'}]
    """

    async def run(self) -> Any:
        """Start the manager as ``BaseScript.run`` does, for ``asyncio.run(X().run())``."""
        import asyncio

        return await asyncio.to_thread(super().run)

    async def schedule_spider_with_jobargs(
        self, job_args_override: JobParams | None = None, spider: SpiderName | None = None
    ) -> Any:
        return super().schedule_spider_with_jobargs(job_args_override, spider)

    async def workflow_loop(self) -> Any:
        self.check_running_jobs()
        rules = self._rules()
        at_once = 1 if self._overrides("can_schedule_job_with_params") else CYCLE_PICKS
        while await self._start_waiting_at_once(rules, at_once):
            pass
        return not self._cycle.window.over

    async def _start_waiting_at_once(self, rules: Rules, most: int) -> int:
        """Reserve up to this many free slots, schedule the jobs for them concurrently, and return
        their number.
        """
        import asyncio

        turns = list[Turn]()
        while len(turns) < most and self._cycle.took_s < CYCLE_S:
            waiting = self._cycle.window.reserve(rules)
            if waiting is None:
                break
            turns.append(Turn(waiting))
        await asyncio.gather(*(self._start_one(turn) for turn in turns))
        for turn in turns:
            self._settle(turn)
        return len(turns)

    async def _start_one(self, turn: Turn) -> None:
        TURN.set(turn)
        try:
            scheduling = self._call_schedule(turn.waiting)
            if isawaitable(scheduling):
                await scheduling
        except (Exception, SystemExit) as error:
            self._cycle.note(
                f"schedule_spider_with_jobargs of {named_job(turn.waiting.job)}: {where(error)}"
            )


def _cap_of(name: str, most: object) -> float | None:
    if most is not None and (
        isinstance(most, bool) or not isinstance(most, int | float) or not most >= 0
    ):
        raise refusal(name, most, "give a number from 0, or None for no limit")
    return most
