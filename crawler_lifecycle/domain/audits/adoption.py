"""Facts about a run, by which a database that lost the run can adopt it.

Only a run's row has all its data. So the data that a task itself does not show is sent with it to the cluster
(``record_of``). It is stored beside the task there, and in the workflow's memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crawler_lifecycle.domain.run import RunRequest, StopIntent

#: Bytes of a record as JSON. A Job's annotations hold it, and a list of 500 Jobs carries 500 of them.
RECORD_MAX = 8 * 1024
#: Fields that a task shows itself, or that are not needed later.
_LEFT_OUT = ("args", "settings", "tasks", "run_id", "rerun")

#: The cause of a task whose row is made because the run had it, although nothing of it is left.
FORGOTTEN = (
    "The database was put back to a copy that did not know this task, and nothing of it is on the cluster: nobody "
    "knows whether it ran. Its arguments are lost, too: start a new run for it instead of a resume"
)


@dataclass(frozen=True, slots=True)
class WorkflowRecord:
    """Answer of the query ``record``: what a run's workflow knows of its row."""

    run_id: int
    run_uid: str
    attempt: int
    request: RunRequest | None
    """The stored request without its task list; ``None`` before the run is recorded."""
    multi: bool
    tasks: int
    """The number of them that it counted last."""
    stop: StopIntent | None = None


def record_of(
    request: Mapping[str, object], request_id: str, multi: bool, owner: tuple[str, str], tasks: int
) -> dict[str, Any]:
    """The record of a run. A request that is too large is left out; the run can then be found by its owner."""
    workflow_id, first_run_id = owner
    found: dict[str, Any] = {
        "request_id": request_id,
        "multi": multi,
        "tasks": tasks,
        "owner": {"workflow_id": workflow_id, "first_run_id": first_run_id},
    }
    whole = {**found, "request": {k: v for k, v in request.items() if k not in _LEFT_OUT and v not in (None, [], {})}}
    return whole if len(json.dumps(whole).encode()) <= RECORD_MAX else found
