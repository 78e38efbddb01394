"""``RunExportWorkflow``: delivers an ended run's event and archive again.

A run's own workflow gives up its deliveries after 24 hours. A person can request the archive again
months later. This workflow uses the same activities, keys and records, so repeating a successful
delivery does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.activities.completion import CompletionActivities
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.bounds import LIMITS, check_number
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports.runs import Fence

from .calls import MustLeave, WithoutSignals, call, reason
from .requests import workflow_input
from .state import RUN_ID, RUN_UID


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of the deliveries. ``failed`` contains a sentence for each abandoned delivery."""

    run_id: int
    attempt: int
    pushes: int | None = None
    export: ExportResult | None = None
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """The deliveries to repeat: ``event`` is the event ``run.ended`` with the failed pushes, and
    ``files`` is the archive.
    """

    fence: Fence
    event: bool = True
    files: bool = True
    done: int = 0
    """The number of deliveries that earlier executions finished. ``report`` contains their
    results.
    """
    report: ExportReport | None = None

    def __post_init__(self) -> None:
        """Check the numbers, because a number that no search attribute accepts would fail the
        workflow task forever.
        """
        check_number("fence.run_id", self.fence.run_id, LIMITS["run_id"])
        check_number("fence.attempt", self.fence.attempt, LIMITS["attempt"])


@workflow.defn(name=names.EXPORT_WORKFLOW)
class RunExportWorkflow(WithoutSignals):
    """The workflow of one repeated delivery of an attempt.

    It succeeds even if deliveries were abandoned.
    """

    @workflow.run
    async def run(self, order: Any = None, *surplus: Any) -> ExportReport:
        """Deliver the event, the pushes and the files, in this order.

        ``order`` is an ``ExportOrder``, and the workflow fails for any other input. Further
        arguments are ignored. After continue-as-new, the unfinished delivery begins again.
        """
        order = workflow_input(ExportOrder, order)
        fence = order.fence
        workflow.upsert_search_attributes(
            [RUN_ID.value_set(fence.run_id), RUN_UID.value_set(fence.run_uid)]
        )
        acts = CompletionActivities
        steps: list[Callable[[Any, Fence], Any]] = []
        if order.event:
            steps += [acts.initiate_export_signal, acts.resend_pushes]
        if order.files:
            steps += [acts.export_supporting_files]
        report = order.report or ExportReport(fence.run_id, fence.attempt)
        for done, method in enumerate(steps[order.done :], order.done):
            try:
                report = await self._take(method, fence, report)
            except MustLeave:
                workflow.continue_as_new(replace(order, done=done, report=report))
        return report

    async def _take(
        self, method: Callable[[Any, Fence], Any], fence: Fence, report: ExportReport
    ) -> ExportReport:
        try:
            answer = await call(method, fence)
        except (ActivityError, ApplicationError) as error:
            return replace(report, failed=[*report.failed, f"{method.__name__}: {reason(error)}"])
        if method is CompletionActivities.resend_pushes:
            return replace(report, pushes=answer)
        return (
            replace(report, export=answer)
            if method is CompletionActivities.export_supporting_files
            else report
        )


@workflow.defn(name=names.EVENT_WORKFLOW)
class CrawlEventWorkflow(WithoutSignals):
    """The workflow that delivers one event of a manager or a graph.

    It fails if the delivery is abandoned.
    """

    @workflow.run
    async def run(self, key: Any = None, *surplus: Any) -> None:
        """Deliver the event with the id ``key``. The workflow fails for an unknown id."""
        try:
            await call(CompletionActivities.deliver_event, str(key))
        except MustLeave:
            workflow.continue_as_new(key)
