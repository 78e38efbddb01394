"""Rows of the database as readers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import ACTIVE, TaskStatus


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
        return sum(self.by_status.get(s, 0) for s in ACTIVE)

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
class Event:
    """One row of ``outbox_event``."""

    seq: int
    run_id: int
    run_uid: str
    attempt: int
    type: str
    body: Mapping[str, object]
    created_at: datetime

    @property
    def run(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)
