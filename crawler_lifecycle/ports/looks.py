"""Findings of one look, and their consequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Change, Counters, Observation, TaskState


@dataclass(frozen=True, slots=True)
class ObserverHealth:
    """The state of an observer: whether it can watch now, and a text about it."""

    up: bool
    problem: str | None = None
    """The reason why it sees nothing."""
    watched: int = 0
    """Tasks it has its eyes on."""
    place: int = 0
    """The number of observers of the same cluster before it. They wake first; later ones leave them a moment."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts so far of the crawler of one task that executes, read between looks."""

    run: RunRef
    attempt: int
    index: int
    counters: Counters
    at: datetime | None = None
    """The time when the crawler last wrote its counters, as far as it says so."""


@dataclass(frozen=True, slots=True)
class Look:
    """One complete reading of the cluster for one run. An incomplete reading is an error, not a look."""

    observed_at: datetime
    seconds: float
    observations: Sequence[Observation]
    again_s: float | None = None
    """Seconds after which the cluster wants to be looked at again, when something is not yet proved."""


@dataclass(frozen=True, slots=True)
class Details:
    """Debugging information about one task, read from the cluster."""

    task_id: int
    log_tail: str | None = None
    counters: Counters = field(default_factory=Counters)
    peak_memory: int | None = None
    statistics: Mapping[str, int | float] | None = None
    """The crawler's own statistics at its end, within their limits; ``None``: not reported."""


@dataclass(frozen=True, slots=True)
class LookReport:
    """The changes that a look made or will make, after the store has staged its findings."""

    changed: int
    active: int
    queued: int
    stop: StopIntent | None = None
    """The recorded stop intent, which may have been recorded without the workflow (by the gateway)."""
    quiet: timedelta = timedelta(0)
    """The time without progress that looks confirm (``domain.stall``)."""
    pages: int | None = None
    items: int | None = None
    errors: int | None = None


@dataclass(frozen=True, slots=True)
class FoundState:
    """The state of a run against which a look is compared, read in one transaction."""

    tasks: Sequence[TaskState]
    stop: StopIntent | None
    next_look_at: datetime | None
    last_progress_at: datetime | None
    counters: Counters


@dataclass(frozen=True, slots=True)
class TaskFinding:
    """One change that a look found, with the observation that proves it, staged until ``sync_statuses``."""

    change: Change
    observation: Observation


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
class Correction:
    """A recorded status that turned out to be untrue, to be written down by ``CorrectionStore.record_corrections``.

    ``believed`` and ``truth`` are statuses, or another word of at most 20 characters.
    """

    kind: CorrectionKind
    believed: str
    truth: str
    task_id: int | None = None
    """``None``: it is about the run itself."""
    attempt: int | None = None
    """``None``: that of the task, or the present one of the run."""
    believed_since: datetime | None = None
    """``None``: since the database recorded it."""
    truth_since: datetime | None = None
    """``None``: unknown."""
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskChanged:
    """One transition of a task, as it was committed."""

    status: str
    source: str
    lag_ms: int | None
    """From the cluster's own time of the change to the row's ``committed_at``."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """One correction as it was committed, with the cause that its task has now."""

    row: CorrectionRow
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The entries that one transaction added to the ledger."""

    run_id: int
    attempt: int
    changes: Sequence[TaskChanged]
    corrections: Sequence[Corrected]
    took: timedelta
    """The time from the rows' own times to the end of the transaction."""


@dataclass(frozen=True, slots=True)
class CorrectionTotal:
    """Corrections of one kind: their number, and the longest time for which a recorded status was untrue."""

    kind: str
    count: int
    worst_ms: int | None


@dataclass(frozen=True, slots=True)
class CorrectionSummary:
    """The corrections of all runs since a moment, by kind."""

    since: datetime
    kinds: Sequence[CorrectionTotal]
    """In alphabetical order; kinds without corrections are left out."""

    @property
    def count(self) -> int:
        return sum(total.count for total in self.kinds)

    @property
    def worst_ms(self) -> int | None:
        """The longest time for which a recorded status was untrue; ``None``: none was, or it is unknown."""
        return max((total.worst_ms for total in self.kinds if total.worst_ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One row of ``audit_finding``: a finding of audits, and its state."""

    id: int
    subject: str
    kind: str
    status: str
    """``open``, ``repaired``, or ``gone`` without a repair of ours."""
    run_id: int | None
    task_id: int | None
    workflow_id: str | None
    detail: str
    evidence: Mapping[str, object]
    first_seen: datetime
    last_seen: datetime
    repair: str | None
    repaired_at: datetime | None
    tries: int
    """Take-overs in a row that came to nothing."""
