"""The values of crawl managers: their rows and jobs, and the user code that can be started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.names import manager_workflow_id
from crawler_lifecycle.domain.projects import DEFAULT
from crawler_lifecycle.domain.run import RunStatus, StopIntent

from .domain.manager import Job, JobState


@dataclass(frozen=True, slots=True)
class ManagerFence:
    """A writer's permission to change a manager.

    A write counts only while the manager has this attempt, this owner and this generation.
    ``generation`` belongs to the process that runs the class of the manager. ``generation`` is
    ``None`` for other writers (the workflow).
    """

    manager_id: int
    attempt: int
    owner_run_id: str
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class NewManager:
    """A manager as its starter describes it."""

    name: str
    flow_id: str
    plan: str
    """The registered class, as ``module:Class``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the class as on its command line (``{"argv": [...]}``), and further options
    from the gateway.
    """
    requested_by: str | None = None
    parent: str | None = None
    """The workflow that is notified when the manager ends."""
    project: str | None = None
    """``None`` means the project of the caller, or of an existing manager."""
    tags: Sequence[str] = ()
    fresh: bool = False
    """True if the flow id was generated for this start, so that no earlier manager may be resumed
    (S-24).
    """


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
        """Return the counts after the end of the manager.

        ``live`` is the number of started jobs whose run has not ended. All other started jobs count
        as ended.
        """
        started = JobState.STARTED.value
        ended = JobState.ENDED.value
        over = self.by_state.get(started, 0) - live
        return replace(
            self,
            by_state={**self.by_state, started: live, ended: self.by_state.get(ended, 0) + over},
        )

    @property
    def live(self) -> int:
        return self.by_state.get(JobState.STARTING, 0) + self.by_state.get(JobState.STARTED, 0)


#: The number of successive failed cycles after which a manager needs attention.
STUCK_TRIES = 3


@dataclass(frozen=True, slots=True)
class ManagerRow:
    """One row of the table ``manager``, excluding columns that only the store needs."""

    manager_id: int
    manager_uid: str
    """The uid of this manager. The manager's number alone is not unique, because a restored
    database may assign the same number again.
    """
    name: str
    flow_id: str
    plan: str
    options: Mapping[str, Any]
    status: RunStatus
    attempt: int
    created_at: datetime
    updated_at: datetime
    outcome: str | None = None
    """The close reason after the manager has ended."""
    cause: str | None = None
    owner_run_id: str | None = None
    generation: int = 0
    fingerprint: str | None = None
    """The fingerprint of the source code of the class that was loaded last."""
    position: int = 0
    """The number of recorded yields of the source in its current pass."""
    exhausted: bool = False
    source_error: str | None = None
    """The error that stopped reading from the source, until a new pass begins (``Page.error``)."""
    over: bool = False
    """True if a committed decision of this attempt ended the manager. The manager's class is then
    no longer called.
    """
    sealed: bool = False
    """True if no further items will be sent (to the built-in manager)."""
    next_seq: int = 1
    tries: int = 0
    """The number of successive failed cycles of the class."""
    hook_errors: int = 0
    """The number of hooks of this attempt that failed permanently: hooks for ended jobs, and
    ``on_close``.
    """
    cap: int | None = None
    paused: bool = False
    leave: bool = False
    """True if the runs continue after a stop of the manager."""
    stop: StopIntent | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, float] = field(default_factory=dict)
    tags: Sequence[str] = ()
    flow_tags: Sequence[str] = ()
    """Tags that the class added for the manager and all later jobs. ``tags`` contains them too."""
    close_reason: str | None = None
    waiting_for: str | None = None
    error: str | None = None
    """The error of its class, its position in the code, and the fix; ``None`` while there is no
    error.
    """
    requested_by: str | None = None
    parent: str | None = None
    project: str = DEFAULT
    started_at: datetime | None = None
    ended_at: datetime | None = None
    pruned_through: int | None = None
    """Events of the manager up to this number may have been removed; ``None`` means that none was
    removed.
    """
    jobs_pruned_at: datetime | None = None
    """The time when jobs of the manager were last removed, long after its end. The manager no
    longer recognises these jobs and treats them as new.
    """
    ended_by: EndedBy | None = None
    """Who ended it; ``None`` before its end."""
    counts: ManagerCounts = ManagerCounts()
    """The counts of its jobs. The counts include runs that ended after the manager's end; no cycle
    handles these ends.
    """

    @property
    def workflow_id(self) -> str:
        return manager_workflow_id(self.name, self.flow_id)

    @property
    def stuck(self) -> bool:
        """True if its class has failed ``STUCK_TRIES`` times in a row."""
        failed = self.error is not None and self.tries >= STUCK_TRIES
        return failed and self.status is RunStatus.PROCESSING


@dataclass(frozen=True, slots=True)
class ManagerCommit:
    """The state of a manager after a decision was committed."""

    starting: int
    """The number of jobs whose run must be started."""
    live: int
    """The number of jobs that hold a slot."""
    dropped: int = 0
    """The number of picked jobs that were dropped. A job with a known identity is dropped
    permanently. After a stop, a pause, a lower cap or a resumed run that came before the commit,
    the job waits again.
    """
    stopped: bool = False
    """True if a stop is recorded."""
    hook_errors: int = 0
    """The value of ``ManagerRow.hook_errors``."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One row of the table ``manager_item``: a job of a manager."""

    item_id: int
    state: JobState
    job: Job | None
    """The job, or ``None`` if the yield is not a valid job (``error``) or its row is unreadable."""
    seq: int | None = None
    retry: int = 0
    position: int | None = None
    run_id: int | None = None
    outcome: str | None = None
    error: str | None = None
    not_before: datetime | None = None
    unreadable: str | None = None
    """The error in this row, and the fix."""


@dataclass(frozen=True, slots=True)
class LiveManagers:
    """Counts of the managers that have not ended."""

    by_status: Mapping[str, int] = field(default_factory=dict)
    failing: int = 0
    """The number of these managers that have an error."""
    jobs: int = 0
    """The number of their jobs that hold a slot."""


CODE_MANAGER = "manager"
CODE_GRAPH = "graph"
CODE_MODULE = "module"
CODE_READING = "reading"
#: Seconds for which the report of a worker about its user code is valid. The worker repeats the
#: report every minute.
HEARD_S = 180.0


@dataclass(frozen=True, slots=True)
class UserCodeRow:
    """A user's class or module that is available on workers with the role ``user-code``."""

    plan: str
    """``module:Class`` of a class, or the name of a module."""
    kind: str
    """The kind: ``CODE_MANAGER`` for a class that can be started, ``CODE_GRAPH`` for a function
    that builds a graph, ``CODE_MODULE`` for a module whose functions graphs may call, or
    ``CODE_READING`` for a module that a worker is reading for the first time.
    """
    name: str | None
    description: str
    fingerprint: str
    options: Sequence[Mapping[str, Any]] = ()
    """The options of its command line, or the parameters of the function. Each has a name, a help
    text, a default, a type and a flag for required options, and, if there are any, its choices and
    the way in which it takes several values.
    """
    error: str | None = None
    """The reason why it cannot be used, for example a failed import or a missing name."""
    seen_at: datetime | None = None
    """The time when a worker last reported it, or ``None`` if no worker reports it any longer."""
    queue: str | None = None
    """The pool of workers that has this module. A manager's class has no pool, because the workers
    of all pools serve it.
    """

    def heard(self, now: datetime) -> bool:
        """Return whether the last report of a worker about this class is still valid at ``now``."""
        return self.seen_at is not None and (now - self.seen_at).total_seconds() < HEARD_S
