"""Runs and tasks as they are on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import TaskStatus

from .deployment import TaskRecord


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
class RecentRun:
    """One of the last runs of a crawler: how it went, and what it brought."""

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


class DrawnTask(NamedTuple):
    """What one square says of a task: the little of its row that is read for thousands of them."""

    task_id: int
    task_index: int
    status: str
    """What stands there, also where it is no ``TaskStatus``."""
    outcome: str | None
    cause: str | None
    reason: str | None
    node: str | None
    exit_code: int | None
    exit_signal: int | None
    peak_memory: int | None
    unreadable: bool
    """Whether one of these values cannot be; ``TaskRow`` says which."""


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
