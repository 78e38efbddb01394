"""The port ``WorkflowDirectory`` for the threads of activities: asks ``Workflows`` on the client's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from crawler_lifecycle.domain.audits.adoption import WorkflowRecord
from crawler_lifecycle.domain.audits.audit import OpenWorkflow, WorkflowState
from crawler_lifecycle.domain.run import RunRequest, StopRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.schedules.definition import due_of_workflow
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.ports.schedules import DueOrder

from .client import Workflows

T = TypeVar("T")


@dataclass
class TemporalDirectory:
    """See the port, and ``Workflows`` for what each method asks. Not for the thread of the event loop itself."""

    loop: asyncio.AbstractEventLoop
    workflows: Workflows

    def is_open(self, owner: Owner) -> bool:
        return self._ask(self.workflows.is_open(owner.workflow_id, owner.first_run_id))

    def state(self, workflow_id: str, first_run_id: str | None = None) -> WorkflowState:
        return self._ask(self.workflows.state(workflow_id, first_run_id))

    def open_runs(self, after: str | None = None, limit: int = 100) -> tuple[list[OpenWorkflow], str | None]:
        return self._ask(self.workflows.open_runs(after, limit))

    def confirm(self, workflow: OpenWorkflow) -> OpenWorkflow | None:
        return self._ask(self.workflows.confirm(workflow))

    def highest_run(self, above: int = 0) -> int:
        return self._ask(self.workflows.highest_run(above))

    def of_run(self, run: RunRef) -> OpenWorkflow | None:
        return self._ask(self.workflows.of_run(run))

    def record(self, workflow: OpenWorkflow) -> WorkflowRecord:
        return self._ask(self.workflows.record(workflow))

    def begin(self, request: RunRequest, workflow_id: str, run_uid: str, *, repair: bool = False) -> None:
        self._ask(self.workflows.start(request, workflow_id, run_uid, repair=repair))

    def begin_manager(self, manager_id: int, workflow_id: str) -> None:
        self._ask(self.workflows.start_manager(manager_id, workflow_id))

    def begin_graph(self, graph_id: int, workflow_id: str) -> None:
        self._ask(self.workflows.start_graph(graph_id, workflow_id))

    def begin_due(self, due_id: int, workflow_id: str) -> None:
        self._ask(self.workflows.start_due(DueOrder(*due_of_workflow(workflow_id))))

    def begin_webhook(self, webhook_id: int, workflow_id: str) -> None:
        self._ask(self.workflows.start_webhook(workflow_id.partition("/")[2]))

    def wake(self, workflow_id: str) -> bool:
        return self._ask(self.workflows.wake(workflow_id))

    def stop(self, workflow_id: str, stop: StopRequest, *, run_uid: str | None = None) -> bool:
        return self._ask(self.workflows.stop(workflow_id, stop, run_uid=run_uid))

    def hurry(self, owner: Owner) -> None:
        self._ask(self.workflows.hurry(owner))

    def deliver_again(self, fence: Fence, *, event: bool, files: bool) -> None:
        self._ask(self.workflows.export_again(fence, event=event, files=files))

    def deliver_event(self, key: str) -> None:
        self._ask(self.workflows.deliver_event(key))

    def end(self, workflow: OpenWorkflow, reason: str) -> None:
        self._ask(self.workflows.end(workflow, reason))

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(question, self.loop).result()
