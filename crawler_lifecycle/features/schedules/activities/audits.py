"""The audit of schedules: their definitions in Temporal, due times without a firing, and due times
without a workflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.audits.parents import source
from crawler_lifecycle.activities.audits.settling import (
    PAGE,
    AuditPage,
    AuditPart,
    FindingRepair,
    Settling,
)
from crawler_lifecycle.activities.shared import activity_method, alive, beating
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.audit import AuditFinding, AuditRules, FindingKind, LiveParent
from crawler_lifecycle.domain.audits.judgement import judge_told, judge_unfired, judge_unreadable
from crawler_lifecycle.domain.due_ids import due_workflow_id
from crawler_lifecycle.domain.errors import LifecycleError

from ..domain.decision import Decision
from ..domain.definition import ScheduleSpec
from ..ports import NotedFirings, ScheduleRow

if TYPE_CHECKING:
    from crawler_lifecycle.store.store import Store

    from ..store.schedules import ScheduleStore

#: A due time counts as missed this many seconds after its latest allowed start, because its
#: workflow may still be running before that.
SETTLE_S = 60.0
_K = FindingKind


@dataclass
class ScheduleAudit:
    """Compares schedules with Temporal and with their recorded firings."""

    store: Store
    rules: AuditRules = field(default_factory=AuditRules)
    clock: Clock = utc_now

    @activity_method
    def audit_schedules(self, page: AuditPage) -> AuditPart:
        """Compare a page of schedules with Temporal and with their recorded firings, and record
        missing firings.

        A second execution finds the recorded firings.
        """
        with beating():
            rows = self.store.schedules.page(int(page.after or 0), PAGE, deleted=True)
            found = list[FindingRepair]()
            for row in rows:
                alive()
                found += [
                    FindingRepair(finding, partial(self._note, row))
                    for finding in self._judged_schedule(row)
                ]
            settling = Settling(self.store.findings, self.rules, self.clock())
            return settling.settle(found, page, [row.schedule_id for row in rows])

    def _judged_schedule(self, row: ScheduleRow) -> Iterator[AuditFinding]:
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
            yield judge_told(
                row.schedule_id, row.name, row.updated_at, f"has its definition {row.revision}"
            )
        unfired = self.store.schedules.unfired_due(row.schedule_id, until)
        if unfired:
            yield judge_unfired(row.schedule_id, row.name, unfired)

    def _note(self, row: ScheduleRow) -> str:
        noted = note_unfired(self.store.schedules, row, self.clock())
        return f"recorded as missed: {noted.missed}, as paused: {noted.paused}"

    def open_due(self, after: int, limit: int) -> list[LiveParent]:
        """Return due times that have not begun their target and have numbers higher than
        ``after``.
        """
        lines = self.store.schedules.due_to_begin(self.clock(), after, limit)
        return [
            LiveParent(
                "due time",
                line.due_id,
                due_workflow_id(line.name, line.due_at),
                line.decision,
                1,
                line.decided_at,
            )
            for line in lines
        ]

    def give_up(self, parent: LiveParent, why: str) -> None:
        """Record that the target of a due time will never begin."""
        self.store.schedules.due_failed(parent.number, why)


#: The schedules that audits compare with Temporal.
SOURCES = (
    ("schedules", ScheduleAudit.audit_schedules, "", (_K.NOT_FIRED, _K.NOT_TOLD, _K.UNREADABLE)),
    source("due_times", "due time"),
)


def settled_until(spec: ScheduleSpec, now: datetime) -> datetime:
    """Return the time up to which each due time has a recorded firing, or will never get one
    automatically.
    """
    return now - timedelta(seconds=spec.catch_up_s + spec.jitter_s + SETTLE_S)


def note_unfired(schedules: ScheduleStore, row: ScheduleRow, now: datetime) -> NotedFirings:
    """Record a firing for each past due time whose workflow will no longer record a firing.

    Return the numbers of recorded firings.
    """
    until = settled_until(ScheduleSpec.read(row.definition), now)
    total = NotedFirings()
    more = True
    while more:
        noted = schedules.note_due(row.schedule_id, until)
        meters.count(meters.SCHEDULE_DUE, noted.missed, decision=Decision.MISSED.value)
        meters.count(meters.SCHEDULE_DUE, noted.paused, decision=Decision.PAUSED.value)
        total, more = (
            NotedFirings(total.missed + noted.missed, total.paused + noted.paused),
            noted.more,
        )
    return total
