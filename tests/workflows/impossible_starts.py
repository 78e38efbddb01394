"""Impossible starts of managers and graphs: input, workflow id, and the message of the failure."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from crawler_lifecycle.domain import names
from tests.support.testbed import WorkflowHarness


async def fail_at_once(
    testbed: WorkflowHarness, workflow: str, result: type, field: str, id: str
) -> None:
    """Start each of them while number 1 is running under this id."""
    noun = field.removesuffix("_id")
    cases: list[tuple[Any, str, str]] = [
        (None, id, "order: missing"),
        ({field: "x"}, id, field),
        ({field: 0}, id, f"{field}: 0"),
        ({field: 4711}, id, "does not exist"),
        ({field: 1}, f"{id}/other", f"{noun} 1 runs as '{id}'"),
        ({field: 1, "more": 1}, id, "more"),
    ]
    for order, started_as, words in cases:
        handle = await testbed.client.start_workflow(
            workflow, order, id=started_as, task_queue=names.QUEUE_MAIN, result_type=result
        )
        testbed.handles.append(handle)
        with pytest.raises(WorkflowFailureError) as failed:
            await testbed.ended(handle)
        assert words in str(failed.value.cause)
