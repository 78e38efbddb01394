"""The client for our workflows: starts, signals, describes, queries, lists and ends them over one
connection.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.api.common.v1 import WorkflowExecution as WorkflowExecutionRef
from temporalio.api.enums.v1 import PendingActivityState, WorkflowExecutionStatus
from temporalio.api.workflowservice import v1 as api
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import (
    Priority,
    SearchAttributeKey,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.background import DONE, Loop
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.adoption import WorkflowRecord
from crawler_lifecycle.domain.audits.audit import (
    AuditReport,
    OpenWorkflow,
    UnknownDecision,
    WorkflowState,
)
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.run import RunRequest, StopRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.summaries import summary_of
from crawler_lifecycle.ports.protocols import RowOrder
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.workflows.audit import AuditOrder
from crawler_lifecycle.workflows.exports import ExportOrder
from crawler_lifecycle.workflows.policies import FIRST

from .errors import allowing, answering
from .operator.task_queues import Queue, describe_queues
from .workflow_problems import OPEN, WorkflowProblem, problem_of, problems, why_closed

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Temporal ends an audit after this time. The next audit finds the same problems.
AUDIT_LIFE = timedelta(hours=2)
#: Seconds until the next try to connect: the first pause and the longest pause.
RETRY_S = (0.2, 5.0)

#: For workflows that were ended from outside: how long they are listed, and the maximum number that
#: is listed.
ENDED_WITHIN = timedelta(minutes=5)
ENDED_MAX = 500
_ENDED = "ExecutionStatus IN ('Failed', 'Terminated', 'TimedOut')"

#: The highest priority, for workflows that continue and for due times. If they are not in a
#: worker's cache, their steps precede the first steps of runs. Otherwise, after the death of a
#: worker, a stop would wait for all starts.
GOES_FIRST = Priority(priority_key=FIRST)
#: States of open workflows. A paused workflow can still act after it is resumed.
_OPEN = (
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED,
)
_FAIL = WorkflowIDConflictPolicy.FAIL
_RUN_ID = SearchAttributeKey.for_int("CrawlRunId")
_RUN_UID = SearchAttributeKey.for_keyword("CrawlRunUid")
_RUNS = f"WorkflowType = '{names.LIFECYCLE_WORKFLOW}'"
_OPEN_RUNS = f"{_RUNS} AND {OPEN}"
_OPEN_WORK = (
    f"WorkflowType IN ('{names.LIFECYCLE_WORKFLOW}', '{names.MANAGER_WORKFLOW}', "
    f"'{names.GRAPH_WORKFLOW}') AND {OPEN}"
)


class Workflows:
    """Our workflows on one Temporal server. The connection can be passed in, or is made later.

    Every method that calls the server raises ``TemporalUnavailable`` if a call fails, or if it is
    not answered within ``timeout_s`` seconds. The SDK restores a lost connection automatically.
    """

    def __init__(self, client: Client | None = None, *, timeout_s: float = 10.0) -> None:
        self.client = client
        self._timeout_s = timeout_s
        self._connecting = Loop("connecting to Temporal", RETRY_S[1], retry_s=RETRY_S)

    async def keep_connecting(self, connect: Callable[[], Awaitable[Client]]) -> None:
        """Retry connecting until it succeeds. This is for a background task."""

        async def turn() -> float:
            try:
                async with asyncio.timeout(self._timeout_s):  # not ``wait_for``: see ``answering``
                    self.client = await connect()
            except Exception as error:
                # Any error (refused, TLS, a wrong profile) must be fixed outside this process.
                # Readiness reports it.
                raise TemporalUnavailable(str(error) or type(error).__name__) from error
            log.info("connected to Temporal")
            return DONE

        await self._connecting.run(turn)

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Client]:
        """Return the client for one call.

        Raises ``TemporalUnavailable`` if the call fails or times out.
        """
        if self.client is None:
            problem = self._connecting.failures.problem or "not connected yet"
            raise TemporalUnavailable(f"Temporal cannot be reached: {problem}")
        async with answering(self._timeout_s):
            yield self.client

    async def ping(self) -> None:
        """Raise ``TemporalUnavailable`` unless the server responds."""
        async with self.asking() as client:
            await client.service_client.check_health()

    async def task_queues(self, workflows: Sequence[str], activities: Sequence[str]) -> list[Queue]:
        """Return the pollers of these task queues, or for each queue the reason why the server does
        not list them.
        """
        if self.client is None:
            raise TemporalUnavailable("Temporal cannot be reached: not connected yet")
        return await describe_queues(self.client, workflows, activities, self._timeout_s)

    # --- start ------------------------------------------------------------------------------------

    async def start(
        self, request: RunRequest, workflow_id: str, run_uid: str, *, repair: bool = False
    ) -> str:
        """Start the workflow of the run with this uid, unless it is already open.

        Return the first run id of its chain.

        If the workflow is closed, a new execution is started under the same id; the database
        decides whether it may own the run. With ``repair``, it must not own a run that has ended.
        Otherwise a late repair would execute the run again. The open workflow under ``workflow_id``
        may belong to another run, if a restore of the database lost that run's row and the client
        repeated its request.

        That workflow continues, and the new run gets a workflow id with a part of its uid.
        """
        args: list[object] = [request, {"repair": True}] if repair else [request]
        for candidate in (workflow_id, names.uid_workflow_id(workflow_id, run_uid)):
            turn = names.fairness_key(request.crawler or "")
            priority = Priority(priority_key=request.priority, fairness_key=turn)
            with suppress(WorkflowAlreadyStartedError):
                start = self._start(
                    names.LIFECYCLE_WORKFLOW,
                    args,
                    candidate,
                    run_id=request.run_id,
                    conflict=_FAIL,
                    priority=priority,
                )
                return _chain(await start)
            found = await self.state(candidate)
            if not found.of_another(run_uid):
                return found.first_run_id or ""
        raise TemporalUnavailable(
            f"workflow {candidate!r} belongs to a different run than the one with the uid {run_uid}"
        )

    async def export_again(self, fence: Fence, *, event: bool = True, files: bool = True) -> str:
        """Start the workflow that delivers the export and the event of an ended attempt again,
        unless it is already open.

        Return its workflow id.
        """
        workflow_id = names.export_workflow_id(fence.run, fence.attempt)
        await self._start(names.EXPORT_WORKFLOW, [ExportOrder(fence, event, files)], workflow_id)
        return workflow_id

    async def delete_run(self, run: RunRef) -> None:
        """Start the workflow that deletes the data of a run, unless it is already open."""
        await self._start(names.DELETION_WORKFLOW, [run], names.deletion_workflow_id(run))

    async def delete_executions(self, run: RunRef, workflow_ids: Sequence[str]) -> int:
        """Delete up to 20 workflow executions of this run. Return how many the server listed.

        Executions of ``workflow_ids`` without a run id also count as executions of this run.
        """
        ids = ", ".join(f"'{id_}'" for id_ in workflow_ids if not set("'\\") & set(id_))
        query = f"CrawlRunUid = '{run.uid}'" + (
            f" OR (CrawlRunUid IS NULL AND WorkflowId IN ({ids}))" if ids else ""
        )
        async with self.asking() as client:
            listed = [
                workflow async for workflow in client.list_workflows(query, page_size=20, limit=20)
            ]
            for execution in listed:
                which = WorkflowExecutionRef(workflow_id=execution.id, run_id=execution.run_id)
                order = api.DeleteWorkflowExecutionRequest(
                    namespace=client.namespace, workflow_execution=which
                )
                # The list may briefly still contain a deleted execution.
                with allowing(RPCStatusCode.NOT_FOUND):
                    await client.workflow_service.delete_workflow_execution(order, retry=True)
        return len(listed)

    async def deliver_event(self, key: str) -> None:
        """Start the workflow that delivers a recorded event, unless it is already open."""
        await self._start(names.EVENT_WORKFLOW, [key], names.event_workflow_id(key))

    async def audit(
        self, repair: bool, wait_s: float, unknown: UnknownDecision = UnknownDecision.LEAVE
    ) -> tuple[str, AuditReport | None]:
        """Start an audit, or use an open audit of the same kind.

        Return its first run id and its report.

        The report is ``None`` if the audit does not end within ``wait_s`` seconds or half of the
        time limit for one call.
        """
        kind = "repair" if repair else "tell"
        if unknown is not UnknownDecision.LEAVE:
            kind += f"-{unknown}"
        handle = await self._start(
            names.AUDIT_WORKFLOW,
            [AuditOrder(repair, unknown)],
            f"{names.AUDIT_SCHEDULE}/{kind}",
            task_queue=names.QUEUE_AUDIT,
            execution_timeout=AUDIT_LIFE,
            result_type=AuditReport,
        )
        try:
            async with asyncio.timeout(min(wait_s, self._timeout_s / 2)), self.asking():
                return _chain(handle), await handle.result()
        except TimeoutError:
            return _chain(handle), None
        except WorkflowFailureError as error:
            raise TemporalUnavailable(
                f"the audit failed ({error.cause}); start another audit"
            ) from error

    async def result(
        self, kind: str, order: object, workflow_id: str, life_s: float, answer: type[T]
    ) -> T:
        """Start a workflow that ends within ``life_s`` seconds, or find the open one, and return
        its result.

        Raises ``TemporalUnavailable`` if it fails or does not end in time.
        """
        life = timedelta(seconds=life_s)
        options: dict[str, Any] = {"execution_timeout": life, "result_type": answer}
        handle = await self._start(kind, [order], workflow_id, **options)
        async with answering(life_s + self._timeout_s):
            try:
                found: T = await handle.result()
            except WorkflowFailureError as error:
                cause = error.cause
                why = getattr(getattr(cause, "cause", None), "message", None) or cause
                raise TemporalUnavailable(str(why)) from error
        return found

    async def start_for(self, order: RowOrder, workflow_id: str, *, wake: bool = False) -> str:
        """Start the workflow of a stored row, unless it is already open.

        Return the first run id of its chain.

        With ``wake``, an open workflow reads its row now; some orders always wake it (``WAKES``). A
        workflow that is about to close notices this and continues. An open workflow may belong to a
        row that a restore of the database lost. When it is woken, it reads its row and ends.
        """
        options: dict[str, Any] = {"start_signal": names.SIGNAL_WAKE} if wake or order.WAKES else {}
        return _chain(await self._start(order.WORKFLOW, [order], workflow_id, **options))

    async def _start(
        self,
        kind: str,
        args: list[object],
        workflow_id: str,
        *,
        run_id: int | None = None,
        task_queue: str = names.QUEUE_MAIN,
        conflict: WorkflowIDConflictPolicy = WorkflowIDConflictPolicy.USE_EXISTING,
        priority: Priority = GOES_FIRST,
        **options: Any,
    ) -> WorkflowHandle[Any, Any]:
        async with self.asking() as client:
            return await client.start_workflow(
                kind,
                args=args,
                id=workflow_id,
                task_queue=task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=conflict,
                priority=priority,
                static_summary=summary_of(workflow_id, run_id),
                **options,
            )

    async def has_begun(self, workflow_id: str) -> None:
        """Give the further steps of this workflow the highest priority, if the server supports it.

        Errors are ignored.

        If the workflow is closed, the server is older, or the call fails, every step is still
        executed, but later during a burst.
        """
        with suppress(TemporalUnavailable):
            async with self.asking() as client:
                order = api.UpdateWorkflowExecutionOptionsRequest(namespace=client.namespace)
                order.workflow_execution.workflow_id = workflow_id
                order.workflow_execution_options.priority.priority_key = FIRST
                order.update_mask.paths.append("priority.priority_key")
                await client.workflow_service.update_workflow_execution_options(order, retry=True)

    # --- signal and end ---------------------------------------------------------------------------

    async def stop(
        self, workflow_id: str, stop: StopRequest, *, run_uid: str | None = None
    ) -> bool:
        """Signal a stop.

        Return ``False`` if the workflow is not open, or belongs to a run other than ``run_uid``.

        A plain stop of a paused workflow waits until somebody unpauses it. A forced stop unpauses
        it.
        """
        if run_uid is not None and (await self.state(workflow_id)).of_another(run_uid):
            return False
        heard = await self._signal(workflow_id, names.SIGNAL_STOP, stop)
        if heard and stop.force:
            await self._unpause(workflow_id, f"forced stop by {stop.requested_by or 'somebody'}")
        return heard

    async def _unpause(self, workflow_id: str, reason: str) -> None:
        """Let a paused workflow and its paused activities continue."""
        async with self.asking() as client:
            if (found := await _described(client, workflow_id)) is None:
                return
            who: dict[str, Any] = {"namespace": client.namespace, "identity": client.identity}
            # Not found: the workflow has continued or closed in the meantime.
            with allowing(RPCStatusCode.NOT_FOUND):
                if found.raw_description.workflow_extended_info.HasField("pause_info"):
                    order = api.UnpauseWorkflowExecutionRequest(
                        **who, workflow_id=workflow_id, reason=reason
                    )
                    await client.workflow_service.unpause_workflow_execution(order, retry=True)
                if any(step.paused for step in found.raw_description.pending_activities):
                    which = WorkflowExecutionRef(workflow_id=workflow_id)
                    steps = api.UnpauseActivityRequest(**who, execution=which, unpause_all=True)
                    await client.workflow_service.unpause_activity(steps, retry=True)

    async def poll_now(self, workflow_id: str) -> bool:
        """Ask a workflow to poll now. Return ``False`` if the workflow is not open."""
        return await self._signal(workflow_id, names.SIGNAL_LOOK_NOW)

    async def poll_recorded(self, workflow_id: str, recorded: bool) -> bool:
        """Notify a workflow of a change.

        If ``recorded`` is set, a poll has recorded the change, so the workflow does not poll again.
        Older builds ignore this field and poll immediately.

        Return ``False`` if the workflow is not open.
        """
        return await self._signal(
            workflow_id, names.SIGNAL_LOOK_NOW, *([{"recorded": True}] if recorded else [])
        )

    async def place_free(self, workflow_id: str) -> bool:
        """Notify a run that it may deploy waiting tasks now.

        Return ``False`` if the workflow is not open.
        """
        return await self._signal(workflow_id, names.SIGNAL_PLACE_FREE)

    async def wake(self, workflow_id: str) -> bool:
        """Make a manager or graph read its rows now.

        Return ``False`` if the workflow is not open.
        """
        return await self._signal(workflow_id, names.SIGNAL_WAKE)

    async def moved(self, workflow_id: str) -> bool:
        """Notify a manager that the worker with its object is shutting down.

        Return ``False`` if the workflow is not open.
        """
        return await self._signal(workflow_id, names.SIGNAL_MOVED)

    async def _signal(self, workflow_id: str, name: str, *args: object) -> bool:
        async with self.asking() as client:
            with allowing(RPCStatusCode.NOT_FOUND):
                await client.get_workflow_handle(workflow_id).signal(name, args=list(args))
                return True
        return False

    async def hurry(self, owner: Owner) -> None:
        """Signal ``poll_now``, and immediately retry each activity that is waiting for its next
        try.

        The signal alone does not shorten that wait.
        """
        async with self.asking() as client:
            found = await _described(client, owner.workflow_id)
            if found is None or not _is_open(found) or _first(found) != owner.first_run_id:
                return
            # Not found: the workflow has continued as new or closed. Unimplemented: the server is
            # too old to retry an activity early; it retries as planned.
            with allowing(RPCStatusCode.NOT_FOUND, RPCStatusCode.UNIMPLEMENTED):
                await client.get_workflow_handle(found.id, run_id=found.run_id).signal(
                    names.SIGNAL_LOOK_NOW
                )
                for step in found.raw_description.pending_activities:
                    if (
                        step.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
                        and step.attempt > 1
                    ):
                        order = api.ResetActivityRequest(
                            namespace=client.namespace,
                            execution=WorkflowExecutionRef(
                                workflow_id=found.id, run_id=found.run_id
                            ),
                            identity=client.identity,
                            id=step.activity_id,
                            keep_paused=True,
                        )
                        await client.workflow_service.reset_activity(order, retry=True)

    async def end(self, workflow: OpenWorkflow, reason: str) -> None:
        """Terminate this chain of executions, but no later chain with the same id.

        A closed chain is not an error.
        """
        async with self.asking() as client:
            handle = client.get_workflow_handle(
                workflow.workflow_id, first_execution_run_id=workflow.first_run_id
            )
            with allowing(RPCStatusCode.NOT_FOUND):
                await handle.terminate(reason=reason[:1000])

    # --- describe and query -----------------------------------------------------------------------

    async def is_open(self, workflow_id: str, first_run_id: str | None = None) -> bool:
        """Return whether the workflow is open and, if ``first_run_id`` is given, belongs to that
        chain.

        A resumed run reuses its workflow id, so the id alone cannot distinguish the old owner from
        the new one.
        """
        return (await self.state(workflow_id, first_run_id)).open

    async def state(self, workflow_id: str, first_run_id: str | None = None) -> WorkflowState:
        """Return whether the workflow is open and, if not, when, how and why it closed.

        With ``first_run_id``, a workflow of another chain counts as closed.
        """
        async with self.asking() as client:
            found = await _described(client, workflow_id)
            if found is None:
                return WorkflowState(open=False)
            if first_run_id is not None and _first(found) != first_run_id:
                return WorkflowState(open=False, how="followed by another one")
            if _is_open(found):
                return WorkflowState(
                    open=True, run_uid=_run_of(found)[1], first_run_id=_first(found)
                )
            how = found.status.name.lower().replace("_", " ") if found.status is not None else None
            return WorkflowState(
                open=False, closed_at=found.close_time, how=how, why=await why_closed(client, found)
            )

    async def confirm(self, workflow: OpenWorkflow) -> OpenWorkflow | None:
        """Return the description of this workflow from its own execution; ``None`` if it is no
        longer open.

        The visibility store, which lists workflows, may be out of date.
        """
        async with self.asking() as client:
            found = await _described(client, workflow.workflow_id)
        if found is None or not _is_open(found):
            return None
        return _open(found, _first(found))

    async def record(self, workflow: OpenWorkflow) -> WorkflowRecord:
        """Query what the workflow knows about the row of its run.

        Raises ``TemporalUnavailable``, also if no worker answers the query.
        """
        async with self.asking() as client:
            handle = client.get_workflow_handle(
                workflow.workflow_id, first_execution_run_id=workflow.first_run_id
            )
            try:
                answer: WorkflowRecord = await handle.query(
                    names.QUERY_RECORD, result_type=WorkflowRecord
                )
            except WorkflowQueryFailedError as error:
                raise TemporalUnavailable(
                    f"workflow {workflow.workflow_id!r} does not respond: {error}"
                ) from error
            return answer

    async def problem(self, workflow_id: str) -> WorkflowProblem | None:
        """Return the reason why this workflow is not continuing; ``None`` if it is, or if it is not
        open."""
        async with self.asking() as client:
            found = await _described(client, workflow_id)
            return (
                await problem_of(client, found) if found is not None and _is_open(found) else None
            )

    # --- list -------------------------------------------------------------------------------------

    async def problems(self) -> dict[str, str]:
        """Return the open workflows whose next step fails repeatedly, each with the causes that the
        server reports.
        """
        async with self.asking() as client:
            return await problems(client)

    async def open_runs(
        self, after: str | None = None, limit: int = 100
    ) -> tuple[list[OpenWorkflow], str | None]:
        """Return a page of the open workflows of runs, managers and graphs, and the token of the
        next page.

        They come from the visibility store.
        """
        token = base64.b64decode(after) if after else None
        async with self.asking() as client:
            pages = client.list_workflows(_OPEN_WORK, page_size=limit, next_page_token=token)
            await pages.fetch_next_page()
        found = [_open(row, row.run_id) for row in pages.current_page or ()]
        return found, base64.b64encode(
            pages.next_page_token
        ).decode() if pages.next_page_token else None

    async def ended_runs(self) -> list[int]:
        """Return up to ``ENDED_MAX`` runs with a workflow that failed or was ended from outside in
        the last few minutes.

        The run may have continued in another workflow since then.
        """
        since = (utc_now() - ENDED_WITHIN).isoformat()
        query = f"{_RUNS} AND CrawlRunId > 0 AND CloseTime > '{since}' AND {_ENDED}"
        async with self.asking() as client:
            rows = client.list_workflows(query, page_size=ENDED_MAX, limit=ENDED_MAX)
            return sorted({row.typed_search_attributes[_RUN_ID] async for row in rows})

    async def of_run(self, run: RunRef) -> OpenWorkflow | None:
        """Return the open workflow of exactly this run, or ``None``.

        The visibility store lists it, and its own execution confirms it.
        """
        async with self.asking() as client:
            rows = client.list_workflows(
                f"{_OPEN_RUNS} AND CrawlRunUid = '{run.uid}'", page_size=10
            )
            async for row in rows:
                one = await self.confirm(OpenWorkflow(row.id, row.run_id, row.start_time))
                if one is not None and one.run_uid == run.uid:
                    return one
        return None

    async def highest_run(self, above: int = 0) -> int:
        """Return the highest run id of all open and closed lifecycle workflows; ``above`` if none
        is higher.

        It is found by counting workflows above a number, because visibility stores do not guarantee
        an order. This takes a few dozen calls, or one call if no id is higher. The namespace keeps
        closed workflows for a limited time.
        """
        step = 1
        while await self._any_run_above(above):
            while await self._any_run_above(above + step):
                above, step = above + step, 2 * step
            while step > 1:
                step //= 2
                above += step if await self._any_run_above(above + step) else 0
            above += 1
        return above

    async def _any_run_above(self, number: int) -> bool:
        if number >= names.RUN_NUMBER_MAX:
            return False
        query = f"{_RUNS} AND CrawlRunId > {number} AND CrawlRunId <= {names.RUN_NUMBER_MAX}"
        async with self.asking() as client:
            try:
                return (await client.count_workflows(query)).count > 0
            except RPCError as error:
                # A namespace without our search attributes has no workflows that use them.
                if error.status == RPCStatusCode.INVALID_ARGUMENT and "CrawlRunId" in str(error):
                    return False
                raise


async def _described(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    with allowing(RPCStatusCode.NOT_FOUND):
        return await client.get_workflow_handle(workflow_id).describe()
    return None


def _is_open(found: WorkflowExecutionDescription) -> bool:
    return found.raw_description.workflow_execution_info.status in _OPEN


def _chain(handle: WorkflowHandle[Any, Any]) -> str:
    """Return the first run id of the chain of executions that was started or found."""
    return handle.first_execution_run_id or handle.result_run_id or ""


def _first(found: WorkflowExecutionDescription) -> str:
    return found.raw_description.workflow_execution_info.first_run_id or found.run_id


def _open(found: WorkflowExecution, first_run_id: str) -> OpenWorkflow:
    of_parent = found.workflow_type in (names.MANAGER_WORKFLOW, names.GRAPH_WORKFLOW)
    run = (None, None) if of_parent else _run_of(found)
    return OpenWorkflow(found.id, first_run_id, found.start_time, *run, of_parent=of_parent)


def _run_of(found: WorkflowExecution) -> tuple[int | None, str | None]:
    """Return the id and uid of the run that a workflow belongs to, from its search attributes."""
    return found.typed_search_attributes.get(_RUN_ID), found.typed_search_attributes.get(_RUN_UID)
