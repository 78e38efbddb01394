"""Values that cross the ports: what is stored, deployed, observed and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from crawler_lifecycle.domain.corrections import CorrectionKind
from crawler_lifecycle.domain.names import run_subject
from crawler_lifecycle.domain.run import Limits, Resources, RunRequest, RunStatus, StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Change, Counters, Observation, TaskState, TaskStatus


@dataclass(frozen=True, slots=True)
class Owner:
    """The workflow that owns a run: its id and the first run id of its chain (stable over continue-as-new)."""

    workflow_id: str
    first_run_id: str


@dataclass(frozen=True, slots=True)
class Fence:
    """What a writer must still be for its write to count: this attempt of this very run, owned by this chain."""

    run_id: int
    attempt: int
    owner_run_id: str
    run_uid: str

    @property
    def run(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)


@dataclass(frozen=True, slots=True)
class RunHandle:
    """What a claim of a run answers."""

    run_id: int
    run_uid: str
    attempt: int
    status: RunStatus
    request: RunRequest
    """The stored request, without its task list."""
    multi: bool
    resumed: bool
    """Whether this attempt takes over from an earlier one."""
    rerun: bool = False
    repair: bool = False
    """Whether the claim stands in for a workflow that was lost."""
    stop: StopIntent | None = None


class UnknownStatus(str):
    """A recorded status that does not exist, as a list shows it: it stands where a status would, and is no end."""

    __slots__ = ()
    terminal = False

    @property
    def value(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One row of ``run_history`` as readers see it."""

    run_id: int
    run_uid: str
    request_id: str
    crawler: str
    trigger: str
    status: RunStatus
    stage: str
    attempt: int
    created_at: datetime
    updated_at: datetime
    attempt_at: datetime | None = None
    """When a later attempt than the first was accepted."""
    owner_workflow_id: str | None = None
    """Without ``owner_run_id``: the workflow that is to claim the attempt."""
    owner_run_id: str | None = None
    outcome: str | None = None
    cause: str | None = None
    request: Mapping[str, object] = field(default_factory=dict)
    multi: bool = False
    flow_id: str | None = None
    parent: str | None = None
    stop: StopIntent | None = None
    waiting_for: str | None = None
    waiting_since: datetime | None = None
    """When it began to wait for what it waits for."""
    stop_acted_at: datetime | None = None
    """When a workflow acted on the recorded stop."""
    look_error: str | None = None
    look_error_since: datetime | None = None
    """When looks began to fail, as long as they do."""
    verified_at: datetime | None = None
    next_look_at: datetime | None = None
    last_progress_at: datetime | None = None
    pages: int | None = None
    items: int | None = None
    errors: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    pages_per_minute: float | None = None
    """On average, from its start to its end or, before that, to ``last_progress_at``. Null where it is unknown; of a
    resumed run as well, whose counters and start are of several attempts: its tasks tell theirs."""
    unreadable: str | None = None
    """What cannot be in this row, and the cure. ``status`` is then what stands there, in a list also an
    ``UnknownStatus``; what cannot be read is empty."""

    @property
    def ref(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)


@dataclass(frozen=True, slots=True)
class ObserverHealth:
    """Whether an observer sees now, and how it stands."""

    up: bool
    problem: str | None = None
    """Why it sees nothing."""
    watched: int = 0
    """Tasks it has its eyes on."""
    place: int = 0
    """How many observers of the same cluster were there before it. They wake first; later ones leave them a moment."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the crawler of one task that executes has counted so far, read between looks."""

    run: RunRef
    attempt: int
    index: int
    counters: Counters
    at: datetime | None = None
    """When the crawler last wrote its counters, as far as it says so."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row of ``task_history`` as readers see it."""

    task_id: int
    run_id: int
    attempt: int
    task_index: int
    status: TaskStatus | str
    """Another text than a ``TaskStatus`` only in a row that is ``unreadable``."""
    superseded_by: int | None = None
    outcome: str | None = None
    cause: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    cluster: str | None = None
    cluster_name: str | None = None
    cluster_uid: str | None = None
    node: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    pages: int | None = None
    items: int | None = None
    errors: int | None = None
    peak_memory: int | None = None
    resumed: bool | None = None
    """Whether a task of a later attempt went on with saved state; ``None``: a first attempt, or nobody said."""
    resume_note: str | None = None
    deployed_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    last_progress_at: datetime | None = None
    """When its counters were last seen to move: what they say is of then."""
    pages_per_minute: float | None = None
    """On average, from its start to its end or, before that, to ``last_progress_at``; null where it is unknown."""
    unreadable: str | None = None
    """What cannot be in this row, and the cure; what cannot be read is empty."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """How many tasks of a run say the same about going on with the saved state of an earlier attempt."""

    resumed: bool | None
    note: str
    tasks: int


@dataclass(frozen=True, slots=True)
class TransitionRow:
    """One row of ``status_transition``."""

    seq: int
    run_id: int
    task_id: int | None
    attempt: int
    from_status: str | None
    to_status: str
    cluster_time: datetime | None
    committed_at: datetime
    lag_ms: int | None
    source: str
    evidence: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CorrectionRow:
    """One row of ``correction``."""

    id: int
    run_id: int
    task_id: int | None
    attempt: int
    kind: str
    believed: str
    believed_since: datetime | None
    truth: str
    truth_since: datetime | None
    found_by: str
    lag_ms: int | None
    evidence: Mapping[str, object]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Correction:
    """A recorded status that turned out to be untrue, to be written down by ``CorrectionStore.record_corrections``.

    ``believed`` and ``truth`` are statuses, or another word of at most 20 characters where what was untrue is none.
    """

    kind: CorrectionKind
    believed: str
    truth: str
    task_id: int | None = None
    """``None``: it is about the run itself."""
    attempt: int | None = None
    """``None``: that of the task, or the present one of the run."""
    believed_since: datetime | None = None
    """``None``: since when the database has had it on record."""
    truth_since: datetime | None = None
    """``None``: nobody can say."""
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskChanged:
    """One transition of a task, as it was committed."""

    status: str
    source: str
    lag_ms: int | None
    """From the cluster's own time of the change to the row's ``committed_at``."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """One correction as it was committed, with the cause that its task has now."""

    row: CorrectionRow
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """What one transaction added to the ledger."""

    run_id: int
    attempt: int
    changes: Sequence[TaskChanged]
    corrections: Sequence[Corrected]
    took: timedelta
    """How much later than the rows' own times the transaction was over."""


@dataclass(frozen=True, slots=True)
class CorrectionTotal:
    """Corrections of one kind: how many, and for how long at most a recorded status was untrue."""

    kind: str
    count: int
    worst_ms: int | None


@dataclass(frozen=True, slots=True)
class CorrectionSummary:
    """The corrections of all runs since a moment, by kind."""

    since: datetime
    kinds: Sequence[CorrectionTotal]
    """In alphabetical order; a kind of which there was none is left out."""

    @property
    def count(self) -> int:
        return sum(total.count for total in self.kinds)

    @property
    def worst_ms(self) -> int | None:
        """For how long at most a recorded status was untrue; ``None`` when none was, or nobody can say."""
        return max((total.worst_ms for total in self.kinds if total.worst_ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One row of ``audit_finding``: what audits found, and what became of it."""

    id: int
    subject: str
    kind: str
    status: str
    """``open``, ``repaired``, or ``gone`` without our doing."""
    run_id: int | None
    task_id: int | None
    workflow_id: str | None
    detail: str
    evidence: Mapping[str, object]
    first_seen: datetime
    last_seen: datetime
    repair: str | None
    repaired_at: datetime | None


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Tasks of a run that are not superseded, by status."""

    by_status: Mapping[str, int]

    @property
    def active(self) -> int:
        return sum(self.by_status.get(s, 0) for s in ("PENDING", "RUNNING", "STOPPING"))

    @property
    def queued(self) -> int:
        return self.by_status.get("QUEUED", 0)

    @property
    def alive(self) -> int:
        return self.active + self.queued

    def positive(self) -> dict[str, int]:
        """The statuses that tasks are in, as plain texts."""
        return {str(status): count for status, count in self.by_status.items() if count}


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task that may be offered to the scheduler service."""

    task_id: int
    index: int
    args: Mapping[str, str]
    offered_until: datetime | None = field(default=None, compare=False)
    """Until when an earlier call of the attempt may bring it to the cluster; ``None``: no other may have done so."""


@dataclass(frozen=True, slots=True)
class AddedTask:
    """A task that was appended to a live run."""

    task_id: int
    index: int


@dataclass(frozen=True, slots=True)
class Deployed:
    """The scheduler service's answer for one task. ``state``: created, existing, deferred or refused."""

    index: int
    state: str
    name: str | None = None
    uid: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment call, as in docs/scheduler.md."""

    run: RunRef
    attempt: int
    crawler: str
    args: Mapping[str, str]
    settings: Mapping[str, str]
    tasks: Sequence[QueuedTask]
    resources: Resources
    limits: Limits
    expires_at: datetime
    scheduled: bool = False
    due_at: datetime | None = None
    resume: bool = False
    """Whether crawlers that can resume should go on with the state of the attempt before."""
    place: str | None = None
    """Where the caller will look for the tasks (``Cluster.place``): they are created there or nowhere."""
    record: Mapping[str, object] = field(default_factory=dict)
    """What else the run's row says (``domain.adoption``), kept beside each task for a database that loses the row."""

    @property
    def run_id(self) -> int:
        return self.run.run_id


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What a cluster knows about a task that it was given, whether it still executes or not."""

    index: int
    attempt: int
    task_id: int
    crawler: str
    args: Mapping[str, str]
    """Complete: those of run, task and catalogue."""
    settings: Mapping[str, str]
    name: str
    uid: str
    place: str | None = None
    record: Mapping[str, object] = field(default_factory=dict)
    """As ``Deployment.record``; empty where there was none or it cannot be read."""


@dataclass(frozen=True, slots=True)
class LostRun:
    """A run that no row knows, with all that is known about it from elsewhere."""

    run: RunRef
    attempt: int
    request_id: str
    request: RunRequest
    """Without its task list."""
    multi: bool
    owner: Owner
    """The workflow that works or worked for it."""
    tasks: Sequence[TaskRecord]
    cluster: str
    total: int = 0
    """How many tasks it had at least, those that left nothing included."""
    stop: StopIntent | None = None


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task as the cluster knows it."""

    task_id: int
    index: int
    attempt: int
    uid: str | None = None
    stopping: bool = False
    """Whether we asked it to end, so that its absence is what was wanted."""
    missed_at: datetime | None = None
    """When the first of the looks in a row was made that did not find it; ``None``: the last one did."""
    place: str | None = None
    """Where it was put (``Cluster.place``): anywhere else its absence proves nothing. ``None``: not on record."""


@dataclass(frozen=True, slots=True)
class KeptEnd:
    """The end of a task that its cluster keeps for the sake of evidence until it is released."""

    run_id: int
    index: int
    attempt: int
    uid: str | None = None
    run_uid: str | None = None
    """Of the run that it says it is of."""
    ran: bool = True
    """Whether its crawler ever executed, so that there is an exit code to be recorded."""
    ended_at: datetime | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        return (self.run_id, self.index, self.attempt)


@dataclass(frozen=True, slots=True)
class Look:
    """One complete reading of the cluster for one run. An incomplete reading is an error, not a look."""

    observed_at: datetime
    seconds: float
    observations: Sequence[Observation]
    again_s: float | None = None
    """Seconds after which the cluster wants to be looked at again, when something is not yet proved."""


@dataclass(frozen=True, slots=True)
class Details:
    """Debugging information about one task, read from the cluster."""

    task_id: int
    log_tail: str | None = None
    counters: Counters = field(default_factory=Counters)
    peak_memory: int | None = None
    statistics: Mapping[str, int | float] | None = None
    """What the crawler's own statistics were at its end, within their bounds; ``None``: nobody told."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a task's log. ``next`` is the place after it; ``ended``: nothing will ever come after that."""

    data: bytes
    next: int
    ended: bool


@dataclass(frozen=True, slots=True)
class TaskFileList:
    """Supporting files of a task: paths below its folder, with sizes, by path."""

    files: list[tuple[str, int]]
    left_out: int
    """Names that are no readable file, or one too many."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file, and how large all of it is at this moment."""

    data: bytes
    size: int


@dataclass(frozen=True, slots=True)
class LookReport:
    """What a look changed or will change, after the store has staged its findings."""

    changed: int
    active: int
    queued: int
    stop: StopIntent | None = None
    """The stop intent now on record, which may have come past the workflow (through the gateway)."""
    quiet: timedelta = timedelta(0)
    """For how long looks vouch that nothing moved (``domain.stall``)."""
    pages: int | None = None
    items: int | None = None
    errors: int | None = None


@dataclass(frozen=True, slots=True)
class FoundState:
    """The state of a run against which a look is compared, read in one transaction."""

    tasks: Sequence[TaskState]
    stop: StopIntent | None
    next_look_at: datetime | None
    last_progress_at: datetime | None
    counters: Counters


@dataclass(frozen=True, slots=True)
class TaskFinding:
    """One change that a look found, with the observation that proves it, staged until ``sync_statuses``."""

    change: Change
    observation: Observation


@dataclass(frozen=True, slots=True)
class Event:
    """One row of ``outbox_event``."""

    seq: int
    run_id: int | None
    """The run that it is about, if it is about one."""
    subject_uid: str
    """Whose number the subject's is: numbers come again where a database was restored."""
    attempt: int
    type: str
    body: Mapping[str, object]
    created_at: datetime
    subject: str = ""
    """What it is about: ``runs/7``, ``managers/3``; left out: the run."""

    def __post_init__(self) -> None:
        if not self.subject:
            object.__setattr__(self, "subject", run_subject(self.run_id or 0))

    @property
    def key(self) -> str:
        """Names subject, attempt and type, in this database and every other: ``event_key``."""
        number = self.subject.partition("/")[2]
        prefix = "" if self.run_id is not None else self.subject.removesuffix(number)
        return f"{prefix}{number}-{self.subject_uid}/{self.attempt}/{self.type}"


class FilesMissing(Exception):
    """The supporting files of one task are not there, or not whole; the text says why. No error of the storage."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """What one task left, which goes into an archive under ``prefix``: a folder, a bundle, or nothing and why.

    Exactly one of the three is given. What is missing is told in the archive, and never taken for an empty folder.
    """

    prefix: str
    folder: Path | None = None
    bundle: Callable[[], Iterator[bytes]] | None = None
    """Opens the bytes of a ``tar.gz`` that the task uploaded. It, or the reading, raises ``FilesMissing`` when they are
    not there or end too early, and ``NotDelivered`` when they cannot be read now."""
    missing: str | None = None
    """Why there is nothing."""
    root: Path | None = None
    """A folder above ``folder`` that is ours alone: below it crawlers may write, and no link is followed."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to write one object: with exactly these headers, these bytes and no others, until ``expires_at``."""

    url: str
    headers: Mapping[str, str]
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One execution of a step's function, as the process that calls it needs it."""

    function: str
    """``module:qualname``."""
    style: str
    """How it is called (``domain.graph.spec.StepSpec.job``)."""
    graph: str
    """The key of its graph."""
    job: Mapping[str, Any]
    """The step, as ``graphs.job.Job.of`` reads it."""
    limit_s: float
    """Seconds that it may take."""
    graft: bool = False
    given: Iterable[tuple[Mapping[str, Any], Iterable[bytes]]] = ()
    """For a cascade: contexts from the outermost graph inwards (``path`` is empty), then what its dependencies
    recorded, each behind its ``path``: names below the level of the step."""


@dataclass(frozen=True, slots=True)
class FunctionReply:
    """How a function ended that was executed to its end."""

    kind: str
    """``done``; ``value``: with a result; ``cancel``: it returned ``Cancel``; ``snooze``: it returned ``Snooze``."""
    result: Sequence[bytes] | None = None
    """Encoded and packed (``domain.values``)."""
    result_bytes: int = 0
    reason: str | None = None
    seconds: float = 0.0


class WorkerLeaves(Exception):
    """This worker ends, and with it its processes; that says nothing about what they were called for."""


class PlanFailed(Exception):
    """Users' code could not do what it was asked to. The text says what and where, and the cure where there is one."""

    def __init__(
        self,
        text: str,
        *,
        item_id: int | None = None,
        lives: bool = False,
        for_good: bool = False,
        missing: bool = False,
        struck: bool = False,
    ) -> None:
        """``item_id``: the job whose hooks were at work. ``lives``: its process is still there. ``for_good``: another
        try leads to the same until the code or the options change. ``missing``: the class could not be loaded on this
        worker; another one may have it. ``struck``: its process was ended from outside (SIGKILL, SIGTERM)."""
        super().__init__(text)
        self.item_id, self.lives, self.for_good, self.missing = item_id, lives, for_good, missing
        self.struck = struck
