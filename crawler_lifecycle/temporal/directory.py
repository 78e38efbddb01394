"""Temporal as an outside system: which workflows are open, and the search attributes that must exist."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.api.common.v1 import WorkflowExecution as WorkflowExecutionRef
from temporalio.api.enums.v1 import IndexedValueType, PendingActivityState, WorkflowExecutionStatus
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import ResetActivityRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowQueryFailedError,
)
from temporalio.common import Priority, SearchAttributeKey, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.adoption import WorkflowRecord
from crawler_lifecycle.domain.audit import OpenWorkflow, WorkflowState
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.names import SEARCH_ATTRIBUTES
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports import Fence, Owner

T = TypeVar("T")

#: Workflows in these states may still act.
OPEN = (
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED,
)

#: An audit that is still not over after that is given up; the next one finds the same.
AUDIT_LIFE = timedelta(hours=2)
#: A scheduled audit that could not start within this time is left out.
CATCH_UP = timedelta(seconds=60)


async def chain_is_open(client: Client, workflow_id: str, first_run_id: str | None = None) -> bool:
    """Whether ``workflow_id`` is open, and (when given) still in the chain that began with ``first_run_id``.

    A resumed run uses its workflow id again, so the id alone does not tell the old owner from the new one.
    Raises ``RPCError`` when the server does not answer; that is no answer.
    """
    return (await _state(client, workflow_id, first_run_id)).open


@dataclass
class TemporalDirectory:
    """``WorkflowDirectory`` over a client; called from activity threads, it asks on the client's own event loop.

    The client may come later than the directory: a worker checks its settings before it connects.
    """

    loop: asyncio.AbstractEventLoop
    client: Client | None = None
    timeout_s: float = 10.0

    def is_open(self, owner: Owner) -> bool:
        """Whether the owner's chain of executions is still open."""
        return self._ask(lambda client: chain_is_open(client, owner.workflow_id, owner.first_run_id))

    def state(self, workflow_id: str, first_run_id: str | None = None) -> WorkflowState:
        """Whether the workflow is open, and when and how it closed."""
        return self._ask(lambda client: _state(client, workflow_id, first_run_id))

    def open_runs(self, after: str | None = None, limit: int = 100) -> tuple[list[OpenWorkflow], str | None]:
        """A page of the lifecycle workflows that are open, as the visibility store lists them."""
        return self._ask(lambda client: _open_page(client, after, limit))

    def confirm(self, workflow: OpenWorkflow) -> OpenWorkflow | None:
        """The same as its own execution says; ``None`` when it is no longer open."""
        return self._ask(lambda client: _confirmed(client, workflow))

    def highest_run(self, above: int = 0) -> int:
        """The highest number of a run that any lifecycle workflow works or worked for, ``above`` when none is higher.

        Found by counting, as no visibility store promises an order: some dozens of questions, and one where no workflow
        is newer. Closed ones count for as long as the namespace keeps them.
        """
        step = 1
        while self._any_run_above(above):
            while self._any_run_above(above + step):
                above, step = above + step, 2 * step
            while step > 1:
                step //= 2
                above += step if self._any_run_above(above + step) else 0
            above += 1
        return above

    def _any_run_above(self, number: int) -> bool:
        if number >= names.RUN_NUMBER_MAX:
            return False
        query = f"{_RUNS} AND CrawlRunId > {number} AND CrawlRunId <= {names.RUN_NUMBER_MAX}"
        return self._ask(lambda client: _count(client, query)) > 0

    def of_run(self, run: RunRef) -> OpenWorkflow | None:
        """The open workflow of this very run, as the visibility store lists it and the workflow confirms it."""
        query = f"{_OPEN_RUNS} AND CrawlRunUid = '{run.uid}'"

        async def found(client: Client) -> OpenWorkflow | None:
            async for row in client.list_workflows(query, page_size=10):
                one = await _confirmed(client, OpenWorkflow(row.id, row.run_id, row.start_time))
                if one is not None and one.run_uid == run.uid:
                    return one
            return None

        return self._ask(found)

    def record(self, workflow: OpenWorkflow) -> WorkflowRecord:
        """What the workflow knows of its run's row. Raises ``TemporalUnavailable``, also where no worker answers."""

        async def ask(client: Client) -> WorkflowRecord:
            handle = client.get_workflow_handle(workflow.workflow_id, first_execution_run_id=workflow.first_run_id)
            try:
                answer: WorkflowRecord = await handle.query(names.QUERY_RECORD, result_type=WorkflowRecord)
            except WorkflowQueryFailedError as error:
                raise TemporalUnavailable(f"workflow {workflow.workflow_id!r} does not answer: {error}") from error
            return answer

        return self._ask(ask)

    def begin(self, request: RunRequest, workflow_id: str, *, repair: bool = False) -> None:
        """Start a workflow for a stored run, or find it open."""
        args: list[object] = [request, {"repair": True}] if repair else [request]
        self._start(
            names.LIFECYCLE_WORKFLOW,
            args,
            workflow_id,
            priority=Priority(priority_key=request.priority, fairness_key=request.crawler),
        )

    def hurry(self, owner: Owner) -> None:
        """Signal ``look_now``, and have tried now what waits for its next try: no signal shortens that wait."""
        self._ask(lambda client: _hurry(client, owner))

    def deliver_again(self, fence: Fence, *, event: bool, files: bool) -> None:
        """Start the workflow that delivers an attempt again, or find it open."""
        order = {"fence": asdict(fence), "event": event, "files": files}
        self._start(names.EXPORT_WORKFLOW, [order], names.export_workflow_id(fence.run, fence.attempt))

    def end(self, workflow: OpenWorkflow, reason: str) -> None:
        """Terminate this chain of executions and no later one of the same id."""

        async def terminate(client: Client) -> None:
            handle = client.get_workflow_handle(workflow.workflow_id, first_execution_run_id=workflow.first_run_id)
            try:
                await handle.terminate(reason=reason[:1000])
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:
                    raise

        self._ask(terminate)

    def _start(self, kind: str, args: list[object], workflow_id: str, *, priority: Priority = Priority.default) -> None:
        async def start(client: Client) -> None:
            await client.start_workflow(
                kind,
                args=args,
                id=workflow_id,
                task_queue=names.QUEUE_MAIN,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                priority=priority,
            )

        self._ask(start)

    def _ask(self, question: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """The answer. Raises ``TemporalUnavailable`` for anything but an answer."""
        if self.client is None:
            raise TemporalUnavailable("not connected to Temporal yet")
        call: Future[T] = asyncio.run_coroutine_threadsafe(question(self.client), self.loop)
        try:
            return call.result(self.timeout_s)
        except TimeoutError:
            call.cancel()
            raise TemporalUnavailable(f"Temporal did not answer within {self.timeout_s:g} s") from None
        except RPCError as error:
            raise TemporalUnavailable(f"Temporal did not take the call ({error.status.name}): {error}") from error


_RUN_ID = SearchAttributeKey.for_int("CrawlRunId")
_RUN_UID = SearchAttributeKey.for_keyword("CrawlRunUid")
_RUNS = f"WorkflowType = '{names.LIFECYCLE_WORKFLOW}'"
_OPEN_RUNS = f"{_RUNS} AND ExecutionStatus = 'Running'"


async def _count(client: Client, query: str) -> int:
    try:
        return (await client.count_workflows(query)).count
    except RPCError as error:
        # A namespace that was never told of our search attributes has no workflow that bears one.
        if error.status == RPCStatusCode.INVALID_ARGUMENT and "CrawlRunId" in str(error):
            return 0
        raise


async def _described(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    try:
        return await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise


async def _state(client: Client, workflow_id: str, first_run_id: str | None) -> WorkflowState:
    found = await _described(client, workflow_id)
    if found is None:
        return WorkflowState(open=False)
    info = found.raw_description.workflow_execution_info
    if first_run_id is not None and (info.first_run_id or found.run_id) != first_run_id:
        return WorkflowState(open=False, how="followed by another one")
    if info.status in OPEN:
        return WorkflowState(open=True)
    how = found.status.name.lower().replace("_", " ") if found.status is not None else None
    return WorkflowState(open=False, closed_at=found.close_time, how=how)


async def _hurry(client: Client, owner: Owner) -> None:
    found = await _described(client, owner.workflow_id)
    if found is None or found.raw_description.workflow_execution_info.status not in OPEN:
        return
    if (found.raw_description.workflow_execution_info.first_run_id or found.run_id) != owner.first_run_id:
        return
    execution = WorkflowExecutionRef(workflow_id=found.id, run_id=found.run_id)
    try:
        await client.get_workflow_handle(found.id, run_id=found.run_id).signal(names.SIGNAL_LOOK_NOW)
        for step in found.raw_description.pending_activities:
            if step.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED and step.attempt > 1:
                order = ResetActivityRequest(
                    namespace=client.namespace,
                    execution=execution,
                    identity=client.identity,
                    id=step.activity_id,
                    keep_paused=True,
                )
                await client.workflow_service.reset_activity(order)
    except RPCError as error:
        # It went on meanwhile; or the server is too old to try a step before its time, which then comes by itself.
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.UNIMPLEMENTED):
            raise


async def _open_page(client: Client, after: str | None, limit: int) -> tuple[list[OpenWorkflow], str | None]:
    token = base64.b64decode(after) if after else None
    pages = client.list_workflows(_OPEN_RUNS, page_size=limit, next_page_token=token)
    await pages.fetch_next_page()
    found = [OpenWorkflow(row.id, row.run_id, row.start_time, *_run_of(row)) for row in pages.current_page or ()]
    after = base64.b64encode(pages.next_page_token).decode() if pages.next_page_token else None
    return found, after


async def _confirmed(client: Client, workflow: OpenWorkflow) -> OpenWorkflow | None:
    found = await _described(client, workflow.workflow_id)
    if found is None or found.raw_description.workflow_execution_info.status not in OPEN:
        return None
    first = found.raw_description.workflow_execution_info.first_run_id or found.run_id
    return OpenWorkflow(found.id, first, found.start_time, *_run_of(found))


def _run_of(found: WorkflowExecution) -> tuple[int | None, str | None]:
    """Number and uid of the run that a workflow says it works for."""
    return found.typed_search_attributes.get(_RUN_ID), found.typed_search_attributes.get(_RUN_UID)


async def keep_audit_schedule(client: Client, every_s: float, repair: bool, *, only_missing: bool = False) -> None:
    """Make the Temporal Schedule of audits what the settings say; without ``every_s`` there is none.

    Whoever paused it finds it paused. Audits never overlap, and those that were missed are not made up for: the next
    one finds the same. With ``only_missing`` what is there stays as it is. Raises ``RPCError`` when the right to do so
    is missing.
    """
    handle = client.get_schedule_handle(names.AUDIT_SCHEDULE)
    if every_s <= 0:
        if only_missing:
            return
        try:
            await handle.delete()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
        return
    wanted = Schedule(
        action=ScheduleActionStartWorkflow(
            names.AUDIT_WORKFLOW,
            {"repair": repair},
            id=names.AUDIT_SCHEDULE,
            task_queue=names.QUEUE_AUDIT,
            execution_timeout=AUDIT_LIFE,
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=every_s))]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
        state=ScheduleState(note="compares database, cluster and Temporal; kept by the workers of the role audit"),
    )

    def renewed(found: ScheduleUpdateInput) -> ScheduleUpdate:
        wanted.state.paused = found.description.schedule.state.paused
        wanted.state.note = found.description.schedule.state.note or wanted.state.note
        return ScheduleUpdate(wanted)

    try:
        await client.create_schedule(names.AUDIT_SCHEDULE, wanted)
    except ScheduleAlreadyRunningError:
        if not only_missing:
            await handle.update(renewed)


async def register_search_attributes(client: Client) -> list[str]:
    """Make sure that the namespace knows our search attributes; the names that were added.

    Upserting an unknown one would fail workflow tasks for ever, so a worker calls this before it polls.
    Raises ``RPCError`` (PERMISSION_DENIED when the right to register is missing).
    """
    operator = client.operator_service
    known = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in known.custom_attributes}
    if not missing:
        return []
    types: dict[str, Any] = {
        name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}") for name, kind in missing.items()
    }
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
    try:
        await operator.add_search_attributes(request)
    except RPCError as error:
        if error.status != RPCStatusCode.ALREADY_EXISTS:  # another worker was faster
            raise
    return sorted(missing)


def registration_command(namespace: str) -> str:
    """The command an operator with more rights runs instead of us."""
    pairs = " ".join(f"--name {name} --type {kind}" for name, kind in SEARCH_ATTRIBUTES.items())
    return f"temporal operator search-attribute create --namespace {namespace} {pairs}"
