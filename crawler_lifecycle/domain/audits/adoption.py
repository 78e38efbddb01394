"""The record of a run, from which a missing row of the run can be restored.

A task on the cluster does not show all data about its run. So the record (``record_of``) is sent
with each task, and the cluster stores the record with the task. The run's workflow contains the
same record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crawler_lifecycle.domain.run import RunRequest, StopIntent

#: The maximum size of a record in bytes of JSON. Each Job contains the record as an annotation, and
#: a list response contains up to 500 Jobs.
RECORD_MAX = 8 * 1024
#: Fields of the request that the task itself shows, or that a restored run does not need.
_LEFT_OUT = ("args", "settings", "tasks", "run_id", "rerun")

#: The cause of a task whose row is restored although the cluster has no trace of the task.
FORGOTTEN = (
    "The database was restored from a copy without this task, and the task is not on the cluster. "
    "Whether the task ran is unknown, and so are its arguments: start a new run instead of a "
    "resume"
)


@dataclass(frozen=True, slots=True)
class WorkflowRecord:
    """The answer to the query ``record``: the data about the run's row that the workflow has."""

    run_id: int
    run_uid: str
    attempt: int
    request: RunRequest | None
    """The stored request, excluding the task list, or ``None`` if the run is not recorded yet."""
    multi: bool
    tasks: int
    """The number of tasks when they were last counted."""
    stop: StopIntent | None = None


def record_of(
    request: Mapping[str, object],
    request_id: str,
    multi: bool,
    owner: tuple[str, str],
    tasks: int,
    attempt: int,
) -> dict[str, Any]:
    """Return the record of a run. A request that is too large is left out, because the workflow
    that owns the run has the request too.
    """
    workflow_id, first_run_id = owner
    found = {
        "request_id": request_id,
        "multi": multi,
        "tasks": tasks,
        "attempt": attempt,
        "owner": {"workflow_id": workflow_id, "first_run_id": first_run_id},
    }
    whole = {
        **found,
        "request": {
            k: v for k, v in request.items() if k not in _LEFT_OUT and v not in (None, [], {})
        },
    }
    return whole if len(json.dumps(whole).encode()) <= RECORD_MAX else found
