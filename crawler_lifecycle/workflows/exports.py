"""``RunExportWorkflow``: sends again what an ended run has to deliver.

A run's own workflow gives up after 24 hours and may be closed for months when somebody asks for the archive again. The
activities, their keys and their records are the same, so a delivery that had succeeded is only repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.activities.completion import CompletionActivities
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.bounds import LIMITS, check_number
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.ports import Fence

from .calls import call, reason
from .state import RUN_ID, RUN_UID


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """What to send again: the event ``run.ended`` with the failed pushes, the supporting files, or both."""

    fence: Fence
    event: bool = True
    files: bool = True

    def __post_init__(self) -> None:
        """A number that no search attribute takes would fail the workflow task for ever."""
        check_number("fence.run_id", self.fence.run_id, LIMITS["run_id"])
        check_number("fence.attempt", self.fence.attempt, LIMITS["attempt"])


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What became of it; ``failed`` has a sentence for each delivery that was given up."""

    run_id: int
    attempt: int
    pushes: int | None = None
    export: ExportResult | None = None
    failed: list[str] = field(default_factory=list)


@workflow.defn(name=names.EXPORT_WORKFLOW, failure_exception_types=[ValidationError])
class RunExportWorkflow:
    """One more delivery of one attempt. Ends well also when a delivery is given up: the records say which."""

    def __init__(self) -> None:
        self._failed: list[str] = []

    @workflow.run
    async def run(self, order: ExportOrder) -> ExportReport:
        """Deliver in the order of completion: event, pushes, files."""
        fence = order.fence
        workflow.upsert_search_attributes([RUN_ID.value_set(fence.run_id), RUN_UID.value_set(fence.run_uid)])
        pushes = export = None
        if order.event:
            await self._try(CompletionActivities.initiate_export_signal, fence)
            pushes = await self._try(CompletionActivities.resend_pushes, fence)
        if order.files:
            export = await self._try(CompletionActivities.export_supporting_files, fence)
        return ExportReport(fence.run_id, fence.attempt, pushes, export, self._failed)

    async def _try(self, method: Callable[[Any, Fence], Any], fence: Fence) -> Any:
        try:
            return await call(method, fence)
        except (ActivityError, ApplicationError) as error:
            self._failed.append(f"{method.__name__}: {reason(error)}")
            return None
