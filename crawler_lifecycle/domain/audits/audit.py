"""Rules of the audit: differences between database, cluster and Temporal, and their repair.

Everything here is pure. An audit reads facts, judges each of them alone (so their order does not matter), stores each
finding with the time when it was first seen, and repairs it after a grace: a repair under way (a start, a resume by an
operator, a deployment) comes first. Facts that agree give no finding, and a repair makes them agree, so that a second
audit finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.run_ref import RunRef

#: Workflows in a row without progress after which the run (or parent) is given up; after a forced stop, one.
TRIES_MAX, TRIES_WHEN_FORCED = 5, 1
#: A workflow that was open for so many seconds has made progress, whatever its result.
LIVED = timedelta(minutes=3)
#: Findings that a report lists; all of them are counted.
REPORTED_MAX = 100


class FindingKind(StrEnum):
    """Kinds of findings, in the order of a report: unowned executing tasks come first."""

    ORPHAN = "orphan"
    STILL_ALIVE = "still_alive"
    NO_WORKFLOW = "no_workflow"
    NOT_STARTED = "not_started"
    NOT_COUNTED = "not_counted"
    NO_RUN = "no_run"
    NOT_FIRED = "not_fired"
    NOT_TOLD = "not_told"
    NO_ROW = "no_row"
    UNRECORDED = "unrecorded"
    UNDELIVERED = "undelivered"
    LATE_EVIDENCE = "late_evidence"
    UNREADABLE = "unreadable"

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return MEANINGS[self]

    @property
    def repair(self) -> str | None:
        """The effect of a repair; ``None`` where only a person can repair it."""
        return REPAIRS.get(self)


MEANINGS: Mapping[FindingKind, str] = {
    FindingKind.ORPHAN: "A task executes that no row of the database knows.",
    FindingKind.STILL_ALIVE: "A task executes that is recorded as ended, or whose run is.",
    FindingKind.NO_WORKFLOW: "A run, a manager, a graph or a webhook is open and its workflow is not.",
    FindingKind.NOT_STARTED: "A run, a manager, a graph, a due time or a webhook was accepted and nobody took it up.",
    FindingKind.NOT_COUNTED: "A manager or a graph began a run and does not know of it.",
    FindingKind.NO_RUN: "A step of a graph executes as a run or a manager that is not there, or not of this graph.",
    FindingKind.NOT_FIRED: "A schedule was due, Temporal did not fire, and no line says so.",
    FindingKind.NOT_TOLD: "Temporal has not been told what the database says of a schedule.",
    FindingKind.NO_ROW: "A workflow is open whose run, manager or graph is not in the database.",
    FindingKind.UNRECORDED: "A workflow is open and has not recorded its run.",
    FindingKind.UNDELIVERED: "A run has ended and something of it was not delivered.",
    FindingKind.LATE_EVIDENCE: "There is evidence now that a task ended differently than was recorded.",
    FindingKind.UNREADABLE: "A row holds what cannot be.",
}

REPAIRS: Mapping[FindingKind, str] = {
    FindingKind.ORPHAN: "taken up again, or ended, as a person says",
    FindingKind.STILL_ALIVE: "ended",
    FindingKind.NO_WORKFLOW: "taken over by a new workflow",
    FindingKind.NOT_STARTED: "started",
    FindingKind.NOT_COUNTED: "its manager or graph is woken and takes it in",
    FindingKind.NO_RUN: "its graph is woken, and the step ends",
    FindingKind.NOT_FIRED: "written down as missed, or as paused",
    FindingKind.NO_ROW: "taken up again, or its workflow terminated, as a person says",
    FindingKind.UNDELIVERED: "sent again",
    FindingKind.LATE_EVIDENCE: "written down as a correction",
}


#: A run or parent without a workflow: it gets a new one.
LOST = (FindingKind.NO_WORKFLOW, FindingKind.NOT_STARTED)


class Unknown(StrEnum):
    """A person's decision about runs that execute without a row."""

    LEAVE = "leave"
    ADOPT = "adopt"
    """Make the rows again from the data of workflow and cluster, so that the run is looked at, stopped and archived."""
    END = "end"


@dataclass(frozen=True, slots=True)
class AuditRules:
    """Times of an audit: waits before repairs, and how far back it looks. Seconds."""

    grace_s: float = 120.0
    """Seconds from the close of a run's workflow, or from the first sight of another finding, to the repair."""
    orphan_grace_s: float = 300.0
    """Seconds from the first sight of a task that executes after its recorded end, to ending it."""
    start_grace_s: float = 30.0
    """From the acceptance of a run to the start of a workflow for it."""
    record_grace_s: float = 120.0
    """From the start of a workflow to the time by which it should have recorded its run."""
    resend_s: float = 3600.0
    """From one order to deliver again to the next."""
    again_s: float = 30.0
    """From a take-over in vain to the next one; doubled with each."""
    recent_s: float = 3 * 86400.0
    """Runs that ended longer ago are settled: their deliveries and evidence are no longer compared."""


@dataclass(frozen=True, slots=True)
class ParentJob:
    """The job of a manager, or the step of a graph, that a run names by its request."""

    parent: str
    """As people call it: ``manager 3``."""
    kind: str
    """``job`` or ``step``."""
    workflow_id: str
    state: str | None
    """``None``: there is no such job."""
    starting: bool = False
    """True when it was picked, and its run is being begun."""


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
    """The time at which its next look is due; without a planned look, the time of the last change of its row."""
    planned: bool = False
    """True when a look is planned."""
    uncounted: ParentJob | None = None
    """The job or step that its request names and that has not recorded it."""

    @property
    def ref(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)


@dataclass(frozen=True, slots=True)
class LiveParent:
    """A row of a manager or of a graph that has not ended, of a due time still to begin, or of a webhook."""

    what: str
    """``manager``, ``graph``, ``due time`` or ``webhook``."""
    number: int
    workflow_id: str
    status: str
    attempt: int
    updated_at: datetime
    owner_run_id: str | None = None
    unreadable: str | None = None
    """The error in the row; then its other fields cannot be trusted."""
    progress: str = ""
    """The same text as long as nothing makes progress, over any number of workflows."""
    forced: bool = False
    """True when a forced stop is on record: it needs no proof that others cannot carry it. A plain one has its time."""


@dataclass(frozen=True, slots=True)
class StepWithoutRun:
    """A step whose row says that it executes, or ends, as a run or a manager that does not exist or belongs to another
    graph.
    """

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
    """The owner, where it exists."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A row of a run that has ended, with the record of its deliveries."""

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
    """State of one chain of executions in Temporal."""

    open: bool
    closed_at: datetime | None = None
    how: str | None = None
    """The way in which it closed (``terminated``, ``failed`` …); ``None``: open, or removed from the server."""
    why: str | None = None
    """The recorded reason; ``None``: it ended normally, or nobody gave a reason."""
    run_uid: str | None = None
    """The run for which an open workflow says it works; ``None``: none, or none yet."""
    first_run_id: str | None = None
    """The chain that an open one belongs to."""

    def of_another(self, run_uid: str) -> bool:
        """Return whether it is open and works for another run than the one with this uid."""
        return self.open and self.run_uid not in (None, run_uid)


@dataclass(frozen=True, slots=True)
class OpenWorkflow:
    """A workflow of a run, of a manager or of a graph that is open."""

    workflow_id: str
    first_run_id: str
    started_at: datetime
    run_id: int | None = None
    """The run that it says it works for; ``None`` before it has recorded one."""
    run_uid: str | None = None
    of_parent: bool = False
    """True when it works for a manager or a graph, which its id names."""


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """A task that waits or executes on the cluster, whoever it belongs to."""

    run_id: int
    index: int
    attempt: int
    executing: bool
    """True when its crawler executes; otherwise it waits for capacity."""
    task_id: int | None = None
    uid: str | None = None
    started_at: datetime | None = None
    node: str | None = None
    run_uid: str | None = None
    """The uid of the run that it names; ``None``: it names none, so it belongs to no run of this database."""
    stray: bool = False
    """True when its object is gone and only a process of it is left; then ``uid`` names the process."""

    @property
    def run(self) -> RunRef:
        """The run that it names, whoever owns that."""
        return RunRef(self.run_id, self.run_uid or "")

    @property
    def key(self) -> tuple[int, int, int]:
        """Run, index and attempt: the order of an inventory."""
        return (self.run_id, self.index, self.attempt)


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """Row of one task and its run."""

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

    @property
    def run(self) -> RunRef:
        return RunRef(self.run_id, self.run_uid)

    @property
    def key(self) -> tuple[int, int, int]:
        return (self.run_id, self.index, self.attempt)


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that does not agree. ``subject`` names it, the same at every audit."""

    subject: str
    kind: FindingKind
    detail: str
    run_id: int | None = None
    attempt: int | None = None
    task_id: int | None = None
    workflow_id: str | None = None
    evidence: dict[str, object] = field(default_factory=dict)
    since: datetime | None = None
    """The time at which it began, where that is known; otherwise its grace begins when it is first seen."""
    spared: str | None = None
    """The reason why it is reported and never repaired, although others of its kind are."""
    unknown: bool = False
    """True when the database does not know it at all. Rows are never removed, so the database is an older copy, a new
    one or the wrong one: only a person's decision (``Unknown``) adopts the task or ends it.
    """
    tries_max: int | None = None
    """Take-overs without progress after which it is given up; ``None``: no workflow carries such a finding."""


@dataclass(frozen=True, slots=True)
class Noted:
    """Record of a finding."""

    first_seen: datetime
    repaired_at: datetime | None = None
    settled: bool = False
    """True when the same was found and repaired before and is nothing new."""
    tries: int = 0
    """Take-overs in a row, without progress."""


# --- when to repair


_TAKE_TIME = (
    *(FindingKind.NOT_STARTED, FindingKind.NOT_COUNTED, FindingKind.UNRECORDED, FindingKind.UNDELIVERED),
    FindingKind.NOT_TOLD,
)


def reportable(finding: AuditFinding, now: datetime, rules: AuditRules) -> bool:
    """Return whether a finding is to be reported yet: a state that has only just begun or ended is no finding."""
    if finding.kind in _TAKE_TIME:
        return finding.since is None or now - finding.since >= _grace(finding.kind, rules)
    return True


def due(finding: AuditFinding, noted: Noted, now: datetime, rules: AuditRules) -> bool:
    """Return whether a finding is to be repaired now. Never during its grace, and never where only a person can."""
    if finding.kind not in REPAIRS or finding.spared is not None or noted.settled:
        return False
    if finding.kind is FindingKind.UNDELIVERED and noted.repaired_at is not None:
        return now - noted.repaired_at >= timedelta(seconds=rules.resend_s)
    # The clock that dated the first sight may be a little ahead of ours.
    return max(now, noted.first_seen) >= ready_at(finding, noted, rules)


def ready_at(finding: AuditFinding, noted: Noted, rules: AuditRules) -> datetime:
    """The end of the grace, and of the back-off after take-overs in vain."""
    begin = noted.first_seen
    if finding.since is not None and finding.kind not in (FindingKind.ORPHAN, FindingKind.STILL_ALIVE):
        begin = min(begin, finding.since)
    ready = begin + _grace(finding.kind, rules)
    if finding.tries_max is None or noted.repaired_at is None:
        return ready
    doublings = max(0, noted.tries - 1) if noted.tries < finding.tries_max else 0
    return max(ready, noted.repaired_at + timedelta(seconds=rules.again_s * 2**doublings))


def in_a_row(finding: AuditFinding, noted: Noted) -> Noted:
    """The same with the counted take-overs: those since the last one that lived for a while, by the clock of the
    observer.
    """
    last = noted.repaired_at
    lived = finding.tries_max is not None and last is not None and noted.first_seen - last > LIVED
    return replace(noted, tries=0, repaired_at=None) if lived else noted


def given_up(finding: AuditFinding) -> str:
    """The reason why it is ended."""
    many = "1 take-over" if finding.tries_max == 1 else f"{finding.tries_max} take-overs in a row"
    return f"Given up after {many} without progress: {finding.detail}"[:1000]


def is_hopeless(finding: AuditFinding, noted: Noted) -> bool:
    """Return whether no workflow can carry it: it is ended instead of being taken over once more."""
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
class Reported:
    """A finding in a report. ``repair``: the repair that was made; ``None``: none yet."""

    kind: FindingKind
    detail: str
    run_id: int | None = None
    task_id: int | None = None
    workflow_id: str | None = None
    repair: str | None = None
    repaired: bool = False
    due_at: datetime | None = None
    """The earliest time of its repair; ``None``: done, or a person has to repair it."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Report of one audit: looked at, found and done."""

    audit_id: str
    started_at: datetime
    ended_at: datetime
    repair: bool
    looked: dict[str, int] = field(default_factory=dict)
    """Numbers of compared things: live runs, tasks on the cluster, open workflows, and runs that ended lately."""
    found: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    findings: list[Reported] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """Things that could not be compared at all, and why."""

    @property
    def left(self) -> int:
        """Number of findings that were not repaired."""
        return sum(self.found.values()) - sum(self.repaired.values())


_ORDER = {kind: number for number, kind in enumerate(FindingKind)}


def most_urgent(findings: Iterable[Reported], limit: int = REPORTED_MAX) -> list[Reported]:
    """The first ``limit`` findings: unowned executing tasks first, then by kind and run."""
    return sorted(findings, key=lambda f: (_ORDER[f.kind], f.run_id or 0, f.task_id or 0, f.detail))[:limit]
