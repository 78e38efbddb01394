"""The usage of quotas, counted from the rows of runs and tasks, and the check of quotas before a
start or an addition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select

from crawler_lifecycle.domain.pools import Pools
from crawler_lifecycle.domain.quotas import KINDS, OPEN, WINDOW, Limit, Quotas, limits_of
from crawler_lifecycle.domain.task import ALIVE, TaskStatus
from crawler_lifecycle.store.base.outbox import outbox_counter
from crawler_lifecycle.store.base.pools import with_stored
from crawler_lifecycle.store.base.unit import StorePart

from .tables import LIVE_RUNS, run_history, task_history
from .unit import BY_RUN


def check_quotas(
    conn: Connection,
    quotas: Quotas,
    pools: Pools,
    run: Mapping[str, Any],
    now: datetime,
    tasks: int,
    present: int | None = None,
) -> None:
    """Raise ``QuotaReached`` or ``InvalidRequest`` unless the run may get ``tasks`` more tasks.

    ``present`` is the current number of its tasks; ``None`` if the run is new. While this
    transaction counts the usage of a limit, other transactions that count the same usage wait, so
    that concurrent transactions cannot exceed the limit. The error does not reveal to a caller with
    access to one project how other projects use a pool.
    """
    limits = [limit for limit in limits_of(quotas, run) if limit.what not in OPEN]
    for limit in limits:
        limit.check_size(present or 0, tasks)
    others = {"tasks_per_run"} if present is None else {"tasks_per_run", "starts_per_hour"}
    counted = [limit for limit in limits if limit.what not in others]
    if counted:
        conn.execute(select(outbox_counter.c.seq).with_for_update())
    for limit in counted:
        told = limit.kind != "pool" or with_stored(conn, pools).told(run["pool"])
        _counted(conn, limit, run, now).check(tasks, now, told=told)


class QuotaStore(StorePart):
    """The usage of quotas, as shown to people."""

    def quotas_of(self, run: Mapping[str, Any]) -> list[Limit]:
        """Return the limits that apply to a run with these columns, with their current usage.

        A caller with access to one project does not get the usage of a pool that several projects
        share.
        """
        now = self._clock()
        with self._db.reading() as conn:
            told = with_stored(conn, self._pools).told(run["pool"])
            limits = limits_of(self._quotas, run)
            return [
                _counted(conn, limit, run, now) if told or limit.kind != "pool" else limit
                for limit in limits
            ]


def _counted(conn: Connection, limit: Limit, run: Mapping[str, object], now: datetime) -> Limit:
    """Return the limit with its current usage."""
    r = run_history.c
    t = task_history.c
    column = KINDS[limit.kind]
    mine = r[column] == run[column]
    if limit.what in ("tasks_per_run", *OPEN):
        return limit
    if limit.what == "starts_per_hour":
        # If the clock was set back by more than the window, starts in the future do not count.
        newest = select(r.created_at).where(
            mine, r.created_at > now - WINDOW, r.created_at < now + WINDOW
        )
        found = newest.order_by(r.created_at.desc()).limit(limit.max).subquery("counted")
        used, first = conn.execute(select(func.count(), func.min(found.c.created_at))).one()
        return replace(
            limit, used=used, free_at=first + WINDOW if used and used >= limit.max else None
        )
    statuses = (TaskStatus.QUEUED, TaskStatus.PENDING) if limit.what == "waiting_tasks" else ALIVE
    tasks = (
        select(t.task_id)
        .select_from(run_history.join(task_history, r.run_id == t.run_id))
        .where(mine, r.status.in_(LIVE_RUNS), t.superseded_by.is_(None), t.status.in_(statuses))
        # This reads only the tasks of the project's live runs, and not all live tasks of the
        # installation.
        .prefix_with("STRAIGHT_JOIN", dialect="mysql")
        .with_hint(*BY_RUN)
        .limit(limit.max + 1)
    )
    return replace(
        limit,
        used=conn.execute(select(func.count()).select_from(tasks.subquery("counted"))).scalar_one(),
    )
