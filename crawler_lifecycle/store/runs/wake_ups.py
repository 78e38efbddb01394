"""Queries of runs that wait for a start, a signal or a look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import or_, select

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.wake_ups import WakeUpState
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.base.unit import StorePart

from .rows import run_row
from .tables import LIVE_RUNS, run_history


class SweepStore(StorePart):
    """Runs that were accepted, or told to stop, and have no workflow that knows."""

    def unowned_runs(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs that were reserved or resumed and not claimed: they were accepted, so somebody must start them."""
        r = run_history.c
        query = (
            select(run_history)
            .where(
                r.owner_run_id.is_(None),
                r.status == RunStatus.INITIALIZING,
                r.created_at < older_than,
                or_(r.attempt_at.is_(None), r.attempt_at < older_than),
            )
            .order_by(r.created_at)
            .limit(limit)
        )
        return [run_row(row) for row in self._rows(query)]

    def unheard_stops(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs whose recorded stop no workflow has acted on yet."""
        r = run_history.c
        query = (
            select(run_history)
            .where(r.stop_acted_at.is_(None), r.status.in_(LIVE_RUNS), r.stop_requested_at < older_than)
            .order_by(r.stop_requested_at)
            .limit(limit)
        )
        return [run_row(row) for row in self._rows(query)]


class WakeUpStore(StorePart):
    """Runs whose workflow is to be woken."""

    def wake_targets(self, run_ids: Sequence[int]) -> list[WakeUpState]:
        """Workflows to wake for these runs, at most 500, and the time of the last look. Unknown runs are left out."""
        r = run_history.c
        if not run_ids:
            return []
        query = select(r.run_id, r.owner_workflow_id, r.status, r.verified_at)
        rows = self._rows(query.where(r.run_id.in_(sorted(set(run_ids)))).order_by(r.run_id))
        return [
            WakeUpState(
                row["run_id"],
                row["owner_workflow_id"],
                ended=RunStatus(row["status"]).terminal,
                verified_at=row["verified_at"],
            )
            for row in rows
        ]
