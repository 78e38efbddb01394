"""Plans: the classes that workers say they serve, one row for each worker that says so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from crawler_lifecycle.ports.managers import PLAN_READING, PlanRow
from crawler_lifecycle.store.base.rows import Row, made
from crawler_lifecycle.store.base.unit import StorePart

from .tables import plan


class PlanStore(StorePart):
    """Plans that workers have registered."""

    def register_plans(self, worker: str, plans: Sequence[PlanRow]) -> None:
        """These are what this worker serves, and nothing else. It removes the reports of workers that were silent for
        ``HEARD_S``: about the same plans, and about unusable ones.
        """
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
                elif own and not _passing(row) and name not in others:
                    conn.execute(update(plan).where(its).values(seen_at=None))  # that it was there stays to be seen
                elif own or (not made(PlanRow, row).heard(now) and (name in said or _passing(row))):
                    conn.execute(delete(plan).where(its))

    def list_plans(self) -> list[PlanRow]:
        """Each plan of each pool, by name: each code of it that a worker who was heard of within ``HEARD_S`` can use,
        the one that came last first. Where there is none: that it is being read, or why one who was heard of cannot
        use it; then what was served last. The errors of workers that are gone are left out."""
        rows = self._rows(select(plan).order_by(plan.c.plan, func.coalesce(plan.c.queue, "")))
        groups = groupby(rows, key=lambda row: (row["plan"], row["queue"]))
        return [one for _, group in groups for one in self._codes(list(group))]

    def get_plan(self, name: str, queue: str | None = None) -> PlanRow | None:
        """The first of these, of one plan and pool."""
        rows = self._rows(select(plan).where(plan.c.plan == name))
        return next(iter(self._codes([row for row in rows if row["queue"] == queue])), None)

    def _codes(self, rows: Sequence[Row]) -> list[PlanRow]:
        """The valid rows of a plan in one pool. The newest first, so that a rollout changes them once."""
        now, good, rest = self._clock(), dict[str, PlanRow](), list[PlanRow]()
        for row in sorted(rows, key=lambda row: (row["since"], row["worker"]), reverse=True):
            one = made(PlanRow, row)
            if one.heard(now) and not _passing(row):
                good.setdefault(one.fingerprint, one)
            elif one.heard(now) or not _passing(row):
                rest.append(one)
        return list(good.values()) or sorted(rest, key=lambda one: not one.heard(now))[:1]


def _said(one: PlanRow) -> dict[str, Any]:
    names = ("kind", "name", "description", "fingerprint", "error", "queue")
    return {name: getattr(one, name) for name in names} | {"options": [dict(option) for option in one.options]}


def _differs(row: Row, said: Row) -> bool:
    return (row["fingerprint"], row["error"] is None) != (said["fingerprint"], said["error"] is None)


def _passing(row: Row) -> bool:
    """Return whether the row is valid only while a worker reports it."""
    return row["error"] is not None or row["kind"] == PLAN_READING
