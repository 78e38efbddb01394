"""Values about runs and tasks that the database records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.projects import DEFAULT
from crawler_lifecycle.domain.quick import quick_dataclass
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits, RunRequest, RunStatus, StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.domain.tries import Try
from crawler_lifecycle.domain.waiting import Wait

#: The maximum number of runs or tasks in one call to the store, and of crawlers in one call to
#: ``recent_runs``.
ROWS_MAX = 2_000
CRAWLERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Owner:
    """The workflow that owns a run: its id, and the first run id in its chain. Both survive
    continue-as-new.
    """

    workflow_id: str
    first_run_id: str


@dataclass(frozen=True, slots=True)
class Fence:
    """A writer's permission to change a run. A write is accepted only while exactly this run has
    this attempt and this owner.
    """

    run_id: int
    attempt: int
    owner_run_id: str
    run_uid: str

    @property
    def run(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)


@dataclass(frozen=True, slots=True)
class RunHandle:
    """The run that a workflow has claimed."""

    run_id: int
    run_uid: str
    attempt: int
    status: RunStatus
    request: RunRequest
    """The stored request, excluding the task list."""
    multi: bool
    resumed: bool
    """True if this attempt continues the work of an earlier attempt."""
    rerun: bool = False
    repair: bool = False
    """True if the workflow that claims the run replaces one that was lost."""
    stop: StopIntent | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """One row in the table ``run_history``, without columns that only the store needs."""

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
    """The time at which the current attempt was accepted, or ``None`` for the first attempt."""
    owner_workflow_id: str | None = None
    """The workflow that owns the run. While ``owner_run_id`` is ``None``, no workflow has claimed
    the attempt yet.
    """
    owner_run_id: str | None = None
    pool: str = DEFAULT
    outcome: str | None = None
    ended_by: str | None = None
    """The party that ended the run (``EndedBy``), or ``None`` if the run is live or an older build
    ended it.
    """
    lacks: str | None = None
    """The expectation that the run failed to meet, if any (``domain.run.Verdict``)."""
    cause: str | None = None
    request: Mapping[str, object] = field(default_factory=dict)
    multi: bool = False
    flow_id: str | None = None
    parent: str | None = None
    project: str = DEFAULT
    stop: StopIntent | None = None
    waiting_for: str | None = None
    waiting_since: datetime | None = None
    """The time at which the current wait of the run began."""
    stop_acted_at: datetime | None = None
    """The time at which a workflow acted on the recorded stop."""
    look_error: str | None = None
    look_error_since: datetime | None = None
    """The time of the first failed poll since the last successful poll, or ``None`` if the last
    poll succeeded."""
    verified_at: datetime | None = None
    next_look_at: datetime | None = None
    last_progress_at: datetime | None = None
    pages: int | None = None
    items: int | None = None
    errors: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    deleted_at: datetime | None = None
    """The time at which the deletion of the run's data was requested."""
    deletion_ended_at: datetime | None = None
    deletion: Mapping[str, Any] | None = None
    """The report of the deletion: the requester, the removed data (``gone``), and the remaining
    data with reasons (``left``).
    """
    fields: Coverage | None = None
    """The fields in which the run's items have values. This is known after the verdict."""
    pages_per_minute: float | None = None
    """The average from the start of the run to its end or, before the end, to ``last_progress_at``.
    ``None`` if the average is unknown, and for a resumed run, whose counters belong to several
    attempts. Each row of a task has its own average.
    """
    codes: Sequence[Code] = ()
    """The different codes of the run's tasks. Only a run that was read by its number, or for a
    list, has them."""

    @property
    def ref(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)


@dataclass(frozen=True, slots=True)
class ShortRun:
    """The result of a run."""

    run_id: int
    crawler: str
    status: str
    outcome: str | None
    items: int | None
    ended_by: str | None
    lacks: str | None
    created_at: datetime
    work_hash: str | None
    """The fingerprint of its arguments and settings; ``None`` in old rows."""


@dataclass(frozen=True, slots=True)
class RecentRun(ShortRun):
    """The result, the times and the counters of a run."""

    started_at: datetime | None
    ended_at: datetime | None
    pages: int | None
    errors: int | None
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class BriefRun(RecentRun):
    """A run with the data that a page about many runs shows. The request is omitted."""

    cause: str | None = None
    parent: str | None = None
    fields: Coverage | None = None


@dataclass(frozen=True, slots=True)
class Ends:
    """The runs of a crawler that were created since a time and have ended: their numbers by status,
    and the reasons.
    """

    completed: int
    failed: int
    stopped: int
    """The number of FAILED runs that a person stopped."""
    failures: Sequence[tuple[int, BriefRun]]
    """The most frequent outcomes of FAILED runs that no person stopped, each with the number of
    runs and the newest run.
    """


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """The live runs of a crawler that are waiting for the same thing, or for nothing (``None``).

    ``pool`` is the pool of their slots.
    """

    crawler: str
    wait: Wait | None
    pool: str
    runs: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row in the table ``task_history``, without columns that only the store needs."""

    task_id: int
    run_id: int
    attempt: int
    task_index: int
    status: TaskStatus
    run_attempt: int = 1
    """The attempt of the run to which this try belongs."""
    superseded_by: int | None = None
    retry: int = 0
    """The number of earlier tries under the retry policy in this attempt of the run."""
    not_before: datetime | None = None
    """The earliest time at which this try may begin."""
    retry_note: str | None = None
    """The reason why no try follows this one."""
    outcome: str | None = None
    ended_by: str | None = None
    cause: str | None = None
    error: str | None = None
    """The line, in the task's log or from its runner, that explains why the task failed. ``None``
    if the task did not fail, or if there is no such line.
    """
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
    """True if the task continued from the saved state of an earlier attempt. ``None`` for the first
    attempt, or if unknown.
    """
    resume_note: str | None = None
    deployed_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    last_progress_at: datetime | None = None
    """The time at which the task's counters last changed."""
    pages_per_minute: float | None = None
    """The average from the task's start to its end or, before the end, to ``last_progress_at``.
    ``None`` if unknown.
    """
    code: Code | None = None


@dataclass(frozen=True, slots=True)
class Resumption:
    """The number of a run's tasks that have the same note about resuming from saved state."""

    resumed: bool | None
    note: str
    tasks: int


@dataclass(frozen=True, slots=True)
class TransitionRow:
    """One row in the table ``status_transition``: a change of a status."""

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
    """A run whose row is missing from the database, with all data about it from other sources."""

    run: RunRef
    attempt: int
    request_id: str
    request: RunRequest
    """The request, excluding the task list."""
    multi: bool
    owner: Owner
    """The workflow that owns or owned the run."""
    tasks: Sequence[TaskRecord]
    cluster: str
    total: int = 0
    """The number of tasks in the workflow's last count, or 0 if the workflow counted after the row
    was lost. Records can contain more tasks.
    """
    stop: StopIntent | None = None


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The number of a run's tasks in each status, excluding superseded tasks."""

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
        """Return the counts above zero, with the statuses as plain strings."""
        return {str(status): count for status, count in self.by_status.items() if count}


@dataclass(frozen=True, slots=True)
class Resting:
    """The number of QUEUED tasks whose next try may not begin yet, and the seconds until the
    earliest of these tries.
    """

    tasks: int = 0
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class RetriedTasks:
    """The state of a run's tasks after decisions about retries. ``ended`` is the number of tasks
    that ended without success and are not retried.
    """

    counts: TaskCounts
    ended: int
    resting: Resting
    left: int = 0
    """The number of ended tasks that the next call decides about."""


@dataclass(frozen=True, slots=True)
class RunTasks:
    """The data about a run's tasks that a list of runs shows."""

    counts: TaskCounts
    reason: str | None = None
    """The reason why a task is PENDING: the first known reason among the first few PENDING
    tasks.
    """


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task that may be offered to the scheduler service."""

    task_id: int
    index: int
    args: Mapping[str, str]
    offered_until: datetime | None = field(default=None, compare=False)
    """The time until which an earlier call in this attempt can still create the task, or ``None``
    if no earlier call can create it.
    """
    attempt: int = 1
    """The number of this try among all tries with this index, over all attempts of the run. This
    number is part of the task's name on the cluster.
    """
    retry: int = 0
    """The number of earlier tries under the retry policy."""
    memory: str | None = None
    """The memory for this try, if an earlier try had too little memory."""
    avoid_node: str | None = None
    """The node of the previous try, which this try should avoid."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that the task's node must have."""


@dataclass(frozen=True, slots=True)
class DeployedTask:
    """The scheduler service's result for one task. ``state`` is created, existing, deferred or
    refused.
    """

    index: int
    state: str
    name: str | None = None
    uid: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The content of one deployment call (docs/scheduler.md)."""

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
    """The priority of the run, where 1 is first and 5 is last."""
    pool: str = DEFAULT
    """The pool whose slots the run uses."""
    queue: str | None = None
    """The Kueue queue for this pool, used for crawlers that name no queue."""
    resume: bool = False
    """True if resumable crawlers should continue from the state of the previous attempt."""
    place: str | None = None
    """The namespace in which the caller will look for the tasks (``Cluster.place``). The tasks must
    be created in this namespace.
    """
    record: Mapping[str, object] = field(default_factory=dict)
    """Further columns of the run's row (``domain.audits.adoption``). The cluster stores these
    columns with each task, because the database can lose the row.
    """
    code: Code | None = None
    """The version of a deployed package that the tasks execute; ``None`` for code that the cluster
    has itself.
    """
    entry: Mapping[str, object] | None = None
    """The crawler's entry, if the database has it. The cluster knows only those of its file."""

    @property
    def run_id(self) -> int:
        return self.run.run_id

    def of(self, task: QueuedTask) -> Deployment:
        """Return this call with the memory for one task."""
        return (
            replace(self, resources=Resources(memory=task.memory).over(self.resources))
            if task.memory
            else self
        )


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The record that a cluster keeps of a deployed task, which may still be executing or may have
    ended."""

    index: int
    attempt: int
    task_id: int
    crawler: str
    args: Mapping[str, str]
    """The complete arguments, merged from the run, the task and the catalogue."""
    settings: Mapping[str, str]
    name: str
    uid: str
    place: str | None = None
    record: Mapping[str, object] = field(default_factory=dict)
    """The value of ``Deployment.record``, or empty if it is missing or unreadable."""


@quick_dataclass(frozen=True, slots=True)
class TaskRef:
    """The data with which a cluster identifies a task."""

    task_id: int
    index: int
    attempt: int
    uid: str | None = None
    stopping: bool = False
    """True if we asked the task to end. The absence of the task is then expected."""
    missed_at: datetime | None = None
    """The time of the first poll in the latest series of polls that did not find the task, or
    ``None`` if the last poll found the task.
    """
    place: str | None = None
    """The task's namespace (``Cluster.place``), or ``None`` if not recorded. The absence of the
    task from another namespace proves nothing.
    """

    @classmethod
    def of(cls, one: Try) -> TaskRef:
        """Return the reference to the task that executes this try."""
        return cls(one.task_id, one.task_index, one.attempt, one.cluster_uid)


@dataclass(frozen=True, slots=True)
class Ticket:
    """The permission to write one object until ``expires_at``. The request must have exactly these
    headers and the announced bytes.
    """

    url: str
    headers: Mapping[str, str]
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Event:
    """One row in the table ``outbox_event``."""

    seq: int
    run_id: int | None
    """The run that the event describes, if any."""
    subject_uid: str
    """The uid of the subject. Its number alone is not unique, because a restored database can reuse
    a number.
    """
    attempt: int
    type: str
    body: Mapping[str, object]
    created_at: datetime
    subject: str
    """The subject, such as ``runs/7`` or ``managers/3``."""

    @property
    def key(self) -> str:
        """The unique key of the event, made of subject, uid, attempt and type. It is unique even
        across databases.
        """
        number = self.subject.partition("/")[2]
        prefix = "" if self.run_id is not None else self.subject.removesuffix(number)
        return f"{prefix}{number}-{self.subject_uid}/{self.attempt}/{self.type}"


@dataclass(frozen=True, slots=True)
class RunRobots:
    """The robots.txt that a run got for a host."""

    host: str
    sha256: str | None
    """Null if the host has no rules, or if they are unknown."""
    crawl_delay: float | None
    """The seconds between two requests that it demands."""
    refused: int
    """The number of requests that it did not allow."""
