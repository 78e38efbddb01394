"""The port of the database: by far the largest, because every change of a run is one method and one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.audit import AuditFinding, AuditReport, EndedRun, LiveRun, Noted, RecordedTask
from crawler_lifecycle.domain.overdue import OverdueLooks
from crawler_lifecycle.domain.retention import KeptRun, RetentionState
from crawler_lifecycle.domain.run import EndedTasks, ExportResult, RunRequest, RunStatus, StopIntent, Verdict
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import TaskState, TaskStatus
from crawler_lifecycle.domain.wake_ups import WakeUpState

from .values import (
    AddedTask,
    Correction,
    CorrectionRow,
    CorrectionSummary,
    Counted,
    Deployed,
    Details,
    Event,
    Fence,
    FindingRow,
    FoundState,
    Look,
    LookReport,
    LostRun,
    Owner,
    QueuedTask,
    Resumption,
    RunHandle,
    RunRow,
    TaskCounts,
    TaskFinding,
    TaskRow,
    TransitionRow,
)


class RunStore(Protocol):
    """The database. The only place where a status changes, always by compare-and-set.

    Every method that takes a ``Fence`` raises ``Fenced`` and writes nothing when the run's attempt or owner is another
    one. Every method is one transaction, and running it a second time with the same arguments changes nothing more.
    Raises ``StoreUnavailable`` when the database cannot be used now.
    """

    # runs: who they are and who owns them
    def reserve_run(
        self, request: RunRequest, request_id: str, task_args: Sequence[Mapping[str, str]] | None = None
    ) -> tuple[RunRow, bool]:
        """Insert the run and all its task rows (QUEUED), without an owner; the row, and whether it is new.

        ``task_args`` are the tasks' own arguments (default: those of ``request.tasks``, or one task).
        The same ``request_id`` again answers the stored row; another request under it raises ``DuplicateRequest``.
        """
        ...

    def create_run(self, request: RunRequest, request_id: str, owner: Owner) -> RunHandle:
        """``reserve_run`` and claim in one transaction. Raises ``DuplicateRequest`` when another workflow owns it."""
        ...

    def newest_run_id(self) -> int:
        """The highest number of a run in the database; 0 when there is none."""
        ...

    def begin_run_ids_above(self, run_id: int) -> bool:
        """From now on new runs get higher numbers than this one; whether they would not have. Numbers never go back.

        A database from which rows are missing (restored, made anew) is without their tasks too: new tasks leave out as
        many numbers as the missing runs may have used.
        """
        ...

    def adopt_run(self, lost: LostRun) -> RunRow:
        """Insert a run again that no row knows, under its number and uid, with its tasks as what is to be looked for.

        A task that left nothing behind is LOST. Again: the row that is there. Raises ``NotInThisState`` when the number
        of the run, or of one of its tasks, is given to another one by now.
        """
        ...

    def claim_run(
        self, request: RunRequest, owner: Owner, former_is_open: Callable[[Owner], bool], *, repair: bool = False
    ) -> RunHandle:
        """Claim the run ``request.run_id``: reserved or resumed, it is taken as it is, else its attempt is raised.

        The same owner again gets the same answer. ``former_is_open`` is asked, outside of the transaction, whether the
        former owner still lives. Raises ``RunNotFound``, ``RunIsLive``, ``AlreadyCompleted``, ``InvalidRequest``.

        ``repair`` claims in place of a workflow that was lost: the ended tasks of its attempt count as judged, as they
        did for it, and a run that has ended meanwhile is not claimed (``NotInThisState``).
        """
        ...

    def resume_run(self, request: RunRequest, workflow_id: str, attempt: int) -> tuple[RunRow, bool]:
        """Accept that the run goes on after ``attempt``, whose workflow is closed: the next attempt is on record from
        now on, to be claimed by ``workflow_id``. The row, and whether this call did it.

        What somebody else resumed since ``attempt`` was read stays as it is. Raises ``RunNotFound``,
        ``AlreadyCompleted``, and ``NotInThisState`` for a rerun of what was resumed without and is not claimed yet.
        """
        ...

    def add_tasks(
        self, run_id: int, key: str, task_args: Sequence[Mapping[str, str]], fence: Fence | None = None
    ) -> list[AddedTask]:
        """Append QUEUED tasks to a live run, once for each ``key``; the run is multi-process from then on.

        The same key and arguments again get the same answer, also when the run has ended meanwhile. Raises
        ``RunNotFound``; ``NotInThisState`` under a stop or after the end; ``DuplicateRequest`` when the key came with
        other arguments; ``InvalidRequest`` for no tasks or for more than a run may have.
        """
        ...

    def set_property(self, run_id: int, attempt: int, name: str, value: str) -> None: ...

    # deployment
    def places(self, run_id: int) -> list[str]:
        """Where on the cluster tasks of the run live or may come to life, as far as it is on record."""
        ...

    def offer_tasks(
        self,
        fence: Fence,
        limit: int,
        max_parallel: int | None,
        until: datetime,
        place: str | None = None,
        next_look_at: datetime | None = None,
    ) -> tuple[list[QueuedTask], StopIntent | None]:
        """Mark the next QUEUED tasks as offered until ``until`` at ``place`` and return them, lowest index first.

        ``until`` allows for clocks that differ: after it, by anybody's clock, the call creates nothing any more. As
        many tasks as one call can carry (``bounds.OFFER_BYTES_MAX``), and one in any case.

        Never more than fit beside the active ones under ``max_parallel``; none when a stop is recorded. The run enters
        the stage deployment. From now on something may be on the cluster, so where no look is planned yet, the first
        one is planned for ``next_look_at``.
        """
        ...

    def record_deployed(
        self,
        fence: Fence,
        cluster: str,
        answers: Sequence[Deployed],
        at: datetime,
        until: datetime | None = None,
        offered: Sequence[QueuedTask] = (),
    ) -> TaskCounts:
        """Apply the answers: created, existing = PENDING; deferred = QUEUED with the reason; refused = FAILED.

        ``until`` and ``offered`` name the offer that they answer. A task that was offered again meanwhile is not put
        off by them; one that an earlier call may still bring counts as offered by that one.
        """
        ...

    def refuse_queued(
        self, fence: Fence, reason: str, offered: Sequence[QueuedTask] = (), until: datetime | None = None
    ) -> TaskCounts:
        """QUEUED tasks become FAILED / ``deploy_failed`` with this reason, unless an earlier call may have made them.

        ``offered`` and ``until`` are the offer that was refused as a whole: it brought nothing. A task that an earlier
        one offered stays QUEUED and is offered by that one only, until a look from after its end did not see the task.
        """
        ...

    def withdraw_offer(self, fence: Fence, offered: Sequence[QueuedTask], until: datetime) -> None:
        """The call of this offer brought nothing: its tasks are offered by the call before it, or not at all."""
        ...

    def note_waiting(self, fence: Fence, waiting_for: str | None) -> None:
        """Write down why the run waits (or that it no longer does)."""
        ...

    def mark_started(
        self, fence: Fence, started_at: datetime | None, next_look_at: datetime | None = None
    ) -> RunStatus:
        """INITIALIZING becomes PROCESSING (any later status stays), the stage reconciliation; the status now."""
        ...

    def request_of(self, run_id: int) -> RunRequest:
        """The stored request of a run, without its task list, for its own workflow. Raises ``RowMissing``."""
        ...

    # looks
    def found_state(self, fence: Fence) -> FoundState:
        """The unsettled tasks of the run and what is needed to judge a look."""
        ...

    def task_page(
        self, run_id: int, statuses: Sequence[TaskStatus], after_index: int = -1, limit: int = 500
    ) -> list[TaskState]: ...

    def record_look(
        self,
        fence: Fence,
        look: Look,
        findings: Sequence[TaskFinding],
        next_look_at: datetime | None,
        source: str,
        ordered_at: datetime | None = None,
    ) -> LookReport:
        """Stage the findings; commit ``verified_at``, ``next_look_at``, counters and ``last_progress_at``.

        ``next_look_at`` None: this look is beside those that are planned, and their plan stays.

        ``ordered_at`` is when this try of the look was ordered, by the one clock that orders them all. Raises
        ``Overtaken`` when a look that was ordered later is on record: this one comes from a worker that was frozen.
        """
        ...

    def record_counts(self, run: RunRef, counted: Sequence[Counted]) -> int:
        """Raise counters of the run's live tasks, between looks; how many tasks. ``counted`` is of that run.

        Never lowers one, and touches neither what has ended nor what is of another attempt or another run's uid. Moves
        ``last_progress_at``, and neither ``updated_at`` nor anything of looks; makes no event. Raises ``RunNotFound``.
        """
        ...

    def record_look_error(self, fence: Fence, error: str, ordered_at: datetime | None = None) -> None:
        """Write down why the last look failed, and since when looks do, until one succeeds.

        Nothing when a look that was ordered later is on record.
        """
        ...

    def staged(self, fence: Fence, after_index: int = -1, limit: int = 500) -> list[TaskFinding]:
        """The staged findings in order of the task's index."""
        ...

    def save_details(self, fence: Fence, details: Sequence[Details]) -> None:
        """Stage debugging information until ``apply_details``."""
        ...

    def apply_details(self, fence: Fence) -> int:
        """Write staged observations and details into ``task_history`` and ``task_log``; how many tasks."""
        ...

    def apply_findings(self, fence: Fence, source: str, observed_at: datetime | None = None) -> TaskCounts:
        """Change the staged statuses by compare-and-set, with transitions, corrections and one ``run.changed``.

        With ``observed_at`` only what that look staged; when another one came after it, nothing.
        """
        ...

    def count_tasks(self, run_id: int) -> TaskCounts: ...

    # stop
    def record_stop(self, run_id: int, stop: StopIntent, request_id: str | None, fence: Fence | None = None) -> RunRow:
        """Write the intent, STOPPING (unless terminal) and, for a person, the row of ``cancellation_log``.

        The gateway calls it without a fence before it signals. A second stop keeps the first intent's time; a forced
        one adds force; a person's outweighs a limit's. On a terminal run nothing is written. Of a run whose row cannot
        be read a person's log row alone is written, by its keys, and ``RowUnreadable`` raised.
        """
        ...

    def cancel_queued(self, fence: Fence, now: datetime) -> TaskCounts:
        """QUEUED tasks become CANCELLED, except those offered by a call that no look has proved to be without effect.

        That takes a look from after the moment at which the call is void; its answer may be lost for ever.
        """
        ...

    def unstopped(
        self, fence: Fence, force: bool, killed_before: datetime | None = None, after_index: int = -1, limit: int = 500
    ) -> list[TaskState]:
        """A page of the tasks that are to be asked to end and were not yet, by index: those PENDING or RUNNING.

        With ``force`` those active ones that were not killed yet, or were before ``killed_before``. Raises ``Fenced``.
        """
        ...

    def mark_stopping(self, fence: Fence, task_ids: Sequence[int], *, killed: bool = False) -> None:
        """These tasks were asked to end: PENDING and RUNNING become STOPPING. ``killed``: by force, just now."""
        ...

    def last_asked(self, run_id: int) -> datetime | None:
        """When the last of the tasks that are STOPPING was asked to end."""
        ...

    def acted_on_stop(self, fence: Fence, at: datetime) -> None:
        """Fill ``acted_at`` of the intent's cancellation log rows without one, also of those of an earlier attempt."""
        ...

    # completion
    def end_run(self, fence: Fence, judge: Callable[[Sequence[EndedTasks], StopIntent | None], Verdict]) -> RunRow:
        """Judge and set the terminal status, with its transition and the event ``run.ended``, in one transaction.

        When a stop is on record, there is also the event ``run.stopped``.

        Raises ``NotInThisState`` while tasks are alive.
        """
        ...

    def requeue_ended(self, fence: Fence, include_succeeded: bool) -> TaskCounts:
        """New QUEUED rows of this attempt for FAILED, CANCELLED and LOST indexes; raise the attempt of QUEUED rows."""
        ...

    def ended_groups(self, run_id: int) -> list[EndedTasks]: ...

    def append_event(self, fence: Fence, type: str, key: str, body: Mapping[str, object]) -> Event:
        """Append one event; the same ``key`` again answers the event already there."""
        ...

    def find_event(self, key: str) -> Event | None: ...

    def last_event(self, run_id: int, type: str) -> Event | None:
        """The run's newest event of this type."""
        ...

    def get_event(self, seq: int) -> Event | None: ...

    def events_after(self, seq: int, limit: int = 500, run_id: int | None = None) -> list[Event]:
        """Events with a greater number, in order, of all runs or of one. None with a smaller one appears later."""
        ...

    def last_event_seq(self) -> int:
        """The number of the newest event; 0 when there was none yet."""
        ...

    def record_delivery(self, seq: int, sink: str, error: str | None) -> None:
        """Count one try of a delivery; ``error`` None means delivered."""
        ...

    def record_export(self, fence: Fence, status: str, result: ExportResult | None, error: str | None) -> None:
        """How the export of the fence's attempt stands; also of one that was resumed meanwhile."""
        ...

    def begin_export(self, fence: Fence) -> int:
        """An export of the fence's attempt reads files from now on; the last attempt whose files are given up, or 0."""
        ...

    def exports(self, run_id: int) -> list[Mapping[str, object]]: ...

    def deliveries(self, run_id: int, *, keyed: bool = False) -> list[Mapping[str, object]]:
        """Every delivery of the run's events that was tried: seq, type, attempt, sink, status, tries, error, when.

        With ``keyed`` only of events that are to be delivered once; mere news of a change, of which a long run has
        thousands, are left out.
        """
        ...

    # clearing storage
    def kept_runs(self, run_ids: Sequence[int]) -> list[KeptRun]:
        """Those of the runs that there are, as far as they decide about their files, by id."""
        ...

    def give_up_files(
        self, run_id: int, before: datetime, put_aside: Callable[[], None], *, incomplete: bool = False
    ) -> tuple[RetentionState, int]:
        """When the run is ``Stand.OLD`` (``domain.tidying``): from now on its files are not read any more.

        ``put_aside`` is then called while no resume and no export of the run can begin; what it raises is raised, and
        nothing is given up. Where the run stands, and the last attempt that is given up. Raises ``RunNotFound``.
        """
        ...

    def note_files_removed(self, run_id: int, attempt: int) -> None:
        """The files that were given up are gone."""
        ...

    # ledger
    def record_corrections(
        self, run_id: int, corrections: Sequence[Correction], found_by: str = "sweep", fence: Fence | None = None
    ) -> list[CorrectionRow]:
        """Append corrections of the run or of its tasks; those that are new, as they were written.

        What is on record for the same task (or the run), attempt, kind, belief and truth is not written again. A status
        that is an end never changes. Only a correction of a live run's own present status, whose truth is a later live
        status, also changes that status, with its transition, in the same transaction. One ``run.changed`` follows.

        ``found_by`` is one of ``domain.ledger.SOURCES``. Raises ``RunNotFound``; ``InvalidRequest`` for a kind or
        source that does not exist, for words that are too long, and for a task or attempt that is not the run's.
        """
        ...

    def correction_summary(self, since: datetime) -> CorrectionSummary:
        """How many corrections of each kind all runs had since then, and how long a status was untrue at most."""
        ...

    # readers
    def get_run(self, run_id: int) -> RunRow | None: ...

    def find_run(self, request_id: str) -> RunRow | None: ...

    def list_runs(
        self,
        *,
        before_run_id: int | None = None,
        limit: int = 50,
        status: Sequence[str] = (),
        stage: str | None = None,
        crawler: str | None = None,
        trigger: str | None = None,
        outcome: str | None = None,
        flow_id: str | None = None,
        tag: str | None = None,
        created_from: datetime | None = None,
        created_until: datetime | None = None,
    ) -> list[RunRow]:
        """Runs, newest first, that fit every given filter. ``created_from`` is included, ``created_until`` is not."""
        ...

    def list_tasks(
        self, run_id: int, *, after_task_id: int = 0, limit: int = 500, superseded: bool = False
    ) -> list[TaskRow]: ...

    def resumption(self, run_id: int) -> list[Resumption]:
        """What the run's tasks say about going on with saved state: at most ten notes, the commonest first."""
        ...

    def transitions(self, run_id: int, after_seq: int = 0, limit: int = 500) -> list[TransitionRow]: ...

    def corrections(
        self, run_id: int | None = None, after_id: int = 0, limit: int = 500, *, kind: str | None = None
    ) -> list[CorrectionRow]:
        """Corrections of one run, or of all, oldest first; of one kind, when it is given."""
        ...

    def cancellations(self, run_id: int) -> list[Mapping[str, object]]: ...

    def log_tail(self, task_id: int) -> str | None: ...

    def properties(self, run_id: int) -> list[Mapping[str, object]]: ...

    def unowned_runs(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs that were reserved or resumed and not claimed: they were accepted, so somebody must start them."""
        ...

    def unheard_stops(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs whose recorded stop no workflow has acted on yet."""
        ...

    def wake_targets(self, run_ids: Sequence[int]) -> list[WakeUpState]:
        """Who is to be woken for these runs, at most 500, and what their last look saw. Unknown runs are left out."""
        ...

    # audits
    def open_runs(self, after_run_id: int = 0, limit: int = 500) -> list[LiveRun]:
        """Runs that have not ended, by id, with what in their rows cannot be."""
        ...

    def overdue_runs(
        self, before: datetime, after: tuple[datetime, int] | None = None, limit: int = 500
    ) -> list[LiveRun]:
        """Live runs whose next look was due before then, in that order and by id; ``after`` is the last one seen.

        Those without a planned look are among them when their row has not changed since then.
        """
        ...

    def overdue_looks(self, before: datetime) -> OverdueLooks:
        """How many looks that were planned for before then have not come, and the oldest."""
        ...

    def ended_runs(
        self, since: datetime, after: tuple[datetime, int] | None = None, limit: int = 500
    ) -> list[EndedRun]:
        """Runs that ended at ``since`` or later, in the order of their end and id; ``after`` is the last one seen."""
        ...

    def ended_run(self, run_id: int) -> EndedRun | None:
        """One of them; ``None`` when the run has not ended or does not exist."""
        ...

    def recorded_tasks(self, keys: Collection[tuple[int, int, int]]) -> list[RecordedTask]:
        """The rows of these tasks (run, index, attempt), those that there are."""
        ...

    def unproved_ends(self, run_ids: Collection[int], since: datetime, limit: int = 500) -> list[RecordedTask]:
        """Tasks of these runs whose end was recorded at ``since`` or later without evidence of how it came about."""
        ...

    def existing_runs(self, run_ids: Collection[int]) -> dict[int, str]:
        """Those of these runs that there are, and their uids."""
        ...

    def note_findings(self, findings: Sequence[AuditFinding]) -> dict[str, Noted]:
        """Keep what an audit found; what is on record about each subject. Again: only the last sight moves."""
        ...

    def note_repair(self, subject: str, text: str, *, done: bool = True) -> None:
        """What was done about a finding. Unless it is ``done`` it stays open."""
        ...

    def forget_findings(self, kinds: Collection[str], seen_before: datetime) -> int:
        """Open findings of these kinds that no audit has seen since then are gone; how many."""
        ...

    def audit_findings(self, status: str = "open", limit: int = 500) -> list[FindingRow]:
        """Findings in this status (open, repaired, gone), the one seen last first."""
        ...

    def record_audit(self, report: AuditReport) -> None:
        """Keep a report, and forget those that are older than 30 days. Again: it is kept already."""
        ...

    def last_audit(self, audit_id: str | None = None) -> AuditReport | None:
        """The newest report, or that of the audit that is named."""
        ...

    def ping(self) -> None:
        """Raise ``StoreUnavailable`` unless the database answers and has the schema version of this build."""
        ...
