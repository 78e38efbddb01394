"""Audits rows that have their own workflow: managers, graphs, due times and webhooks.

Also audits schedules: their definitions in Temporal, and due times without a firing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.shared import activity_named, alive, beating
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.audit import (
    LOST,
    AuditFinding,
    AuditRules,
    FindingKind,
    LiveParent,
    WorkflowState,
    given_up,
)
from crawler_lifecycle.domain.audits.judgement import (
    judge_parent,
    judge_step,
    judge_told,
    judge_unfired,
    judge_unreadable,
    progress_mark,
)
from crawler_lifecycle.domain.audits.overdue import OVERDUE_S
from crawler_lifecycle.domain.due_ids import due_workflow_id
from crawler_lifecycle.domain.errors import LifecycleError, TemporalUnavailable
from crawler_lifecycle.features.schedules.domain.decision import Decision
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from crawler_lifecycle.features.schedules.ports import Noted, ScheduleRow
from crawler_lifecycle.features.webhooks.domain.definition import webhook_workflow_id
from crawler_lifecycle.ports.protocols import WorkflowDirectory

from .giving_up import GivingUp
from .settling import PAGE, AuditPage, AuditPart, Found, Settling, still

if TYPE_CHECKING:
    from crawler_lifecycle.features.schedules.store.schedules import ScheduleStore
    from crawler_lifecycle.store.store import Store

#: ``Read`` returns rows of one kind, by ascending number. ``Begin`` starts the workflow of a row.
Read = Callable[[int, int], Sequence[LiveParent]]
Begin = Callable[[int, str], object]
#: Seconds to wait after the latest start of a due time before it counts as missed. Its workflow may still be working.
SETTLE_S = 60.0
#: The kinds of parents (``LiveParent.what``).
OWNED = ("manager", "graph", "due time", "webhook")


@dataclass
class ParentAudit:
    """Compares parents with their workflows, and schedules with Temporal and with their recorded firings.

    ``AuditActivities`` compares the runs of parents, and workflows without a row.
    """

    store: Store
    directory: WorkflowDirectory
    rules: AuditRules = field(default_factory=AuditRules)
    clock: Clock = utc_now
    giving_up: GivingUp | None = None

    def search(self, what: str, *, repair: bool) -> int:
        """Start workflows for the rows of this kind that have none, as an audit does, but sooner.

        Returns the number of such rows. Findings that are not seen again are closed. Several workers may do this at
        once. Raises ``LifecycleError``.
        """
        sooner = replace(self, rules=replace(self.rules, grace_s=min(self.rules.grace_s, OVERDUE_S)))
        began = self.clock()
        lost = 0
        page = AuditPage(repair, what=what)
        while True:
            part = sooner._compare(page, LOST)
            lost += sum(part.found.values())
            if part.next is None:
                self.store.findings.forget_findings([str(kind) for kind in LOST], began, what)
                return lost
            page = replace(page, after=part.next)

    @activity_named("audit_parents")
    def audit_parents(self, page: AuditPage) -> AuditPart:
        """Compare a page of parents (``page.what``) with their workflows, and start a workflow for each that has none.

        For graphs, also compare their executing steps with the existing runs and managers.
        Second execution: finds the workflows that the first one started. Waking a workflow again changes nothing.
        """
        with beating():
            return self._compare(page)

    @activity_named("audit_schedules")
    def audit_schedules(self, page: AuditPage) -> AuditPart:
        """Compare a page of schedules with Temporal and with their recorded firings, and record missing firings.

        Second execution: finds the firings.
        """
        with beating():
            rows = self.store.schedules.page(int(page.after or 0), PAGE, deleted=True)
            found = list[Found]()
            for row in rows:
                alive()
                found += [Found(finding, partial(self._note, row)) for finding in self._judged_schedule(row)]
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
            yield judge_told(row.schedule_id, row.name, row.updated_at, f"has its definition {row.revision}")
        unfired = self.store.schedules.unfired_due(row.schedule_id, until)
        if unfired:
            yield judge_unfired(row.schedule_id, row.name, unfired)

    def _note(self, row: ScheduleRow) -> str:
        noted = note_unfired(self.store.schedules, row, self.clock())
        return f"recorded as missed: {noted.missed}, as paused: {noted.paused}"

    def _open_due(self, after: int, limit: int) -> list[LiveParent]:
        lines = self.store.schedules.due_to_begin(self.clock(), after, limit)
        return [
            LiveParent(
                "due time", line.due_id, due_workflow_id(line.name, line.due_at), line.decision, 1, line.decided_at
            )
            for line in lines
        ]

    def _open_webhooks(self, after: int, limit: int) -> list[LiveParent]:
        return [
            LiveParent(
                "webhook",
                one.webhook_id,
                webhook_workflow_id(one.name),
                status="active",
                attempt=one.revision,
                updated_at=one.updated_at,
                owner_run_id=one.follower,
                progress=progress_mark(one.revision, one.through_seq),
            )
            for one in self.store.webhooks.page(after, limit)
            if one.paused_at is None  # a paused webhook has no workflow; a resume starts one
        ]

    def _kind(self, what: str) -> tuple[Read, Begin]:
        a = self.store.audits
        d = self.directory
        kinds: Mapping[str, tuple[Read, Begin]] = {
            "manager": (a.open_managers, d.begin_manager),
            "graph": (a.open_graphs, d.begin_graph),
            "due time": (self._open_due, d.begin_due),
            "webhook": (self._open_webhooks, d.begin_webhook),
        }
        return kinds[what]

    def _compare(self, page: AuditPage, only: Sequence[FindingKind] = tuple(FindingKind)) -> AuditPart:
        what = page.what
        read, begin = self._kind(what)
        parents = read(int(page.after or 0), PAGE)
        found = []
        for parent in parents:
            alive()
            judged = self._judged(parent, read)
            if judged is not None and judged.kind in only:
                found.append(self._lost(judged, parent, read, begin))
        steps = what == "graph" and FindingKind.NO_RUN in only
        for step in self.store.audits.steps_without_runs([parent.number for parent in parents]) if steps else ():
            judged = judge_step(step)
            found.append(Found(judged, partial(wake_parent, self.directory, judged)))
        settling = Settling(self.store.findings, self.rules, self.clock())
        return settling.settle(found, page, [parent.number for parent in parents])

    def _lost(self, finding: AuditFinding, parent: LiveParent, read: Read, begin: Begin) -> Found:
        """Return the finding with its repair: start a workflow. If no workflow can carry the parent, end the parent."""
        end = None
        if self.giving_up is not None:
            end = still(partial(self._judged, parent, read), partial(self.giving_up.parent, parent, given_up(finding)))
        return Found(finding, partial(_begin, finding, parent, begin), end)

    def _judged(self, parent: LiveParent, read: Read) -> AuditFinding | None:
        if parent.unreadable is not None:
            return judge_parent(parent, WorkflowState(open=False))
        # Any open execution under this id counts: if it has not claimed the parent yet, it is about to.
        finding = judge_parent(parent, self.directory.state(parent.workflow_id))
        if finding is None:
            return None
        # The parent may have ended or been resumed between the two readings.
        now = next(iter(read(parent.number - 1, 1)), None)
        return finding if now == parent else None


def _begin(finding: AuditFinding, parent: LiveParent, begin: Begin) -> str:
    begin(parent.number, parent.workflow_id)
    what = "started as" if finding.kind is FindingKind.NOT_STARTED else "taken over by a new"
    return f"{what} workflow {parent.workflow_id}"


def wake_parent(directory: WorkflowDirectory, finding: AuditFinding) -> str:
    """Make the manager or graph of the finding read its rows again. Returns a text for the report."""
    workflow_id = finding.workflow_id or ""
    if not directory.wake(workflow_id):
        raise TemporalUnavailable(f"no workflow {workflow_id!r} is open")
    return f"its {workflow_id.partition('/')[0]} was woken"


def settled_until(spec: ScheduleSpec, now: datetime) -> datetime:
    """Return the time up to which each due time has a recorded firing, or will never get one by itself."""
    return now - timedelta(seconds=spec.catch_up_s + spec.jitter_s + SETTLE_S)


def note_unfired(schedules: ScheduleStore, row: ScheduleRow, now: datetime) -> Noted:
    """Record a firing for each past due time whose workflow will not record one any more. Returns how many."""
    until = settled_until(ScheduleSpec.read(row.definition), now)
    total = Noted()
    more = True
    while more:
        noted = schedules.note_due(row.schedule_id, until)
        meters.count(meters.SCHEDULE_DUE, noted.missed, decision=Decision.MISSED.value)
        meters.count(meters.SCHEDULE_DUE, noted.paused, decision=Decision.PAUSED.value)
        total, more = Noted(total.missed + noted.missed, total.paused + noted.paused), noted.more
    return total
