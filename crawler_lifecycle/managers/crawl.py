"""Crawl managers that run one job once, or the same job repeatedly."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from typing import Any, cast

from crawler_lifecycle.domain.errors import InvalidRequest, NotYetDelivered
from crawler_lifecycle.domain.starts import once
from crawler_lifecycle.features.managers.domain.jobs import (
    JobDefaults,
    merged,
    override_of,
    params_of,
)
from crawler_lifecycle.features.managers.domain.manager import (
    CYCLE_S,
    EndedJob,
    HookFailed,
    HookReport,
    Job,
    Live,
    Waiting,
    run_request_id,
)

from .cycle import HOOKS_S
from .manager import WorkFlowManager
from .options import json_object
from .savepoint import check_state, no_coroutine, undone_on_error, where
from .stats import SpiderStatsAggregatorMixin
from .types import JobKey, JobParams, Outcome, SpiderName

_LOG = logging.getLogger(__name__)
#: Methods that are called for the end of a job. A user's class can override them.
_HOOKS = ("finished_metadata_hook", "bad_outcome_hook", "finished_ok_hook", "get_retry_override")


class CrawlManager(SpiderStatsAggregatorMixin, WorkFlowManager):
    """Runs one job of a spider. In loop mode, the manager waits for the job's end and adopts the
    job's outcome.

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

    #: The name of the spider or crawler. Without it, the command line has an argument ``spider``.
    spider: SpiderName | None = None
    #: If True, ``check_running_jobs`` begins with the job that started last.
    running_jobs_reverse_check = False
    #: A key of the job's end while its hooks run, or else ``None``. The key is the same in each try
    #: of the hooks, so a service that hooks call can use this key as an idempotency key.
    hook_key: str | None = None
    #: If True, the outcome of the first failed job becomes the close reason.
    _inherits_outcomes = True
    #: If True, the loop uses the outcomes of ended jobs, so ends and the loop's decisions must be
    #: recorded together.
    _reads_outcomes = True
    #: Live jobs whose ``running_job_hook`` the last cycle had no time to call; the next cycle calls
    #: only these.
    _passed: Collection[JobKey] = ()
    #: Ended jobs whose files had not arrived when the hooks tried to read them.
    _fileless: frozenset[JobKey] = frozenset()

    # --- options ----------------------------------------------------------------------------------

    def add_argparser_options(self) -> None:
        super().add_argparser_options()
        add = self.argparser.add_argument
        if self.spider is None:
            add("spider", help="The name of the spider or crawler.")
        add("--spider-args", default="{}", help="Arguments of the spider, as a JSON object.")
        add("--job-settings", default="{}", help="Settings of the jobs, as a JSON object.")
        add("--units", type=int, help="Units of each job without units of its own.")
        add(
            "--priority",
            type=int,
            help="Priority of each job without a priority of its own, from 1 (first) to 5 (last).",
        )
        add("--pool", help="Pool of each job without a pool of its own.")
        add("--version", help="Version of the crawler of each job without a version of its own.")

    def parse_args(self) -> Namespace:
        args = super().parse_args()
        if self.spider is None:
            self.spider = args.spider
        self.args = args
        try:
            merged({}, "any", self._defaults())
        except InvalidRequest as error:
            self.argparser.error(f"defaults of all jobs: {error}")
        return args

    def _defaults(self) -> JobDefaults:
        return JobDefaults(
            spider=self.spider or None,
            spider_args=json_object(self.argparser, "--spider-args", self.args.spider_args),
            job_settings=self.get_job_settings(),
            units=self.args.units,
            project_id=self.project_id,
            priority=self.args.priority,
            pool=self.args.pool,
            version=self.args.version,
            tags=self._given_tags(),
        )

    def get_job_settings(self, override: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings in ``--job-settings``, overridden by the given settings."""
        return {
            **json_object(self.argparser, "--job-settings", self.args.job_settings),
            **(override or {}),
        }

    # --- scheduling -------------------------------------------------------------------------------

    def schedule_spider_with_jobargs(
        self, job_args_override: JobParams | None = None, spider: SpiderName | None = None
    ) -> Any:
        """Schedule one job and return its key (S-31).

        The job starts after the cycle, or waits if no slot is free.

        - ``job_args_override`` has values that override the manager's options: ``spider_args``,
          ``job_settings``, ``tags``, ``units``, ``project_id``, ``priority``, ``pool`` and
          ``version``.
        - ``spider`` is the spider. The default is the manager's spider.

        Raises ``InvalidRequest``.
        """
        override = override_of(job_args_override)
        settings = self.get_job_settings(override.get("job_settings"))
        return self._schedule(
            merged({**override, "job_settings": settings}, spider, self._defaults())
        )

    def _call_schedule(self, waiting: Waiting) -> Any:
        """Schedule a job with ``schedule_spider_with_jobargs``, which a user can override. A job
        that already has a number and is not a retry is scheduled without that method.
        """
        if waiting.seq is not None and not waiting.retry:
            return self._schedule(waiting.job)
        self._platform.entering("schedule_spider_with_jobargs", waiting.item_id)
        try:
            return self.schedule_spider_with_jobargs(
                _params_for_hook(waiting.job), waiting.job.spider
            )
        except (Exception, SystemExit) as error:
            self._cycle.note(
                f"schedule_spider_with_jobargs of {named_job(waiting.job)}: {where(error)}"
            )
            return None

    # --- ends -------------------------------------------------------------------------------------

    def check_running_jobs(self) -> dict[JobKey, Outcome]:
        """Call the hooks of ended jobs and ``running_job_hook`` of live jobs. Return the outcomes
        of ended jobs.

        Jobs are handled in the order of their start (S-34). If the cycle's time limit is reached,
        the remaining jobs wait for the next cycle.
        """
        outcomes: dict[JobKey, Outcome] = {}
        cycle = self._cycle
        passed = set[JobKey]()
        hooks = any(map(self._overrides, _HOOKS))
        alone = hooks and (self._reads_outcomes or self._overrides("workflow_loop"))
        live_s = cycle.took_s + HOOKS_S / 2
        ends_s = min(cycle.took_s + (0 if alone else HOOKS_S), CYCLE_S)
        jobs: list[EndedJob | Live] = list(cycle.ends.values())
        if self._overrides("running_job_hook"):
            jobs += self._live_jobs()
        jobs.sort(key=_by_start, reverse=self.running_jobs_reverse_check)
        # Jobs whose hooks failed or are waiting for files come last, so that they do not delay
        # other jobs.
        jobs.sort(
            key=lambda one: (
                (one.live.key in self._fileless, one.tries)
                if isinstance(one, EndedJob)
                else (False, 0)
            )
        )
        for job in jobs:
            if isinstance(job, Live):
                if cycle.took_s >= live_s:
                    passed.add(job.key)
                elif not self._passed or job.key in self._passed:
                    self._still_running(job)
            elif cycle.took_s < ends_s or not (cycle.hooked or cycle.failed):
                if self._handle(job):
                    outcomes[job.live.key] = job.outcome
                if hooks and not alone:
                    cycle.report()
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
            self._cycle.note(f"running_job_hook of {named_job(live.job)}: {where(error)}")

    def _handle(self, ended: EndedJob) -> bool:
        """Call the hooks of one end (S-33), once for each attempt of its run. Return whether the
        hooks succeeded.
        """
        cycle = self._cycle
        live = ended.live
        bad = ended.bad or ended.outcome in self.failed_outcomes
        cycle.handled[live.key] = cycle.ends.pop(live.key)
        if ended.given_up:
            cycle.window.ended(ended)
            cycle.note(
                f"the hooks of {named_job(live.job)} failed too often; its end is recorded "
                "without them"
            )
            if bad and self._inherits_outcomes and self.get_close_reason() is None:
                self.set_close_reason(ended.outcome)
        else:
            try:
                with undone_on_error(self):
                    self._run_hooks(ended, bad)
                    check_state(self.state)
                    self.aggregate_spider_stats({"spider": live.job.spider, **ended.metadata})
            except (Exception, SystemExit) as error:
                said = f"hooks of {named_job(live.job)}: {where(error)}"
                later = isinstance(error, NotYetDelivered)
                cycle.failed.append(HookFailed(live.item_id, ended.attempt, said, later))
                self._fileless |= {live.key} if later else set()
                cycle.note(said)
                _LOG.exception("a hook of job %s failed", live.key)
                return False
        self._fileless -= {live.key}
        cycle.hooked.append(HookReport(live.item_id, ended.attempt, bad))
        return True

    def _run_hooks(self, ended: EndedJob, bad: bool) -> None:
        """Call ``finished_metadata_hook``, then either ``bad_outcome_hook`` or
        ``finished_ok_hook``.

        The second hook is called after the job has released its slot.
        """
        live = ended.live
        metadata: Callable[..., Any] = self.finished_metadata_hook
        outcome: Callable[..., Any] = self.bad_outcome_hook if bad else self.finished_ok_hook
        self.hook_key = (
            f"{run_request_id(self._start.manager_id, live.seq, live.retry)}/{ended.attempt}"
        )
        try:
            with once(self.hook_key):
                self._platform.entering("finished_metadata_hook", live.item_id)
                no_coroutine("finished_metadata_hook", metadata(live.key, deepcopy(ended.metadata)))
                self._cycle.window.ended(ended)
                name = "bad_outcome_hook" if bad else "finished_ok_hook"
                self._platform.entering(name, live.item_id)
                no_coroutine(
                    name,
                    outcome(live.job.spider, ended.outcome, _params_for_hook(live.job), live.key),
                )
        finally:
            self.hook_key = None

    def running_job_hook(self, jobkey: JobKey) -> None:
        """Handle a live job. Users can override this method, which is called in each cycle."""

    def finished_metadata_hook(self, jobkey: JobKey, metadata: dict[str, Any]) -> None:
        """Handle any ended job. Users can override this method, which is called before the hook for
        the outcome.
        """

    def bad_outcome_hook(
        self, spider: SpiderName, outcome: Outcome, job_args_override: JobParams, jobkey: JobKey
    ) -> None:
        """Handle a failed job.

        By default, the outcome of the first failed job becomes the close reason (S-04). Users can
        override this method.
        """
        if self.get_close_reason() is None:
            self.set_close_reason(outcome)

    def finished_ok_hook(
        self, spider: SpiderName, outcome: Outcome, job_args_override: JobParams, jobkey: JobKey
    ) -> None:
        """Handle a successful job. Users can override this method."""

    def workflow_loop(self) -> Any:
        """Call the hooks, and schedule the job if there is none.

        The end of the job ends the manager (S-32).
        """
        if self.check_running_jobs():
            return False
        window = self._cycle.window
        if not window.live and not window.waiting:
            self.schedule_spider_with_jobargs()
        return True


class PeriodicCrawlManager(CrawlManager):
    """Runs the same job again after each end, but at most once every ``loop_mode`` seconds.

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
        """Handle a failed job.

        By default, nothing happens, because the job is scheduled again anyway. Users can override
        this method.
        """

    def workflow_loop(self) -> Any:
        """Call the hooks, and schedule the job if no job is live and ``loop_mode`` seconds have
        elapsed (S-40).
        """
        self.check_running_jobs()
        window = self._cycle.window
        facts = self._cycle.facts
        if not window.live and not window.waiting:
            due = 0.0 if facts.last_pick is None else facts.last_pick + self.args.loop_mode
            if facts.now >= due:
                self.schedule_spider_with_jobargs()
            else:
                self._cycle.again_s = due - facts.now
        return True


def _by_start(one: EndedJob | Live) -> tuple[float, int, int]:
    live = one.live if isinstance(one, EndedJob) else one
    return float("inf") if live.started_at is None else live.started_at, live.seq, live.retry


def _params_for_hook(job: Job) -> JobParams:
    """Return a complete copy of a job's parameters for hooks."""
    params = params_of(job)
    del params["spider"]
    return cast(JobParams, params)


def named_job(job: Job) -> str:
    """Return a short name of a job for error messages."""
    shown = ", ".join(f"{name}={value[:40]}" for name, value in list(job.spider_args.items())[:3])
    return f"{job.spider}({shown})"
