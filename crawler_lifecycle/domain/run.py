"""A run: its request, its statuses, the answers to queries and updates, and the verdict derived
from the tasks.

The dataclasses in this module are sent as JSON through Temporal and HTTP and stored in the
database. Unknown fields are refused, because pydantic is configured with ``extra: forbid``. This
module itself needs only the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from .bounds import (
    LIMITS,
    STRICT,
    check_name,
    check_number,
    check_request_id,
    check_text,
    check_time,
    refusal,
)
from .code import VERSION_MAX
from .ended_by import EndedBy
from .errors import InvalidRequest
from .projects import DEFAULT
from .resources import Resources
from .retries import Retries

INLINE_TASKS_MAX = 500
INLINE_TASKS_BYTES = 128 * 1024
#: The maximum size of one task's arguments and settings together, in bytes of JSON. Both the task's
#: Job and its pod contain them. We read lists in pages of 500 objects, and such a page may
#: have at most 64 MiB (docs/kubernetes.md).
TASK_BYTES_MAX = 64 * 1024

#: The maximum number of sites of one run, and the maximum length of the name of a site.
SITES_MAX = 20
SITE_MAX = 300
#: The maximum number of tags for one run, and the maximum length of a tag.
TAGS_MAX = 50
TAG_MAX = 200
#: The maximum number of intervals between polls.
POLLS_MAX = 100
#: Seconds for which failed deliveries of an ended run's event and files are repeated.
DELIVERY_S = 24 * 3600.0


class Trigger(StrEnum):
    """The reason why the run was started."""

    SCHEDULED = "scheduled"
    MANUAL = "manual"
    API = "api"


class Stage(StrEnum):
    """The four stages of the lifecycle, in order."""

    INITIATION = "initiation"
    DEPLOYMENT = "deployment"
    RECONCILIATION = "reconciliation"
    COMPLETION = "completion"


class RunStatus(StrEnum):
    """Status of a run. A terminal status is final for its attempt. Only a resume, which is a new
    attempt, changes the status.
    """

    INITIALIZING = "INITIALIZING"
    PROCESSING = "PROCESSING"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"

    @property
    def terminal(self) -> bool:
        return self in (RunStatus.COMPLETED, RunStatus.FAILED)


#: The outcomes for the limits in a request that stop a run.
LIMIT_STOPS = ("start_timeout", "timed_out", "cancelled (stalled)")
#: Outcomes of runs that ended normally but produced less than expected (``domain/coverage.py``),
#: with the worst first: no items; fewer items than usual; a counter below its minimum, or too many
#: errors; too few items with a value in a field.
EMPTY = "empty"
DROPPED = "dropped"
UNMET = "unmet"
COVERAGE = "coverage"
UNMET_OUTCOMES = (EMPTY, DROPPED, UNMET, COVERAGE)
#: The missing result of a run that succeeded without items although earlier runs had items. Such a
#: run resolves no earlier problem.
NO_ITEMS = "items"
#: All outcomes that we set ourselves (docs/lifecycle.md, "Outcomes of tasks"). Crawlers can report
#: others.
OUTCOMES = frozenset({
    "finished", "cancelled", "cancel_timeout", "start_timeout", "timed_out",
    "cancelled (stalled)", "killed by oom", "evicted", "interrupted", "memusage_exceeded",
    "diskusage_exceeded", "size_limit", "time_limit", "banned",
    "failed", "deploy_failed", "lost", "partial", *UNMET_OUTCOMES,
})  # fmt: skip

_ORDER = list(RunStatus)


def run_may_become(current: RunStatus, new: RunStatus) -> bool:
    """Return whether a run may change from ``current`` to ``new`` within an attempt. A status only
    changes forward, and never after an end.
    """
    return not current.terminal and _ORDER.index(new) > _ORDER.index(current)


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of a run, in seconds. ``None`` means no limit."""

    __pydantic_config__: ClassVar = STRICT

    start_check_s: float = 6.0
    """The first interval between checks of whether the main task has started."""
    start_timeout_s: float | None = None
    """The run is stopped as ``start_timeout`` if no task has started after this many seconds."""
    run_timeout_s: float | None = None
    """The run is stopped as ``timed_out`` after this many seconds of processing."""
    stall_timeout_s: float | None = 3600.0
    """The run is stopped as ``cancelled (stalled)`` after this many seconds without a sign of
    life.
    """
    stop_grace_s: float = 30.0
    """The time from a crawler's stop signal until the crawler is killed."""
    force_stop_after_s: float | None = 300.0
    """The time from the last request to end a task until the stop becomes a forced stop."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            check_number(f"limits.{limit.name}", getattr(self, limit.name))


@dataclass(frozen=True, slots=True)
class ChildTask:
    """One task of a multi-process run. Its arguments override those of the run."""

    __pydantic_config__: ClassVar = STRICT

    args: dict[str, str] = field(default_factory=dict)


def check_sizes(
    args: Mapping[str, str],
    settings: Mapping[str, str],
    tasks: Sequence[Mapping[str, str]] | None = None,
) -> None:
    """Raise ``InvalidRequest`` if the arguments and settings of a task are larger than
    ``TASK_BYTES_MAX``.

    ``tasks`` contains each task's own arguments. The error names the task by its position.
    """
    shared = _json_bytes(args)
    set_ = _json_bytes(settings)
    for n, own in enumerate([{}] if tasks is None else tasks):
        if shared + _json_bytes(own) + set_ <= TASK_BYTES_MAX:
            continue
        size = _json_bytes({**args, **own})
        if size + set_ > TASK_BYTES_MAX:
            where = "" if tasks is None or shared + set_ > TASK_BYTES_MAX else f"tasks[{n}]."
            raise InvalidRequest(
                f"{where}{'args' if size >= set_ else 'settings'}: {size + set_} bytes of "
                "arguments and settings (as "
                f"JSON) are too much for one task; at most {TASK_BYTES_MAX} are allowed. Divide "
                "them among more tasks, "
                "or put them into a file that the crawler fetches"
            )


def _json_bytes(texts: Mapping[str, str]) -> int:
    return len(json.dumps(texts)) if texts else 0


def _check_inline(tasks: Sequence[ChildTask], fix: str) -> None:
    """Raise ``InvalidRequest`` for more tasks than one message through Temporal should contain."""
    if len(tasks) > INLINE_TASKS_MAX:
        raise InvalidRequest(
            f"tasks: {len(tasks)} inline tasks are not allowed; give at most {INLINE_TASKS_MAX} at "
            f"once, {fix}"
        )
    size = len(json.dumps([task.args for task in tasks]))
    if size > INLINE_TASKS_BYTES:
        raise InvalidRequest(
            f"tasks: {size} bytes of inline tasks are not allowed; give at most "
            f"{INLINE_TASKS_BYTES} at once, {fix}"
        )


def check_sites(where: str, sites: Sequence[object]) -> None:
    """Raise ``InvalidRequest`` for too many sites, or for an invalid text.

    The hosts themselves are checked when the run is recorded.
    """
    _check_texts(where, sites, SITES_MAX, SITE_MAX, "sites")


def check_tags(where: str, tags: Sequence[object]) -> None:
    """Raise ``InvalidRequest`` for too many tags, or for an invalid tag."""
    _check_texts(where, tags, TAGS_MAX, TAG_MAX, "tags")


def _check_texts(
    where: str, texts: Sequence[object], most: int, most_characters: int, noun: str
) -> None:
    if len(texts) > most:
        raise refusal(where, len(texts), f"give at most {most} {noun}")
    for n, text in enumerate(texts):
        check_text(f"{where}[{n}]", text, most_characters, needed=True)


@dataclass(frozen=True, slots=True)
class AddTasks:
    """The input of the update ``add_tasks``: a page of child tasks for a live run.

    A repeated input with the same ``request_id`` adds nothing. By default, ``request_id`` is the id
    of the update. Raises ``InvalidRequest``.
    """

    __pydantic_config__: ClassVar = STRICT
    ASKED: ClassVar = (
        "tasks",
        'send a page of tasks, for example {"tasks": [{"args": {"shelf": "7"}}]}',
    )

    tasks: list[ChildTask] = field(default_factory=list)
    request_id: str | None = None

    def __post_init__(self) -> None:
        if not self.tasks:
            raise refusal("tasks", self.tasks, "give at least one task")
        _check_inline(self.tasks, "in several calls")
        check_request_id(self.request_id)


@dataclass(frozen=True, slots=True)
class AddedTask:
    """A task that was appended to a live run."""

    task_id: int
    index: int


@dataclass(frozen=True, slots=True)
class TasksAdded:
    """The answer to the update ``add_tasks``, in the order in which the tasks were sent."""

    run_id: int
    tasks: list[AddedTask]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request for a run: the single input of ``CrawlerLifecycleWorkflow``.

    Raises ``InvalidRequest`` (a ``ValueError``), which names the field, the value and the fix.
    """

    __pydantic_config__: ClassVar = STRICT
    ASKED: ClassVar = (
        "request",
        'start the workflow with a RunRequest, for example {"crawler": "services"}',
    )

    crawler: str | None = None
    trigger: Trigger = Trigger.MANUAL
    run_id: int | None = None
    rerun: bool = False
    request_id: str | None = None
    args: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    tasks: list[ChildTask] | None = None
    max_parallel_tasks: int | None = None
    requested_by: str | None = None
    tags: list[str] = field(default_factory=list)
    flow_id: str | None = None
    parent: str | None = None
    due_at: datetime | None = None
    priority: int = 3
    pool: str | None = None
    resources: Resources = field(default_factory=Resources)
    limits: Limits = field(default_factory=Limits)
    poll_minutes: list[float] | None = None
    project: str = DEFAULT
    retries: Retries | None = None
    """Keys of the retry policy that override the keys in the crawler's entry."""
    sites: list[str] = field(default_factory=list)
    """The hosts that the run visits. ``{start_url}`` stands for the hosts in the values of this
    argument. The default is the crawler's list.
    """
    version: str | None = None
    """The version of the crawler's package: in a request the wanted one, by default the current
    one; in a stored request the one that executes.
    """
    code: str | None = None
    """The digest of that version. Only we set it, when the run is recorded."""
    canary: int | None = None
    """The canary that may replace the current version when the run is recorded. Only we set it, and
    it is never stored.
    """

    def __post_init__(self) -> None:
        self._check_identity()
        self._check_tasks()
        for name in ("run_id", "priority", "max_parallel_tasks"):
            check_number(name, getattr(self, name))
        check_time("due_at", self.due_at)
        if self.poll_minutes is not None:
            if not 1 <= len(self.poll_minutes) <= POLLS_MAX:
                raise refusal(
                    "poll_minutes",
                    self.poll_minutes,
                    f"give 1 to {POLLS_MAX} intervals in minutes, or leave it out",
                )
            for n, minutes in enumerate(self.poll_minutes):
                check_number(f"poll_minutes[{n}]", minutes, LIMITS["poll_minutes"])
        check_tags("tags", self.tags)
        check_sites("sites", self.sites)
        check_text("version", self.version, VERSION_MAX)
        check_text("code", self.code, VERSION_MAX)
        if self.retries is not None and self.retries.retry_on is not None:
            raise refusal(
                "retries.retry_on",
                self.retries.retry_on.node_selector,
                "nodes are chosen in the crawler's entry or in LIFECYCLE_RETRIES",
            )

    def _check_identity(self) -> None:
        if self.crawler is None and self.run_id is None:
            raise InvalidRequest(
                "crawler: missing; name a crawler of the catalogue, or give run_id to resume a run "
                '(for example {"crawler": "services"})'
            )
        check_name("crawler", self.crawler, or_none=True)
        if self.rerun and self.run_id is None:
            raise refusal("rerun", self.rerun, "rerun needs the run_id of the completed run")
        check_request_id(self.request_id)
        check_name("pool", self.pool, or_none=True)
        check_name("project", self.project)
        for name in ("requested_by", "flow_id", "parent"):
            check_text(name, getattr(self, name))

    def _check_tasks(self) -> None:
        check_sizes(
            self.args,
            self.settings,
            None if self.tasks is None else [task.args for task in self.tasks],
        )
        if self.tasks is None:
            return
        if not self.tasks:
            raise refusal(
                "tasks", [], "give at least one task, or leave it out for a single-process run"
            )
        _check_inline(
            self.tasks, "start larger runs through the gateway, which stores the tasks first"
        )


def in_our_words(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as it was sent, but with the key ``run_id`` and a number as its value. The
    specification calls this key ``RunID``. Some senders write numbers as strings, or write all
    numbers as floats.
    """
    found = {
        "run_id" if name == "RunID" and "run_id" not in request else name: request[name]
        for name in request
    }
    digits = re.fullmatch(r"([0-9]{1,19})(\.0)?", str(found.get("run_id")))
    if digits is not None:
        found["run_id"] = int(digits[1])
    return found


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The payload of the signals ``stop`` and ``force_stop``. All fields are optional."""

    __pydantic_config__: ClassVar = STRICT

    request_id: str | None = None
    requested_by: str | None = None
    reason: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class StopIntent:
    """A recorded stop of a run, by a person, by one of the run's limits or by an audit. ``limit``
    is the outcome for the limit (``LIMIT_STOPS``) or the outcome that an audit sets. ``None`` means
    that a person stopped the run. A person's stop takes precedence over the stops by limits and
    audits. ``escalated`` is true if a plain stop became a forced stop.
    """

    requested_at: datetime
    force: bool = False
    requested_by: str | None = None
    reason: str | None = None
    limit: str | None = None
    escalated: bool = False

    @property
    def ended_by(self) -> EndedBy:
        """The party that ended the tasks that this stop ends."""
        if self.limit is None:
            return EndedBy.PERSON
        return EndedBy.LIMIT if self.limit in LIMIT_STOPS else EndedBy.SERVICE

    @property
    def stopped(self) -> str:
        """A sentence about who stopped the run, and why."""
        who = f" by {self.requested_by}" if self.requested_by else ""
        return f"Stopped{who}" + (f": {self.reason}" if self.reason else "")

    def merged(self, later: StopIntent) -> StopIntent:
        """Return both stops merged into one stop. The merged stop is forced if at least one of the
        two is forced. It has the time and the reason of the first stop. If the first stop came from
        a limit and the second stop from a person, the merged stop has the person's reason.
        """
        reasons = later if self.limit is not None and later.limit is None else self
        force = self.force or later.force
        escalated = self.escalated or later.escalated
        return replace(reasons, requested_at=self.requested_at, force=force, escalated=escalated)


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The archive of an attempt's supporting files."""

    url: str
    bytes: int
    files: int
    sha256: str
    note: str | None = None
    """A note about tasks whose files are missing or incomplete in the archive."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The answer to the query ``status``: the state that the workflow itself has. The statuses and
    counters of a live run are left out until the verdict, because other processes write these
    values to the database too, and the workflow's values can be out of date.
    """

    run_id: int | None
    run_uid: str | None
    attempt: int
    crawler: str
    trigger: Trigger
    stage: Stage
    status: RunStatus | None = None
    """The status with which this attempt ended. It is ``None`` before the end. Until then, the
    database contains the status.
    """
    outcome: str | None = None
    ended_by: str | None = None
    cause: str | None = None
    stop: StopIntent | None = None
    tasks: dict[str, int] | None = None
    """The number of tasks by status. Like ``status``, it is ``None`` before the end."""
    step: int = 0
    last_poll_at: datetime | None = None
    next_poll_at: datetime | None = None
    polls: int = 0
    waiting_for: str | None = None
    waiting: str | None = None
    """A sentence about what the run is waiting for, without durations. The gateway's sentence
    contains durations.
    """
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of the workflow. The workflow succeeds even if the crawl failed."""

    run_id: int
    run_uid: str
    status: RunStatus
    outcome: str
    cause: str
    attempt: int
    tasks: dict[str, int]
    items: int | None = None
    pages: int | None = None
    errors: int | None = None
    export: ExportResult | None = None
    ended_by: str | None = None
    """The party that ended the run (``EndedBy``), or ``None`` if an older build ended the run."""


#: The minimum time for an average, in seconds. An average over less time would vary too much.
PACE_LEAST_S = 1.0


def pages_per_minute(
    pages: int | None, started_at: datetime | None, until: datetime | None
) -> float | None:
    """Return the average from the start to ``until``. ``until`` is the time of the end or, for a
    run that has not ended, the time of its latest progress. Return ``None`` if a value is unknown,
    or if fewer than ``PACE_LEAST_S`` seconds have elapsed.
    """
    if pages is None or pages < 0 or started_at is None or until is None:
        return None
    seconds = (until - started_at).total_seconds()
    return None if seconds < PACE_LEAST_S else round(pages * 60 / seconds, 1)


@dataclass(frozen=True, slots=True)
class EndedTasks:
    """The number of tasks with the same status, outcome and ``ended_by``, and their most frequent
    cause.
    """

    status: str
    outcome: str | None
    count: int
    cause: str | None = None
    alike: int = 0
    """The number of tasks with this cause, or 0 if not counted."""
    ended_by: EndedBy | None = None
    """``None`` if an older build recorded the end."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a run: its status, its outcome and its cause."""

    status: RunStatus
    outcome: str
    cause: str
    ended_by: EndedBy | None = EndedBy.CRAWLER
    """``None`` if an older build recorded the outcomes of its tasks."""
    lacks: str | None = None
    """One of ``UNMET_OUTCOMES``, or ``NO_ITEMS``. ``None`` means that the run met the expectations,
    or was not judged.
    """

    @property
    def attention(self) -> str | None:
        """The reason why the run needs attention: the value of ``lacks``, or ``failed``. ``None``
        means that the run needs no attention.
        """
        if self.lacks in UNMET_OUTCOMES:
            return self.lacks
        theirs = self.status is RunStatus.FAILED and self.ended_by is not EndedBy.PERSON
        return "failed" if theirs else None


def _common(outcomes: Iterable[str | None], fallback: str) -> str:
    distinct = set(outcomes)
    return (distinct.pop() or fallback) if len(distinct) == 1 else fallback


def verdict(
    groups: Iterable[EndedTasks], stop: StopIntent | None, *, partial_ok: bool = False
) -> Verdict:
    """Return the verdict for a run from its tasks, excluding tasks that a later attempt replaced.

    - All tasks succeeded: COMPLETED.
    - A person stopped the run: FAILED, outcome ``cancelled``.
    - Some tasks succeeded: outcome ``partial``, COMPLETED for a crawler with ``partial_ok``, and
      FAILED otherwise.
    - No task succeeded: FAILED, with the common outcome of the tasks, if they have one, or
      ``failed``.

    ``ended_by`` is that of the tasks that the cause names.

    Raises ``ValueError`` if a task has not ended, or if there is no task.
    """
    groups = [g for g in groups if g.count]
    total = sum(g.count for g in groups)
    if not total or any(
        g.status not in ("SUCCEEDED", "FAILED", "CANCELLED", "LOST") for g in groups
    ):
        raise ValueError(f"a verdict needs tasks that have all ended, got {groups}")
    bad = [g for g in groups if g.status != "SUCCEEDED"]
    succeeded = total - sum(g.count for g in bad)
    if not bad:
        cause = (
            f"All {total} tasks succeeded"
            if total > 1
            else (groups[0].cause or "The task succeeded")
        )
        return Verdict(RunStatus.COMPLETED, _common((g.outcome for g in groups), "finished"), cause)
    if stop is not None and stop.limit is None:
        done = f" ({succeeded} of {total} tasks had finished)" if succeeded else ""
        return Verdict(RunStatus.FAILED, "cancelled", f"{stop.stopped}{done}", EndedBy.PERSON)
    worst = max(bad, key=lambda g: (g.alike, g.count, g.outcome or ""))
    most = f"{worst.alike} of them" if worst.alike else "most"
    detail = (
        f"{total - succeeded} of {total} tasks did not succeed; {most}: "
        f"{worst.cause or worst.outcome}"
    )
    if total == 1:
        detail = worst.cause or f"The task ended as {worst.outcome}"
    if succeeded:
        status = RunStatus.COMPLETED if partial_ok else RunStatus.FAILED
        return Verdict(status, "partial", detail, worst.ended_by)
    return Verdict(
        RunStatus.FAILED, _common((g.outcome for g in bad), "failed"), detail, worst.ended_by
    )
