"""Runs and tasks as they are on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.names import run_subject
from crawler_lifecycle.domain.run import Limits, Resources, RunRequest, RunStatus, StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import TaskStatus

#: The most rows that ``changed_runs`` compares, and crawlers for ``recent_runs``, in one call.
ROWS_MAX, CRAWLERS_MAX = 2_000, 200


@dataclass(frozen=True, slots=True)
class Owner:
    """The workflow that owns a run: its id and the first run id of its chain (stable over continue-as-new)."""

    workflow_id: str
    first_run_id: str


@dataclass(frozen=True, slots=True)
class Fence:
    """A writer's claim on a run: its write counts only while this very run is at this attempt, owned by this chain."""

    run_id: int
    attempt: int
    owner_run_id: str
    run_uid: str

    @property
    def run(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)


@dataclass(frozen=True, slots=True)
class RunHandle:
    """The answer to a claim of a run."""

    run_id: int
    run_uid: str
    attempt: int
    status: RunStatus
    request: RunRequest
    """The stored request, without its task list."""
    multi: bool
    resumed: bool
    """True when this attempt takes over from an earlier one."""
    rerun: bool = False
    repair: bool = False
    """True when the claim replaces a lost workflow."""
    stop: StopIntent | None = None


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
    """The time when a later attempt than the first was accepted."""
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
    """The time when its present wait began."""
    stop_acted_at: datetime | None = None
    """The time when a workflow acted on the recorded stop."""
    look_error: str | None = None
    look_error_since: datetime | None = None
    """The time when looks began to fail, as long as they do."""
    verified_at: datetime | None = None
    next_look_at: datetime | None = None
    last_progress_at: datetime | None = None
    pages: int | None = None
    items: int | None = None
    errors: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    deleted_at: datetime | None = None
    """The time when somebody asked that all that it brought goes."""
    deletion_ended_at: datetime | None = None
    deletion: Mapping[str, Any] | None = None
    """Who asked, what of it is ``gone`` and what is ``left`` and why, by place."""
    fields: Coverage | None = None
    """The fields that its items fill, from its verdict on."""
    pages_per_minute: float | None = None
    """On average, from its start to its end or, before that, to ``last_progress_at``. Null where it is unknown; of a
    resumed run as well, whose counters and start are of several attempts: its tasks tell theirs."""

    @property
    def ref(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)


@dataclass(frozen=True, slots=True)
class RecentRun:
    """One of the last runs of a crawler: its result and its counters."""

    run_id: int
    crawler: str
    status: str
    outcome: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    pages: int | None
    items: int | None
    errors: int | None
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row of ``task_history`` as readers see it."""

    task_id: int
    run_id: int
    attempt: int
    task_index: int
    status: TaskStatus
    superseded_by: int | None = None
    outcome: str | None = None
    cause: str | None = None
    error: str | None = None
    """The line that says why it failed, from its log or its runner; ``None``: it did not, or there is none."""
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
    """True when a task of a later attempt continued from saved state; ``None``: a first attempt, or unknown."""
    resume_note: str | None = None
    deployed_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    last_progress_at: datetime | None = None
    """The time when its counters were last seen to move: what they say is of then."""
    pages_per_minute: float | None = None
    """On average, from its start to its end or, before that, to ``last_progress_at``; null where it is unknown."""


class DrawnTask(NamedTuple):
    """A task as one square shows it: the little of its row that is read for thousands of them."""

    task_id: int
    task_index: int
    status: str
    outcome: str | None
    cause: str | None
    reason: str | None
    node: str | None
    exit_code: int | None
    exit_signal: int | None
    peak_memory: int | None


@dataclass(frozen=True, slots=True)
class Resumption:
    """The number of a run's tasks that say the same about going on with the saved state of an earlier attempt."""

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
class LostRun:
    """A run without a row, with all data about it from other sources."""

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
    """The lower bound of its number of tasks, including those that left nothing."""
    stop: StopIntent | None = None


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
class RunTasks:
    """The tasks of a run in the form of a list."""

    counts: TaskCounts
    reason: str | None = None
    """The reason why a task is PENDING: that of the first, among the first few, that has a reason."""


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task that may be offered to the scheduler service."""

    task_id: int
    index: int
    args: Mapping[str, str]
    offered_until: datetime | None = field(default=None, compare=False)
    """The time until which an earlier call of the attempt may create it; ``None``: no other call may have done so."""


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
    priority: int = 3
    """The priority of the run: 1 is first, 5 is last."""
    resume: bool = False
    """True when resumable crawlers should continue from the state of the attempt before."""
    place: str | None = None
    """The namespace in which the caller will search the tasks (``Cluster.place``): they are created there or
    nowhere.
    """
    record: Mapping[str, object] = field(default_factory=dict)
    """The rest of the run's row (``domain.adoption``), kept beside each task for a database that loses the row."""

    @property
    def run_id(self) -> int:
        return self.run.run_id


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The record that a cluster has of a task that it was given, whether it still executes or not."""

    index: int
    attempt: int
    task_id: int
    crawler: str
    args: Mapping[str, str]
    """The complete arguments: those of run, task and catalogue."""
    settings: Mapping[str, str]
    name: str
    uid: str
    place: str | None = None
    record: Mapping[str, object] = field(default_factory=dict)
    """As ``Deployment.record``; empty where it is missing or unreadable."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task as the cluster identifies it."""

    task_id: int
    index: int
    attempt: int
    uid: str | None = None
    stopping: bool = False
    """True when we asked it to end, so that its absence is expected."""
    missed_at: datetime | None = None
    """The time of the first of the looks in a row that did not find it; ``None``: the last look found it."""
    place: str | None = None
    """The namespace of the task (``Cluster.place``): anywhere else its absence proves nothing. ``None``: not
    recorded.
    """


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to write one object: with exactly these headers, these bytes and no others, until ``expires_at``."""

    url: str
    headers: Mapping[str, str]
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Event:
    """One row of ``outbox_event``."""

    seq: int
    run_id: int | None
    """The run that it is about, if it is about one."""
    subject_uid: str
    """The uid of the subject: numbers are given out again after a restore of the database."""
    attempt: int
    type: str
    body: Mapping[str, object]
    created_at: datetime
    subject: str = ""
    """The subject: ``runs/7``, ``managers/3``; left out: the run."""

    def __post_init__(self) -> None:
        if not self.subject:
            object.__setattr__(self, "subject", run_subject(self.run_id or 0))

    @property
    def key(self) -> str:
        """Names subject, attempt and type, in this database and every other: ``event_key``."""
        number = self.subject.partition("/")[2]
        prefix = "" if self.run_id is not None else self.subject.removesuffix(number)
        return f"{prefix}{number}-{self.subject_uid}/{self.attempt}/{self.type}"
