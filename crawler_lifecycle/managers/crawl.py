"""Crawl managers: one job, the same job again and again, or a stream of jobs from a generator."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from inspect import isawaitable
from typing import Any, cast

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.jobs import (
    JobDefaults,
    jobseq_of,
    merged,
    override_of,
    params_of,
    retry_delay,
    retry_params,
)
from crawler_lifecycle.domain.managers.manager import (
    CYCLE_S,
    Added,
    Ended,
    Hooked,
    HookFailed,
    Job,
    JobState,
    Live,
    Waiting,
    run_request_id,
)
from crawler_lifecycle.domain.managers.manager import jobseq as jobseq_tag
from crawler_lifecycle.domain.managers.window import Later, Rules

from .base import WorkFlowManager
from .cycle import HOOKS_S, TURN, Turn
from .options import json_object
from .savepoint import check_state, no_coroutine, undone_on_error, where
from .stats import SpiderStatsAggregatorMixin
from .types import FullJobParams, JobKey, JobParams, Outcome, SpiderName, StopRetry

_LOG = logging.getLogger(__name__)
#: What runs for an end, where a class has its own.
_HOOKS = ("finished_metadata_hook", "bad_outcome_hook", "finished_ok_hook", "get_retry_override")


class CrawlManager(SpiderStatsAggregatorMixin, WorkFlowManager):
    """Runs one job of a spider. In loop mode it stays until the job has ended, and ends with its outcome.

    >>> from crawler_lifecycle.managers import CrawlManager
    >>> from crawler_lifecycle.managers.testing import simulate
    >>> class Shop(CrawlManager):
    ...     name, spider, loop_mode = "shop", "shop.com", 60
    ...     def bad_outcome_hook(self, spider, outcome, job_args_override, jobkey):
    ...         super().bad_outcome_hook(spider, outcome, job_args_override, jobkey)
    ...         self.stats.inc_value(f"bad/{outcome}")
    >>> record = simulate(Shop, ["--spider-args", '{"country": "de"}'], outcomes="banned")
    >>> record.args, record.close_reason, record.stats
    ([{'country': 'de'}], 'banned', {'bad/banned': 1})
    """

    #: The spider, or the crawler of that name; without one it is the first argument of the command line.
    spider: SpiderName | None = None
    #: Whether ``check_running_jobs`` begins with the job that started last.
    running_jobs_reverse_check = False
    #: While the hooks of an end run: which end that is, the same whenever they run for it. A service that hooks call
    #: takes it as an idempotency key. ``None`` at all other times.
    hook_key: str | None = None
    #: Whether the outcome of the first job that fails becomes the close reason.
    _inherits_outcomes = True
    #: Whether its loop reads the outcomes of ends: they are on record together with what it makes of them.
    _reads_outcomes = True
    #: Live jobs for whose ``running_job_hook`` the last cycle had no time: they come first.
    _passed: Collection[JobKey] = ()

    # --- options -----------------------------------------------------------------------------------------------------

    def add_argparser_options(self) -> None:
        super().add_argparser_options()
        add = self.argparser.add_argument
        if self.spider is None:
            add("spider", help="The spider, or the crawler of that name.")
        add("--spider-args", default="{}", help="Arguments of the spider: a JSON object.")
        add("--job-settings", default="{}", help="Settings of the jobs: a JSON object.")
        add("--units", type=int, help="Units of each job that says none itself.")

    def parse_args(self) -> Namespace:
        args = super().parse_args()
        if self.spider is None:
            self.spider = args.spider
        self.args = args
        try:
            merged({}, "any", self._defaults())
        except InvalidRequest as error:
            self.argparser.error(f"of every job: {error}")
        return args

    def _defaults(self) -> JobDefaults:
        return JobDefaults(
            spider=self.spider or None,
            spider_args=json_object(self.argparser, "--spider-args", self.args.spider_args),
            job_settings=self.get_job_settings(),
            units=self.args.units,
            project_id=self.project_id,
            tags=self._given_tags(),
        )

    def get_job_settings(self, override: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The settings of ``--job-settings``, with these over them."""
        return {**json_object(self.argparser, "--job-settings", self.args.job_settings), **(override or {})}

    # --- scheduling --------------------------------------------------------------------------------------------------

    def schedule_spider_with_jobargs(
        self, job_args_override: JobParams | None = None, spider: SpiderName | None = None
    ) -> Any:
        """Schedule one job (S-31); its key. It begins when the cycle is over, or queues when no slot is free.

        ``job_args_override``: what goes over the options of the manager: ``spider_args``, ``job_settings``, ``tags``,
        ``units``, ``project_id``. ``spider``: another spider than the manager's. Raises ``InvalidRequest``.
        """
        override = override_of(job_args_override)
        settings = self.get_job_settings(override.get("job_settings"))
        return self._schedule(merged({**override, "job_settings": settings}, spider, self._defaults()))

    def _call_schedule(self, waiting: Waiting) -> Any:
        """Schedule a job by the method that a user may have overridden; one that was scheduled before, as it is."""
        if waiting.seq is not None and not waiting.retry:
            return self._schedule(waiting.job)
        self._platform.entering("schedule_spider_with_jobargs", waiting.item_id)
        try:
            return self.schedule_spider_with_jobargs(_params_for_hook(waiting.job), waiting.job.spider)
        except (Exception, SystemExit) as error:
            self._cycle.note(f"schedule_spider_with_jobargs of {_named(waiting.job)}: {where(error)}")
            return None

    # --- ends --------------------------------------------------------------------------------------------------------

    def check_running_jobs(self) -> dict[JobKey, Outcome]:
        """Run the hooks of jobs that have ended, and ``running_job_hook`` for those that live, by their start (S-34);
        the outcomes of the ended ones. What there is no time for waits for the next cycle."""
        outcomes: dict[JobKey, Outcome] = {}
        cycle, passed, hooks = self._cycle, set[JobKey](), any(map(self._overrides, _HOOKS))
        alone = hooks and (self._reads_outcomes or self._overrides("workflow_loop"))
        live_s, ends_s = cycle.took_s + HOOKS_S / 2, min(cycle.took_s + (0 if alone else HOOKS_S), CYCLE_S)
        jobs: list[Ended | Live] = list(cycle.ends.values())
        if self._overrides("running_job_hook"):
            jobs += self._live_jobs()
        jobs.sort(key=_by_start, reverse=self.running_jobs_reverse_check)
        jobs.sort(key=lambda one: one.tries if isinstance(one, Ended) else 0)  # those that fail hold up no others
        for one in jobs:
            if isinstance(one, Live):
                if cycle.took_s >= live_s:
                    passed.add(one.key)
                elif not self._passed or one.key in self._passed:
                    self._still_running(one)
            elif cycle.took_s < ends_s or not (cycle.hooked or cycle.failed):
                if self._handle(one):
                    outcomes[one.live.key] = one.outcome
                if hooks and not alone:
                    cycle.tell()
        self._passed = passed
        if jobs:
            self._platform.entering("workflow_loop")
        return outcomes

    def _live_jobs(self) -> Iterable[Live]:
        after = 0
        while page := self._platform.live_jobs(after):
            yield from page
            after = page[-1].item_id

    def _still_running(self, live: Live) -> None:
        hook: Callable[..., Any] = self.running_job_hook
        self._platform.entering("running_job_hook", live.item_id)
        try:
            with undone_on_error(self):
                no_coroutine("running_job_hook", hook(live.key))
                check_state(self.state)
        except (Exception, SystemExit) as error:
            self._cycle.note(f"running_job_hook of {_named(live.job)}: {where(error)}")

    def _handle(self, ended: Ended) -> bool:
        """Run the hooks of one end (S-33), once for each attempt of its run; whether it is handled now."""
        cycle, live = self._cycle, ended.live
        bad = ended.bad or ended.outcome in self.failed_outcomes
        cycle.handled[live.key] = cycle.ends.pop(live.key)
        if ended.given_up:
            cycle.window.ended(ended)
            cycle.note(f"the hooks of {_named(live.job)} failed too often; its end counts without them")
            if bad and self._inherits_outcomes and self.get_close_reason() is None:
                self.set_close_reason(ended.outcome)
        else:
            try:
                with undone_on_error(self):
                    self._run_hooks(ended, bad)
                    check_state(self.state)
                    self.aggregate_spider_stats({"spider": live.job.spider, **ended.metadata})
            except (Exception, SystemExit) as error:
                told = f"hooks of {_named(live.job)}: {where(error)}"
                cycle.failed.append(HookFailed(live.item_id, ended.attempt, told))
                cycle.note(told)
                _LOG.exception("a hook of %s raised", live.key)
                return False
        cycle.hooked.append(Hooked(live.item_id, ended.attempt, bad))
        return True

    def _run_hooks(self, ended: Ended, bad: bool) -> None:
        """Metadata first, then exactly one of bad and ok, which sees its job gone."""
        live = ended.live
        metadata: Callable[..., Any] = self.finished_metadata_hook
        outcome: Callable[..., Any] = self.bad_outcome_hook if bad else self.finished_ok_hook
        self.hook_key = f"{run_request_id(self._start.manager_id, live.seq, live.retry)}/{ended.attempt}"
        try:
            self._platform.entering("finished_metadata_hook", live.item_id)
            no_coroutine("finished_metadata_hook", metadata(live.key, deepcopy(ended.metadata)))
            self._cycle.window.ended(ended)
            name = "bad_outcome_hook" if bad else "finished_ok_hook"
            self._platform.entering(name, live.item_id)
            no_coroutine(name, outcome(live.job.spider, ended.outcome, _params_for_hook(live.job), live.key))
        finally:
            self.hook_key = None

    def running_job_hook(self, jobkey: JobKey) -> None:
        """Override: a job that still lives, in each cycle."""

    def finished_metadata_hook(self, jobkey: JobKey, metadata: dict[str, Any]) -> None:
        """Override: any job that has ended, before its outcome hook."""

    def bad_outcome_hook(
        self, spider: SpiderName, outcome: Outcome, job_args_override: JobParams, jobkey: JobKey
    ) -> None:
        """Override: a job that failed. The manager ends with the outcome of the first one (S-04)."""
        if self.get_close_reason() is None:
            self.set_close_reason(outcome)

    def finished_ok_hook(
        self, spider: SpiderName, outcome: Outcome, job_args_override: JobParams, jobkey: JobKey
    ) -> None:
        """Override: a job that ended well."""

    def workflow_loop(self) -> Any:
        """Run the hooks; an end ends the manager (S-32). Without a job, schedule it."""
        if self.check_running_jobs():
            return False
        window = self._cycle.window
        if not window.live and not window.waiting:
            self.schedule_spider_with_jobargs()
        return True


class PeriodicCrawlManager(CrawlManager):
    """Runs the same job again and again: after each end, but at most once every ``loop_mode`` seconds.

    >>> from crawler_lifecycle.managers import PeriodicCrawlManager
    >>> from crawler_lifecycle.managers.testing import simulate
    >>> class Hourly(PeriodicCrawlManager):
    ...     name, spider, loop_mode, max_running_time = "hourly", "shop.com", 3600, 9000
    >>> [job.at for job in simulate(Hourly, seconds=600).scheduled]
    [0.0, 3600.0, 7200.0]
    """

    _inherits_outcomes = _reads_outcomes = False

    def bad_outcome_hook(
        self, spider: SpiderName, outcome: Outcome, job_args_override: JobParams, jobkey: JobKey
    ) -> None:
        """Override: a job that failed. It is scheduled again like any other."""

    def workflow_loop(self) -> Any:
        """Run the hooks, and schedule the job when none lives and it is time (S-40)."""
        self.check_running_jobs()
        window, facts = self._cycle.window, self._cycle.facts
        if not window.live and not window.waiting:
            due = 0.0 if facts.last_pick is None else facts.last_pick + self.args.loop_mode
            if facts.now >= due:
                self.schedule_spider_with_jobargs()
            else:
                self._cycle.again_s = due - facts.now
        return True


class GeneratorCrawlManager(CrawlManager):
    """Runs a job for each item of a generator, so many at once as ``max_running_jobs`` says.

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
    #: Tries of a job after its first bad end.
    MAX_RETRIES = 0
    #: Seconds before the first retry; each further one waits ``retry_delay_factor`` times as long, up to the maximum.
    retry_delay: float = 0
    retry_delay_factor: float = 2
    retry_delay_max: float = 3600
    #: Most live jobs of each spider; ``None``: no limit.
    max_jobs_per_spider: int | None = None
    #: Most live jobs of each ``cap_key``: one number for all keys, or numbers by key. ``None``: no limit.
    max_per_key: int | Mapping[str, int] | None = None
    #: What a yield that cannot be a job does: ``stop`` the manager, or ``skip`` the item, which is counted and listed.
    on_item_error = "stop"
    #: What new source code of the class does to a manager that goes on: ``replay`` the generator, ``continue`` behind
    #: its position (so does every new process then), or ``fail``.
    on_code_change = "replay"

    def __init__(self) -> None:
        self._acquired: set[str] = set()
        """Identities of jobs of other flows that count as its own."""
        super().__init__()

    # --- the source --------------------------------------------------------------------------------------------------

    def set_parameters_gen(self) -> Iterable[Mapping[str, Any]]:
        """Yield a dictionary of spider arguments for each job; ``spider``, ``units``, ``tags``, ``job_settings`` and
        ``project_id`` in it are no arguments. It must yield the same again after a restart."""
        raise NotImplementedError(
            f"{type(self).__name__} has no set_parameters_gen; write one that yields dictionaries"
        )

    @classmethod
    def create_dupe_filter(cls) -> Any:
        """Without effect: identities are kept with the jobs, exactly."""
        return None

    def add_job(self, spider: SpiderName, job_args_override: JobParams | None = None) -> None:
        """Queue a job before what the generator yields. It is left out when a job with these arguments is known.

        Tags that have a ``JOBSEQ=`` make it the next try of that job (S-57).
        """
        override = override_of(job_args_override)
        number = jobseq_of(tag for tag in override.get("tags") or [] if isinstance(tag, str))
        if number is None:
            self._add(merged(override, spider, self._defaults()))
        else:
            self._add(merged(override, spider, self._defaults()), seq=number[0], retry=number[1] + 1)

    def _add(self, job: Job, **more: Any) -> bool:
        if self._known(job):
            _LOG.warning("%s was scheduled before with the same arguments; it is left out", _named(job))
            self.stats.inc_value("crawlmanager/duplicates")
            return False
        self._cycle.window.add(Added(0, job, **more))
        return True

    def _known(self, job: Job) -> bool:
        return job.identity in self._acquired or super()._known(job)

    def resume_workflow(self) -> None:
        """As of any manager; with ``acquire_all_jobs`` jobs of other flows are not run again (S-63)."""
        super().resume_workflow()
        if self.acquire_all_jobs:
            states = ["running", "pending"] + ([] if self.dont_acquire_finished_jobs else ["finished"])
            for job in self._of_other_flows(states):
                self._acquired.add(Job(job["spider"], job["spider_args"]).identity)

    def add_delayed_jobs(self, params: FullJobParams) -> None:
        """Queue a job, as ``add_job`` does."""
        self.add_job(params["spider"], params)

    # --- who may start -----------------------------------------------------------------------------------------------

    def can_schedule_job_with_params(self, params: FullJobParams) -> bool:
        """Override: ``False`` keeps the job for a later cycle."""
        return True

    def cap_key(self, params: FullJobParams) -> str | None:
        """Override: the key under which the job counts for ``max_per_key``; ``None``: under none."""
        return None

    def get_max_jobs_per_spider(self, spider: SpiderName) -> int | None:
        """Most live jobs of this spider; override for a cap of its own."""
        return self.max_jobs_per_spider

    def spider_running_count(self, spider: SpiderName) -> int:
        """Live jobs of this spider, those picked in this cycle included."""
        return self._cycle.window.live_by_spider[spider]

    def get_running_spiders(self) -> set[SpiderName]:
        return set(self._cycle.window.live_by_spider)

    def spider_delayed_count(self, spider: SpiderName) -> int:
        return self._cycle.window.delayed_by_spider[spider]

    def get_delayed_spiders(self) -> set[SpiderName]:
        return set(self._cycle.window.delayed_by_spider)

    def get_delayed_jobs(self) -> list[FullJobParams]:
        """Copies of the jobs that were delayed when the cycle began."""
        jobs: list[FullJobParams] = []
        after = 0
        while page := self._platform.waiting_jobs(JobState.DELAYED, after):
            jobs += [cast(FullJobParams, params_of(waiting.job)) for waiting in page]
            after = page[-1].item_id
        return jobs

    def _rules(self) -> Rules:
        has_key, has_predicate = self._overrides("cap_key"), self._overrides("can_schedule_job_with_params")
        return Rules(
            self._cap(),
            may_start=self._may_start if has_predicate else lambda job: True,
            spider_cap=lambda spider: _cap_of("max_jobs_per_spider", self.get_max_jobs_per_spider(spider)),
            key_of=self._key_of if has_key else lambda job: None,
            key_cap=self._key_cap,
        )

    def _may_start(self, job: Job) -> bool:
        name = "can_schedule_job_with_params"
        answer = self._ask(name, job)
        if answer is None:
            raise self._later(name, f"{name} of {_named(job)} answered None; answer True or False")
        return bool(answer)

    def _key_of(self, job: Job) -> str | None:
        answer = self._ask("cap_key", job)
        if answer is not None and not isinstance(answer, str | int):
            raise self._later("cap_key", f"cap_key of {_named(job)} answered {answer!r:.60}; answer a text or None")
        return None if answer is None else str(answer)[:200]

    def _key_cap(self, key: str) -> float | None:
        most = self.max_per_key
        return _cap_of("max_per_key", most.get(key) if isinstance(most, Mapping) else most)

    def _ask(self, method: str, job: Job) -> Any:
        if self._cycle.took_s >= CYCLE_S:
            raise Later(f"its class took {CYCLE_S:g} s in one cycle, so it is asked in the next")
        try:
            return no_coroutine(method, getattr(self, method)(params_of(job)))
        except (Exception, SystemExit) as error:
            raise self._later(method, f"{method} of {_named(job)}: {where(error)}") from None

    def _later(self, method: str, error: str) -> Later:
        self._cycle.note(error)
        return Later(f"{method} failed")

    # --- ends and cycles ---------------------------------------------------------------------------------------------

    def bad_outcome_hook(
        self, spider: SpiderName, outcome: Outcome, job_args_override: JobParams, jobkey: JobKey
    ) -> None:
        """Override: a job that failed. Here it is tried again, up to ``MAX_RETRIES`` times (S-58)."""
        ended = self._cycle.handled.get(jobkey)
        tagged = jobseq_of(job_args_override.get("tags") or [])
        seq, retry = (ended.live.seq, ended.live.retry) if ended is not None else tagged or (None, 0)
        if outcome == "cancelled" or (ended is not None and not ended.retryable) or retry >= self.MAX_RETRIES:
            return
        retry += 1
        params = retry_params(job_args_override, retry, jobkey, {})
        try:
            change = self.get_retry_override(spider, outcome, cast(JobParams, deepcopy(params)), jobkey)
        except StopRetry as why:
            _LOG.info("%s ended as %s and is not tried again: %s", jobkey, outcome, why)
            return
        job = merged(retry_params(params, retry, jobkey, change), spider, self._defaults())
        delay = retry_delay(self.retry_delay, self.retry_delay_factor, self.retry_delay_max, retry)
        not_before = self._cycle.facts.now + delay if delay > 0 else None
        if self._add(job, seq=seq, retry=retry, retry_of=jobkey, not_before=not_before):
            _LOG.info("%s ended as %s: try %d of %d follows", jobkey, outcome, retry, self.MAX_RETRIES)

    def get_retry_override(
        self, spider: SpiderName, outcome: Outcome, job_args_override: JobParams, jobkey: JobKey
    ) -> JobParams:
        """Override: what changes for the next try; ``StopRetry`` ends the tries of this job (S-59)."""
        return JobParams()

    def _job_tags(self, job: Job, seq: int, retry: int) -> list[str]:
        return sorted([*super()._job_tags(job, seq, retry), jobseq_tag(seq, retry)])

    def workflow_loop(self) -> Any:
        """Run the hooks, and give each free slot to the next job; over when nothing is left (S-52, S-61)."""
        self.check_running_jobs()
        self._start_waiting()
        return not self._cycle.window.over


class AsyncSchedulerCrawlManagerMixin(GeneratorCrawlManager):
    """Schedules the jobs of a cycle at the same time; ``run`` is a coroutine (S-64).

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
        """For ``asyncio.run(X().run())``."""
        import asyncio

        return await asyncio.to_thread(super().run)

    async def schedule_spider_with_jobargs(
        self, job_args_override: JobParams | None = None, spider: SpiderName | None = None
    ) -> Any:
        return super().schedule_spider_with_jobargs(job_args_override, spider)

    async def workflow_loop(self) -> Any:
        self.check_running_jobs()
        await self._start_waiting_at_once()
        return not self._cycle.window.over

    async def _start_waiting_at_once(self) -> None:
        """Reserve every free slot, and schedule all of these jobs together."""
        import asyncio

        rules, turns = self._rules(), []
        while self._cycle.took_s < CYCLE_S and (waiting := self._cycle.window.reserve(rules)) is not None:
            turns.append(Turn(waiting))
        await asyncio.gather(*(self._start_one(turn) for turn in turns))
        for turn in turns:
            self._settle(turn)

    async def _start_one(self, turn: Turn) -> None:
        TURN.set(turn)
        try:
            scheduling = self._call_schedule(turn.waiting)
            if isawaitable(scheduling):
                await scheduling
        except (Exception, SystemExit) as error:
            self._cycle.note(f"schedule_spider_with_jobargs of {_named(turn.waiting.job)}: {where(error)}")


def _by_start(one: Ended | Live) -> tuple[float, int, int]:
    live = one.live if isinstance(one, Ended) else one
    return float("inf") if live.started_at is None else live.started_at, live.seq, live.retry


def _cap_of(name: str, most: object) -> float | None:
    if most is not None and (isinstance(most, bool) or not isinstance(most, int | float) or not most >= 0):
        raise refusal(name, most, "give a number from 0, or None for no limit")
    return most


def _params_for_hook(job: Job) -> JobParams:
    """A job as hooks get it: a copy that shares nothing."""
    params = params_of(job)
    del params["spider"]
    return cast(JobParams, params)


def _named(job: Job) -> str:
    """A job as errors name it."""
    shown = ", ".join(f"{name}={value[:40]}" for name, value in list(job.spider_args.items())[:3])
    return f"{job.spider}({shown})"
