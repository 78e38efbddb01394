"""Ports of crawl managers: their rows, their jobs, and the plans that may be started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from crawler_lifecycle.domain.managers.manager import Job, JobState
from crawler_lifecycle.domain.run import RunStatus, StopIntent


@dataclass(frozen=True, slots=True)
class ManagerFence:
    """A writer's claim on a manager: its write counts only while the manager has this attempt, owner and generation.

    ``generation`` is that of the process which holds the class; ``None`` for other writers (the workflow).
    """

    manager_id: int
    attempt: int
    owner_run_id: str
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class NewManager:
    """A manager as the one who starts it describes it."""

    name: str
    flow_id: str
    plan: str
    """``module:Class`` of a registered plan."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """``{"argv": [...]}``: the options of the class as on its command line; and other options from the gateway."""
    requested_by: str | None = None
    parent: str | None = None
    """The workflow that is notified of the end."""
    tags: Sequence[str] = ()
    fresh: bool = False
    """True when the flow id was made for this start, so that nothing may be resumed (S-24)."""


@dataclass(frozen=True, slots=True)
class ManagerCounts:
    """The number of a manager's jobs in each state, and its counters."""

    by_state: Mapping[str, int] = field(default_factory=dict)
    yields: int = 0
    duplicates: int = 0
    skipped: int = 0
    scheduled: int = 0
    retried: int = 0
    good: int = 0
    bad: int = 0

    def settled(self, live: int) -> ManagerCounts:
        """The same after the end of the manager: jobs whose run has not ended."""
        started, ended = JobState.STARTED.value, JobState.ENDED.value
        over = self.by_state.get(started, 0) - live
        return replace(self, by_state={**self.by_state, started: live, ended: self.by_state.get(ended, 0) + over})

    @property
    def live(self) -> int:
        return self.by_state.get(JobState.STARTING, 0) + self.by_state.get(JobState.STARTED, 0)


@dataclass(frozen=True, slots=True)
class ManagerRow:
    """One row of ``manager`` as readers see it."""

    manager_id: int
    manager_uid: str
    """The uid of this manager: numbers are given out again after a restore of the database."""
    name: str
    flow_id: str
    plan: str
    options: Mapping[str, Any]
    status: RunStatus
    attempt: int
    created_at: datetime
    updated_at: datetime
    outcome: str | None = None
    """The close reason, once it has ended."""
    cause: str | None = None
    owner_run_id: str | None = None
    generation: int = 0
    fingerprint: str | None = None
    """The fingerprint of the class's source, as it was last loaded."""
    position: int = 0
    """Yields of the source that are on record, in its present pass."""
    exhausted: bool = False
    source_error: str | None = None
    """The error that stopped the source for good, until a new pass (``Page.error``)."""
    over: bool = False
    """True when a committed decision of this attempt ended the manager: its class is not called any more."""
    sealed: bool = False
    """True when no more items will come from outside (the built-in manager)."""
    next_seq: int = 1
    tries: int = 0
    """Cycles in a row that its class could not do."""
    hook_errors: int = 0
    """Hooks of this attempt that failed for good: of ends that were given up, and ``on_close``."""
    cap: int | None = None
    paused: bool = False
    leave: bool = False
    """True when its runs continue after it is stopped."""
    stop: StopIntent | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, float] = field(default_factory=dict)
    tags: Sequence[str] = ()
    flow_tags: Sequence[str] = ()
    """Tags that the class appended for itself and all later jobs; ``tags`` has them too."""
    close_reason: str | None = None
    waiting_for: str | None = None
    error: str | None = None
    """The error of its class, its position, and the cure; ``None`` while there is none."""
    requested_by: str | None = None
    parent: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    pruned_through: int | None = None
    """Its events up to this number may have been removed; ``None``: none was."""
    jobs_pruned_at: datetime | None = None
    """The time when jobs of it were last removed, long after an end: from then on the same jobs are new to it."""
    counts: ManagerCounts = ManagerCounts()
    """After its end: includes the later ends of its runs, which no cycle handles."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The state that a committed decision left behind."""

    starting: int
    """Jobs whose run is to be begun."""
    live: int
    """Number of jobs that hold a slot."""
    dropped: int = 0
    """Picks that were dropped: their identity is known, or a stop, a pause, a lower cap or the resumption of a run came
    before the commit. In the latter cases the jobs continue waiting.
    """
    stopped: bool = False
    """True when a stop is on record."""
    hook_errors: int = 0
    """``ManagerRow.hook_errors``."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One row of ``manager_item`` as readers see it."""

    item_id: int
    state: JobState
    job: Job | None
    """``None``: a yield that is no valid job (``error``), or unreadable."""
    seq: int | None = None
    retry: int = 0
    position: int | None = None
    run_id: int | None = None
    outcome: str | None = None
    error: str | None = None
    not_before: datetime | None = None
    unreadable: str | None = None
    """The fault in this row, and the cure."""


@dataclass(frozen=True, slots=True)
class LiveManagers:
    """The number of managers that have not ended."""

    by_status: Mapping[str, int] = field(default_factory=dict)
    failing: int = 0
    """The number of them that have an error."""
    jobs: int = 0
    """Jobs of theirs that hold a slot."""


PLAN_MANAGER, PLAN_MODULE, PLAN_READING = "manager", "module", "reading"
#: Seconds for which a worker's report of what it serves is valid. It repeats the report every minute.
HEARD_S = 180.0


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A piece of users' code that workers of the role ``plans`` have."""

    plan: str
    """``module:Class``; of a module its name."""
    kind: str
    """``PLAN_MANAGER``: a class that may be started; ``PLAN_MODULE``: a module whose functions graphs may call;
    ``PLAN_READING``: a module that a worker is about to read for the first time."""
    name: str | None
    description: str
    fingerprint: str
    options: Sequence[Mapping[str, Any]] = ()
    """The options of its command line: name, help, default, type, required of each."""
    error: str | None = None
    """The reason why it cannot be used: an import that failed, no name …"""
    seen_at: datetime | None = None
    """The time when its worker last reported it; ``None``: no worker does any more."""
    queue: str | None = None
    """Of a module: the pool of workers that has it. Managers are served by workers of all pools alike."""

    def heard(self, now: datetime) -> bool:
        """Return whether a worker reports this now."""
        return self.seen_at is not None and (now - self.seen_at).total_seconds() < HEARD_S
