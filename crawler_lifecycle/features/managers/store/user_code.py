"""User code: the classes and modules that workers report. Each class of each worker has one
row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from crawler_lifecycle.store.base.rows import Row, made
from crawler_lifecycle.store.base.unit import StorePart

from ..ports import CODE_READING, UserCodeRow
from .tables import plan


class UserCodeStore(StorePart):
    """The user code that workers have reported."""

    def register_user_code(self, worker: str, user_code: Sequence[UserCodeRow]) -> None:
        """Replace the reports of this worker. ``user_code`` is all the code that the worker has.

        Reports of other workers that were silent for ``HEARD_S`` are removed if they are about the
        same user code or about unusable user code.
        """
        p = plan.c
        now = self._clock()
        reported = {plan.plan: _reported(plan) for plan in user_code}
        with self._db.writing() as conn:
            known = {
                (row["plan"], row["worker"]): row for row in conn.execute(select(plan)).mappings()
            }
            others = {name for name, whose in known if whose != worker}
            # The order is the same for all workers, so that two of them never wait for each other.
            for name, whose in sorted({*known, *((name, worker) for name in reported)}):
                row = known.get((name, whose))
                own = whose == worker
                its = (p.plan == name) & (p.worker == whose)
                if row is None:
                    new = {
                        "plan": name,
                        "worker": worker,
                        "since": now,
                        "seen_at": now,
                        **reported[name],
                    }
                    conn.execute(insert(plan).values(**new))
                elif own and name in reported:
                    new = {**reported[name], "since": now} if _differs(row, reported[name]) else {}
                    conn.execute(update(plan).where(its).values(seen_at=now, **new))
                elif own and not _passing(row) and name not in others:
                    # Lists still show the class.
                    conn.execute(update(plan).where(its).values(seen_at=None))
                elif own or (
                    not made(UserCodeRow, row).heard(now) and (name in reported or _passing(row))
                ):
                    conn.execute(delete(plan).where(its))

    def list_user_code(self) -> list[UserCodeRow]:
        """Return the user code of each pool, by name.

        A class has one row for each version of its code that a worker can use and has reported
        within ``HEARD_S``, the newest version first. A class without such a version has one row,
        which shows that a worker is reading the class or cannot use it, or that the class was
        usable before. Errors of workers that no longer exist are left out.
        """
        rows = self._rows(select(plan).order_by(plan.c.plan, func.coalesce(plan.c.queue, "")))
        groups = groupby(rows, key=lambda row: (row["plan"], row["queue"]))
        return [code for _, group in groups for code in self._codes(list(group))]

    def get_user_code(self, name: str, queue: str | None = None) -> UserCodeRow | None:
        """Return the first row of ``list_user_code`` for this class and pool, or ``None``."""
        rows = self._rows(select(plan).where(plan.c.plan == name))
        return next(iter(self._codes([row for row in rows if row["queue"] == queue])), None)

    def _codes(self, rows: Sequence[Row]) -> list[UserCodeRow]:
        """Return the rows of a class in one pool in the form of ``list_user_code``.

        The newest version comes first, so that a rollout of new code changes the first row only
        once.
        """
        now = self._clock()
        good = dict[str, UserCodeRow]()
        rest = list[UserCodeRow]()
        for row in sorted(rows, key=lambda row: (row["since"], row["worker"]), reverse=True):
            one = made(UserCodeRow, row)
            if one.heard(now) and not _passing(row):
                good.setdefault(one.fingerprint, one)
            elif one.heard(now) or not _passing(row):
                rest.append(one)
        return list(good.values()) or sorted(rest, key=lambda one: not one.heard(now))[:1]


def _reported(one: UserCodeRow) -> dict[str, Any]:
    names = ("kind", "name", "description", "fingerprint", "error", "queue")
    return {name: getattr(one, name) for name in names} | {
        "options": [dict(option) for option in one.options]
    }


def _differs(row: Row, new: Row) -> bool:
    return (row["fingerprint"], row["error"] is None) != (new["fingerprint"], new["error"] is None)


def _passing(row: Row) -> bool:
    """Return whether the row is valid only while a worker reports it."""
    return row["error"] is not None or row["kind"] == CODE_READING
