"""``CrawlAuditWorkflow``: one audit, page by page.

1. What waits and executes on the cluster, compared with the rows: tasks that nobody owns.
2. The runs that are open, compared with their workflows, and whether those that began them know of them.
3. The managers that are open, compared with their workflows.
4. The graphs that are open, compared with their workflows, and their steps with the runs that these execute as.
5. The schedules, compared with what Temporal was told, and with the lines that their due times have.
6. The due times that are still to begin, and the webhooks, compared with their workflows.
7. The open workflows, compared with the runs, managers and graphs.
8. The runs that ended lately: what was delivered, and what evidence says now.

Each source is compared alone. One that cannot be read is told in the report, and the others are compared all the same.
Only counts and the first findings travel through here; everything found is in the database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.activities.audits.audit import AuditActivities, CloseAudit
from crawler_lifecycle.activities.audits.parents import ParentAudit
from crawler_lifecycle.activities.audits.schedules import ScheduleAudit
from crawler_lifecycle.activities.audits.settling import AuditPage, AuditPart
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import AuditReport, FindingKind, Reported, Unknown, most_urgent
from crawler_lifecycle.domain.undecoded import Undecoded

from .calls import MustLeave, WithoutSignals, call, may_leave, reason
from .requests import invalid, read_carried, undecoded

#: A source, how it is called in a report, and the kinds of findings of which it shows all, with others that name them.
_SOURCES: tuple[tuple[str, Callable[[Any, AuditPage], AuditPart], tuple[FindingKind, ...]], ...] = (
    ("cluster_tasks", AuditActivities.audit_cluster, (FindingKind.ORPHAN, FindingKind.STILL_ALIVE)),
    (
        "open_runs",
        AuditActivities.audit_runs,
        (FindingKind.NO_WORKFLOW, FindingKind.NOT_STARTED, FindingKind.NOT_COUNTED, FindingKind.UNREADABLE),
    ),
    (
        "open_managers",
        ParentAudit.audit_managers,
        (FindingKind.NO_WORKFLOW, FindingKind.NOT_STARTED, FindingKind.UNREADABLE),
    ),
    (
        "open_graphs",
        ParentAudit.audit_graphs,
        (FindingKind.NO_WORKFLOW, FindingKind.NOT_STARTED, FindingKind.NO_RUN, FindingKind.UNREADABLE),
    ),
    (
        "schedules",
        ScheduleAudit.audit_schedules,
        (FindingKind.NOT_FIRED, FindingKind.NOT_TOLD, FindingKind.UNREADABLE),
    ),
    ("due_times", ParentAudit.audit_due, (FindingKind.NO_WORKFLOW, FindingKind.NOT_STARTED)),
    ("webhooks", ParentAudit.audit_webhooks, (FindingKind.NO_WORKFLOW, FindingKind.NOT_STARTED)),
    ("open_workflows", AuditActivities.audit_workflows, (FindingKind.NO_ROW, FindingKind.UNRECORDED)),
    ("ended_runs", AuditActivities.audit_ended, (FindingKind.UNDELIVERED, FindingKind.LATE_EVIDENCE)),
)


@dataclass(frozen=True, slots=True)
class AuditOrder:
    """The order of an audit. Without ``repair`` it only tells.

    ``unknown`` is a person's word about what no row knows; it needs no ``repair`` and no grace.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    repair: bool = False
    unknown: Unknown = Unknown.LEAVE


@dataclass
class AuditState:
    """Progress of an audit; travels over continue-as-new. Fields are only ever added, with defaults."""

    audit_id: str = ""
    started_at: datetime | None = None
    source: int = 0
    after: str | None = None
    pages: int = 0
    looked: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    findings: list[Reported] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    complete: list[FindingKind] = field(default_factory=list)
    noted_from: datetime | None = None

    def add(self, name: str, part: AuditPart) -> None:
        """Take in what one page showed."""
        self.pages += 1
        self.after = part.next
        if part.noted_at is not None:
            self.noted_from = min(part.noted_at, self.noted_from or part.noted_at)
        self.looked = {**self.looked, name: self.looked.get(name, 0) + part.looked}
        self.found = _sum(self.found, part.found)
        self.repaired = _sum(self.repaired, part.repaired)
        self.findings = most_urgent([*self.findings, *part.findings])


_STATE = TypeAdapter(AuditState)


@workflow.defn(name=names.AUDIT_WORKFLOW)
class CrawlAuditWorkflow(WithoutSignals):
    """One audit. Returns its report, also when something could not be compared."""

    @workflow.init
    def __init__(self, order: Any = None, carried: Any = None, *surplus: Any) -> None:
        self._s, self._refused = read_carried(_STATE, AuditState(), carried, surplus)

    @workflow.run
    async def run(self, order: Any = None, carried: Any = None, *surplus: Any) -> AuditReport:
        """Compare all sources, page by page; a page that this execution must leave is compared by the next one.

        ``order`` is an ``AuditOrder`` or nothing, and all that an outside starter sends.
        """
        if self._refused is not None:
            raise self._refused
        s, order = self._s, _read(order)
        if s.started_at is None:
            s.audit_id, s.started_at = workflow.info().first_execution_run_id, workflow.now()
        try:
            return await self._audit(order)
        except MustLeave:
            workflow.continue_as_new(args=[order, s])

    async def _audit(self, order: AuditOrder) -> AuditReport:
        s = self._s
        while s.source < len(_SOURCES):
            if may_leave():
                raise MustLeave
            await self._compare(order)
        assert s.started_at is not None
        report = AuditReport(
            audit_id=s.audit_id,
            started_at=s.started_at,
            ended_at=workflow.now(),
            repair=order.repair,
            looked=s.looked,
            found=s.found,
            repaired=s.repaired,
            findings=s.findings,
            troubles=s.troubles,
        )
        await call(AuditActivities.close_audit, CloseAudit(report, _complete(s.complete), s.noted_from))
        return report

    async def _compare(self, order: AuditOrder) -> None:
        """One page of the present source, or on to the next one."""
        s = self._s
        name, method, kinds = _SOURCES[s.source]
        try:
            part = await call(
                method, AuditPage(order.repair, s.after, order.unknown), summary=f"{name}, page {s.pages + 1}"
            )
        except (ActivityError, ApplicationError) as error:
            s.troubles = [*s.troubles, f"{name.replace('_', ' ')} could not be compared: {reason(error)}"[:500]]
            s.source, s.after = s.source + 1, None
            return
        s.add(name, part)
        if part.next is None:
            s.complete = [*s.complete, *kinds]
            s.source += 1


def _complete(shown: list[FindingKind]) -> list[FindingKind]:
    """The kinds that every source of theirs has shown."""
    needed = [kind for _, _, kinds in _SOURCES for kind in kinds]
    return [kind for kind in FindingKind if 0 < shown.count(kind) == needed.count(kind)]


def _read(order: Any) -> AuditOrder:
    """The order of a start that may have come without one."""
    if isinstance(order, Undecoded):
        raise undecoded("order", order)
    if isinstance(order, AuditOrder):
        return order
    if isinstance(order, dict) and set(order) <= {"repair", "unknown"} and isinstance(order.get("repair", False), bool):
        unknown = order.get("unknown", Unknown.LEAVE)
        if isinstance(unknown, str) and unknown in list(Unknown):
            return AuditOrder(order.get("repair", False), Unknown(unknown))
    if order is None:
        return AuditOrder()
    cure = 'give {"repair": true}, {"unknown": "adopt"}, {"unknown": "end"} or nothing'
    raise invalid(f"order: {str(order)[:100]!r} is not allowed; {cure}")


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}
