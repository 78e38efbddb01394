"""Canaries as parts of other transactions: their begin, the choice of a version, and their end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, insert, select, update

from crawler_lifecycle.domain.names import EVENT_CANARY_ACCEPTED, EVENT_CANARY_REJECTED
from crawler_lifecycle.store.base.outbox import facts, insert_event
from crawler_lifecycle.store.base.rows import Row, made, wanted
from crawler_lifecycle.store.runs.tables import run_history

from ..domain.canary import (
    CanaryRow,
    CanarySettings,
    CanaryState,
    Judge,
    gets_new,
    version_before,
)
from .tables import canary

_c = canary.c
_EVENTS = {
    CanaryState.ACCEPTED: EVENT_CANARY_ACCEPTED,
    CanaryState.REJECTED: EVENT_CANARY_REJECTED,
}
_TOLD = (
    *("canary_id", "project", "old_version", "new_version", "share", "asked", "given"),
    *("state", "ended_at", "ended_by"),
)


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


def choose_version(
    conn: Connection, held: ColumnElement[bool], version: str, by: str | None, now: datetime
) -> None:
    """End the open canary of a package or an entry because a person chose a version: it is accepted
    if it tries this version, and otherwise cancelled.
    """
    result = f"version {version} was chosen"
    row = open_canary(conn, held)
    if row is not None and row["new_version"] == version:
        ended = {"state": CanaryState.ACCEPTED, "ended_at": now, "ended_by": by, "result": result}
        conn.execute(update(canary).where(_c.canary_id == row["canary_id"]).values(**ended))
        tell_end(conn, {**row, **ended}, now)
    cancel_canary(conn, held, by, now, result)


def tell_end(conn: Connection, row: Row, now: datetime) -> None:
    """Append the event about a canary that was accepted or rejected."""
    ended = canary_row(row)
    owner = {"package": ended.package, "crawler": ended.crawler, "name": ended.name}
    body = {**facts(row, *_TOLD), **owner, "cause": ended.result}
    insert_event(conn, now, _EVENTS[ended.state], ended.subject, row["canary_uid"], body)


def canary_row(row: Row) -> CanaryRow:
    """Return the canary in a row of the table."""
    judge = [Judge(word) for word in row["judge"]]
    owner = {"package": row["package"], "crawler": None}
    if not row["new_digest"]:
        owner = {"package": None, "crawler": row["package"]}
    return made(CanaryRow, row, state=CanaryState(row["state"]), judge=judge, **owner)


def used_before(
    conn: Connection,
    name: str,
    versions: Sequence[str],
    current: str,
    former: str | None,
    *,
    of_entry: bool = False,
) -> str | None:
    """Return which of these versions, newest first, a package or an entry used before the current
    one; ``None`` if there is none.
    """
    kind = _c.new_digest == "" if of_entry else _c.new_digest != ""
    query = select(_c.new_version).where(_c.package == name, kind)
    tried = conn.execute(query.where(_c.state != CanaryState.ACCEPTED)).scalars()
    return version_before(versions, current, former, {*tried})


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
