"""A crawl manager: its jobs, the input and the decision of one cycle, and the rules that need neither database nor
clock.

``Facts`` and ``Decision`` travel as JSON between a worker and the process that holds the user's class, so everything
here is made of texts, numbers, lists and dictionaries. That process may be out of control, so a received ``Decision``
is always checked (``plans/calls.py``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from crawler_lifecycle.domain.bounds import LIMITS, check_number, check_request_id, refusal
from crawler_lifecycle.domain.errors import InvalidRequest, Overtaken
from crawler_lifecycle.domain.run import RunStatus, StopIntent

_STRICT = {"extra": "forbid", "allow_inf_nan": False}

_REQUEST = re.compile(r"manager/([1-9][0-9]{0,17})/([1-9][0-9]{0,17})(?:\.r([1-9][0-9]{0,8}))?", re.ASCII)

#: Outcomes that Scrapy Cloud counts as failures; every other outcome is a success there (spec 3, S-21).
FAILED_OUTCOMES = (
    "failed",
    "killed by oom",
    "cancelled",
    "cancel_timeout",
    "memusage_exceeded",
    "diskusage_exceeded",
    "cancelled (stalled)",
)
#: The close reason of a manager without one of its own.
FINISHED = "finished"

NAME_MAX, FLOW_ID_MAX = 63, 120
#: The plan that runs one crawler once for each item from outside; every plans worker has it.
BUILT_IN = "crawler_lifecycle.managers.built_in:RunEach"
#: Jobs and bytes of JSON that one page of a source holds at most.
PAGE_ITEMS, PAGE_BYTES = 500, 256 * 1024
#: The most jobs that one call may request.
CAP_MAX = 100_000
#: Ends that one cycle handles at most.
CYCLE_ENDS = 100
#: Seconds of a cycle in which methods of the class may begin; the rest waits for the next cycle.
CYCLE_S = 30.0
#: Jobs that one cycle picks at most.
CYCLE_PICKS = 500
#: Jobs of a source that may be delayed at once; a full list pauses the source.
DELAYED_MAX = 1000
#: Jobs of each kind that one cycle looks at to find some that may start.
SCAN_MAX = 2000
#: The last bytes printed by a manager's class that are kept.
OUTPUT_BYTES = 16 * 1024
#: Bytes of JSON of a manager's durable ``state``.
STATE_BYTES = 64 * 1024
#: Statistics of a manager, and characters of the name of one.
STATS_MAX, STAT_NAME_MAX = 2000, 200
#: Characters of a close reason, which may be the outcome of a run.
REASON_MAX = 200
#: Allowed values of attributes of a class; the first of each is the default.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "on_item_error": ("stop", "skip"),
    "on_code_change": ("replay", "continue", "fail"),
    "on_hook_error": ("fail", "complete"),
}
#: How often hooks of one end, a cycle, or the making of the object are tried before they are given up.
TRIES = 3


@dataclass(frozen=True, slots=True)
class ManagerOrder:
    """The input of a manager's workflow: which row it works for. Everything else stands there."""

    __pydantic_config__: ClassVar = _STRICT

    manager_id: int

    def __post_init__(self) -> None:
        check_number("manager_id", self.manager_id, LIMITS["run_id"])


class JobState(StrEnum):
    """The state of a job of a manager; one row of ``manager_item`` each."""

    BUFFERED = "buffered"
    """Read from the source; it is not known yet whether it may start."""
    DELAYED = "delayed"
    """Read from the source, and ``can_schedule_job_with_params`` said: later."""
    QUEUED = "queued"
    """Added by ``add_job``, a retry, or from outside. It waits here, also when it may not start yet."""
    STARTING = "starting"
    """Picked: it has a number and holds a slot, and its run is about to begin."""
    STARTED = "started"
    """Its run exists and holds a slot, until the end of the run has been handled."""
    ENDED = "ended"
    """Its run has ended and the hooks of that end ran."""
    SKIPPED = "skipped"
    """Left out because it cannot be a job (``on_item_error="skip"``); ``error`` says why."""


@dataclass(frozen=True, slots=True)
class Job:
    """The effective parameters of a job: the manager's options, overridden by the job's own.

    Arguments with the value ``None`` are already removed; all others are texts (``job_text``).
    """

    __pydantic_config__: ClassVar = _STRICT

    spider: str
    spider_args: dict[str, str] = field(default_factory=dict)
    job_settings: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    units: int | None = None
    project_id: str | None = None

    @property
    def identity(self) -> str:
        """Return the identity of a job: spider and effective arguments, and nothing else (S-54)."""
        text = json.dumps([self.spider, self.spider_args], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ManagerSnapshot:
    """Answer of the query ``status``: the workflow's own knowledge. The jobs are in the database."""

    manager_id: int
    name: str
    flow_id: str
    attempt: int
    status: RunStatus | None = None
    """The status with which this attempt ended; until then the gateway and the database have it."""
    outcome: str | None = None
    cause: str | None = None
    live: int = 0
    """Jobs that held a slot after the last cycle; after a stop: runs that have not ended."""
    cycles: int = 0
    stop: StopIntent | None = None
    leave: bool = False
    waiting: str | None = None
    """One sentence: what it waits for."""
    error: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ManagerResult:
    """The result of a manager's workflow, which its parent gets too. A failed manager is a successful workflow."""

    manager_id: int
    name: str
    flow_id: str
    attempt: int
    status: RunStatus
    outcome: str
    cause: str


@dataclass(frozen=True, slots=True)
class AddJobs:
    """Jobs from outside, with the manager's options as defaults: the payload of the update ``add_job``.

    ``request_id`` makes a repeat harmless. Raises ``InvalidRequest`` for an empty page and one that is too large.
    """

    __pydantic_config__: ClassVar = _STRICT

    jobs: list[Job] = field(default_factory=list)
    request_id: str | None = None
    seal: bool = False
    """True when no more jobs will come (the built-in manager)."""

    def __post_init__(self) -> None:
        if not self.jobs and not self.seal:
            raise InvalidRequest("jobs: none are given; give some, or seal: true to say that no more will come")
        check_request_id(self.request_id)
        size = len(json.dumps([asdict(job) for job in self.jobs]))
        if len(self.jobs) > PAGE_ITEMS or size > PAGE_BYTES:
            text = f"jobs: {len(self.jobs)} of {size} bytes are too many; give at most {PAGE_ITEMS} of {PAGE_BYTES}"
            raise InvalidRequest(text)


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One yield of a source: a job, or why it cannot be one. Positions count yields from 1."""

    __pydantic_config__: ClassVar = _STRICT

    position: int
    job: Job | None
    error: str | None = None
    known: bool = False
    """True when a job of another flow is the same (``acquire_all_jobs``): it is left out like any known job."""


@dataclass(frozen=True, slots=True)
class Page:
    """The next yields of a source, in their order."""

    __pydantic_config__: ClassVar = _STRICT

    items: list[SourceItem] = field(default_factory=list)
    position: int = 0
    """Yields that were read in all, those before this page included."""
    exhausted: bool = False
    """True when the source has no more."""
    error: str | None = None
    """The reason why the source stops for good: it raised, or an item cannot be a job and ``on_item_error`` is
    ``stop``. Nothing more is picked then, and the manager fails with this text when its live jobs have ended."""


@dataclass(frozen=True, slots=True)
class Start:
    """The input for a new process that holds the class. All of it is in the manager's row."""

    __pydantic_config__: ClassVar = _STRICT

    manager_id: int
    name: str
    flow_id: str
    argv: list[str] = field(default_factory=list)
    """The options of the class, as on its command line."""
    attempt: int = 1
    tags: list[str] = field(default_factory=list)
    """The manager's own tags."""
    flow_tags: list[str] = field(default_factory=list)
    """Tags that the class appended for all jobs (``append_flow_tag``)."""
    state: dict[str, Any] = field(default_factory=dict)
    stats: dict[str, float] = field(default_factory=dict)
    close_reason: str | None = None
    next_seq: int = 1
    resumed: bool = False
    """True when another process held the class before, of this attempt or an earlier one: the resume hooks run."""
    started_at: float = 0.0
    """Epoch seconds at which this attempt began."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits for a slot: a row in the state BUFFERED, DELAYED or QUEUED."""

    item_id: int
    job: Job
    seq: int | None = None
    """The number that it keeps from its first try; ``None`` before its first pick."""
    retry: int = 0
    retry_of: str | None = None
    """The job key of the try before."""
    not_before: float | None = None
    """Epoch seconds before which it may not start."""


@dataclass(frozen=True, slots=True)
class Live:
    """A job that holds a slot: a row in the state STARTING or STARTED."""

    item_id: int
    key: str
    """The run id as text; before the run exists the id of its request."""
    job: Job
    seq: int
    retry: int = 0
    cap_key: str | None = None
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A job whose run has ended and whose hooks are to run now."""

    live: Live
    attempt: int
    """The attempt of the run that ended: hooks run once for each."""
    bad: bool
    """True when the run is FAILED; the class may count further outcomes as bad."""
    outcome: str
    retryable: bool
    """False for an end that no retry can better (stopped by a person, refused, fatal exit codes)."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Values that hooks are given: the words of the table in docs/managers.md."""
    tries: int = 0
    """The number of times that its hooks have failed."""

    @property
    def given_up(self) -> bool:
        """Return whether its hooks failed too often: the end then counts as handled, and no hook is called for it."""
        return self.tries >= TRIES


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts at the beginning of a cycle. The class requests all others while it works (``plans/calls.py``)."""

    manager_id: int
    attempt: int
    now: float
    """Epoch seconds."""
    next_seq: int
    """The number of the next job that is picked for the first time."""
    ended: list[Ended] = field(default_factory=list)
    live: int = 0
    """Jobs that hold a slot beside the ``ended`` ones."""
    live_by_spider: dict[str, int] = field(default_factory=dict)
    live_by_key: dict[str, int] = field(default_factory=dict)
    delayed: int = 0
    delayed_by_spider: dict[str, int] = field(default_factory=dict)
    queued: int = 0
    buffered: int = 0
    exhausted: bool = False
    """True when the source has no more."""
    sealed: bool = False
    """True when no more jobs come from outside (``ManagerStore.add_jobs``); only the built-in manager asks."""
    source_error: str | None = None
    """The reason why the source stopped for good (``Page.error``)."""
    last_pick: float | None = None
    """Epoch seconds of the cycle that last picked a job."""
    cap: int | None = None
    """The most live jobs, if a person set it (``crawlctl manager cap``); ``None``: the class decides."""
    paused: bool = False
    more_ended: bool = False
    """True when further ends wait for the next cycle."""


@dataclass(frozen=True, slots=True)
class Hooked:
    """The hooks of this end ran."""

    __pydantic_config__: ClassVar = _STRICT

    item_id: int
    attempt: int
    bad: bool


@dataclass(frozen=True, slots=True)
class HookFailed:
    """A hook of this end raised an error: its effects do not count, and the end is handled again in the next cycle."""

    __pydantic_config__: ClassVar = _STRICT

    item_id: int
    attempt: int
    error: str
    """The name of the hook, and what it raised."""
    later: bool = False
    """True when files of the job were not there yet: that is no try."""


@dataclass(frozen=True, slots=True)
class Added:
    """A new job: by ``add_job``, a retry, or by ``schedule_spider_with_jobargs`` called directly.

    ``ref`` is a negative number for it in the same decision, so that it may be picked at once.
    """

    __pydantic_config__: ClassVar = _STRICT

    ref: int
    job: Job
    unique: bool = True
    """True when it is skipped if its identity is known; direct calls and periodic jobs are never skipped."""
    seq: int | None = None
    """The number that it keeps: of a retry that of its first try; of a job that found no free slot when it was
    scheduled the next one, which is used up. A retry that this number has already is left out."""
    retry: int = 0
    retry_of: str | None = None
    not_before: float | None = None


@dataclass(frozen=True, slots=True)
class Picked:
    """This job takes a slot. ``item_id`` is that of a row, or the negative ``ref`` of an ``Added``."""

    __pydantic_config__: ClassVar = _STRICT

    item_id: int
    seq: int
    job: Job
    """The parameters for its run, with all its tags."""
    cap_key: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of one cycle. It is committed completely or not at all, in the order of the fields."""

    __pydantic_config__: ClassVar = _STRICT

    hooked: list[Hooked] = field(default_factory=list)
    failed: list[HookFailed] = field(default_factory=list)
    """One more try of each end; an end is given up after three."""
    added: list[Added] = field(default_factory=list)
    delayed: list[int] = field(default_factory=list)
    """Rows that go from BUFFERED to DELAYED."""
    picked: list[Picked] = field(default_factory=list)
    flow_tags: list[str] = field(default_factory=list)
    """Tags that were appended, for the manager itself and all later jobs."""
    state: dict[str, Any] | None = None
    """The new durable state; ``None``: unchanged."""
    stats: dict[str, float] = field(default_factory=dict)
    """The manager's statistics as they are now."""
    close_reason: str | None = None
    """The present close reason; ``None``: not set."""
    over: bool = False
    """True when the class wants no further cycle: the manager ends when the jobs picked here have begun. Live jobs then
    continue by themselves: they are neither cancelled nor waited for (S-02, S-32).
    """
    error: str | None = None
    """The mistake of the class in this cycle, and the cure. With ``over``: the manager fails for it."""
    waiting: str | None = None
    """One sentence: why nothing more was picked."""
    again_s: float | None = None
    """The longest wait for the next cycle, in seconds; ``None``: until something happens."""
    hook_errors: int = 0
    """Errors in hooks that belong to no end and are not repeated: those of ``on_close``."""


def outcome_of(close_reason: str | None, failed: bool, hook_errors: int, on_hook_error: str) -> tuple[str, bool]:
    """Outcome of a manager that ends with this close reason, and whether it FAILED: errors in its hooks are no
    success, unless its class says so. ``failed``: whether its class takes the close reason for a failure."""
    if failed or close_reason in FAILED_OUTCOMES or not hook_errors:
        return close_reason or FINISHED, failed or close_reason in FAILED_OUTCOMES
    return f"errors in hooks: {hook_errors}", on_hook_error == "fail"


def jobseq(seq: int, retry: int) -> str:
    """The tag of a job's number (S-57): ten digits, with the retry behind it."""
    return f"JOBSEQ={seq:010d}" + (f".r{retry}" if retry else "")


def manager_workflow_id(name: str, flow_id: str) -> str:
    """The workflow id of a manager, which is also the ``parent`` of its runs."""
    return f"manager/{name}/{flow_id}"


def run_request_id(manager_id: int, seq: int, retry: int) -> str:
    """The request id of a job's run; every try to begin it has the same id."""
    return f"manager/{manager_id}/{seq}" + (f".r{retry}" if retry else "")


def names_of_workflow(workflow_id: str) -> tuple[str, str] | None:
    """Name and flow id of the manager of this workflow; ``None`` for any other workflow."""
    kind, _, rest = workflow_id.partition("/")
    name, _, flow_id = rest.partition("/")
    return (name, flow_id) if kind == "manager" and name and flow_id else None


def job_of_request(request_id: str) -> tuple[int, int, int] | None:
    """Manager, number and retry of the job that such a request begins; ``None`` for any other request."""
    found = _REQUEST.fullmatch(request_id)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found is not None else None


def job_text(field_name: str, value: object) -> str:
    """An argument or setting as a process receives it: texts as they are, numbers and booleans by ``str()``, lists and
    objects as JSON with sorted keys. Raises ``InvalidRequest`` for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple | Mapping):
        try:
            return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError):
            pass
    raise refusal(field_name, value, "give a text, a number, true or false, or lists and objects of these")


# --- what the rows of a manager take, in the database as in memory ----------------------------------------------------

#: The largest epoch seconds of every database: the end of the year 9999.
_MOMENT_MAX = 253_402_300_799


def yields_behind(page: Page, position: int) -> list[SourceItem]:
    """The yields of a page that come after this position. Raises ``InvalidRequest`` when one of them is left out."""
    items = [item for item in page.items if item.position > position]
    if [item.position for item in items] != list(range(position + 1, page.position + 1)):
        raise InvalidRequest(
            f"items: the source is at position {position}; the next page has to go on from there to its own position "
            f"{page.position}, and leave nothing out"
        )
    return items


def new_numbers(decision: Decision, next_seq: int, numbers: Mapping[int, int | None]) -> set[int]:
    """The numbers that a decision gives to new jobs: they continue from ``next_seq`` without a gap, and a job keeps its
    number.

    ``numbers``: the numbers of the picked rows, by their ids. Raises ``InvalidRequest`` for an impossible decision,
    ``Overtaken`` when its numbers were given out meanwhile.
    """
    _check_added(decision, next_seq)
    own = {**numbers, **{one.ref: one.seq for one in decision.added}}
    picked = decision.picked
    if len({pick.item_id for pick in picked}) != len(picked) or any(pick.item_id not in own for pick in picked):
        raise InvalidRequest("item_id: a pick of nothing, or of the same job again")
    for pick in picked:
        if own[pick.item_id] not in (None, pick.seq):
            raise InvalidRequest(f"seq: {pick.seq} is not the number of job {pick.item_id}; it has {own[pick.item_id]}")
    new = [pick.seq for pick in picked if own[pick.item_id] is None]
    new += [one.seq for one in decision.added if one.seq is not None and one.retry == 0]
    if new and min(new) < next_seq:
        raise Overtaken(f"Number {min(new)} was given since the facts were read; the next cycle decides anew")
    if sorted(new) != list(range(next_seq, next_seq + len(new))):
        raise InvalidRequest(f"seq: the numbers of new jobs go on from {next_seq}, each once")
    return set(new)


def _check_added(decision: Decision, next_seq: int) -> None:
    refs = [one.ref for one in decision.added]
    if len(set(refs)) != len(refs) or any(ref >= 0 for ref in refs):
        raise InvalidRequest("ref: each added job has a negative one of its own")
    for one in decision.added:
        given = one.seq is not None and 0 < one.seq < next_seq
        if one.retry < 0 or (one.retry > 0 and not given):
            raise InvalidRequest(f"retry: {one.retry} of number {one.seq} is not allowed; no such number was given")
        if one.not_before is not None and not 0 <= one.not_before <= _MOMENT_MAX:
            raise InvalidRequest(f"not_before: {one.not_before!r} is not allowed; give seconds since 1970")
