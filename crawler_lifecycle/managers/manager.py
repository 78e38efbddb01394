"""Managers, which are scripts that own jobs. Managers find their jobs by flow id and name, even
after a restart.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, BinaryIO, Unpack

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.run_data import Items, RunFile, Which, open_file
from crawler_lifecycle.features.managers.domain.manager import FAILED_OUTCOMES

from .base import BaseLoopScript
from .cycle import Cycle
from .platform import OwnedQuery
from .types import JobDict, JobKey

_LOG = logging.getLogger(__name__)
#: The modules of our classes. A method from another module is a user's override.
_CLASSES = tuple(f"{__package__}.{name}" for name in ("base", "manager", "crawl", "generator"))
_STATES = ("pending", "running", "finished")


class WorkFlowManager(BaseLoopScript):
    """A script that owns jobs. The manager finds its jobs by flow id and name, even after a
    restart.

    >>> from crawler_lifecycle.managers import WorkFlowManager
    >>> from crawler_lifecycle.managers.testing import simulate
    >>> class Two(WorkFlowManager):
    ...     name, loop_mode = "two", 60
    ...     def on_start(self):
    ...         self.keys = [self.schedule_spider(spider) for spider in ("shop.com", "shop.org")]
    ...     def workflow_loop(self):
    ...         return any(self.is_running(key) for key in self.keys)
    ...     def on_close(self):
    ...         self.state["ends"] = [self.is_finished(key) for key in self.keys]
    >>> simulate(Two, outcomes=["finished", "banned"]).state
    {'ends': ['finished', 'banned']}
    """

    #: The default of ``--max-running-jobs``, the maximum number of live jobs.
    default_max_jobs: float = 1000
    flow_id_required = True
    #: If True, jobs of other flows also count as jobs of this manager. Then each start is a resume,
    #: and live jobs of other flows use slots.
    acquire_all_jobs = False
    #: If True, a resume ignores jobs that have ended.
    dont_acquire_finished_jobs = False
    #: Outcomes that are failures. Each object copies them to ``failed_outcomes``, a list that the
    #: object can change.
    base_failed_outcomes: Sequence[str] = FAILED_OUTCOMES

    def __init__(self) -> None:
        self.failed_outcomes: list[str] = list(self.base_failed_outcomes)
        self._acquired_live: dict[JobKey, str] = {}
        """Spiders of other flows' jobs that were live at the start, by job key."""
        self.is_resumed = False
        super().__init__()
        self.is_resumed = self._start.resumed or self.acquire_all_jobs

    def add_argparser_options(self) -> None:
        super().add_argparser_options()
        if not self.name:
            # A start that names the manager may omit or repeat the argument.
            given = self._start.name or None
            self.argparser.add_argument(
                "name", nargs="?" if given else None, default=given, help="Name of the manager."
            )
        self.argparser.add_argument(
            "--max-running-jobs",
            type=int,
            default=self.default_max_jobs,
            help="Maximum number of jobs that run at once. Default: %(default)s",
        )

    def parse_args(self) -> Namespace:
        args = super().parse_args()
        self.name = self.name or args.name
        if isinstance(args.max_running_jobs, int) and args.max_running_jobs < 0:
            self.argparser.error(
                f"--max-running-jobs: {args.max_running_jobs} is not allowed; give a number from 0"
            )
        return args

    def set_flow_id_name(self, args: Namespace) -> None:
        super().set_flow_id_name(args)
        if not self.name:
            self.argparser.error(
                "the manager has no name; set the class attribute name, or give it as an argument"
            )

    @property
    def max_running_jobs(self) -> float:
        """The maximum number of live jobs. This property is read in every cycle, so override it for
        a cap that changes.
        """
        cap: float = self.args.max_running_jobs
        return cap

    def _cap(self) -> float:
        cap = self.max_running_jobs
        if isinstance(cap, bool) or not isinstance(cap, int | float) or cap != cap:
            raise refusal("max_running_jobs", cap, "give a number from 0")
        return max(cap, 0)  # a subtraction in a user's property may be negative

    # --- the jobs of this manager -----------------------------------------------------------------

    def get_owned_jobs(
        self, project_id: str | int | None = None, **kwargs: Any
    ) -> Iterator[JobDict]:
        """Return jobs of this manager's flow and name.

        - ``state`` is required: one or several of pending, running and finished.
        - If ``project_id`` is given, return only jobs in this project.
        - If ``spider`` is given, return only jobs of this spider.
        - If ``lacks_tag`` is given, return only jobs with none of these tags.
        - If ``count`` is given, return at most this many jobs.
        - ``meta`` is accepted and ignored, because every job has all metadata.
        """
        if not self.flow_id or not self.name:
            raise ValueError("get_owned_jobs: the script has no flow id or no name; set both")
        if "has_tag" in kwargs:
            raise ValueError(
                "get_owned_jobs: has_tag is not allowed; leave it out, flow and name select jobs"
            )
        states = kwargs.pop("state", None)
        if isinstance(states, str):
            states = [states]
        if not states or any(state not in _STATES for state in states):
            raise refusal("state", states, f"give some of {', '.join(_STATES)}")
        unknown = set(kwargs) - {"meta", "spider", "lacks_tag", "count"}
        if unknown:
            raise refusal(
                "filter", ", ".join(sorted(unknown)), "use state, spider, lacks_tag and count"
            )
        project = None if project_id is None else str(project_id)
        query = OwnedQuery(list(states), self.acquire_all_jobs, kwargs.get("spider"), project)
        return self._owned(query, set(kwargs.get("lacks_tag") or []), kwargs.get("count"))

    def _owned(self, query: OwnedQuery, lacks: set[str], count: int | None) -> Iterator[JobDict]:
        seen: set[str] = set()
        for job in chain(self._recorded(query), self._scheduled(query)):
            if count is not None and len(seen) >= count:
                return
            if job["key"] not in seen and not lacks.intersection(job.get("tags") or []):
                seen.add(job["key"])
                yield job

    def _recorded(self, query: OwnedQuery) -> Iterator[JobDict]:
        while True:
            page = self._platform.owned_jobs(query)
            for job in page.jobs:
                yield JobDict(**job)  # type: ignore[typeddict-item]
            if page.after is None:
                return
            query = replace(query, after=page.after)

    def _scheduled(self, query: OwnedQuery) -> Iterator[JobDict]:
        """Return the jobs that the current cycle has scheduled and that match the query."""
        for job in list(self._cycle.coming.values()):
            fits = query.spider in (None, job["spider"]) and query.project_id in (
                None,
                job["project_id"],
            )
            if fits and job["state"] in query.states:
                yield job

    def get_running_jobs(
        self, project_id: str | int | None = None, **kwargs: Any
    ) -> Iterator[JobDict]:
        """Return pending and running jobs of this manager, in the order of their start."""
        kwargs.pop("state", None)
        return self.get_owned_jobs(project_id, state=["pending", "running"], **kwargs)

    def get_finished_owned_jobs(
        self, project_id: str | int | None = None, **kwargs: Any
    ) -> Iterator[JobDict]:
        """Return ended jobs of this manager, latest end first."""
        kwargs.pop("state", None)
        return self.get_owned_jobs(project_id, state=["finished"], **kwargs)

    def wait_for(
        self,
        jobs_keys: JobKey | Sequence[JobKey],
        interval: float = 60,
        timeout: float = float("inf"),
        heartbeat: float | None = None,
    ) -> bool:
        """Wait until these jobs have ended, and return whether they have.

        - ``jobs_keys`` is one key, or several keys.
        - ``interval`` is the number of seconds to sleep before each check.
        - ``timeout`` is the maximum number of seconds to wait.
        - ``heartbeat`` is the number of seconds between log lines about the wait.

        Each call of a manager has a time limit. For a longer wait, use ``is_running`` in later
        cycles. Raises ``TimeoutError`` if the wait would exceed the time limit.
        """
        running = [jobs_keys] if isinstance(jobs_keys, str) else list(jobs_keys)
        for key in running:
            if key in self._cycle.coming:
                raise ValueError(
                    f"wait_for: {key} starts only after this cycle; use is_running in a later cycle"
                )
        beat = max(interval, heartbeat or 0)
        waited = 0.0
        next_beat = beat
        while running and waited < timeout:
            self._platform.sleep(interval)
            waited += interval
            running = [key for key in running if self.is_running(key)]
            if running and waited >= next_beat:
                next_beat += beat
                _LOG.info("wait_for: still running: %s", ", ".join(running[:10]))
        if running:
            _LOG.warning("wait_for: still running after %g s: %s", waited, ", ".join(running[:10]))
        return not running

    # --- items and files of jobs ------------------------------------------------------------------

    def items(
        self, job: JobKey | JobDict, *, partial: bool = False, **which: Unpack[Which]
    ) -> Items:
        """Return the items of a job of this manager.

        - If ``task`` is given, return only items of the task with this index.
        - Skip ``offset`` items, and return at most ``limit`` items.
        - If ``fields`` is given, return only these fields of each item.
        - If ``partial`` is true, also read a live or failed job, and return the items that the job
          has stored so far.

        Raises ``InvalidRequest``, and ``NotYetDelivered`` if the job's files have not arrived after
        30 s. A hook that raises this error is called again later.

        >>> from crawler_lifecycle.managers import CrawlManager
        >>> from crawler_lifecycle.managers.testing import simulate
        >>> class Shop(CrawlManager):
        ...     name, spider, loop_mode = "shop", "shop.com", 60
        ...     def finished_ok_hook(self, spider, outcome, job_args_override, jobkey):
        ...         items = self.items(jobkey, fields=["price"])
        ...         self.state["dearest"] = max(item["price"] for item in items)
        >>> simulate(Shop, items={"shop.com": [{"price": 7}, {"price": 9}]}).state
        {'dearest': 9}
        """
        return Items(self._platform, [self._run_of(job, partial=partial)], **which)

    def files(self, job: JobKey | JobDict, *, partial: bool = False) -> Sequence[RunFile]:
        """Return the supporting files of a job of this manager. ``partial`` has the same meaning as
        in ``items``.
        """
        return self._platform.run_files(self._run_of(job, partial=partial))

    def open(self, job: JobKey | JobDict, name: str, *, partial: bool = False) -> BinaryIO:
        """Open one of these files for reading.

        Raises ``InvalidRequest`` if no file has this name.
        """
        return open_file(self._platform, [self._run_of(job, partial=partial)], name)

    def _run_of(self, job: JobKey | JobDict, *, partial: bool) -> int:
        key = job if isinstance(job, str) else job.get("key") if isinstance(job, dict) else None
        found = self._platform.job(key) if isinstance(key, str) else None
        if found is None or found["run_id"] is None:
            raise refusal(
                "job", job if isinstance(job, str) else key, "give the key of a job that has begun"
            )
        ended = found["state"] == "finished"
        outcome = found["close_reason"]
        if not partial and (not ended or outcome in self.failed_outcomes):
            raise refusal(
                "job",
                key,
                f"it is {outcome if ended else found['state']}; use partial=True to read it",
            )
        return int(found["run_id"])

    # --- resumption -------------------------------------------------------------------------------

    def resume_workflow(self) -> None:
        """Call the resume hooks, first for live jobs, then for ended jobs (S-25).

        This happens if another process had this manager before.
        """
        if self._overrides("resume_running_job_hook"):
            for job in self.get_owned_jobs(state=["running", "pending"]):
                if job["key"] not in self._cycle.coming:  # on_start may have scheduled jobs
                    self._platform.entering("resume_running_job_hook")
                    self.resume_running_job_hook(job)
        if self._overrides("resume_finished_job_hook") and not self.dont_acquire_finished_jobs:
            for job in self.get_finished_owned_jobs():
                self._platform.entering("resume_finished_job_hook")
                self.resume_finished_job_hook(job)
        if self.acquire_all_jobs:
            for job in self._of_other_flows(["running", "pending"]):
                self._acquired_live[job["key"]] = job["spider"]

    def _of_other_flows(self, states: list[str]) -> Iterator[JobDict]:
        return (
            job
            for job in self.get_owned_jobs(state=states)
            if f"FLOW_ID={self.flow_id}" not in job["tags"]
        )

    def _hold_acquired(self) -> None:
        """Let acquired jobs of other flows use slots until they end."""
        for key, spider in list(self._acquired_live.items()):
            job = self._platform.job(key)
            if job is None or job.get("state") == "finished":
                del self._acquired_live[key]
            else:
                self._cycle.window.hold_for(spider)

    def _overrides(self, hook: str) -> bool:
        """Return whether a user's class overrides this hook. If not, no jobs need to be read for
        this hook.
        """
        own = getattr(type(self), hook, None)
        return own is not None and getattr(own, "__module__", None) not in _CLASSES

    def resume_running_job_hook(self, job: JobDict) -> None:
        """After a restart, handle a job that is still live. Users can override this method."""

    def resume_finished_job_hook(self, job: JobDict) -> None:
        """After a restart, handle a job that has ended. Users can override this method."""


class CachedFinishedJobsMixin(WorkFlowManager):
    """Reads the jobs that have ended once per cycle, for ``is_finished`` (S-27).

    >>> from crawler_lifecycle.managers import CachedFinishedJobsMixin
    >>> from crawler_lifecycle.managers.testing import simulate
    >>> class Many(CachedFinishedJobsMixin):
    ...     name, loop_mode = "many", 60
    ...     def on_start(self):
    ...         self.keys = [self.schedule_spider("shop.com", page=page) for page in range(3)]
    ...     def workflow_loop(self):
    ...         return not all(self.is_finished(key) for key in self.keys)
    >>> simulate(Many, seconds=90).seconds
    90.0
    """

    def __init__(self) -> None:
        self._finished: dict[str, tuple[str | None, int | None]] = {}
        self._read_in: Cycle | None = None
        super().__init__()

    def is_finished(self, jobkey: JobKey) -> str | None:
        if self._read_in is not self._cycle:
            self._read_ends()
        return self._finished.get(jobkey, (None, None))[0]

    def _read_ends(self) -> None:
        """Read ends from the latest one back to the first known one."""
        for job in self.get_owned_jobs(state=["finished"]):
            end = job.get("close_reason"), job.get("finished_time")
            if self._finished.get(job["key"]) == end:
                break
            self._finished[job["key"]] = end
        self._read_in = self._cycle
