"""What is deployed, and what a cluster says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from crawler_lifecycle.domain.run import Limits, Resources
from crawler_lifecycle.domain.run_ref import RunRef


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
    """What a list says about the tasks of a run."""

    counts: TaskCounts
    reason: str | None = None
    """Why one of those that are PENDING is: the first of the first few that has a reason."""


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
class Ticket:
    """Leave to write one object: with exactly these headers, these bytes and no others, until ``expires_at``."""

    url: str
    headers: Mapping[str, str]
    expires_at: datetime
