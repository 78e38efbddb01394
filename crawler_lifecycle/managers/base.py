"""Scripts: options, name and flow id, tags, and jobs that they schedule.

The names are those of shub-workflow; docs/managers.md says what differs. An object is made in one of two ways: by a
``Driver`` (it has a platform then, and its options come from there), or by a script of its own, which only reads its
options and then starts the manager through the gateway (``run``).
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Sequence
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

from .cycle import BUILDING, TURN, Cycle, Turn
from .options import OptionParser, parse, start_from_here
from .platform import Platform
from .stats import Stats
from .types import JobKey, JobMeta

_LOG = logging.getLogger(__name__)
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
        self._platform_or_none = BUILDING.get()
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
        """Return whether the job is pending or running (S-14)."""
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
        override = {**arguments, "tags": list(tags or []), "units": units, "project_id": project_id}
        override |= {"spider_args": spider_args, "job_settings": job_settings}
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
        """A job that was scheduled directly and has no waiting row. What ``on_start`` schedules may come again after a
        restart, so there its arguments make it the same; anywhere else each call is a job.
        """
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
        """Return whether some job of the manager has these arguments."""
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
