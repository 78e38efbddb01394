"""Who took which step of a workflow, as its history tells."""

from __future__ import annotations

import json

from tests.e2e.harness import Harness, Row


def history(harness: Harness, workflow_id: str) -> list[Row]:
    """The events of a workflow, by the Temporal CLI."""
    events: list[Row] = json.loads(
        harness.temporal("workflow", "show", "--workflow-id", workflow_id).stdout
    )["events"]
    return events


def served_by(harness: Harness, workflow_id: str, pid: int) -> list[Row]:
    """The steps of the workflow and its activities that this worker process took; not what it
    signalled.
    """
    taken = [e for e in history(harness, workflow_id) if f'"identity": "{pid}@' in json.dumps(e)]
    return [e for e in taken if "_TASK_" in e["eventType"]]
