"""The part of an audit that is about schedules: what Temporal was told, and due times that have no line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from temporalio import activity

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.shared import Clock, alive, beating, utc_now
from crawler_lifecycle.domain.audits.audit import AuditFinding, AuditRules
from crawler_lifecycle.domain.audits.judgement import judge_told, judge_unfired, judge_unreadable
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.schedules.decision import Decision
from crawler_lifecycle.domain.schedules.definition import ScheduleSpec
from crawler_lifecycle.ports.schedules import Noted, ScheduleRow

from .settling import PAGE, AuditPage, AuditPart, Found, Settling

if TYPE_CHECKING:
    from crawler_lifecycle.store.audits.findings import FindingStore
    from crawler_lifecycle.store.schedules.schedules import ScheduleStore

#: Seconds that a due time has, beyond all it may be late, until it is taken for missed: its workflow may be at work.
SETTLE_S = 60.0


@dataclass
class ScheduleAudit:
    """Compares them. What of a due time was never begun is compared beside managers and graphs."""

    schedules: ScheduleStore
    findings: FindingStore
    rules: AuditRules = field(default_factory=AuditRules)
    clock: Clock = utc_now

    @activity.defn(name="audit_schedules", no_thread_cancel_exception=True)
    def audit_schedules(self, page: AuditPage) -> AuditPart:
        """Compare a page of the schedules with what Temporal was told and with their lines; write lines that lack.

        Second execution: finds the lines.
        """
        with beating():
            rows, found = self.schedules.list_schedules(int(page.after or 0), PAGE, deleted=True), list[Found]()
            for row in rows:
                alive()
                found += [Found(finding, partial(self._note, row)) for finding in self._judged(row)]
            part = Settling(self.findings, self.rules, self.clock()).settle(found, page, len(rows))
        return replace(part, next=str(rows[-1].schedule_id) if len(rows) >= PAGE else None)

    def _judged(self, row: ScheduleRow) -> Iterator[AuditFinding]:
        if row.deleted_at is not None:
            if row.told is not None:
                yield judge_told(row.schedule_id, row.name, row.updated_at, "is deleted")
            return
        try:
            until = settled_until(ScheduleSpec.read(row.definition), self.clock())
        except LifecycleError as error:
            yield judge_unreadable("schedule", row.schedule_id, f"schedule {row.name!r}: {error}")
            return
        if row.told != row.revision:
            yield judge_told(row.schedule_id, row.name, row.updated_at, f"has its definition {row.revision}")
        unfired = self.schedules.unfired_due(row.schedule_id, until)
        if unfired:
            yield judge_unfired(row.schedule_id, row.name, unfired)

    def _note(self, row: ScheduleRow) -> str:
        noted = note_unfired(self.schedules, row, self.clock())
        return f"written down: {noted.missed} missed, {noted.paused} paused"


def settled_until(spec: ScheduleSpec, now: datetime) -> datetime:
    """Up to when each due time has its line, or will never have one by itself."""
    return now - timedelta(seconds=spec.catch_up_s + spec.jitter_s + SETTLE_S)


def note_unfired(schedules: ScheduleStore, row: ScheduleRow, now: datetime) -> Noted:
    """Write a line for each past due time that has none, when it is too late for its workflow to come; how many."""
    until, total, more = settled_until(ScheduleSpec.read(row.definition), now), Noted(), True
    while more:
        noted = schedules.note_due(row.schedule_id, until)
        meters.count(meters.SCHEDULE_DUE, noted.missed, decision=Decision.MISSED.value)
        meters.count(meters.SCHEDULE_DUE, noted.paused, decision=Decision.PAUSED.value)
        total, more = Noted(total.missed + noted.missed, total.paused + noted.paused), noted.more
    return total
