"""Findings and reports of audits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, delete, insert, select, true, update

from crawler_lifecycle.domain.audits.audit import (
    AuditFinding,
    AuditReport,
    FindingKind,
    StoredFinding,
)
from crawler_lifecycle.ports.polls import FindingRow
from crawler_lifecycle.store.base.unit import StorePart
from crawler_lifecycle.store.columns import storable

from .tables import audit_finding, audit_report

#: The age at which a report is removed.
REPORTS_KEPT = timedelta(days=30)

_REPORT = TypeAdapter(AuditReport)


class FindingStore(StorePart):
    """Findings and reports of audits."""

    def note_findings(self, findings: Sequence[AuditFinding]) -> dict[str, StoredFinding]:
        """Record findings from an audit. Returns the record of each subject.

        A second call only changes the time when the finding was last seen.
        """
        return self._db.inserting(
            "finding",
            lambda conn: {finding.subject: self._note(conn, finding) for finding in findings},
        )

    def _note(self, conn: Connection, one: AuditFinding) -> StoredFinding:
        a = audit_finding.c
        now = self._clock()
        found = (
            conn.execute(select(audit_finding).where(a.subject == one.subject))
            .mappings()
            .one_or_none()
        )
        new: dict[str, Any] = {
            "detail": storable(one.detail, 4000),
            "evidence": one.evidence,
            "last_seen": now,
        }
        if found is not None:
            if found["status"] == "repaired" and one.kind is FindingKind.LATE_EVIDENCE:
                return StoredFinding(found["first_seen"], found["repaired_at"], settled=True)
            if found["status"] != "open":  # the problem was gone or repaired, and has come back
                new |= {"status": "open", "first_seen": now}
            # If the pruner has just removed the old closed finding, this one is new.
            if conn.execute(
                update(audit_finding).where(a.id == found["id"]).values(**new)
            ).rowcount:
                return StoredFinding(
                    new.get("first_seen", found["first_seen"]),
                    found["repaired_at"],
                    tries=found["tries"],
                )
        row = {
            "subject": one.subject,
            "kind": one.kind.value,
            "status": "open",
            "first_seen": now,
            "tries": 0,
            **new,
            "run_id": one.run_id,
            "task_id": one.task_id,
            "workflow_id": one.workflow_id,
        }
        conn.execute(insert(audit_finding).values(**row))
        return StoredFinding(now)

    def note_repair(self, subject: str, text: str, *, done: bool = True, tries: int = 0) -> None:
        """Record the repair of a finding.

        ``text`` describes what was done. ``tries`` is the number of consecutive tries. The finding
        stays open unless ``done`` is true.
        """
        values = {"repair": storable(text, 4000), "repaired_at": self._clock(), "tries": tries}
        if done:
            values["status"] = "repaired"
        with self._db.writing() as conn:
            conn.execute(
                update(audit_finding).where(audit_finding.c.subject == subject).values(**values)
            )

    def forget_findings(
        self, kinds: Collection[str], seen_before: datetime, about: str | None = None
    ) -> int:
        """Close open findings of these kinds that no audit has seen since ``seen_before``.

        Returns their number.

        If ``about`` is given, close only findings whose subject has ``about``, such as ``manager``,
        as its second word.
        """
        a = audit_finding.c
        mine = true() if about is None else a.subject.like(f"%/{about}/%")
        with self._db.writing() as conn:
            gone = (
                update(audit_finding)
                .where(
                    a.status == "open",
                    a.last_seen < seen_before,
                    a.kind.in_([str(kind) for kind in kinds]),
                    mine,
                )
                .values(status="gone")
            )
            return conn.execute(gone).rowcount

    def audit_findings(self, status: str = "open", limit: int = 500) -> list[FindingRow]:
        """Return findings with this status (open, repaired or gone), the most recently seen
        first.
        """
        a = audit_finding.c
        query = (
            select(audit_finding)
            .where(a.status == status)
            .order_by(a.last_seen.desc(), a.id.desc())
            .limit(limit)
        )
        return self._made(FindingRow, query)

    def record_audit(self, report: AuditReport) -> None:
        """Store a report, and remove reports that are older than 30 days.

        A second call stores nothing.
        """
        a = audit_report.c
        with self._db.writing() as conn:
            if (
                conn.execute(select(a.id).where(a.audit_id == report.audit_id)).one_or_none()
                is None
            ):
                row = {
                    "audit_id": report.audit_id,
                    "started_at": report.started_at,
                    "ended_at": report.ended_at,
                }
                document = _REPORT.dump_python(report, mode="json")
                conn.execute(insert(audit_report).values(**row, report=document))
            oldest = conn.execute(select(a.id, a.ended_at).order_by(a.id).limit(100)).all()
            old = [found for found, ended_at in oldest if ended_at < report.ended_at - REPORTS_KEPT]
            if old:
                conn.execute(delete(audit_report).where(a.id.in_(old)))

    def last_audit(self, audit_id: str | None = None) -> AuditReport | None:
        """Return the newest report, or the report of the audit ``audit_id``; ``None`` if there is
        no such report.
        """
        a = audit_report.c
        query = select(a.report).order_by(a.id.desc()).limit(1)
        if audit_id is not None:
            query = query.where(a.audit_id == audit_id)
        rows = self._rows(query)
        return _REPORT.validate_python(rows[0]["report"]) if rows else None
