"""Plans: the classes that workers say they serve."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, update

from crawler_lifecycle.adapters.database.engine import KeyTaken
from crawler_lifecycle.adapters.database.schema.manager_rows import plan_row
from crawler_lifecycle.adapters.database.schema.tables import plan
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.ports.store.managers import HEARD_S, PlanRow

from .unit_of_work import StorePart


class SqlPlans(StorePart):
    """``PlanStore``."""

    def register_plans(self, worker: str, plans: Sequence[PlanRow]) -> None:
        for _ in range(3):
            try:
                return self._register(worker, plans)
            except KeyTaken:  # another worker inserted one of them at the same time
                continue
        raise StoreUnavailable("Other workers register the same plans again and again")

    def _register(self, worker: str, plans: Sequence[PlanRow]) -> None:
        p, now = plan.c, self._clock()
        with self._db.writing() as conn:
            known = {row.plan: row for row in conn.execute(select(p.plan, p.worker, p.error, p.seen_at))}
            served = {one.plan: one for one in plans}
            for name in sorted({*known, *served}):  # in one order for all workers: nobody waits in a circle
                one = served.get(name)
                if one is None:
                    if known[name].worker == worker:
                        conn.execute(update(plan).where(p.plan == name).values(seen_at=None))
                    continue
                if one.error is not None and name in known and _good_elsewhere(known[name], worker, now):
                    continue
                values = {
                    "kind": one.kind,
                    "name": one.name,
                    "description": one.description,
                    "fingerprint": one.fingerprint,
                    "options": [dict(option) for option in one.options],
                    "error": one.error,
                    "worker": worker,
                    "seen_at": now,
                }
                if name in known:
                    conn.execute(update(plan).where(p.plan == name).values(**values))
                else:
                    conn.execute(insert(plan).values(plan=name, **values))

    def list_plans(self) -> list[PlanRow]:
        return [plan_row(row) for row in self._rows(select(plan).order_by(plan.c.plan))]

    def get_plan(self, name: str) -> PlanRow | None:
        rows = self._rows(select(plan).where(plan.c.plan == name))
        return plan_row(rows[0]) if rows else None


def _good_elsewhere(row: Any, worker: str, now: datetime) -> bool:
    """Whether another worker serves it: in a rollout old and new ones speak in turns."""
    heard = row.seen_at is not None and (now - row.seen_at).total_seconds() < HEARD_S
    return heard and row.error is None and row.worker != worker
