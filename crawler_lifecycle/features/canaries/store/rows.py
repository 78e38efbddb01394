"""Canaries as parts of other transactions: their begin, the choice of a version, and their
cancellation.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, insert, select, update

from crawler_lifecycle.store.base.rows import Row, wanted
from crawler_lifecycle.store.runs.tables import run_history

from ..domain.canary import CanarySettings, CanaryState, gets_new
from .tables import canary

_c = canary.c


def choose(conn: Connection, canary_id: int) -> tuple[str, str | None] | None:
    """Return the version, and the digest of its package, for a run that names none; ``None`` if the
    canary has ended.

    Each call counts as one run, so this belongs in the transaction that records the run.
    """
    this = _c.canary_id == canary_id
    query = select(canary).where(this, _c.state == CanaryState.OPEN).with_for_update()
    row = conn.execute(query).mappings().one_or_none()
    if row is None:
        return None
    new = gets_new(row["share"], row["asked"], row["given"])
    counts = {"asked": row["asked"] + 1, "given": row["given"] + new}
    conn.execute(update(canary).where(this).values(**counts))
    which = "new" if new else "old"
    return row[f"{which}_version"], row[f"{which}_digest"] or None


def start_canary(conn: Connection, settings: CanarySettings, uid: str, **values: Any) -> None:
    """Insert a canary of a package or an entry that has no other one.

    ``values`` contains further columns. Without digests, it is the canary of the entry that
    ``package`` names.
    """
    newest = conn.execute(select(func.max(run_history.c.run_id))).scalar_one()
    of_entry = {"old_digest": "", "new_digest": "", "holder": uid}
    limits = {"share": settings.share, "runs": settings.runs, "judge": [*settings.judge]}
    counts = {"asked": 0, "given": 0, "after_run_id": newest or 0}
    row = {**of_entry, **limits, **counts, "canary_uid": uid, "state": CanaryState.OPEN, **values}
    conn.execute(insert(canary).values(**row))


def cancel_canary(
    conn: Connection,
    held: ColumnElement[bool],
    by: str | None,
    now: datetime,
    why: str,
    version: str | None = None,
) -> None:
    """Cancel the open canary of a package or an entry, and close the incident about a rejected one;
    with ``version`` only if the canary tries this version.

    ``held`` is ``of_package`` or ``of_entry``.
    """
    mine = and_(held, *wanted((_c.new_version, version)))
    ended = {"state": CanaryState.CANCELLED, "ended_at": now, "ended_by": by, "result": why}
    conn.execute(update(canary).where(mine, _c.state == CanaryState.OPEN).values(**ended))
    conn.execute(update(canary).where(mine).values(holder=None))


def of_package(name: str) -> ColumnElement[bool]:
    """Return the condition for the canary of a package that is open, or whose rejection people do
    not know yet.
    """
    return _c.holder == name


def of_entry(name: str) -> ColumnElement[bool]:
    """Return the condition for such a canary of an entry of the catalogue."""
    return and_(_c.package == name, _c.new_digest == "", _c.holder.is_not(None))


def open_canary(conn: Connection, held: ColumnElement[bool]) -> Row | None:
    """Return the row of the open canary of a package or an entry; ``None`` if there is none."""
    query = select(canary).where(held, _c.state == CanaryState.OPEN)
    return conn.execute(query).mappings().one_or_none()
