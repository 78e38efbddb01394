"""Ports of crawl managers: their rows, their jobs, and the plans that may be started."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from crawler_lifecycle.domain.managers.manager import Decision, Facts, Job, JobState, Live, Page, Waiting
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.ports.values import Owner, RunRow


@dataclass(frozen=True, slots=True)
class ManagerFence:
    """What a writer must still be for its write to count.

    ``generation`` is that of the process which holds the class; ``None`` for writers that are none (the workflow).
    """

    manager_id: int
    attempt: int
    owner_run_id: str
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class NewManager:
    """What whoever starts a manager says about it."""

    name: str
    flow_id: str
    plan: str
    """``module:Class`` of a registered plan."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """``{"argv": [...]}``: the options of the class as on its command line; and what else the gateway took."""
    requested_by: str | None = None
    parent: str | None = None
    """The workflow that is told of the end."""
    tags: Sequence[str] = ()
    fresh: bool = False
    """Whether the flow id was made for this start, so that nothing may be resumed (S-24)."""


@dataclass(frozen=True, slots=True)
class ManagerCounts:
    """How many jobs of a manager are in each state, and what its counters say."""

    by_state: Mapping[str, int] = field(default_factory=dict)
    yields: int = 0
    duplicates: int = 0
    skipped: int = 0
    scheduled: int = 0
    retried: int = 0
    good: int = 0
    bad: int = 0

    def settled(self, live: int) -> ManagerCounts:
        """The same when the manager has ended: all that was started has ended but so many jobs."""
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
    """Whose number that is: numbers come again where a database was restored."""
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
    """Of the class's source, as it was last loaded."""
    position: int = 0
    """Yields of the source that are on record, in its present pass."""
    exhausted: bool = False
    source_error: str | None = None
    """What stopped the source for good, until a new pass (``Page.error``)."""
    over: bool = False
    """Whether a committed decision of this attempt said that the manager ends: its class is asked no more."""
    sealed: bool = False
    """Whether no more items come from outside (the built-in manager)."""
    next_seq: int = 1
    tries: int = 0
    """Cycles in a row that its class could not do."""
    hook_errors: int = 0
    """Hooks of this attempt that failed for good: of ends that were given up, and ``on_close``."""
    cap: int | None = None
    paused: bool = False
    leave: bool = False
    """Whether its runs go on when it is stopped."""
    stop: StopIntent | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, float] = field(default_factory=dict)
    tags: Sequence[str] = ()
    flow_tags: Sequence[str] = ()
    """Tags that the class appended for itself and all later jobs; ``tags`` has them too."""
    close_reason: str | None = None
    waiting_for: str | None = None
    error: str | None = None
    """What its class did wrong, at which position, and the cure; ``None`` while all is well."""
    requested_by: str | None = None
    parent: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    pruned_through: int | None = None
    """Its events up to this number may be gone; ``None``: none was removed."""
    jobs_pruned_at: datetime | None = None
    """When jobs of it were last removed, long after an end: from then on the same jobs are new to it."""
    counts: ManagerCounts = ManagerCounts()
    """After its end: with what its runs became since, which no cycle handles."""
    unreadable: str | None = None
    """What cannot be in this row, and the cure. In a list ``status`` is then what stands there."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a committed decision left behind."""

    starting: int
    """Jobs whose run is to be begun."""
    live: int
    """Jobs that hold a slot."""
    dropped: int = 0
    """Picks that fell away: their identity is known, or a stop, a pause, a lower cap or the resumption of a run came
    before the commit. The jobs of the latter go on waiting."""
    stopped: bool = False
    """Whether a stop is on record."""
    hook_errors: int = 0
    """``ManagerRow.hook_errors``."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One row of ``manager_item`` as readers see it."""

    item_id: int
    state: JobState | str
    """Another text than a ``JobState`` only in a row that is ``unreadable``."""
    job: Job | None
    """``None``: a yield that could not be one (``error``), or unreadable."""
    seq: int | None = None
    retry: int = 0
    position: int | None = None
    run_id: int | None = None
    outcome: str | None = None
    error: str | None = None
    not_before: datetime | None = None
    unreadable: str | None = None
    """What cannot be in this row, and the cure."""


@dataclass(frozen=True, slots=True)
class LiveManagers:
    """How many managers have not ended."""

    by_status: Mapping[str, int] = field(default_factory=dict)
    failing: int = 0
    """Those of them that have an error."""
    jobs: int = 0
    """Jobs of theirs that hold a slot."""


class ManagerReader(Protocol):
    """Managers and their jobs, for people."""

    def get_manager(self, manager_id: int) -> ManagerRow | None: ...

    def find_manager(self, name: str | None, flow_id: str) -> ManagerRow | None:
        """The manager of this flow; without a name the first one, whatever it is called."""
        ...

    def list_managers(
        self, before_id: int | None = None, limit: int = 50, *, status: str | None = None, name: str | None = None
    ) -> list[ManagerRow]:
        """Newest first."""
        ...

    def list_jobs(
        self, manager_id: int, after_id: int = 0, limit: int = 500, *, states: Collection[JobState] = ()
    ) -> list[JobRow]:
        """Jobs of a manager in the order of their rows; in these states, when some are given."""
        ...

    def live_managers(self) -> LiveManagers: ...

    def manager_output(self, manager_id: int) -> str:
        """What the class of a manager printed last; empty when that was nothing."""
        ...


class ManagerStore(ManagerReader, Protocol):
    """The same, as workflow and workers change them. Methods with a fence raise ``Fenced`` and write nothing when the
    manager's attempt, owner or generation is another one."""

    def reserve_manager(self, new: NewManager) -> tuple[ManagerRow, bool]:
        """Insert the manager, or answer the row of the same name and flow id, and whether it is new.

        A row that has ended takes over what is asked for now: its next attempt begins with that. Raises
        ``DuplicateRequest`` when a live row was asked for differently (plan or options), or nothing may be resumed
        (``fresh``).
        """
        ...

    def claim_manager(self, manager_id: int, owner: Owner) -> ManagerRow:
        """Own the manager: the row as reserved, or, after its end, as its next attempt (a resume). Again: the same.

        The owner of a live row is closed when it has the same workflow id, so its manager is taken over as the next
        attempt, with its stop, if there is one. Raises ``RunIsLive`` when it has another, ``Fenced`` for an owner from
        which the manager was taken, ``RunNotFound``.
        """
        ...

    def new_generation(self, fence: ManagerFence, fingerprint: str, read_from: int | None) -> ManagerRow:
        """A new process holds the class: raise the generation, keep the fingerprint. ``read_from``: the source is read
        again behind this position; ``None``: what is on record of it stays. Read from its beginning by other code than
        before, what it gave and nobody began is forgotten. ``fence.generation`` is not compared."""
        ...

    def add_page(self, fence: ManagerFence, page: Page) -> int:
        """Append yields of the source in one transaction; how many jobs are BUFFERED then. New identities become
        BUFFERED, known ones are counted, errors become SKIPPED. Position, exhausted and error of the source become
        those of the page. The same page again adds nothing, and a yield is counted once, in whichever pass of the
        source it is read again. Raises ``InvalidRequest`` when positions are left out."""
        ...

    def facts(self, fence: ManagerFence, ends: int) -> Facts:
        """What a cycle begins with; at most ``ends`` ended jobs, by the start of their runs. Jobs whose run a person
        resumed hold a slot again."""
        ...

    def waiting_jobs(self, manager_id: int, state: JobState, after_id: int = 0, limit: int = 100) -> list[Waiting]:
        """Jobs in this waiting state, oldest row first."""
        ...

    def live_jobs(self, manager_id: int, after_id: int = 0, limit: int = 500) -> list[Live]:
        """Jobs that hold a slot, oldest row first."""
        ...

    def known_identities(self, manager_id: int, identities: Collection[str]) -> set[str]:
        """Those of these identities that some job of the manager has."""
        ...

    def job_metadata(self, manager_id: int, key: str) -> dict[str, Any] | None:
        """One job, by the id of its run (as text) or of its request, as ``domain.scrapy_cloud.job_metadata`` has it,
        with ``key``; any run may be asked for, not only the manager's. ``None``: there is none."""
        ...

    def owned_jobs(
        self,
        manager_id: int,
        states: Collection[str],
        *,
        all_flows: bool = False,
        spider: str | None = None,
        project_id: str | None = None,
        after: str | None = None,
        limit: int = 500,
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Jobs of the manager (``all_flows``: of managers of its name in every flow) whose run is ``pending``,
        ``running`` or ``finished``, as ``job_metadata`` has them, and where the next page begins (``None``: there are
        no more). Finished ones: the latest end first; others: by their start. Raises ``InvalidRequest`` for a page that
        cannot be."""
        ...

    def commit_decision(self, fence: ManagerFence, decision: Decision) -> Committed:
        """Apply a decision in one transaction, with the event ``manager.changed``.

        Checked against the rows: an end is handled once for each attempt of its run, numbers go on without a gap, a
        picked row waits, an added identity is new. Picks fall away, and their jobs go on waiting, after a stop, while
        it is paused, above a cap that a person set, and when a person resumed runs since the facts were read. Raises
        ``InvalidRequest`` when the decision cannot be, ``Overtaken`` when it no longer can: another one was committed
        since its facts were read. With ``over`` the row's ``error`` becomes that of the decision, ``None`` too: it says
        how the manager ends.
        """
        ...

    def note_error(self, fence: ManagerFence, error: str | None, waiting_for: str | None = None) -> None:
        """Write down what the class did wrong (``None``: all is well) and what the manager waits for."""
        ...

    def note_try(self, fence: ManagerFence, item_id: int | None = None) -> int:
        """One more try that failed: of the hooks of this job's end, else of a cycle of the class; how many there were
        in a row."""
        ...

    def keep_output(self, manager_id: int, text: str) -> None:
        """Append what the class of a manager printed; the last ``OUTPUT_BYTES`` of all of it stay."""
        ...

    def starting_jobs(self, fence: ManagerFence, limit: int = 100) -> list[Live]:
        """Jobs whose run is to be begun."""
        ...

    def job_started(self, fence: ManagerFence, item_id: int, run_id: int | None, error: str | None = None) -> None:
        """The job's run exists; or it can never be begun: then it has ended with the outcome ``deploy_failed``, and
        its hooks run like those of any other bad end. Again: nothing more."""
        ...

    def add_jobs(self, manager_id: int, jobs: Sequence[Job], request_key: str | None, *, seal: bool = False) -> int:
        """Jobs from outside become QUEUED (known identities are left out); how many are new. The same ``request_key``
        again adds nothing and answers the same. ``seal``: no more will come. Raises ``NotInThisState`` after a stop or
        an end, ``DuplicateRequest`` when the key belongs to other jobs."""
        ...

    def steer_manager(self, manager_id: int, *, paused: bool | None = None, cap: int | None = None) -> ManagerRow:
        """Pause it, let it go on, or set its cap (0: back to what the class says). Raises ``RunNotFound``,
        ``InvalidRequest``, and ``NotInThisState`` after its end."""
        ...

    def record_manager_stop(self, manager_id: int, intent: StopIntent, leave: bool = False) -> ManagerRow:
        """Put a stop on record: the manager is STOPPING, and nothing more is picked. After its end: nothing changes."""
        ...

    def live_runs(self, manager_id: int, after_run_id: int = 0, limit: int = 100) -> list[RunRow]:
        """Runs that the manager began and that have not ended, by id. Whatever another hand wrote into its row, name
        and flow id are enough."""
        ...

    def end_manager(
        self, fence: ManagerFence, status: RunStatus, outcome: str, cause: str, *, leave: bool = False
    ) -> ManagerRow:
        """Set the terminal status with the event ``manager.ended``. Again: the same. Raises ``NotInThisState`` while
        runs of it live, unless they were to be left (by the stop, or ``leave``). What was picked and has no run waits
        again, and keeps its number. From then on jobs are told to have ended when their run has, whether or not hooks
        ran: a resume runs those hooks."""
        ...


PLAN_MANAGER, PLAN_MODULE, PLAN_READING = "manager", "module", "reading"
#: Seconds for which a worker counts that has said what it serves. It says so every minute.
HEARD_S = 180.0


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What workers of the role ``plans`` have of users' code."""

    plan: str
    """``module:Class``; of a module its name."""
    kind: str
    """``PLAN_MANAGER``: a class that may be started; ``PLAN_MODULE``: a module whose functions graphs may call;
    ``PLAN_READING``: a module that a worker is about to read for the first time."""
    name: str | None
    description: str
    fingerprint: str
    options: Sequence[Mapping[str, Any]] = ()
    """What its command line takes: name, help, default, type, required, of each option."""
    error: str | None = None
    """Why it cannot be used: an import that failed, no name …"""
    seen_at: datetime | None = None
    """When the worker of which this is last said that it serves this; ``None``: no worker does any more."""
    queue: str | None = None
    """Of a module: the pool of workers that has it. Managers are served by workers of all pools alike."""

    def heard(self, now: datetime) -> bool:
        """Whether a worker says this now."""
        return self.seen_at is not None and (now - self.seen_at).total_seconds() < HEARD_S


class PlanStore(Protocol):
    """What plans workers have registered."""

    def register_plans(self, worker: str, plans: Sequence[PlanRow]) -> None:
        """These are what this worker serves, and nothing else. It ends the word of workers that were not heard for
        ``HEARD_S``: about the same plans, and about what they could not use."""
        ...

    def list_plans(self) -> list[PlanRow]:
        """Each plan of each pool, by name: each code of it that a worker who was heard of within ``HEARD_S`` can use,
        the one that came last first. Where there is none: that it is being read, or why one who was heard of cannot
        use it; then what was served last. The errors of workers that are gone are left out."""
        ...

    def get_plan(self, name: str, queue: str | None = None) -> PlanRow | None:
        """The first of these, of one plan and pool."""
        ...
