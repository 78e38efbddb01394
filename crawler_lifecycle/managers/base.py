"""Scripts and managers: options, name and flow id, tags, the jobs that a manager owns, and resumption.

The names are those of shub-workflow; docs/managers.md says what differs. An object is made in one of two ways: by a
``Driver`` (it has a platform then, and its options come from there), or by a script of its own, which only reads its
options and then starts the manager through the gateway (``run``).
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from inspect import cleandoc
from typing import Any, ClassVar
from uuid import uuid4

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.jobs import JobDefaults, check_tag, child_tags, merged
from crawler_lifecycle.domain.managers.manager import (
    CYCLE_S,
    FAILED_OUTCOMES,
    FLOW_ID_MAX,
    NAME_MAX,
    REASON_MAX,
    Added,
    Facts,
    Hooked,
    Job,
    Start,
    Waiting,
    run_request_id,
)
from crawler_lifecycle.domain.managers.window import Rules

from .cycle import TURN, Cycle, Turn, platform_of_new_objects
from .options import OptionParser, parse, start_from_here
from .platform import OwnedQuery, Platform
from .stats import Stats
from .types import JobDict, JobKey, JobMeta

_LOG = logging.getLogger(__name__)
#: Modules whose methods are what a user's class overrides.
_CLASSES = (__name__, __name__.replace(".base", ".crawl"))
_STATES = ("pending", "running", "finished")
#: Tags that the class may append to all jobs.
FLOW_TAGS_MAX = 20


class BaseScript:
    """A script with options, a name and a flow id."""

    #: Name of the script; an option ``NAME=`` of its own tags goes before it.
    name: str = ""
    #: Whether the script needs a flow id; one is made where none is given.
    flow_id_required = False
    #: Tags that all jobs get beside ``--children-tag``.
    children_tags: Sequence[str] | None = None
    #: Project of the jobs where ``--project-id`` says none.
    default_project_id: str | int | None = None
    #: Named command lines: ``{name: {"description": "…", "command_line": ["--units", "{units}"]}}``.
    PROGRAMS: ClassVar[dict[str, dict[str, Any]]] = {}

    args: Namespace
    argparser: OptionParser
    project_id: str | None
    """Number or alias of the project of its jobs (``--project-id``); ``None``: of none."""

    def __init__(self) -> None:
        self._platform_or_none = platform_of_new_objects()
        start = self._platform_or_none.start() if self._platform_or_none is not None else Start(0, "", "")
        self._start = start
        #: What survives every restart: JSON of at most 64 KiB.
        self.state: dict[str, Any] = deepcopy(start.state)
        self.stats = Stats(start.stats)
        self.close_reason: str | None = start.close_reason
        self.flow_id: str | None = None
        self._flow_tags: list[str] = list(start.flow_tags)
        self.args = self.parse_args()
        self.set_flow_id_name(self.args)
        #: What ``__init__`` and ``on_start`` do waits here for the first cycle: nothing is picked before.
        self._cycle = Cycle.of(Facts(start.manager_id, start.attempt, 0.0, start.next_seq, paused=True), None)

    @property
    def description(self) -> str:
        """The purpose of the script, for its help."""
        return cleandoc(type(self).__doc__ or "")

    # --- options -----------------------------------------------------------------------------------------------------

    def add_argparser_options(self) -> None:
        """Override to add options to ``self.argparser``; call ``super().add_argparser_options()`` first."""
        add = self.argparser.add_argument
        add("--program", "-g", help="Use the named command line; options beside it go before it.")
        add("--program-variables", "-v", help="Variables of the named command line: name:value,name:value.")
        add("--project-id", default=self.default_project_id, help="Number or alias of the project of the jobs.")
        add("--flow-id", help="Flow id; the same name and flow id again resume.")
        add(
            *("--children-tag", "-t"),
            action="append",
            default=list(self.children_tags or []),
            help="A tag for every job; may be given several times.",
        )

    def parse_args(self) -> Namespace:
        """Read the options; what is wrong with them ends a script with its usage."""
        hosted = self._platform_or_none is not None
        self.argparser = option_parser(self, hosted)
        args = parse(self.argparser, self._start.argv if hosted else None, self.PROGRAMS)
        for tag in args.children_tag:
            try:
                check_tag("--children-tag", tag)
            except InvalidRequest as error:
                self.argparser.error(str(error))
        self.project_id = args.project_id
        return args

    def set_flow_id_name(self, args: Namespace) -> None:
        """Set flow id and name: the record of a manager that has started goes before options and attributes (S-05,
        S-06)."""
        self.flow_id = self._start.flow_id or args.flow_id
        if args.program and args.flow_id not in (None, self.flow_id):
            cure = f"whoever starts it names it beside the program: crawlctl manager start --flow {args.flow_id}"
            self.argparser.error(
                f"--program {args.program} says --flow-id {args.flow_id}, this is {self.flow_id}; {cure}"
            )
        if not self.flow_id and self.flow_id_required:
            self.flow_id = self.generate_flow_id()
        self.name = self._start.name or self.name
        for what, text, most in (("flow id", self.flow_id or "", FLOW_ID_MAX), ("name", self.name, NAME_MAX)):
            if len(text) > most or not text.isprintable():
                self.argparser.error(f"{what}: {text[:150]!r} is not allowed; give at most {most} printable characters")

    @staticmethod
    def generate_flow_id() -> str:
        """The flow id of a script that needs one and was given none."""
        return str(uuid4())

    @property
    def _platform(self) -> Platform:
        if self._platform_or_none is None:
            raise RuntimeError("this is a script of its own: jobs are there only after run(), or in managers.testing")
        return self._platform_or_none

    # --- what a script does ------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Start the manager through the gateway, show it to its end, and exit with the code of ``crawlctl wait``."""
        start_from_here(type(self), self.name, self.flow_id)

    def append_flow_tag(self, tag: str) -> None:
        """Give this tag to the manager itself and to all jobs from now on (S-08)."""
        check_tag("flow tag", tag)
        if tag in self._flow_tags:
            return
        if len(self._flow_tags) >= FLOW_TAGS_MAX:
            raise refusal("flow tag", tag, f"there are {FLOW_TAGS_MAX} already")
        self._flow_tags.append(tag)
        self._cycle.flow_tags.append(tag)

    def get_job_tags(self, jobkey: JobKey | None = None) -> list[str]:
        """Tags of a job, or the manager's own."""
        if jobkey is not None:
            return list(self.get_job_metadata(jobkey).get("tags") or [])
        own = [f"FLOW_ID={self.flow_id}"] if self.flow_id else []
        own += [f"NAME={self.name}"] if self.name else []
        return list(dict.fromkeys([*own, *self._start.tags, *self._flow_tags]))

    def get_job_metadata(self, jobkey: JobKey) -> dict[str, Any]:
        """Everything on record about a job. Raises ``LookupError`` for a key that no job has."""
        found = self._platform.job(jobkey)
        if found is None and jobkey in self._cycle.coming:
            return {"key": jobkey, "state": "pending", "close_reason": None, "tags": self._cycle.coming[jobkey]}
        if found is None:
            raise LookupError(f"job key {jobkey!r:.150}: no job has it")
        return found

    @staticmethod
    def get_metadata_key(metadata: JobMeta, key: str) -> Any:
        """Return what the metadata of a job has under this key; ``None``: nothing."""
        return metadata.get(key)

    def is_running(self, jobkey: JobKey) -> bool:
        """Say whether the job is pending or running (S-14)."""
        return self.get_job_metadata(jobkey).get("state") in ("pending", "running")

    def is_finished(self, jobkey: JobKey) -> str | None:
        """The outcome of a job that has ended; ``None`` before."""
        found = self.get_job_metadata(jobkey)
        return found.get("close_reason") if found.get("state") == "finished" else None

    def get_close_reason(self) -> str | None:
        """The close reason as it is set now; a manager without one ends as ``finished``."""
        return self.close_reason

    def set_close_reason(self, close_reason: str | None) -> None:
        """Set the reason that the manager ends with. It may be set again."""
        if close_reason is not None and not (isinstance(close_reason, str) and 0 < len(close_reason) <= REASON_MAX):
            raise refusal("close reason", close_reason, f"give a text of 1 to {REASON_MAX} characters")
        self.close_reason = close_reason

    # --- jobs --------------------------------------------------------------------------------------------------------

    def schedule_spider(
        self,
        spider: str,
        tags: Sequence[str] | None = None,
        units: int | None = None,
        project_id: str | int | None = None,
        *,
        spider_args: dict[str, Any] | None = None,
        job_settings: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> JobKey | None:
        """Schedule a job of this spider; its key.

        ``tags``: its own, beside those of the manager. ``units``: as which it is sized (docs/managers.md).
        ``project_id``: number or alias. ``spider_args`` and ``arguments``: arguments of the spider; the former go
        first. ``job_settings``: its settings. Raises ``InvalidRequest``.
        """
        override = {
            **arguments,
            "tags": list(tags or []),
            "units": units,
            "project_id": project_id,
            "spider_args": spider_args,
            "job_settings": job_settings,
        }
        return self._schedule(merged(override, spider, self._defaults()))

    def _defaults(self) -> JobDefaults:
        """Return what the options say about every job."""
        return JobDefaults(project_id=self.project_id, tags=self._given_tags())

    def _given_tags(self) -> list[str]:
        return list(dict.fromkeys([*self.args.children_tag, *self._flow_tags]))

    def _job_tags(self, job: Job, seq: int, retry: int) -> list[str]:
        """All tags of a job that starts with this number."""
        return child_tags(job.tags, self._given_tags(), self.flow_id, self.name)

    def _schedule(self, job: Job) -> JobKey | None:
        """The job whose turn it is takes its slot; without one this is a new job, which queues when no slot is free."""
        window, turn = self._cycle.window, TURN.get()
        if turn is not None and turn.key is not None:
            turn = None
        waiting = self._direct(job) if turn is None else turn.waiting
        if waiting is None:
            return None
        seq = window.number() if waiting.seq is None else waiting.seq
        key = run_request_id(self._start.manager_id, seq, waiting.retry)
        started = replace(job, tags=self._job_tags(job, seq, waiting.retry))
        if waiting.item_id in window.reserved:
            window.pick(waiting, seq, started)
        self._cycle.coming[key] = started.tags
        if turn is not None:
            turn.key = key
        return key

    def _direct(self, job: Job) -> Waiting | None:
        """A job that no waiting one stands for. What ``on_start`` schedules may come again after a restart, so there
        its arguments make it the same; anywhere else each call is a job."""
        window = self._cycle.window
        unique = not self._cycle.begun
        if unique and self._known(job):
            _LOG.warning("%s was scheduled before with the same arguments; it is left out", job.spider)
            return None
        added = window.add(Added(0, job, unique=unique, seq=window.number()))
        waiting = Waiting(added.ref, job, added.seq)
        if window.free(self._cap()) >= 1:
            window.hold(waiting, None)
        return waiting

    def _known(self, job: Job) -> bool:
        """Say whether some job of the manager has these arguments."""
        identity = job.identity
        if any(added.unique and added.job.identity == identity for added in self._cycle.window.added):
            return True
        return bool(self._platform.known_identities([identity]))

    def _cap(self) -> float:
        return float("inf")

    def _rules(self) -> Rules:
        return Rules(self._cap())

    def _start_waiting(self) -> None:
        """Give free slots to jobs that wait."""
        rules = self._rules()
        while self._cycle.took_s < CYCLE_S and (waiting := self._cycle.window.reserve(rules)) is not None:
            turn = Turn(waiting)
            token = TURN.set(turn)
            try:
                self._call_schedule(waiting)
            finally:
                TURN.reset(token)
                self._settle(turn)

    def _call_schedule(self, waiting: Waiting) -> Any:
        """Schedule a job whose turn it is."""
        return self._schedule(waiting.job)

    def _settle(self, turn: Turn) -> None:
        if turn.key is None:
            self._cycle.window.release(turn.waiting)


def option_parser(script: BaseScript, hosted: bool) -> OptionParser:
    """The parser of a class's options, without what ``__init__`` does; hosted, its errors are ``ClassError``."""
    parser = script.argparser = OptionParser(script.description, hosted, type(script).__name__)
    script.add_argparser_options()
    return parser


class BaseLoopScript(BaseScript):
    """A script that works in cycles.

    >>> from crawler_lifecycle.managers import BaseLoopScript
    >>> from crawler_lifecycle.managers.testing import simulate
    >>> class Daily(BaseLoopScript):
    ...     name, default_project_id = "daily", "shops"
    ...     def workflow_loop(self):
    ...         self.schedule_spider("shop.com", country="de")
    ...         return False
    >>> [(job.spider, job.spider_args, job.project_id) for job in simulate(Daily).scheduled]
    [('shop.com', {'country': 'de'}, 'shops')]
    """

    #: Seconds between two cycles at the latest; 0: one cycle and no more.
    loop_mode: int = 0
    #: What errors in hooks do to its end that stay errors after three tries: it FAILS (``fail``), or ``complete``.
    on_hook_error = "fail"
    #: Seconds after which no further cycle begins; 0: no limit. Jobs that live then go on by themselves.
    max_running_time: int = 0

    def add_argparser_options(self) -> None:
        super().add_argparser_options()
        add = self.argparser.add_argument
        add(
            "--loop-mode",
            type=int,
            metavar="SECONDS",
            default=self.loop_mode,
            help="Seconds between two cycles; 0: one cycle. Default: %(default)s",
        )
        add(
            "--max-running-time",
            type=int,
            metavar="SECONDS",
            default=self.max_running_time,
            help="Begin no cycle after so many seconds; 0: no limit. Default: %(default)s",
        )

    def parse_args(self) -> Namespace:
        args = super().parse_args()
        for option in ("loop_mode", "max_running_time"):
            value = getattr(args, option)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 366 * 86_400:
                self.argparser.error(f"--{option.replace('_', '-')}: {value!r} is not allowed; give seconds from 0")
        return args

    def on_start(self) -> None:
        """Runs once in each process that holds the object, before its first cycle."""

    def on_close(self) -> None:
        """Runs after the last cycle."""

    def base_loop_tasks(self) -> bool:
        """Runs at the beginning of each cycle; an answer of ``False`` ends the script."""
        return True

    def _leave_ends(self) -> None:
        """Jobs that have ended hold no slot: for a class that asks for them itself, and has no hooks."""
        cycle, failed = self._cycle, getattr(self, "failed_outcomes", ())
        for ended in cycle.ends.values():
            cycle.window.ended(ended)
            cycle.hooked.append(Hooked(ended.live.item_id, ended.attempt, ended.bad or ended.outcome in failed))
        cycle.ends.clear()

    def workflow_loop(self) -> Any:
        """One cycle. ``True``: another one is to come; ``False``: the script ends."""
        raise NotImplementedError(f"{type(self).__name__} has no workflow_loop; write one, or derive from a manager")


class WorkFlowManager(BaseLoopScript):
    """A script that owns jobs: it knows them by flow id and name, and finds them again when it is resumed.

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

    #: Most live jobs, where ``--max-running-jobs`` says nothing.
    default_max_jobs: float = 1000
    flow_id_required = True
    #: Whether jobs of every flow count as its own: each start is a resume then, and those that live hold slots.
    acquire_all_jobs = False
    #: Whether a resume leaves out jobs that have ended.
    dont_acquire_finished_jobs = False
    #: Outcomes that are failures; each object has a list ``failed_outcomes`` of its own to change.
    base_failed_outcomes: Sequence[str] = FAILED_OUTCOMES

    def __init__(self) -> None:
        self.failed_outcomes: list[str] = list(self.base_failed_outcomes)
        self._acquired_live: dict[JobKey, str] = {}
        """Jobs of other flows that lived at its start, and their spiders."""
        self.is_resumed = False
        super().__init__()
        self.is_resumed = self._start.resumed or self.acquire_all_jobs

    def add_argparser_options(self) -> None:
        super().add_argparser_options()
        if not self.name:
            self.argparser.add_argument("name", help="Name of the manager.")
        self.argparser.add_argument(
            "--max-running-jobs",
            type=int,
            default=self.default_max_jobs,
            help="Most jobs that run at once. Default: %(default)s",
        )

    def parse_args(self) -> Namespace:
        args = super().parse_args()
        self.name = self.name or args.name
        if isinstance(args.max_running_jobs, int) and args.max_running_jobs < 0:
            self.argparser.error(f"--max-running-jobs: {args.max_running_jobs} is not allowed; give a number from 0")
        return args

    def set_flow_id_name(self, args: Namespace) -> None:
        super().set_flow_id_name(args)
        if not self.name:
            self.argparser.error("the manager has no name; set the class attribute name, or give it as an argument")

    @property
    def max_running_jobs(self) -> float:
        """Most live jobs; read in every cycle, so override it for a cap that changes."""
        cap: float = self.args.max_running_jobs
        return cap

    def _cap(self) -> float:
        cap = self.max_running_jobs
        if isinstance(cap, bool) or not isinstance(cap, int | float) or cap != cap:
            raise refusal("max_running_jobs", cap, "give a number from 0")
        return max(cap, 0)  # what a subtraction may answer

    # --- the jobs of this manager ------------------------------------------------------------------------------------

    def get_owned_jobs(self, project_id: str | int | None = None, **kwargs: Any) -> Iterator[JobDict]:
        """Jobs of this manager: its flow and its name.

        ``project_id``: those of one project. ``state``, which is required: a list of pending, running, finished.
        ``spider``: those of this spider. ``lacks_tag``: those without any of these tags. ``count``: so many at most.
        ``meta`` may be given, and every job has it all.
        """
        if not self.flow_id or not self.name:
            raise ValueError("get_owned_jobs: the script has no flow id or no name")
        if "has_tag" in kwargs:
            raise ValueError("get_owned_jobs: has_tag is not allowed; jobs are found by their flow and their manager")
        states = kwargs.pop("state", None)
        if isinstance(states, str) or not states or any(state not in _STATES for state in states):
            raise refusal("state", states, f"give a list of {', '.join(_STATES)}")
        unknown = set(kwargs) - {"meta", "spider", "lacks_tag", "count"}
        if unknown:
            raise refusal("filter", ", ".join(sorted(unknown)), "filters are state, spider, lacks_tag and count")
        project = None if project_id is None else str(project_id)
        query = OwnedQuery(list(states), self.acquire_all_jobs, kwargs.get("spider"), project)
        return self._owned(query, set(kwargs.get("lacks_tag") or []), kwargs.get("count"))

    def _owned(self, query: OwnedQuery, lacks: set[str], count: int | None) -> Iterator[JobDict]:
        seen: set[str] = set()
        while True:
            page = self._platform.owned_jobs(query)
            for job in page.jobs:
                if count is not None and len(seen) >= count:
                    return
                if job["key"] not in seen and not lacks.intersection(job.get("tags") or []):
                    seen.add(job["key"])
                    yield JobDict(**job)  # type: ignore[typeddict-item]
            if page.after is None:
                return
            query = replace(query, after=page.after)

    def get_running_jobs(self, project_id: str | int | None = None, **kwargs: Any) -> Iterator[JobDict]:
        """Jobs of this manager that are pending or running, by their start."""
        kwargs.pop("state", None)
        return self.get_owned_jobs(project_id, state=["pending", "running"], **kwargs)

    def get_finished_owned_jobs(self, project_id: str | int | None = None, **kwargs: Any) -> Iterator[JobDict]:
        """Jobs of this manager that have ended, the latest end first."""
        kwargs.pop("state", None)
        return self.get_owned_jobs(project_id, state=["finished"], **kwargs)

    def wait_for(
        self,
        job_keys: JobKey | Sequence[JobKey],
        interval: float = 60,
        timeout: float = float("inf"),
        heartbeat: float | None = None,
    ) -> bool:
        """Wait until these jobs have ended, and say whether they have.

        ``job_keys``: one key, or several. ``interval``: seconds of sleep before each question. ``timeout``: seconds
        after which it gives up. ``heartbeat``: how often it logs that it waits, in seconds.

        A call of a manager may not take long: what takes longer belongs into later cycles (``is_running``). Raises
        ``TimeoutError`` when it would take longer than the call may.
        """
        running = [job_keys] if isinstance(job_keys, str) else list(job_keys)
        for key in running:
            if key in self._cycle.coming:
                raise ValueError(f"wait_for: {key} begins when this cycle is over; ask is_running in a later one")
        beat = max(interval, heartbeat or 0)
        waited, next_beat = 0.0, beat
        while running and waited < timeout:
            self._platform.sleep(interval)
            waited += interval
            running = [key for key in running if self.is_running(key)]
            if running and waited >= next_beat:
                next_beat += beat
                _LOG.info("%s still running", ", ".join(running[:10]))
        if running:
            _LOG.warning("wait_for: %s still running after %g s", ", ".join(running[:10]), waited)
        return not running

    # --- resumption --------------------------------------------------------------------------------------------------

    def resume_workflow(self) -> None:
        """Runs when another process held this manager before: jobs that live, then those that have ended (S-25)."""
        if self._overrides("resume_running_job_hook"):
            for job in self.get_owned_jobs(state=["running", "pending"]):
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
        return (job for job in self.get_owned_jobs(state=states) if f"FLOW_ID={self.flow_id}" not in job["tags"])

    def _hold_acquired(self) -> None:
        """Jobs of other flows that count as its own hold slots until they end."""
        for key, spider in list(self._acquired_live.items()):
            job = self._platform.job(key)
            if job is None or job.get("state") == "finished":
                del self._acquired_live[key]
            else:
                self._cycle.window.hold_for(spider)

    def _overrides(self, hook: str) -> bool:
        """Say whether a user's class has its own: without one nothing needs to be read for it."""
        own = getattr(type(self), hook, None)
        return own is not None and getattr(own, "__module__", None) not in _CLASSES

    def resume_running_job_hook(self, job: JobDict) -> None:
        """Override: a job that lives, after a restart. What the manager itself must know of it is on record."""

    def resume_finished_job_hook(self, job: JobDict) -> None:
        """Override: a job that has ended, after a restart."""


class CachedFinishedJobsMixin(WorkFlowManager):
    """Reads the ends of jobs once in each cycle, and answers ``is_finished`` from there (S-27).

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
        """From the latest end back to one that is known."""
        for job in self.get_owned_jobs(state=["finished"]):
            end = job.get("close_reason"), job.get("finished_time")
            if self._finished.get(job["key"]) == end:
                break
            self._finished[job["key"]] = end
        self._read_in = self._cycle
