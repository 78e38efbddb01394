"""Scripts, with their options, name, flow id and tags, and the jobs that they schedule.

The names are those of shub-workflow (differences: docs/managers.md). There are two ways to create a
script. A ``Driver`` creates a script with a platform, which also provides the options. A user's
program creates a script without a platform. Such a script reads its options from the command line
and starts the manager through the gateway (``run``).
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from inspect import cleandoc
from typing import Any, ClassVar, cast
from uuid import uuid4

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.managers.domain.jobs import (
    JobDefaults,
    check_tag,
    child_tags,
    merged,
)
from crawler_lifecycle.features.managers.domain.manager import (
    CYCLE_S,
    FLOW_ID_MAX,
    NAME_MAX,
    REASON_MAX,
    AddedJob,
    Facts,
    HookReport,
    Job,
    Start,
    Waiting,
    run_request_id,
)
from crawler_lifecycle.features.managers.domain.window import Rules

from .cycle import BUILDING, TURN, Cycle, Turn
from .options import OptionParser, parse, start_from_here
from .platform import Platform
from .stats import Stats
from .types import JobDict, JobKey, JobMeta

_LOG = logging.getLogger(__name__)
#: The maximum number of tags that a class may append with ``append_flow_tag``.
FLOW_TAGS_MAX = 20
_LISTS = "get_owned_jobs lists jobs"
_FACTS = "get_job_metadata returns the facts of a job"
#: The parts of Scrapy Cloud's API that scripts use, each with the method to use instead.
_SCRAPY_CLOUD = {
    "client": f"{_LISTS}, {_FACTS}, schedule_spider starts one",
    "get_project": f"{_LISTS}, {_FACTS}, schedule_spider starts one",
    "get_job": _FACTS,
    "get_jobs": _LISTS,
    "get_jobs_with_tags": _LISTS,
    "get_project_running_spiders": _LISTS,
    "get_keyvalue_job_tag": "get_job_tags returns the tags of a job",
    "add_job_tags": "append_flow_tag adds a tag to the manager and its next jobs",
    "remove_job_tags": "nothing removes a tag",
    "finish": "set_close_reason sets the outcome, and workflow_loop returns False",
    "schedule_script": "a script is a crawler of kind command, which schedule_spider starts",
    "get_canonical_spidername": "spiders have the names of crawlers",
    "get_sc_project_settings": "settings are in the catalogue of crawlers",
}


class BaseScript:
    """A script with options, a name and a flow id."""

    #: Name of the script, unless the manager has a tag ``NAME=``.
    name: str = ""
    #: True if the script needs a flow id. If none is given, the script creates one.
    flow_id_required = False
    #: Tags for all jobs, in addition to ``--children-tag``.
    children_tags: Sequence[str] | None = None
    #: Default of ``--project-id``.
    default_project_id: str | int | None = None
    #: Named command lines: ``{name: {"description": "…", "command_line": ["--units",
    #: "{units}"]}}``.
    PROGRAMS: ClassVar[dict[str, dict[str, Any]]] = {}

    args: Namespace
    argparser: OptionParser
    #: The record of the started manager. All its fields are empty for a script that starts the
    #: manager.
    _start = Start(0, "", "")
    project_id: str | None
    """Number or alias of the jobs' project (``--project-id``), or ``None``."""

    def __init__(self) -> None:
        self._platform_or_none = BUILDING.get()
        start = (
            self._platform_or_none.start() if self._platform_or_none is not None else self._start
        )
        self._start = start
        #: State that survives every restart: JSON of at most 64 KiB.
        self.state: dict[str, Any] = deepcopy(start.state)
        self.stats = Stats(start.stats)
        self.close_reason: str | None = start.close_reason
        self.flow_id: str | None = None
        self._flow_tags: list[str] = list(start.flow_tags)
        self.args = self.parse_args()
        self.set_flow_id_name(self.args)
        #: Keeps the work of ``__init__`` and ``on_start`` until the first cycle, before which no
        #: job starts.
        self._cycle = Cycle.of(
            Facts(start.manager_id, start.attempt, 0.0, start.next_seq, paused=True), None
        )

    def __getattr__(self, name: str) -> Any:
        found = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name in _SCRAPY_CLOUD:
            found += f": there is no API of Scrapy Cloud; {_SCRAPY_CLOUD[name]} (docs/managers.md)"
        raise AttributeError(found, name=name, obj=self)

    @property
    def description(self) -> str:
        """The purpose of the script, for its help text."""
        return cleandoc(type(self).__doc__ or "")

    # --- options ----------------------------------------------------------------------------------

    def add_argparser_options(self) -> None:
        """Add options to ``self.argparser``.

        An override must call ``super().add_argparser_options()`` first.
        """
        add = self.argparser.add_argument
        add(
            "--program",
            "-g",
            help="Use the named command line. Further options override its options.",
        )
        add(
            "--program-variables",
            "-v",
            help="Variables of the named command line, as name:value,name:value.",
        )
        add(
            "--project-id",
            default=self.default_project_id,
            help="Number or alias of the project of the jobs.",
        )
        add("--flow-id", help="Flow id. The same name and flow id resume a manager.")
        add(
            "--children-tag",
            "-t",
            action="append",
            default=list(self.children_tags or []),
            help="A tag for every job; may be given several times.",
        )

    def parse_args(self) -> Namespace:
        """Read the options.

        A wrong option ends a user's program; in a worker, it raises ``ClassError``.
        """
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
        """Set flow id and name (S-05, S-06).

        The record of a started manager comes first, then the options and class attributes.
        """
        self.flow_id = self._start.flow_id or args.flow_id
        if args.program and args.flow_id not in (None, self.flow_id):
            fix = f"give the flow at the start: crawlctl manager start --flow {args.flow_id}"
            self.argparser.error(
                f"--program {args.program} has --flow-id {args.flow_id}, but the manager has "
                f"{self.flow_id}; {fix}"
            )
        if not self.flow_id and self.flow_id_required:
            self.flow_id = self.generate_flow_id()
        self.name = self._start.name or self.name
        for what, text, most in (
            ("flow id", self.flow_id or "", FLOW_ID_MAX),
            ("name", self.name, NAME_MAX),
        ):
            if len(text) > most or not text.isprintable():
                self.argparser.error(
                    f"{what}: {text[:150]!r} is not allowed; give at most {most} printable "
                    "characters"
                )

    @staticmethod
    def generate_flow_id() -> str:
        """Return a new flow id for a script that needs one but was given none."""
        return str(uuid4())

    @property
    def _platform(self) -> Platform:
        if self._platform_or_none is None:
            raise RuntimeError(
                "no worker executes this object, so it has no jobs; call run() or simulate()"
            )
        return self._platform_or_none

    # --- actions of a script ----------------------------------------------------------------------

    def run(self) -> Any:
        """Start the manager through the gateway, show it until its end, and exit with the code of
        ``crawlctl wait``.
        """
        start_from_here(type(self), self.name, self.flow_id)

    def append_flow_tag(self, tag: str) -> None:
        """Add a tag to the manager and to all jobs that start from now on (S-08)."""
        check_tag("flow tag", tag)
        if tag in self._flow_tags:
            return
        if len(self._flow_tags) >= FLOW_TAGS_MAX:
            raise refusal("flow tag", tag, f"there are already {FLOW_TAGS_MAX}; use fewer tags")
        self._flow_tags.append(tag)
        self._cycle.flow_tags.append(tag)

    def get_job_tags(self, jobkey: JobKey | None = None) -> list[str]:
        """Return the tags of a job or, if no key is given, the tags of the manager."""
        if jobkey is not None:
            return list(self.get_job_metadata(jobkey).get("tags") or [])
        own = [f"FLOW_ID={self.flow_id}"] if self.flow_id else []
        own += [f"NAME={self.name}"] if self.name else []
        return list(dict.fromkeys([*own, *self._start.tags, *self._flow_tags]))

    def get_job_metadata(self, jobkey: JobKey) -> dict[str, Any]:
        """Return the whole record of a job. Raises ``LookupError`` if no job has this key."""
        found = self._platform.job(jobkey)
        if found is None and jobkey in self._cycle.coming:
            return dict(self._cycle.coming[jobkey])
        if found is None:
            raise LookupError(f"job key {jobkey!r:.150}: no job has this key")
        return found

    @staticmethod
    def get_metadata_key(metadata: JobMeta, key: str) -> Any:
        """Return the value of this key in the metadata of a job, or ``None`` if there is none."""
        return metadata.get(key)

    def is_running(self, jobkey: JobKey) -> bool:
        """Return whether the job is pending or running (S-14)."""
        return self.get_job_metadata(jobkey).get("state") in ("pending", "running")

    def is_finished(self, jobkey: JobKey) -> str | None:
        """Return the outcome of an ended job, or ``None`` for any other job."""
        found = self.get_job_metadata(jobkey)
        return found.get("close_reason") if found.get("state") == "finished" else None

    def get_close_reason(self) -> str | None:
        """Return the current close reason. A manager without a close reason ends as
        ``finished``.
        """
        return self.close_reason

    def set_close_reason(self, reason: str | None) -> None:
        """Set the close reason, which is the outcome of the manager. The close reason can be
        changed later.
        """
        if reason is not None and not (isinstance(reason, str) and 0 < len(reason) <= REASON_MAX):
            raise refusal("close reason", reason, f"give a string of 1 to {REASON_MAX} characters")
        self.close_reason = reason

    # --- jobs -------------------------------------------------------------------------------------

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
        """Schedule a job of this spider and return its key, or ``None`` if the same job was
        scheduled before a restart.

        - ``tags`` are added to the manager's tags.
        - ``units`` is its size (docs/managers.md).
        - ``project_id`` is the number or alias of its project.
        - ``spider_args`` and ``arguments`` are the arguments of the spider. ``spider_args``
          overrides ``arguments``.
        - ``job_settings`` are the settings of the job.

        Raises ``InvalidRequest``.
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
        """Return the default values of every job, from the options."""
        return JobDefaults(project_id=self.project_id, tags=self._given_tags())

    def _given_tags(self) -> list[str]:
        return list(dict.fromkeys([*self.args.children_tag, *self._flow_tags]))

    def _job_tags(self, job: Job, seq: int, retry: int) -> list[str]:
        """Return all tags of a job that starts with this number."""
        return child_tags(job.tags, self._given_tags(), self.flow_id, self.name)

    def _schedule(self, job: Job) -> JobKey | None:
        """Start the waiting job that may start now (``TURN``), or schedule a new job and return its
        key.

        A new job waits if no slot is free. Return ``None`` for a job that is already known.
        """
        window = self._cycle.window
        turn = TURN.get()
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
        self._cycle.coming[key] = _pending(key, started)
        if turn is not None:
            turn.key = key
        return key

    def _direct(self, job: Job) -> Waiting | None:
        """Return a new waiting job, or ``None`` if the same job is known. ``on_start`` may schedule
        the same jobs again after a restart, so jobs with known arguments are left out there.
        Outside of ``on_start``, each call makes a new job.
        """
        window = self._cycle.window
        unique = not self._cycle.begun
        if unique and self._known(job):
            _LOG.warning(
                "%s was already scheduled with the same arguments; it is skipped", job.spider
            )
            return None
        added = window.add(AddedJob(0, job, unique=unique, seq=window.number()))
        waiting = Waiting(added.ref, job, added.seq)
        if window.free(self._cap()) >= 1:
            window.hold(waiting, None)
        return waiting

    def _known(self, job: Job) -> bool:
        """Return whether a job of the manager has the same spider and arguments."""
        identity = job.identity
        if any(
            added.unique and added.job.identity == identity for added in self._cycle.window.added
        ):
            return True
        return bool(self._platform.known_identities([identity]))

    def _cap(self) -> float:
        return float("inf")

    def _rules(self) -> Rules:
        return Rules(self._cap())

    def _start_waiting(self) -> None:
        """Start waiting jobs in free slots."""
        rules = self._rules()
        while (
            self._cycle.took_s < CYCLE_S
            and (waiting := self._cycle.window.reserve(rules)) is not None
        ):
            turn = Turn(waiting)
            token = TURN.set(turn)
            try:
                self._call_schedule(waiting)
            finally:
                TURN.reset(token)
                self._settle(turn)

    def _call_schedule(self, waiting: Waiting) -> Any:
        """Schedule a waiting job that may start now."""
        return self._schedule(waiting.job)

    def _settle(self, turn: Turn) -> None:
        if turn.key is None:
            self._cycle.window.release(turn.waiting)


def _pending(key: JobKey, job: Job) -> JobDict:
    """Return a scheduled job in the form in which its run will be listed."""
    unknown = (
        "close_reason",
        "pending_time",
        "running_time",
        "finished_time",
        "items",
        "pages",
        "errors",
        "run_id",
        "cause",
    )
    found = {
        **asdict(job),
        "key": key,
        "state": "pending",
        "scrapystats": {},
        "attempt": 1,
        **dict.fromkeys(unknown),
    }
    return cast(JobDict, found)


def option_parser(script: BaseScript, hosted: bool) -> OptionParser:
    """Return the parser of a script's options. ``__init__`` need not have run.

    If ``hosted`` is true, errors of the parser raise ``ClassError``.
    """
    parser = script.argparser = OptionParser(script.description, hosted, type(script).__name__)
    script.add_argparser_options()
    return parser


class BaseLoopScript(BaseScript):
    """A script that repeats cycles.

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

    #: The maximum number of seconds between two cycles; 0 means only one cycle.
    loop_mode: int = 0
    #: The status of a manager at its end if hooks failed three times: ``fail`` means FAILED, and
    #: ``complete`` means COMPLETED.
    on_hook_error = "fail"
    #: The number of seconds after which no new cycle begins; 0 means no limit. Live jobs continue
    #: without the manager.
    max_running_time: int = 0

    def add_argparser_options(self) -> None:
        super().add_argparser_options()
        add = self.argparser.add_argument
        add(
            "--loop-mode",
            type=int,
            metavar="SECONDS",
            default=self.loop_mode,
            help="Seconds between two cycles; 0 means one cycle. Default: %(default)s",
        )
        add(
            "--max-running-time",
            type=int,
            metavar="SECONDS",
            default=self.max_running_time,
            help="Seconds after which no new cycle begins; 0 means no limit. Default: %(default)s",
        )

    def parse_args(self) -> Namespace:
        args = super().parse_args()
        for option in ("loop_mode", "max_running_time"):
            value = getattr(args, option)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value <= 366 * 86_400
            ):
                self.argparser.error(
                    f"--{option.replace('_', '-')}: {value!r} is not allowed; give seconds from 0"
                )
        return args

    def on_start(self) -> None:
        """Prepare the first cycle. Users can override this method, which is called once in each new
        process.
        """

    def on_close(self) -> None:
        """Finish the work after the last cycle. Users can override this method."""

    def base_loop_tasks(self) -> bool:
        """Begin a cycle. Users can override it; ``False`` ends the script."""
        return True

    def _leave_ends(self) -> None:
        """Free the slots of ended jobs of a class without hooks."""
        cycle = self._cycle
        failed = getattr(self, "failed_outcomes", ())
        for ended in cycle.ends.values():
            cycle.window.ended(ended)
            cycle.hooked.append(
                HookReport(ended.live.item_id, ended.attempt, ended.bad or ended.outcome in failed)
            )
        cycle.ends.clear()

    def workflow_loop(self) -> Any:
        """Execute one cycle, and return ``True`` for another cycle or ``False`` to end the
        script.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no workflow_loop; write one, or derive from a manager"
        )
