"""Problems of workflows that the server reports: steps that fail repeatedly, and steps that no
worker takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums import v1 as enums
from temporalio.api.enums.v1 import EventType, PendingWorkflowTaskState, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCStatusCode

from crawler_lifecycle.domain.names import QUEUE_AUDIT, QUEUE_MAIN

from .errors import allowing

#: After this many tries, a workflow's step counts as failing. A single failed try is normal when a
#: worker ends.
TRIES_MIN = 3
#: A step that has been waiting for a worker for longer than this is a problem. An idle worker takes
#: a step within milliseconds.
UNTAKEN = timedelta(seconds=30)
#: The number of latest events that are read to find a failure.
_EVENTS = 200
#: Condition of open workflows, paused ones too. Servers before 1.30 do not know the status
#: ``Paused``.
OPEN = "CloseTime IS NULL"
#: The query for paused workflows and workflows whose next step failed several times in a row.
#: Servers since 1.30 support the attributes.
_WITH_PROBLEMS = (
    f"(TemporalReportedProblems IS NOT NULL OR TemporalPauseInfo IS NOT NULL) AND {OPEN} "
    f"AND TaskQueue IN ('{QUEUE_MAIN}', '{QUEUE_AUDIT}')"
)
PROBLEMS_MAX = 1000
#: The maximum length of the reason why a workflow closed, in characters.
WHY_MAX = 500


def _unnamed(value: object) -> WorkflowExecutionStatus | None:
    """Return the status for a number that has no name in this SDK, which would otherwise refuse to
    read a paused workflow.
    """
    paused = value == enums.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED
    return WorkflowExecutionStatus.RUNNING if paused else None


WorkflowExecutionStatus._missing_ = _unnamed  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class WorkflowProblem:
    """The reason why an open workflow is not continuing."""

    since: datetime
    what: str | None
    """The error of its next step; ``None`` if no worker takes the step."""
    misfit: bool = False
    """True if this build's code cannot continue the workflow (a non-determinism error)."""
    paused: str | None = None
    """The part that somebody paused in Temporal: ``workflow`` or ``step NAME``. In this case,
    ``what`` contains who paused it, and why.
    """


async def problem_of(client: Client, found: WorkflowExecutionDescription) -> WorkflowProblem | None:
    """Return the reason why this open workflow is not continuing; ``None`` if it is. Raises
    ``RPCError``."""
    raw = found.raw_description
    if (paused := _paused(raw)) is not None:
        return paused
    if not raw.HasField("pending_workflow_task"):
        return None
    step = raw.pending_workflow_task
    scheduled = step.scheduled_time.ToDatetime(tzinfo=UTC)
    if step.attempt >= TRIES_MIN:
        return await _failing(client, found, scheduled)
    waits = step.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
    return (
        WorkflowProblem(scheduled, None)
        if waits and datetime.now(UTC) - scheduled > UNTAKEN
        else None
    )


async def problems(client: Client) -> dict[str, str]:
    """Return at most ``PROBLEMS_MAX`` open workflows that are not continuing, each with the causes
    from the server.

    A paused workflow has none.

    Raises ``RPCError``, also if the server is older than 1.30 and does not know the query's
    attribute.
    """
    found = {}
    async for row in client.list_workflows(
        _WITH_PROBLEMS, page_size=PROBLEMS_MAX, limit=PROBLEMS_MAX
    ):
        words = row.search_attributes.get("TemporalReportedProblems", [])
        causes = [
            str(word).partition("cause=")[2].removeprefix("WorkflowTaskFailedCause")
            for word in words
        ]
        found[row.id] = ", ".join(filter(None, causes))
    return found


async def why_closed(client: Client, found: WorkflowExecutionDescription) -> str | None:
    """Return the message of a workflow's failure, or the given reason for its termination.

    Return ``None`` if it closed in another way, or if no reason was given. Raises ``RPCError``.
    """
    if found.status not in (WorkflowExecutionStatus.FAILED, WorkflowExecutionStatus.TERMINATED):
        return None
    handle = client.get_workflow_handle(found.id, run_id=found.run_id)
    with allowing(RPCStatusCode.NOT_FOUND):  # its retention period is over
        async for event in handle.fetch_history_events(
            event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT
        ):
            failed = event.workflow_execution_failed_event_attributes.failure.message
            return (failed or event.workflow_execution_terminated_event_attributes.reason)[
                :WHY_MAX
            ] or None
    return None


def _paused(raw: DescribeWorkflowExecutionResponse) -> WorkflowProblem | None:
    if raw.workflow_extended_info.HasField("pause_info"):
        pause = raw.workflow_extended_info.pause_info
        return WorkflowProblem(
            pause.paused_time.ToDatetime(tzinfo=UTC), _by(pause), paused="workflow"
        )
    for step in raw.pending_activities:
        if step.paused:
            since = step.pause_info.pause_time.ToDatetime(tzinfo=UTC)
            return WorkflowProblem(
                since, _by(step.pause_info.manual), paused=f"step {step.activity_type.name}"
            )
    return None


def _by(pause: Any) -> str:
    return f"by {pause.identity or 'a rule'}" + (f" ({pause.reason})" if pause.reason else "")


async def _failing(
    client: Client, found: WorkflowExecutionDescription, scheduled: datetime
) -> WorkflowProblem:
    execution = WorkflowExecution(workflow_id=found.id, run_id=found.run_id)
    answer = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace, execution=execution, maximum_page_size=_EVENTS
        ),
        retry=True,
    )
    ends = _since_last_success(answer.history.events)
    if not ends:  # more than ``_EVENTS`` events followed the failure
        return WorkflowProblem(scheduled, "see its history")
    last = ends[0].workflow_task_failed_event_attributes
    return WorkflowProblem(
        ends[-1].event_time.ToDatetime(tzinfo=UTC),
        await _words(client, ends[0]),
        last.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
    )


def _since_last_success(latest_first: Sequence[HistoryEvent]) -> list[HistoryEvent]:
    """Return those steps of the workflow that have failed since the last success, the latest first.

    If none failed, return the steps that timed out.
    """
    bad = (EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)
    found = []
    for event in latest_first:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            break
        if event.event_type in bad:
            found.append(event)
    # A failure explains more than a time-out. Servers may record time-outs for later tries of a
    # failed step.
    return [event for event in found if event.event_type == bad[0]] or found


async def _words(client: Client, event: HistoryEvent) -> str:
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
        return "a worker takes the step but does not complete it in time"
    error = await client.data_converter.decode_failure(
        event.workflow_task_failed_event_attributes.failure
    )
    kind = error.type if isinstance(error, ApplicationError) else None
    message = getattr(error, "message", None) or str(error)
    return f"{kind}: {message}" if kind else message
