"""Ids that contain a due time of a schedule: those of requests, flows, graphs and workflows."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime

#: The request id contains the name and the due time, and has at most 120 characters.
NAME_MAX = 80
SCHEDULE_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_MAX - 1}}}")
_DUE_REQUEST = re.compile(
    rf"schedule/({SCHEDULE_NAME.pattern})/[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9:]{{8}}Z", re.ASCII
)
#: The due time in the ids of managers and graphs that a schedule begins, and in the workflow ids
#: that contain these ids.
_DUE_ID = re.compile(
    rf"(?:graph/schedule\.)?{SCHEDULE_NAME.pattern}\.([0-9-]{{10}}T[0-9:]{{8}}Z)", re.ASCII
)


def due_text(due_at: datetime) -> str:
    """Return a due time in the form that ids contain, in UTC and whole seconds."""
    return f"{due_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def due_request_id(name: str, due_at: datetime) -> str:
    """Return the request id for a due time. Every try to begin the target uses the same id."""
    return f"schedule/{name}/{due_text(due_at)}"


def schedule_of(request_id: str) -> str | None:
    """Return the name of the schedule in a request id, or ``None`` if the request was not made for
    a due time.
    """
    found = _DUE_REQUEST.fullmatch(request_id)
    return found[1] if found else None


def due_of(*ids: str | None) -> datetime | None:
    """Return the due time in the first of these flow and workflow ids that a schedule made. Return
    ``None`` if a schedule made none of these ids.
    """
    for id in ids:
        found = _DUE_ID.fullmatch(id or "")
        with suppress(ValueError):  # a person's flow id may have the same form
            if found is not None:
                return datetime.fromisoformat(found[1])
    return None


def due_workflow_id(name: str, due_at: datetime | None = None) -> str:
    """Return the workflow id of a due time.

    Without ``due_at``, return the prefix to which Temporal adds the due time.
    """
    return f"crawl-due/{name}" + ("" if due_at is None else f"-{due_text(due_at)}")


def due_of_workflow(workflow_id: str) -> tuple[str, datetime]:
    """Return the schedule and the due time in an id that ``due_workflow_id`` returned."""
    name = workflow_id.partition("/")[2][:-21]
    due_at = workflow_id[-20:]
    return name, datetime.fromisoformat(due_at)


def due_flow_id(name: str, due_at: datetime) -> str:
    """Return the flow id of the manager that a due time begins."""
    return f"{name}.{due_text(due_at)}"


def due_graph_key(name: str, due_at: datetime) -> str:
    """Return the key of the graph that a due time begins."""
    return f"schedule.{name}.{due_text(due_at)}"


def temporal_schedule_id(name: str) -> str:
    """Return the id of the Temporal Schedule of this schedule."""
    return f"crawl-schedule/{name}"
