"""The rules by which an audit finds and repairs differences between the database, the cluster and
Temporal.

An audit judges each fact separately, so the order of the facts does not matter. The audit stores
each finding with the time at which the finding was first seen. It repairs a finding after a grace
period, in which a start, resume or deployment may resolve the difference. Facts that agree produce
no finding. A repair makes the facts agree, so a second audit finds nothing. All functions here are
pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.run_ref import RunRef

#: A run, manager or graph is given up after this many consecutive workflows without progress. After
#: a forced stop, one workflow without progress is enough.
TRIES_MAX = 5
TRIES_WHEN_FORCED = 1
#: A workflow that was open for longer than this counts as progress, whatever its result.
LIVED = timedelta(minutes=3)
#: Audits compare runs that ended within this time. They do not check the deliveries and the
#: evidence of older runs.
RECENT = timedelta(days=3)
#: The wait after a takeover without progress. The wait doubles with each further takeover without
#: progress.
_AGAIN = timedelta(seconds=30)
#: The maximum number of findings listed in a report. The report counts all findings.
REPORTED_MAX = 100


class FindingKind(StrEnum):
    """The kinds of findings, in the order in which a report lists them: executing tasks without an
    owner come first.
    """

    ORPHAN = "orphan"
    """A task is executing but has no row in the database."""
    STILL_ALIVE = "still_alive"
    """A task is executing, but the task or its run is recorded as ended."""
    NO_WORKFLOW = "no_workflow"
    """A run, a manager, a graph or a webhook has not ended, but its workflow is closed."""
    NOT_STARTED = "not_started"
    """A run, manager, graph, due time or webhook was accepted, but no workflow started."""
    NOT_COUNTED = "not_counted"
    """A manager or a graph began a run but has not recorded the run."""
    NO_RUN = "no_run"
    """A step is executing as a run or manager that does not exist or belongs to another graph."""
    NOT_FIRED = "not_fired"
    """A due time of a schedule has passed, but Temporal did not start its workflow and no firing is
    recorded."""
    NOT_TOLD = "not_told"
    """Temporal's definition of the schedule differs from the one in the database."""
    NO_ROW = "no_row"
    """A workflow is open, but its run, manager or graph is not in the database."""
    UNRECORDED = "unrecorded"
    """A workflow is open but has not recorded its run."""
    UNDELIVERED = "undelivered"
    """A run has ended, but its event, one of its pushes or its files are not delivered."""
    LATE_EVIDENCE = "late_evidence"
    """New evidence shows that the recorded end of a task is wrong."""
    UNREADABLE = "unreadable"
    """A row has an impossible value."""


#: The kinds of findings that only a person can repair.
FOR_PEOPLE = (FindingKind.NOT_TOLD, FindingKind.UNRECORDED, FindingKind.UNREADABLE)
#: The kinds of findings about a row without a workflow. The repair starts a new workflow.
LOST = (FindingKind.NO_WORKFLOW, FindingKind.NOT_STARTED)


class UnknownDecision(StrEnum):
    """A person's decision about runs, managers and graphs that are missing from the database."""

    LEAVE = "leave"
    ADOPT = "adopt"
    """Restore the rows from the data in the workflow and on the cluster. The run then continues as
    usual.
    """
    END = "end"


@dataclass(frozen=True, slots=True)
class AuditRules:
    """The grace periods of an audit, in seconds."""

    grace_s: float = 120.0
    """The wait before a repair, counted from the time when the workflow closed or an audit first
    saw the finding.
    """
    orphan_grace_s: float = 300.0
    """The wait before an audit ends a task that is executing although it is recorded as ended,
    counted from the time when an audit first saw this finding.
    """
    start_grace_s: float = 30.0
    """The wait before an audit starts a workflow for a run that has none, counted from the time
    when the run was accepted.
    """
    record_grace_s: float = 120.0
    """The time within which a new workflow should record its run."""
    resend_s: float = 3600.0
    """The wait between two repetitions of a delivery."""


@dataclass(frozen=True, slots=True)
class ParentJob:
    """The job of a manager or the step of a graph that is named by the request id of a run."""

    parent: str
    """The name of the manager or graph for people, such as ``manager 3``."""
    kind: str
    """``job`` or ``step``."""
    workflow_id: str
    state: str | None
    """The state of the job or step, or ``None`` if it does not exist."""
    starting: bool = False
    """True if the job was picked and its run is about to begin."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A row of a run that has not ended."""

    run_id: int
    run_uid: str
    attempt: int
    status: str
    crawler: str
    request_id: str
    created_at: datetime
    attempt_at: datetime | None = None
    owner_workflow_id: str | None = None
    owner_run_id: str | None = None
    priority: int = 3
    stop: StopIntent | None = None
    due_at: datetime | None = None
    """The due time of the next poll or, if none is planned, the time of the row's last change."""
    planned: bool = False
    """True if a poll is planned."""
    uncounted: ParentJob | None = None
    """The job or step that the request id names, if it has not recorded this run."""

    @property
    def ref(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)


@dataclass(frozen=True, slots=True)
class LiveParent:
    """The row of an open manager, graph or webhook, or of a due time whose target has not been
    started."""

    what: str
    """``manager``, ``graph``, ``due time`` or ``webhook``."""
    number: int
    workflow_id: str
    status: str
    attempt: int
    updated_at: datetime
    owner_run_id: str | None = None
    unreadable: str | None = None
    """The error in the row, if any. The other fields are then unreliable."""
    progress: str = ""
    """A string that changes only when the parent makes progress."""
    forced: bool = False
    """True if a forced stop is recorded. The row is then given up after one workflow without
    progress.
    """


@dataclass(frozen=True, slots=True)
class StepWithoutRun:
    """A step that is executing as a run or manager that does not exist or belongs to another
    graph."""

    graph_id: int
    key: str
    number: int
    path: str
    attempt: int
    kind: str
    """``crawl`` or ``manager``."""
    run_id: int | None
    exists: bool
    parent: str | None = None
    """The ``parent`` of the run or manager, if it exists."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A row of a run that has ended, with the state of its deliveries."""

    run_id: int
    run_uid: str
    attempt: int
    status: str
    crawler: str
    ended_at: datetime
    owner_workflow_id: str | None = None
    owner_run_id: str | None = None
    stop: StopIntent | None = None
    event_delivered: bool = False
    pushes_delivered: bool = True
    exported: bool = False

    @property
    def ref(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)


@dataclass(frozen=True, slots=True)
class WorkflowState:
    """The state of one workflow (a chain of executions) in Temporal."""

    open: bool
    closed_at: datetime | None = None
    how: str | None = None
    """The status with which the workflow closed, such as ``terminated`` or ``failed``. ``None``
    means that the workflow is open or was removed from the server.
    """
    why: str | None = None
    """The recorded reason why the workflow closed. ``None`` means that it ended normally or that no
    reason was given."""
    run_uid: str | None = None
    """The uid of the run that an open workflow belongs to, or ``None`` if the workflow names no run
    yet."""
    first_run_id: str | None = None
    """The first execution in the chain of an open workflow."""

    def of_another(self, run_uid: str) -> bool:
        """Return whether the workflow is open and belongs to a run with a different uid."""
        return self.open and self.run_uid not in (None, run_uid)


@dataclass(frozen=True, slots=True)
class OpenWorkflow:
    """An open workflow of a run, a manager or a graph."""

    workflow_id: str
    first_run_id: str
    started_at: datetime
    run_id: int | None = None
    """The run that the workflow belongs to, or ``None`` if the workflow has not recorded a run
    yet."""
    run_uid: str | None = None
    of_parent: bool = False
    """True if the workflow belongs to a manager or a graph, which the workflow id names."""


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """A task that is waiting or executing on the cluster, with any owner or none."""

    run_id: int
    index: int
    attempt: int
    executing: bool
    """True if the task's crawler is executing. Otherwise the task is waiting for capacity."""
    task_id: int | None = None
    uid: str | None = None
    started_at: datetime | None = None
    node: str | None = None
    run_uid: str | None = None
    """The uid of the task's run according to the object. ``None`` means that the object has no such
    uid, so the task belongs to no run in this database.
    """
    stray: bool = False
    """True if the object no longer exists and only a process of the task is left. ``uid`` then
    identifies the process.
    """

    @property
    def run(self) -> RunRef:
        """The run that the object names. It may belong to another database."""
        return RunRef(self.run_id, self.run_uid or "")

    @property
    def key(self) -> tuple[int, int, int]:
        """The run, index and attempt by which an inventory is sorted."""
        return (self.run_id, self.index, self.attempt)


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """The row of one task, with some fields of its run."""

    task_id: int
    run_id: int
    run_uid: str
    index: int
    attempt: int
    status: str
    run_status: str
    uid: str | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    outcome: str | None = None
    ended_by: str | None = None
    staged: bool = False
    """True if the task's debugging information is not written yet."""

    @property
    def run(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)

    @property
    def key(self) -> tuple[int, int, int]:
        return (self.run_id, self.index, self.attempt)


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One difference. ``subject`` identifies the difference in all audits."""

    subject: str
    kind: FindingKind
    detail: str
    run_id: int | None = None
    attempt: int | None = None
    task_id: int | None = None
    workflow_id: str | None = None
    evidence: dict[str, object] = field(default_factory=dict)
    since: datetime | None = None
    """The time at which the difference began, if known. Otherwise the grace period begins when an
    audit first sees the finding.
    """
    spared: str | None = None
    """The reason why this finding is only reported although others of its kind are repaired."""
    unknown: bool = False
    """True if the run, manager or graph is missing from the database. Rows are never removed, so
    the database is an older copy, a new database or the wrong database. Only a person's decision
    (``UnknownDecision``) adopts or ends the run.
    """
    tries_max: int | None = None
    """The number of takeovers without progress after which the subject is given up, or ``None`` if
    the repair is not a takeover.
    """


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """The stored data about a finding."""

    first_seen: datetime
    repaired_at: datetime | None = None
    settled: bool = False
    """True if this finding was repaired earlier and needs no further repair."""
    tries: int = 0
    """The number of consecutive takeovers without progress."""


# --- when to repair


_TAKE_TIME = (
    FindingKind.NOT_STARTED,
    FindingKind.NOT_COUNTED,
    FindingKind.UNRECORDED,
    FindingKind.UNDELIVERED,
    FindingKind.NOT_TOLD,
)


def reportable(finding: AuditFinding, now: datetime, rules: AuditRules) -> bool:
    """Return whether a finding can be reported yet. For some kinds, the state is normal if it began
    a moment ago.
    """
    if finding.kind in _TAKE_TIME:
        return finding.since is None or now - finding.since >= _grace(finding.kind, rules)
    return True


def due(finding: AuditFinding, noted: StoredFinding, now: datetime, rules: AuditRules) -> bool:
    """Return whether to repair a finding now. The grace period must have elapsed, and the repair
    must not require a person.
    """
    if finding.kind in FOR_PEOPLE or finding.spared is not None or noted.settled:
        return False
    if finding.kind is FindingKind.UNDELIVERED and noted.repaired_at is not None:
        return now - noted.repaired_at >= timedelta(seconds=rules.resend_s)
    # ``first_seen`` comes from a clock that may be slightly ahead of our clock.
    return max(now, noted.first_seen) >= ready_at(finding, noted, rules)


def ready_at(finding: AuditFinding, noted: StoredFinding, rules: AuditRules) -> datetime:
    """Return the earliest time for a repair: after the grace period and the waits that follow
    takeovers without progress.
    """
    begin = noted.first_seen
    if finding.since is not None and finding.kind not in (
        FindingKind.ORPHAN,
        FindingKind.STILL_ALIVE,
    ):
        begin = min(begin, finding.since)
    ready = begin + _grace(finding.kind, rules)
    if finding.tries_max is None or noted.repaired_at is None:
        return ready
    doublings = max(0, noted.tries - 1) if noted.tries < finding.tries_max else 0
    return max(ready, noted.repaired_at + _AGAIN * 2.0**doublings)


def in_a_row(finding: AuditFinding, noted: StoredFinding) -> StoredFinding:
    """Return the record of a finding with its count of takeovers.

    The count restarts at 0 if the workflow of the last takeover was open for longer than ``LIVED``.
    """
    last = noted.repaired_at
    lived = finding.tries_max is not None and last is not None and noted.first_seen - last > LIVED
    return replace(noted, tries=0, repaired_at=None) if lived else noted


def given_up(finding: AuditFinding) -> str:
    """Return the reason recorded when a run, manager or graph is given up."""
    many = "1 takeover" if finding.tries_max == 1 else f"{finding.tries_max} takeovers in a row"
    return f"Given up after {many} without progress: {finding.detail}"[:1000]


def is_hopeless(finding: AuditFinding, noted: StoredFinding) -> bool:
    """Return whether no takeover is left for the finding, so that its run, manager or graph is
    ended.
    """
    return finding.tries_max is not None and noted.tries >= finding.tries_max


def _grace(kind: FindingKind, rules: AuditRules) -> timedelta:
    seconds = {
        FindingKind.ORPHAN: rules.orphan_grace_s,
        FindingKind.STILL_ALIVE: rules.orphan_grace_s,
        FindingKind.NOT_STARTED: rules.start_grace_s,
        FindingKind.UNRECORDED: rules.record_grace_s,
        FindingKind.LATE_EVIDENCE: 0.0,
    }.get(kind, rules.grace_s)
    return timedelta(seconds=seconds)


# --- the report


@dataclass(frozen=True, slots=True)
class ReportedFinding:
    """A finding in a report. ``repair`` describes the repair, or is ``None`` if there was no repair
    yet.
    """

    kind: FindingKind
    detail: str
    run_id: int | None = None
    task_id: int | None = None
    workflow_id: str | None = None
    repair: str | None = None
    repaired: bool = False
    due_at: datetime | None = None
    """The earliest time for the repair, or ``None`` if the finding is repaired or only a person can
    repair it."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The report of one audit: the compared data, the findings and the repairs."""

    audit_id: str
    started_at: datetime
    ended_at: datetime
    repair: bool
    looked: dict[str, int] = field(default_factory=dict)
    """The number of compared entries of each source, such as tasks on the cluster or open
    workflows.
    """
    found: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    findings: list[ReportedFinding] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """Sentences about sources that could not be compared, each with the reason."""

    @property
    def left(self) -> int:
        """The number of findings that were not repaired."""
        return sum(self.found.values()) - sum(self.repaired.values())


_ORDER = {kind: number for number, kind in enumerate(FindingKind)}


def most_urgent(findings: Iterable[ReportedFinding]) -> list[ReportedFinding]:
    """Return the first ``REPORTED_MAX`` findings, sorted by ``FindingKind``, run and task."""
    return sorted(
        findings, key=lambda f: (_ORDER[f.kind], f.run_id or 0, f.task_id or 0, f.detail)
    )[:REPORTED_MAX]
