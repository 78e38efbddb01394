"""Corrections, what one transaction adds to them, and findings of audits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from crawler_lifecycle.domain.audits.corrections import CorrectionKind


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

    ``believed`` and ``truth`` are statuses, or another word of at most 20 characters where what was untrue is none.
    """

    kind: CorrectionKind
    believed: str
    truth: str
    task_id: int | None = None
    """``None``: it is about the run itself."""
    attempt: int | None = None
    """``None``: that of the task, or the present one of the run."""
    believed_since: datetime | None = None
    """``None``: since when the database has had it on record."""
    truth_since: datetime | None = None
    """``None``: nobody can say."""
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
    """What one transaction added to the ledger."""

    run_id: int
    attempt: int
    changes: Sequence[TaskChanged]
    corrections: Sequence[Corrected]
    took: timedelta
    """How much later than the rows' own times the transaction was over."""


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
    tries: int
    """Take-overs in a row that came to nothing."""
