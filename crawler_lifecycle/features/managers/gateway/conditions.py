"""The conditions of managers that need somebody."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from crawler_lifecycle.domain.conditions import IncidentCondition, failed_since_good
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.store.store import Store

from ..ports import ManagerRow

#: The most managers that are read: of those that ended last, and of those that are open.
ROWS_MAX = 100
#: A class that failed so often in a row needs somebody.
TRIES = 3


def conditions(store: Store, now: datetime) -> Iterator[IncidentCondition]:
    """Return the managers that failed, unless a later one of the same name is good, and those whose
    class fails.
    """
    states = [RunStatus.COMPLETED, RunStatus.FAILED]
    ended = store.managers.newest(limit=ROWS_MAX, states=states)
    for failed in failed_since_good(
        [row for row in ended if row.stop is None],
        lambda row: (row.project, row.name),
        lambda row: row.status is RunStatus.COMPLETED,
    ):
        times = tuple(row.ended_at or row.updated_at for row in failed)
        cause = failed[0].cause or failed[0].outcome or "it failed"
        yield _condition("manager_failed", failed[-1], cause, times)
    for row in store.managers.newest(limit=ROWS_MAX, states=[RunStatus.PROCESSING]):
        if row.error is not None and row.tries >= TRIES:
            times = (row.started_at or row.created_at,)
            yield _condition("manager_stuck", row, row.error, times)


def _condition(
    kind: str, row: ManagerRow, cause: str, times: tuple[datetime, ...]
) -> IncidentCondition:
    return IncidentCondition(
        kind,
        f"managers/{row.manager_id}",
        row.project,
        cause,
        times[-1],
        times[0],
        count=len(times),
        times=times,
        fix=f"crawlctl manager describe {row.manager_id}",
    )
