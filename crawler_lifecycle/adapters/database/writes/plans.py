"""Plans: the classes that workers say they serve, one row for each worker that says so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import delete, insert, select, update

from crawler_lifecycle.adapters.database.schema.manager_rows import plan_row
from crawler_lifecycle.adapters.database.schema.rows import Row
from crawler_lifecycle.adapters.database.schema.tables import plan
from crawler_lifecycle.ports.store.managers import HEARD_S, PlanRow

from .unit_of_work import StorePart


class SqlPlans(StorePart):
    """``PlanStore``."""

    def register_plans(self, worker: str, plans: Sequence[PlanRow]) -> None:
        p, now = plan.c, self._clock()
        said = {one.plan: _said(one) for one in plans}
        with self._db.writing() as conn:
            known = {(row["plan"], row["worker"]): row for row in conn.execute(select(plan)).mappings()}
            others = {name for name, whose in known if whose != worker}
            for name, whose in sorted({*known, *((name, worker) for name in said)}):  # in one order for all workers
                row, own = known.get((name, whose)), whose == worker
                its = (p.plan == name) & (p.worker == whose)
                if row is None:
                    conn.execute(insert(plan).values(plan=name, worker=worker, since=now, seen_at=now, **said[name]))
                elif own and name in said:
                    new = {**said[name], "since": now} if _differs(row, said[name]) else {}
                    conn.execute(update(plan).where(its).values(seen_at=now, **new))
                elif own and row["error"] is None and name not in others:
                    conn.execute(update(plan).where(its).values(seen_at=None))  # that it was there stays to be seen
                elif own or (not _heard(row, now) and (name in said or row["error"] is not None)):
                    conn.execute(delete(plan).where(its))

    def list_plans(self) -> list[PlanRow]:
        rows = self._rows(select(plan).order_by(plan.c.plan))
        return [self._of_one(list(group)) for _, group in groupby(rows, key=lambda row: row["plan"])]

    def get_plan(self, name: str) -> PlanRow | None:
        rows = self._rows(select(plan).where(plan.c.plan == name))
        return self._of_one(rows) if rows else None

    def _of_one(self, rows: Sequence[Row]) -> PlanRow:
        """What holds of a plan: the newest that somebody says who is there and can use it, so that a rollout changes
        it once."""
        now = self._clock()

        def weight(row: Row) -> tuple[bool, bool, datetime, str]:
            heard = _heard(row, now)
            return heard and row["error"] is None, heard, row["since"], row["worker"]

        return plan_row(max(rows, key=weight))


def _said(one: PlanRow) -> dict[str, Any]:
    names = ("kind", "name", "description", "fingerprint", "error")
    return {name: getattr(one, name) for name in names} | {"options": [dict(option) for option in one.options]}


def _differs(row: Row, said: Row) -> bool:
    return (row["fingerprint"], row["error"] is None) != (said["fingerprint"], said["error"] is None)


def _heard(row: Row, now: datetime) -> bool:
    return row["seen_at"] is not None and (now - row["seen_at"]).total_seconds() < HEARD_S
