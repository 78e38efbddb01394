"""Values that cross the ports: what is claimed, deployed, looked at, corrected and delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from crawler_lifecycle.domain.corrections import CorrectionKind
from crawler_lifecycle.domain.run import Limits, Resources, RunRequest, RunStatus, StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Change, Counters, Observation, TaskState
from crawler_lifecycle.ports.rows import CorrectionRow


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
