"""Port of audits: what they compare and find, and corrections."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.audits.audit import (
    AuditFinding,
    AuditReport,
    EndedRun,
    LiveParent,
    LiveRun,
    Noted,
    RecordedTask,
    StepWithoutRun,
)
from crawler_lifecycle.ports.values import Correction, CorrectionRow, CorrectionSummary, Fence, FindingRow


class CorrectionReader(Protocol):
    """Recorded statuses that turned out to be untrue."""

    def list_corrections(
        self,
        run_id: int | None = None,
        after_id: int = 0,
        limit: int = 500,
        *,
        kind: str | None = None,
        before_id: int | None = None,
    ) -> list[CorrectionRow]:
        """Corrections of one run, or of all, oldest first; of one kind, when it is given. With ``before_id`` those that
        were made before that one, newest first."""
        ...

    def correction_summary(self, since: datetime) -> CorrectionSummary:
        """How many corrections of each kind all runs had since then, and how long a status was untrue at most."""
        ...


class CorrectionStore(CorrectionReader, Protocol):
    """The same, as they are found."""

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


class AuditStore(Protocol):
    """Rows that an audit compares with the cluster and with Temporal."""

    def open_runs(self, after_run_id: int = 0, limit: int = 500) -> list[LiveRun]:
        """Runs that have not ended, by id, with what in their rows cannot be."""
        ...

    def open_managers(self, after_manager_id: int = 0, limit: int = 500) -> list[LiveParent]:
        """Managers that have not ended, by id, with what in their rows cannot be."""
        ...

    def open_graphs(self, after_graph_id: int = 0, limit: int = 500) -> list[LiveParent]:
        """Graphs that have not ended, by id, drafts left out, with what in their rows cannot be."""
        ...

    def steps_without_runs(self, graph_ids: Collection[int], limit: int = 1000) -> list[StepWithoutRun]:
        """Steps of these graphs that execute, or end, as a run or a manager that is not there, or not of the graph."""
        ...

    def existing_parents(self, workflow_ids: Collection[str]) -> set[str]:
        """Those of these workflow ids whose manager, or graph, there is."""
        ...

    def ended_runs(
        self, since: datetime, after: tuple[datetime, int] | None = None, limit: int = 500
    ) -> list[EndedRun]:
        """Runs that ended at ``since`` or later, in the order of their end and id; ``after`` is the last one seen."""
        ...

    def ended_run(self, run_id: int) -> EndedRun | None:
        """One of them; ``None`` when the run has not ended or does not exist."""
        ...

    def unproved_ends(self, run_ids: Collection[int], since: datetime, limit: int = 500) -> list[RecordedTask]:
        """Tasks of these runs whose end was recorded at ``since`` or later without evidence of how it came about."""
        ...

    def existing_runs(self, run_ids: Collection[int]) -> dict[int, str]:
        """Those of these runs that there are, and their uids."""
        ...


class FindingReader(Protocol):
    """Findings and reports of audits."""

    def audit_findings(self, status: str = "open", limit: int = 500) -> list[FindingRow]:
        """Findings in this status (open, repaired, gone), the one seen last first."""
        ...

    def last_audit(self, audit_id: str | None = None) -> AuditReport | None:
        """The newest report, or that of the audit that is named."""
        ...


class FindingStore(FindingReader, Protocol):
    """The same, as audits write them."""

    def note_findings(self, findings: Sequence[AuditFinding]) -> dict[str, Noted]:
        """Keep what an audit found; what is on record about each subject. Again: only the last sight moves."""
        ...

    def note_repair(self, subject: str, text: str, *, done: bool = True, tries: int = 0) -> None:
        """What was done about a finding, and how often in a row. Unless it is ``done`` it stays open."""
        ...

    def forget_findings(self, kinds: Collection[str], seen_before: datetime, about: str | None = None) -> int:
        """Open findings of these kinds that no audit has seen since then are gone; how many. ``about``: the second word
        of their subjects, such as ``manager``."""
        ...

    def record_audit(self, report: AuditReport) -> None:
        """Keep a report, and forget those that are older than 30 days. Again: it is kept already."""
        ...
