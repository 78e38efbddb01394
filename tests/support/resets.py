"""What ``temporal workflow reset`` does."""

from __future__ import annotations

import uuid

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client


async def reset(client: Client, workflow_id: str, task: int) -> str:
    """Reset to the state before this workflow task of the last execution was completed. Returns the
    id of the new execution.
    """
    events = (await client.get_workflow_handle(workflow_id).fetch_history()).events
    done = [
        e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    if not done:
        raise RuntimeError(f"{workflow_id}: no workflow task was completed yet")
    request = ResetWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=workflow_id),
        reason="by hand",
        request_id=str(uuid.uuid4()),
        workflow_task_finish_event_id=done[task],
    )
    return (await client.workflow_service.reset_workflow_execution(request, retry=True)).run_id
