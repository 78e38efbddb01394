"""The conditions under which managers need attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from crawler_lifecycle.domain.conditions import IncidentCondition, failed_since_good
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.store.store import Store

from ..ports import ManagerRow

#: The maximum numbers of open managers, and of open incidents about failed ones, that are read.
ROWS_MAX = 100
OPEN_MAX = 1_000


def conditions(store: Store, now: datetime) -> Iterator[IncidentCondition]:
    """Yield the managers that failed, unless a later manager with the same name completed, and the
    managers whose class fails repeatedly.
    """
    # Newer failures of other managers do not end an incident.
    incidents = store.incidents.list_incidents(limit=OPEN_MAX, kind="manager_failed")
    known = [int(incident.name) for incident in incidents]
    ended = store.managers.failures(RunStatus.FAILED, RunStatus.COMPLETED, known)
    for failed in failed_since_good(
        [row for row in ended if row.stop is None],
        lambda row: (row.project, row.name),
        lambda row: row.status is RunStatus.COMPLETED,
    ):
        times = tuple(row.ended_at or row.updated_at for row in failed)
        cause = failed[0].cause or failed[0].outcome or "it failed"
        yield _condition("manager_failed", failed, cause, times)
    for row in store.managers.newest(limit=ROWS_MAX, states=[RunStatus.PROCESSING]):
        if row.stuck and row.error is not None:
            times = (row.started_at or row.created_at,)
            yield _condition("manager_stuck", [row], row.error, times)


def _condition(
    kind: str, rows: Sequence[ManagerRow], cause: str, times: tuple[datetime, ...]
) -> IncidentCondition:
    row = rows[0]
    subject, *earlier = [f"managers/{found.manager_id}" for found in rows]
    return IncidentCondition(
        kind,
        subject,
        row.project,
        f"{row.name}: {cause}",
        times[-1],
        times[0],
        count=len(times),
        times=times,
        fix=f"crawlctl manager describe {row.manager_id}",
        earlier=tuple(earlier),
    )
