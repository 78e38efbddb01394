"""A crawl manager: its jobs, the input and decision of one cycle, and the rules that need neither a
database nor a clock.

``Facts`` and ``Decision`` are sent as JSON between a worker and the process with the user's class.
Therefore they contain only strings, numbers, lists and dictionaries. The user's code can do
anything in that process, so a received ``Decision`` is always checked (``user_code/calls.py``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from crawler_lifecycle.domain.bounds import LIMITS, STRICT, check_number, check_request_id, refusal
from crawler_lifecycle.domain.crawlers.arguments import as_text
from crawler_lifecycle.domain.errors import InvalidRequest, Overtaken
from crawler_lifecycle.domain.names import MANAGER_WORKFLOW
from crawler_lifecycle.domain.run import RunStatus, StopIntent

_REQUEST = re.compile(
    r"manager/([1-9][0-9]{0,17})/([1-9][0-9]{0,17})(?:\.r([1-9][0-9]{0,8}))?", re.ASCII
)

#: Outcomes that Scrapy Cloud counts as failures. There, every other outcome is a success (spec 3,
#: S-21).
FAILED_OUTCOMES = (
    "failed",
    "killed by oom",
    "cancelled",
    "cancel_timeout",
    "memusage_exceeded",
    "diskusage_exceeded",
    "cancelled (stalled)",
)
#: The close reason of a manager whose class does not set one.
FINISHED = "finished"

NAME_MAX = 63
FLOW_ID_MAX = 120
#: The built-in class: it runs one crawler once for each job that a user adds. Every user-code
#: worker has it.
BUILT_IN = "crawler_lifecycle.managers.built_in:RunEach"
#: The maximum number of jobs and of bytes of JSON in one page of a source.
PAGE_ITEMS = 500
PAGE_BYTES = 256 * 1024
#: The highest permitted cap of live jobs.
CAP_MAX = 100_000
#: The maximum number of ended jobs that one cycle handles.
CYCLE_ENDS = 100
#: Seconds of a cycle during which methods of the class may begin. Further work waits for the next
#: cycle.
CYCLE_S = 30.0
#: The maximum number of jobs that one cycle picks.
CYCLE_PICKS = 500
#: The maximum number of jobs of a source that may be delayed at once. When this number is reached,
#: reading from the source pauses.
DELAYED_MAX = 1000
#: The maximum number of waiting jobs of each kind that one cycle checks.
SCAN_MAX = 2000
#: The maximum number of bytes of a manager's output that are stored. The newest bytes are stored.
OUTPUT_BYTES = 16 * 1024
#: The maximum number of bytes of JSON for a manager's durable ``state``.
STATE_BYTES = 64 * 1024
#: The maximum number of statistics of a manager, and of characters in the name of a statistic.
STATS_MAX = 2000
STAT_NAME_MAX = 200
#: The maximum number of characters in a close reason, which becomes the outcome of the manager.
REASON_MAX = 200
#: The allowed values of some attributes of a class. The first value is the default.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "on_item_error": ("stop", "skip"),
    "on_code_change": ("replay", "continue", "fail"),
    "on_hook_error": ("fail", "complete"),
}
#: The number of tries of the hooks of an end, of a cycle, or of the creation of the object.
TRIES = 3


@dataclass(frozen=True, slots=True)
class ManagerOrder:
    """The input of a manager's workflow: the id of its row. All other data is in the row."""

    __pydantic_config__: ClassVar = STRICT
    WORKFLOW: ClassVar = MANAGER_WORKFLOW
    WAKES: ClassVar = True
    ASKED: ClassVar = (
        "order",
        'start the workflow with the manager of a stored row, for example {"manager_id": 7}',
    )

    manager_id: int

    def __post_init__(self) -> None:
        check_number("manager_id", self.manager_id, LIMITS["run_id"])


class JobState(StrEnum):
    """The state of a manager's job. Each job is one row of ``manager_item``."""

    BUFFERED = "buffered"
    """Read from the source and not checked yet."""
    DELAYED = "delayed"
    """Read from the source and checked, but not able to start yet."""
    QUEUED = "queued"
    """Added by ``add_job``, a retry or a user, and not started. The job keeps this state even if it
    may not start yet.
    """
    STARTING = "starting"
    """Picked: the job has a number and uses a slot, and its run is about to begin."""
    STARTED = "started"
    """The job's run exists. The job uses a slot until the end of the run is handled."""
    ENDED = "ended"
    """The job's run has ended, and the hooks for this end have run."""
    SKIPPED = "skipped"
    """The yield is not a valid job and was skipped (``on_item_error="skip"``). ``error`` explains
    why.
    """


@dataclass(frozen=True, slots=True)
class Job:
    """The effective parameters of a job: the manager's options, overridden by the job's own
    parameters.

    Arguments with the value ``None`` are removed. All others are strings (``job_text``).
    """

    __pydantic_config__: ClassVar = STRICT

    spider: str
    spider_args: dict[str, str] = field(default_factory=dict)
    job_settings: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    units: int | None = None
    project_id: str | None = None
    priority: int | None = None
    pool: str | None = None
    version: str | None = None
    """The version of the code, by default the current one when the run begins."""

    @property
    def identity(self) -> str:
        """Return the identity of a job: a hash of its spider and its effective arguments (S-54)."""
        text = json.dumps(
            [self.spider, self.spider_args],
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ManagerSnapshot:
    """The response to the query ``status``: the state of the workflow itself. The jobs are in the
    database.
    """

    manager_id: int
    name: str
    flow_id: str
    attempt: int
    status: RunStatus | None = None
    """The status with which this attempt ended. ``None`` before the end, when only the database has
    the status.
    """
    outcome: str | None = None
    cause: str | None = None
    live: int = 0
    """The number of jobs with a slot after the last cycle. After a stop, it is the number of runs
    that have not ended.
    """
    cycles: int = 0
    stop: StopIntent | None = None
    leave: bool = False
    waiting: str | None = None
    """A sentence about what the manager is waiting for."""
    error: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ManagerResult:
    """The result of a manager's workflow, which its parent also receives.

    The workflow succeeds even if the manager failed.
    """

    manager_id: int
    name: str
    flow_id: str
    attempt: int
    status: RunStatus
    outcome: str
    cause: str


@dataclass(frozen=True, slots=True)
class AddJobs:
    """The payload of the update ``add_job``: jobs that a user adds, with the manager's options as
    defaults.

    A repeated page with the same ``request_id`` adds nothing. Raises ``InvalidRequest`` for a page
    that is empty or too large.
    """

    __pydantic_config__: ClassVar = STRICT
    ASKED: ClassVar = (
        "jobs",
        'send at least one, such as {"jobs": [{"spider": "shops", "spider_args": {"shop": "7"}}]}',
    )

    jobs: list[Job] = field(default_factory=list)
    request_id: str | None = None
    seal: bool = False
    """True if no more jobs will be added. Only the built-in manager uses this."""

    def __post_init__(self) -> None:
        if not self.jobs and not self.seal:
            raise InvalidRequest(
                "jobs: no jobs are given; give jobs, or seal: true if no more jobs will come"
            )
        check_request_id(self.request_id)
        size = len(json.dumps([asdict(job) for job in self.jobs]))
        if len(self.jobs) > PAGE_ITEMS or size > PAGE_BYTES:
            text = (
                f"jobs: {len(self.jobs)} of {size} bytes are too many; give at most "
                f"{PAGE_ITEMS} and {PAGE_BYTES} bytes"
            )
            raise InvalidRequest(text)


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One yield of a source: a job, or the reason why the yield is not a job.

    The first yield has the position 1.
    """

    __pydantic_config__: ClassVar = STRICT

    position: int
    job: Job | None
    error: str | None = None
    known: bool = False
    """True if a job of another flow has the same identity (``acquire_all_jobs``). The job is then
    skipped, because its identity is known.
    """


@dataclass(frozen=True, slots=True)
class Page:
    """The next values that a source yielded, in order."""

    __pydantic_config__: ClassVar = STRICT

    items: list[SourceItem] = field(default_factory=list)
    position: int = 0
    """The number of yields that were read, including earlier pages."""
    exhausted: bool = False
    """True if the source has no more yields."""
    error: str | None = None
    """The reason why the source stopped permanently: it raised an error, or a yield is not a job
    and ``on_item_error`` is ``stop``. No further job is picked. The manager fails with this message
    after its live jobs have ended.
    """


@dataclass(frozen=True, slots=True)
class Start:
    """The input for a new process with the class. All of it comes from the manager's row."""

    __pydantic_config__: ClassVar = STRICT

    manager_id: int
    name: str
    flow_id: str
    argv: list[str] = field(default_factory=list)
    """The command line options of the class."""
    attempt: int = 1
    tags: list[str] = field(default_factory=list)
    """The manager's own tags."""
    flow_tags: list[str] = field(default_factory=list)
    """Tags that the class added to all jobs (``append_flow_tag``)."""
    state: dict[str, Any] = field(default_factory=dict)
    stats: dict[str, float] = field(default_factory=dict)
    close_reason: str | None = None
    next_seq: int = 1
    resumed: bool = False
    """True if an earlier process had the class, in this or an earlier attempt. The resume hooks
    then run.
    """
    started_at: float = 0.0
    """The time at which this attempt began, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that is waiting for a slot: a row in the state BUFFERED, DELAYED or QUEUED."""

    item_id: int
    job: Job
    seq: int | None = None
    """The number of the job since its first try, or ``None`` if the job was never picked."""
    retry: int = 0
    retry_of: str | None = None
    """The job key of the previous try."""
    not_before: float | None = None
    """The earliest time of its start, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Live:
    """A job that uses a slot: a row in the state STARTING or STARTED."""

    item_id: int
    key: str
    """The run id as a string, or the id of its request before the run exists."""
    job: Job
    seq: int
    retry: int = 0
    cap_key: str | None = None
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job whose run has ended and whose hooks must run now."""

    live: Live
    attempt: int
    """The attempt of the run that ended. Hooks run once for each attempt."""
    bad: bool
    """True if the run is FAILED. The class may count further outcomes as bad."""
    outcome: str
    retryable: bool
    """False if a retry cannot succeed (stopped by a person, refused, fatal exit code)."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The values that hooks receive, with the keys of the table in docs/managers.md."""
    tries: int = 0
    """The number of times that the job's hooks have failed."""

    @property
    def given_up(self) -> bool:
        """Return whether the job's hooks failed too often, so that the end counts as handled
        without a further call.
        """
        return self.tries >= TRIES


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts at the beginning of a cycle.

    The class requests further facts during the cycle (``user_code/calls.py``).
    """

    manager_id: int
    attempt: int
    now: float
    """The time of the cycle, in seconds since 1970."""
    next_seq: int
    """The number for the next job that is picked for the first time."""
    ended: list[EndedJob] = field(default_factory=list)
    live: int = 0
    """The number of jobs that use a slot, excluding those in ``ended``."""
    live_by_spider: dict[str, int] = field(default_factory=dict)
    live_by_key: dict[str, int] = field(default_factory=dict)
    delayed: int = 0
    delayed_by_spider: dict[str, int] = field(default_factory=dict)
    queued: int = 0
    buffered: int = 0
    exhausted: bool = False
    """True if the source has no more yields."""
    sealed: bool = False
    """True if users will add no more jobs (``ManagerStore.add_jobs``). Only the built-in manager
    reads this.
    """
    source_error: str | None = None
    """The reason why the source stopped permanently (``Page.error``)."""
    last_pick: float | None = None
    """The time of the last cycle that picked a job, in seconds since 1970."""
    cap: int | None = None
    """The maximum number of live jobs that a person set (``crawlctl manager set-limit``), or
    ``None`` if the class decides.
    """
    paused: bool = False
    more_ended: bool = False
    """True if further ends wait for the next cycle."""


@dataclass(frozen=True, slots=True)
class HookReport:
    """A report that the hooks of an end have run."""

    __pydantic_config__: ClassVar = STRICT

    item_id: int
    attempt: int
    bad: bool


@dataclass(frozen=True, slots=True)
class HookFailed:
    """A report that a hook of an end raised an error.

    The effects of the hook are undone, and the next cycle tries again.
    """

    __pydantic_config__: ClassVar = STRICT

    item_id: int
    attempt: int
    error: str
    """The name of the hook, and its error."""
    later: bool = False
    """True if files of the job were not delivered yet. Such a failure does not count as a try."""


@dataclass(frozen=True, slots=True)
class AddedJob:
    """A new job from ``add_job``, a retry, or a direct call of ``schedule_spider_with_jobargs``.

    ``ref`` is a negative number that identifies the job in this decision, so the decision can also
    pick the job.
    """

    __pydantic_config__: ClassVar = STRICT

    ref: int
    job: Job
    unique: bool = True
    """True if the job is skipped when its identity is already known. Direct calls and periodic jobs
    are never skipped.
    """
    seq: int | None = None
    """The number that the job keeps, or ``None`` if the job gets its number when it is picked.

    A retry keeps the number of its first try. If this number already has the same retry, the job is
    skipped. A job that was scheduled without a free slot uses the next number.
    """
    retry: int = 0
    retry_of: str | None = None
    not_before: float | None = None


@dataclass(frozen=True, slots=True)
class PickedJob:
    """A job that gets a slot. ``item_id`` is the id of its row, or the negative ``ref`` of an
    ``AddedJob``.
    """

    __pydantic_config__: ClassVar = STRICT

    item_id: int
    seq: int
    job: Job
    """The parameters of its run, with all tags."""
    cap_key: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of one cycle.

    The decision is stored completely or not at all, and in the order of the fields.
    """

    __pydantic_config__: ClassVar = STRICT

    hooked: list[HookReport] = field(default_factory=list)
    failed: list[HookFailed] = field(default_factory=list)
    """Ends whose hooks failed. Each failure counts as one try; an end is given up after three
    tries.
    """
    added: list[AddedJob] = field(default_factory=list)
    delayed: list[int] = field(default_factory=list)
    """Ids of the rows that change from BUFFERED to DELAYED."""
    picked: list[PickedJob] = field(default_factory=list)
    flow_tags: list[str] = field(default_factory=list)
    """New tags for the manager itself and all later jobs."""
    state: dict[str, Any] | None = None
    """The new durable state, or ``None`` if the state is unchanged."""
    stats: dict[str, float] = field(default_factory=dict)
    """The manager's current statistics."""
    close_reason: str | None = None
    """The current close reason, or ``None`` if no close reason is set."""
    over: bool = False
    """True if the class wants no further cycle. The manager ends after the runs of the jobs
    picked here have begun. Live jobs continue; they are not cancelled, and the manager does not
    wait for them (S-02, S-32).
    """
    error: str | None = None
    """The error that the class raised in this cycle, and the fix. If ``over`` is true, the manager
    fails because of this error.
    """
    waiting: str | None = None
    """A sentence about why no further job was picked."""
    again_s: float | None = None
    """The maximum wait until the next cycle, in seconds, or ``None`` to wait until something
    happens.
    """
    hook_errors: int = 0
    """The number of errors in hooks that belong to no end and are not tried again, namely
    ``on_close``.
    """


def outcome_of(
    close_reason: str | None, failed: bool, hook_errors: int, on_hook_error: str
) -> tuple[str, bool]:
    """Return the outcome of a manager that ends with this close reason, and whether it FAILED.

    After errors in hooks, ``on_hook_error`` of the class decides whether the manager failed.
    ``failed`` is true if the class counts the close reason as a failure.
    """
    if failed or close_reason in FAILED_OUTCOMES or not hook_errors:
        return close_reason or FINISHED, failed or close_reason in FAILED_OUTCOMES
    return f"errors in hooks: {hook_errors}", on_hook_error == "fail"


def jobseq(seq: int, retry: int) -> str:
    """Return the tag with a job's number (S-57): ten digits, followed by the retry."""
    return f"JOBSEQ={seq:010d}" + (f".r{retry}" if retry else "")


def run_request_id(manager_id: int, seq: int, retry: int) -> str:
    """Return the request id of a job's run. Every try to begin the run uses the same id."""
    return f"manager/{manager_id}/{seq}" + (f".r{retry}" if retry else "")


def job_of_request(request_id: str) -> tuple[int, int, int] | None:
    """Return the manager, number and retry in the request id of a job's run, or ``None`` for any
    other id.
    """
    found = _REQUEST.fullmatch(request_id)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found is not None else None


def job_text(field_name: str, value: object) -> str:
    """Return an argument or setting in the form in which a process receives it. Strings stay
    unchanged, numbers and booleans are converted by ``str()``, and lists and objects become JSON
    with sorted keys. Raises ``InvalidRequest`` for anything else.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple | Mapping):
        try:
            return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError):
            pass
    raise refusal(
        field_name, value, "give a string, a number, true or false, or lists and objects of these"
    )


def job_texts(where: str, given: Mapping[str, Any], built_in: bool) -> dict[str, str]:
    """Return arguments or settings of a job in the form in which a process receives them, omitting
    values that are ``None``.

    ``built_in`` is true if the job belongs to the built-in manager. Raises ``InvalidRequest``.
    """
    return {
        # As for a run, because crawlers expect booleans in the notation of JSON.
        name: as_text(value)
        if built_in and isinstance(value, bool)
        else job_text(f"{where}.{name}", value)
        for name, value in given.items()
        if value is not None
    }


# --- checks before a manager's rows are written, for the database and in-memory tests -------------

#: The latest time that every database can store, in seconds since 1970: the end of the year 9999.
_MOMENT_MAX = 253_402_300_799


def yields_behind(page: Page, position: int) -> list[SourceItem]:
    """Return the yields of a page after this position.

    Raises ``InvalidRequest`` if a position is missing.
    """
    items = [item for item in page.items if item.position > position]
    if [item.position for item in items] != list(range(position + 1, page.position + 1)):
        raise InvalidRequest(
            f"items: the source is at position {position}; the next page must have every position "
            "from there to its "
            f"own position {page.position}"
        )
    return items


def new_numbers(decision: Decision, next_seq: int, numbers: Mapping[int, int | None]) -> set[int]:
    """Return the numbers that a decision gives to new jobs.

    These numbers must continue from ``next_seq`` without a gap, and a job must keep its number.
    ``numbers`` are the numbers of the picked rows, by their ids. Raises ``InvalidRequest`` for an
    invalid decision, and ``Overtaken`` if another cycle has used its numbers in the meantime.
    """
    _check_added(decision, next_seq)
    own = {**numbers, **{addition.ref: addition.seq for addition in decision.added}}
    picked = decision.picked
    if len({pick.item_id for pick in picked}) != len(picked) or any(
        pick.item_id not in own for pick in picked
    ):
        raise InvalidRequest("item_id: a picked job is unknown, or was picked twice")
    for pick in picked:
        if own[pick.item_id] not in (None, pick.seq):
            raise InvalidRequest(
                f"seq: {pick.seq} is not the number of job {pick.item_id}; it has "
                f"{own[pick.item_id]}"
            )
    new = [pick.seq for pick in picked if own[pick.item_id] is None]
    new += [
        addition.seq
        for addition in decision.added
        if addition.seq is not None and addition.retry == 0
    ]
    if new and min(new) < next_seq:
        raise Overtaken(
            f"Another cycle has used the number {min(new)}; the next cycle decides again"
        )
    if sorted(new) != list(range(next_seq, next_seq + len(new))):
        raise InvalidRequest(
            f"seq: the numbers of new jobs must continue from {next_seq}, each once"
        )
    return set(new)


def _check_added(decision: Decision, next_seq: int) -> None:
    refs = [addition.ref for addition in decision.added]
    if len(set(refs)) != len(refs) or any(ref >= 0 for ref in refs):
        raise InvalidRequest("ref: each added job needs its own negative number")
    for addition in decision.added:
        given = addition.seq is not None and 0 < addition.seq < next_seq
        if addition.retry < 0 or (addition.retry > 0 and not given):
            raise InvalidRequest(
                f"retry: {addition.retry} of number {addition.seq} is not allowed; no such number "
                "was given"
            )
        if addition.not_before is not None and not 0 <= addition.not_before <= _MOMENT_MAX:
            raise InvalidRequest(
                f"not_before: {addition.not_before!r} is not allowed; give seconds since 1970"
            )
