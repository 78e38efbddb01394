"""The application's side of Temporal: the only place that starts, signals and queries our workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar

from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audit import AuditReport, Unknown
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.run import RunRequest, RunResult, RunSnapshot, StopRequest
from crawler_lifecycle.ports import Fence
from crawler_lifecycle.workflows.audit import AuditOrder, CrawlAuditWorkflow
from crawler_lifecycle.workflows.exports import ExportOrder, RunExportWorkflow
from crawler_lifecycle.workflows.lifecycle import CrawlerLifecycleWorkflow

__all__ = ["Lifecycle", "TemporalUnavailable"]

T = TypeVar("T")

#: An audit on demand that is still not over after that is given up.
AUDIT_LIFE = timedelta(hours=2)


class Lifecycle:
    """Start, stop and ask runs. Raises ``TemporalUnavailable`` when Temporal does not take the call."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def start(
        self, request: RunRequest, workflow_id: str, *, repair: bool = False, summary: str | None = None
    ) -> str:
        """Start a run under ``workflow_id``, or find it running; the first run id of its chain.

        Calling again while the workflow is open starts nothing. A closed one is followed by a new execution: whether
        that may own the run is decided by the database, not by the id. With ``repair`` it may own no run that has
        ended: a start that comes late, when another one has done the work, does not execute the run again.
        """
        args: list[object] = [request, {"repair": True}] if repair else [request]
        handle = await self._rpc(
            self._client.start_workflow(
                CrawlerLifecycleWorkflow.run,
                args=args,
                id=workflow_id,
                task_queue=names.QUEUE_MAIN,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=summary,
                priority=Priority(priority_key=request.priority, fairness_key=request.crawler),
            )
        )
        return handle.first_execution_run_id or handle.result_run_id or ""

    async def export_again(self, fence: Fence, *, event: bool = True, files: bool = True) -> str:
        """Send again what an ended attempt has to deliver, or find that going on; the workflow's id."""
        workflow_id = names.export_workflow_id(fence.run, fence.attempt)
        await self._rpc(
            self._client.start_workflow(
                RunExportWorkflow.run,
                ExportOrder(fence, event, files),
                id=workflow_id,
                task_queue=names.QUEUE_MAIN,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )
        )
        return workflow_id

    async def audit(
        self, repair: bool, wait_s: float, unknown: Unknown = Unknown.LEAVE
    ) -> tuple[str, AuditReport | None]:
        """Have an audit made, or find one of the same kind going on; its id, and its report if it ends in time."""
        kind = "repair" if repair else "tell"
        workflow_id = f"{names.AUDIT_SCHEDULE}/{kind if unknown is Unknown.LEAVE else f'{kind}-{unknown}'}"
        handle = await self._rpc(
            self._client.start_workflow(
                CrawlAuditWorkflow.run,
                args=[AuditOrder(repair, unknown)],
                id=workflow_id,
                task_queue=names.QUEUE_AUDIT,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                execution_timeout=AUDIT_LIFE,
            )
        )
        audit_id = handle.first_execution_run_id or handle.result_run_id or ""
        try:
            return audit_id, await asyncio.wait_for(self._rpc(handle.result()), wait_s)
        except TimeoutError:
            return audit_id, None
        except WorkflowFailureError as error:
            raise TemporalUnavailable(f"the audit came to no end ({error.cause}); ask for another one") from error

    async def stop(self, workflow_id: str, stop: StopRequest) -> bool:
        """Signal a stop; ``False`` when no such workflow is open."""
        return await self._signal(workflow_id, names.SIGNAL_STOP, stop)

    async def look_now(self, workflow_id: str) -> bool:
        """Ask for a look at once; ``False`` when no such workflow is open."""
        return await self._signal(workflow_id, names.SIGNAL_LOOK_NOW)

    async def status(self, workflow_id: str) -> RunSnapshot | None:
        """The run as its workflow sees it; ``None`` when there is no such workflow or no worker answers."""
        handle: WorkflowHandle[CrawlerLifecycleWorkflow, RunResult] = self._client.get_workflow_handle_for(
            CrawlerLifecycleWorkflow.run, workflow_id
        )
        try:
            return await self._rpc(handle.query(CrawlerLifecycleWorkflow.status))
        except (WorkflowQueryFailedError, WorkflowQueryRejectedError):
            return None
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
                return None
            raise

    async def ping(self) -> None:
        """Raise ``TemporalUnavailable`` unless the server answers."""
        await self._rpc(self._client.service_client.check_health())

    async def _signal(self, workflow_id: str, name: str, *args: object) -> bool:
        try:
            await self._rpc(self._client.get_workflow_handle(workflow_id).signal(name, args=list(args)))
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True

    async def _rpc(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except RPCError as error:
            if error.status in (
                RPCStatusCode.UNAVAILABLE,
                RPCStatusCode.DEADLINE_EXCEEDED,
                RPCStatusCode.RESOURCE_EXHAUSTED,
                RPCStatusCode.CANCELLED,
                RPCStatusCode.UNKNOWN,
                RPCStatusCode.INTERNAL,
            ):
                raise TemporalUnavailable(f"Temporal did not take the call ({error.status.name}): {error}") from error
            raise
