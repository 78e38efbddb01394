"""Queries of managers and their jobs.

The row of a manager has counters, so a query rarely counts jobs.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, func, select

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import RunNotFound
from crawler_lifecycle.domain.names import manager_workflow_id
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.base.rows import seen, wanted
from crawler_lifecycle.store.base.unit import check_owner, read_row
from crawler_lifecycle.store.runs.lists import live_runs, runs_by_id
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, cancellation_log, run_history

from ..domain.manager import JobState, Live, Waiting
from ..ports import JobRow, LiveManagers, ManagerFence, ManagerRow
from .queries import BY_END, HOLDING, in_states, known
from .rows import listed_job, live_row, waiting_row
from .tables import manager
from .unit import ManagerPart

_m = manager.c


class ManagerReads(ManagerPart):
    """The methods of ``ManagerStore`` that read for people and cycles."""

    def get_manager(self, manager_id: int) -> ManagerRow | None:
        return self._one(_m.manager_id == manager_id) if 0 < manager_id <= ID_MAX else None

    def find_manager(self, name: str | None, flow_id: str) -> ManagerRow | None:
        """Return the manager with this flow id and name, or without a name, the first manager of
        the flow.
        """
        return self._one(_m.flow_id == flow_id, *wanted((_m.name, name)))

    def list_jobs(
        self,
        manager_id: int,
        after_id: int = 0,
        limit: int = 500,
        *,
        states: Collection[JobState] = (),
    ) -> list[JobRow]:
        """Return jobs of a manager by id. ``states`` limits them to these states."""
        wanted = sorted({JobState(state).value for state in states or JobState})
        with self._db.reading() as conn:
            status = conn.execute(
                select(manager.c.status).where(manager.c.manager_id == manager_id)
            ).scalar()
            over = status not in LIVE_RUNS
            rows = in_states(conn, manager_id, wanted, after_id, limit, over=over)
        return [listed_job(row, over=over) for row in rows]

    def count_ended(self, workflow_id: str, since: datetime) -> int:
        """Return how many runs of the manager with this workflow ended at ``since`` or later.

        An index counts them.
        """
        r = run_history.c
        query = select(func.count()).where(r.parent == workflow_id, r.ended_at >= since)
        with self._db.reading() as conn:
            return int(conn.execute(query.with_hint(*BY_END)).scalar_one())

    def live_managers(self) -> LiveManagers:
        m = manager.c
        failing = func.count(m.error)
        jobs = func.sum(m.jobs_starting + m.jobs_started)
        query = select(m.status, func.count(), failing, jobs).where(
            m.status.in_(LIVE_RUNS), *seen(manager, leads=True)
        )
        with self._db.reading() as conn:
            rows = conn.execute(query.group_by(m.status)).all()
        by_status = {status: managers for status, managers, _, _ in rows}
        return LiveManagers(
            by_status, sum(row[2] for row in rows), sum(int(row[3]) for row in rows)
        )

    def waiting_jobs(
        self, manager_id: int, state: JobState, after_id: int = 0, limit: int = 100
    ) -> list[Waiting]:
        """Return jobs in this waiting state, oldest first."""
        with self._db.reading() as conn:
            return [
                waiting_row(row)
                for row in in_states(conn, manager_id, [state.value], after_id, limit)
            ]

    def live_jobs(self, manager_id: int, after_id: int = 0, limit: int = 500) -> list[Live]:
        """Return jobs that hold a slot, oldest first."""
        with self._db.reading() as conn:
            return [live_row(row) for row in in_states(conn, manager_id, HOLDING, after_id, limit)]

    def starting_jobs(self, fence: ManagerFence, limit: int = 100) -> list[Live]:
        """Return jobs whose run must be started. Raises ``Fenced``."""
        with self._db.reading() as conn:
            check_owner(read_row(conn, manager, fence.manager_id), fence)
            rows = in_states(conn, fence.manager_id, [JobState.STARTING.value], 0, limit)
        return [live_row(row) for row in rows]

    def known_identities(self, manager_id: int, identities: Collection[str]) -> set[str]:
        """Return the identities among these that a job of the manager has."""
        with self._db.reading() as conn:
            return known(conn, manager_id, identities)

    def cut_off_runs(
        self, manager_id: int, after_run_id: int = 0, limit: int = 100
    ) -> list[RunRow]:
        """Return runs that a stop of the manager has ended and that were not resumed since, by id.

        Raises ``RunNotFound``.
        """
        r = run_history.c
        c = cancellation_log.c
        with self._db.reading() as conn:
            parent, mine = _children(conn, manager_id)
            # Such a stop has the id of the manager, and a resume begins an attempt without a stop.
            of_manager = select(c.id).where(
                c.run_id == r.run_id, c.attempt == r.attempt, c.request_id.like(mine)
            )
            query = select(r.run_id).where(r.parent == parent, r.status == RunStatus.FAILED)
            query = query.where(
                r.run_id > after_run_id, r.ended_by == EndedBy.PERSON, of_manager.exists()
            )
            query = query.where(r.deleted_at.is_(None)).order_by(r.run_id).limit(limit)
            return runs_by_id(conn, list(conn.execute(query).scalars()))

    def live_runs(self, manager_id: int, after_run_id: int = 0, limit: int = 100) -> list[RunRow]:
        """Return runs that the manager started and that have not ended, by id.

        Raises ``RunNotFound``.
        """
        with self._db.reading() as conn:
            parent, mine = _children(conn, manager_id)
            return runs_by_id(conn, live_runs(conn, parent, mine, after=after_run_id, limit=limit))


def _children(conn: Connection, manager_id: int) -> tuple[str, str]:
    """Return the parent of the manager's runs, and the LIKE pattern of their request ids.

    Raises ``RunNotFound``.
    """
    row = conn.execute(select(_m.name, _m.flow_id).where(_m.manager_id == manager_id)).one_or_none()
    if row is None:
        raise RunNotFound(f"There is no manager {manager_id}")
    return manager_workflow_id(str(row.name), str(row.flow_id)), f"manager/{manager_id}/%"
