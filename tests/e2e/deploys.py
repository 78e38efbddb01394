"""Which worker executed which step of a workflow, according to its history."""

from __future__ import annotations

import json

from tests.e2e.harness import Harness, Row


def history(harness: Harness, workflow_id: str) -> list[Row]:
    """Return the events of a workflow, with the Temporal CLI."""
    events: list[Row] = json.loads(
        harness.temporal("workflow", "show", "--workflow-id", workflow_id).stdout
    )["events"]
    return events


def served_by(harness: Harness, workflow_id: str, pid: int) -> list[Row]:
    """Return the workflow's steps and activities that this worker process executed, without its
    signals.
    """
    taken = [e for e in history(harness, workflow_id) if f'"identity": "{pid}@' in json.dumps(e)]
    return [e for e in taken if "_TASK_" in e["eventType"]]
