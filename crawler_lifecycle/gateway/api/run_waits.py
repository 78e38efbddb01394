"""What a run waits for, from its row, its tasks and its deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.task import ACTIVE, TaskStatus
from crawler_lifecycle.domain.waiting import NAMED_MAX, Standing
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.runs.tasks import TaskReader


def standing_of(row: RunRow, now: datetime, **more: Any) -> Standing:
    """Where the run stands at ``now``; ``more`` is what its row does not tell."""
    most = row.request.get("max_parallel_tasks")
    stop = row.stop
    return Standing(
        status=str(row.status),
        now=now,
        created_at=row.attempt_at or row.created_at,
        owned=row.owner_run_id is not None,
        waiting_for=row.waiting_for,
        waiting_since=row.waiting_since,
        look_error=row.look_error,
        look_error_since=row.look_error_since,
        next_look_at=row.next_look_at,
        stop_at=stop.requested_at if stop else None,
        stop_by=(stop.limit or stop.requested_by) if stop else None,
        stop_force=stop.force if stop else False,
        stop_heard=row.stop_acted_at is not None,
        max_parallel=most if isinstance(most, int) else None,
        **more,
    )


def told_by_tasks(tasks: TaskReader, row: RunRow) -> dict[str, Any]:
    """What the tasks of a live run add to their numbers: which of them are waited for, or why they wait."""
    if str(row.status) in ("COMPLETED", "FAILED"):
        return {}
    try:
        if row.stop is not None:
            return {"unproved": [task.index for task in tasks.task_page(row.run_id, ACTIVE, limit=NAMED_MAX)]}
        page = tasks.task_page(row.run_id, [TaskStatus.PENDING], limit=NAMED_MAX)
    except RowUnreadable:
        return {}  # the sentence says less, and the task's own row says what is wrong with it
    return {"reason": next((task.reason for task in page if task.reason), None)}


def undelivered(
    attempt: int, exports: Sequence[Mapping[str, Any]], deliveries: Sequence[Mapping[str, Any]]
) -> list[str]:
    """What has not got through of an ended attempt, each in words."""
    words = []
    for delivery in deliveries:
        if delivery.get("attempt") != attempt or delivery.get("status") == "delivered":
            continue
        error, tries = delivery.get("error"), delivery.get("tries")
        tried = f" after {tries} {'try' if tries == 1 else 'tries'}" if tries else ""
        words.append(f"{delivery['type']} is not delivered{tried}{f': {error}' if error else ''}")
    for export in exports:
        if export.get("attempt") == attempt and export.get("status") == "failed":
            words.append(f"the supporting files are not archived yet: {export.get('error') or 'no reason is known'}")
    return words
