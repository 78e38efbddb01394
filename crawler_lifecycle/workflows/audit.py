"""``CrawlAuditWorkflow``: one audit, page by page.

1. Tasks on the cluster are compared with their rows.
2. Open runs are compared with their workflows, and with the records of the managers and graphs that
   began them.
3. Open managers are compared with their workflows.
4. Open graphs are compared with their workflows, and their steps with the runs and managers of
   these steps.
5. Schedules are compared with Temporal's copies, and their due times with the recorded firings.
6. Due times that have not begun their target, and webhooks, are compared with their workflows.
7. Open workflows are compared with the rows of runs, managers and graphs.
8. For runs that ended recently, deliveries are checked, and recorded outcomes are compared with the
   evidence.

Each source is compared alone. If a source cannot be read, the report shows this, and the others are
still compared. The workflow carries only counts and the most urgent findings. All findings are in
the database.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.activities.audits.audit import AuditActivities, CloseAudit
from crawler_lifecycle.activities.audits.settling import AuditPage, AuditPart, Source
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import (
    LOST,
    AuditReport,
    FindingKind,
    UnknownDecision,
    most_urgent,
)
from crawler_lifecycle.features import FEATURES

from .calls import MustLeave, WithoutSignals, call, may_leave, reason
from .requests import read_carried, workflow_input

_K = FindingKind
#: The sources. If all sources of a kind were compared, all findings of that kind are known.
#: Histories depend on their order, and thus on the order of ``FEATURES``.
_SOURCES: tuple[Source, ...] = (
    ("cluster_tasks", AuditActivities.audit_cluster, "", (_K.ORPHAN, _K.STILL_ALIVE)),
    ("open_runs", AuditActivities.audit_runs, "", (*LOST, _K.NOT_COUNTED, _K.UNREADABLE)),
    *(
        source
        for feature in FEATURES
        if feature.audited
        for source in feature.load(feature.audited)
    ),
    ("open_workflows", AuditActivities.audit_workflows, "", (_K.NO_ROW, _K.UNRECORDED)),
    ("ended_runs", AuditActivities.audit_ended, "", (_K.UNDELIVERED, _K.LATE_EVIDENCE)),
)


@dataclass(frozen=True, slots=True)
class AuditOrder:
    """The input of an audit.

    Without ``repair``, it only reports. ``unknown`` is an administrator's decision about runs,
    managers and graphs that are missing from the database. It is carried out without ``repair`` and
    without a grace period.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    repair: bool = False
    unknown: UnknownDecision = UnknownDecision.LEAVE


@dataclass
class AuditState:
    """The progress of an audit, which continue-as-new passes on. New fields need a default, and
    none may be removed.
    """

    report: AuditReport | None = None
    """The report so far."""
    source: int = 0
    after: str | None = None
    pages: int = 0
    complete: list[FindingKind] = field(default_factory=list)
    noted_from: datetime | None = None

    def add(self, report: AuditReport, name: str, part: AuditPart) -> AuditReport:
        """Add the result of one page of a source to the report."""
        self.pages += 1
        self.after = part.next
        if part.noted_at is not None:
            self.noted_from = min(part.noted_at, self.noted_from or part.noted_at)
        self.report = replace(
            report,
            looked={**report.looked, name: report.looked.get(name, 0) + part.looked},
            found=_sum(report.found, part.found),
            repaired=_sum(report.repaired, part.repaired),
            findings=most_urgent([*report.findings, *part.findings]),
        )
        return self.report


_STATE = TypeAdapter(AuditState)


@workflow.defn(name=names.AUDIT_WORKFLOW)
class CrawlAuditWorkflow(WithoutSignals):
    """The workflow of one audit. It returns the report, even if a source could not be compared."""

    @workflow.init
    def __init__(self, order: Any = None, carried: Any = None, *surplus: Any) -> None:
        self._s, self._refused = read_carried(_STATE, AuditState(), carried, surplus)

    @workflow.run
    async def run(self, order: Any = None, carried: Any = None, *surplus: Any) -> AuditReport:
        """Compare all sources, page by page.

        After continue-as-new, an interrupted page is compared again. Starters send only ``order``,
        which is an ``AuditOrder``, or nothing.
        """
        if self._refused is not None:
            raise self._refused
        s = self._s
        now = workflow.now()
        order = workflow_input(AuditOrder, AuditOrder() if order is None else order)
        s.report = s.report or AuditReport(
            workflow.info().first_execution_run_id, now, now, order.repair
        )
        try:
            return await self._audit(order, s.report)
        except MustLeave:
            workflow.continue_as_new(args=[order, s])

    async def _audit(self, order: AuditOrder, report: AuditReport) -> AuditReport:
        s = self._s
        while s.source < len(_SOURCES):
            if may_leave():
                raise MustLeave
            report = await self._compare(order, report)
        report = replace(report, ended_at=workflow.now())
        await call(
            AuditActivities.close_audit, CloseAudit(report, _complete(s.complete), s.noted_from)
        )
        return report

    async def _compare(self, order: AuditOrder, report: AuditReport) -> AuditReport:
        """Compare one page of the current source. After an error, continue with the next source."""
        s = self._s
        name, method, what, kinds = _SOURCES[s.source]
        page = AuditPage(order.repair, s.after, order.unknown, what)
        text = f"{name}, page {s.pages + 1}"
        try:
            part = await call(method, page, summary=text)
        except (ActivityError, ApplicationError) as error:
            text = f"{name.replace('_', ' ')} could not be compared: {reason(error)}"[:500]
            s.source, s.after = s.source + 1, None
            s.report = replace(report, troubles=[*report.troubles, text])
            return s.report
        if part.next is None:
            s.complete = [*s.complete, *kinds]
            s.source += 1
        return s.add(report, name, part)


def _complete(shown: list[FindingKind]) -> list[FindingKind]:
    """Return the kinds of findings whose sources were all compared."""
    needed = [kind for *_, kinds in _SOURCES for kind in kinds]
    return [kind for kind in FindingKind if 0 < shown.count(kind) == needed.count(kind)]


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}
