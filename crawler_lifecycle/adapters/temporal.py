"""Temporal as an outside system: which workflows are open, and the search attributes that must exist."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType, WorkflowExecutionStatus
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.domain.names import SEARCH_ATTRIBUTES
from crawler_lifecycle.ports import Owner

#: Workflows in these states may still act.
OPEN = (
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED,
)


async def chain_is_open(client: Client, workflow_id: str, first_run_id: str | None = None) -> bool:
    """Whether ``workflow_id`` is open, and (when given) still in the chain that began with ``first_run_id``.

    A resumed run uses its workflow id again, so the id alone does not tell the old owner from the new one.
    Raises ``RPCError`` when the server does not answer; that is no answer.
    """
    try:
        found = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise
    info = found.raw_description.workflow_execution_info
    if info.status not in OPEN:
        return False
    return first_run_id is None or (info.first_run_id or found.run_id) == first_run_id


@dataclass
class TemporalDirectory:
    """``WorkflowDirectory`` over a client; called from activity threads, it asks on the client's own event loop.

    The client may come later than the directory: a worker checks its settings before it connects.
    """

    loop: asyncio.AbstractEventLoop
    client: Client | None = None
    timeout_s: float = 10.0

    def is_open(self, owner: Owner) -> bool:
        """Whether the owner's chain of executions is still open. Raises ``RuntimeError`` before there is a client."""
        if self.client is None:
            raise RuntimeError("not connected to Temporal yet")
        call: Future[bool] = asyncio.run_coroutine_threadsafe(
            chain_is_open(self.client, owner.workflow_id, owner.first_run_id), self.loop
        )
        return call.result(self.timeout_s)


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
