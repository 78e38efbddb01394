"""What whoever begins, stops or follows runs has to know: the ids and inputs of their workflows."""

from __future__ import annotations

from typing import Any

from crawler_lifecycle.domain.names import attempt_workflow_id, workflow_id
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.runs import RunRow


def own_workflow_id(row: RunRow) -> str:
    """The id under which we start a workflow for this run."""
    return workflow_id(row.crawler, row.request_id)


def next_workflow_id(row: RunRow) -> str:
    """The id under which we start the next workflow for this run.

    Under the plain one an earlier attempt may still be busy with its deliveries, for hours if an archive is down: a
    start would find that one and begin nothing. So it is used only where it is nobody else's. The id of the attempt
    keeps a repeat from starting two.
    """
    own = own_workflow_id(row)
    if row.owner_run_id is None:
        return row.owner_workflow_id or own
    free = row.attempt == 1 or row.owner_workflow_id in (None, own)
    return own if free else attempt_workflow_id(row.crawler, row.request_id, row.attempt + 1)


def workflow_ids(row: RunRow) -> list[str]:
    """Where a workflow that works for this run may be found: its recorded owner, then the one that is to follow it."""
    return list(dict.fromkeys(filter(None, (row.owner_workflow_id, next_workflow_id(row)))))


def uid_there(row: RunRow, workflow_id: str) -> str | None:
    """What the workflow under one of these ids has to say if it says a uid; ``None``: it is the recorded owner.

    Under an id that the request makes, another run's may be open: a restore lost its row, and the request came again.
    """
    owner = row.owner_run_id is not None and workflow_id == row.owner_workflow_id
    return None if owner else row.run_uid


def begin_request(row: RunRow, **more: Any) -> RunRequest:
    """The input of a workflow for a run that is stored already: its id says everything."""
    priority = row.request.get("priority")
    # Temporal orders by it before the workflow has read the stored request.
    return RunRequest(
        crawler=row.crawler, run_id=row.run_id, priority=priority if isinstance(priority, int) else 3, **more
    )
