"""Pruning of what managers leave, and what all pruning is told in (``pruning.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, select, update

from crawler_lifecycle.adapters.database.schema.tables import manager, manager_addition, manager_item
from crawler_lifecycle.domain.names import manager_subject
from crawler_lifecycle.domain.retention import Stays, run_stays
from crawler_lifecycle.domain.run import RunStatus

from .bulk import CHUNK, chunks, delete_rows

#: The key of the last row of a chunk; the second number counts only where a key has two.
Place = tuple[int, int]

#: Tables whose rows belong to a manager, with their keys.
MANAGER_TABLES = {"manager_item": manager_item.c.item_id, "manager_addition": manager_addition.c.id}

_OVER = [status.value for status in RunStatus if status.terminal]
_PRIMARY = "FORCE INDEX (PRIMARY)"


@dataclass(frozen=True, slots=True)
class Leaving:
    """A row that may go."""

    key: Place
    run_id: int | None
    manager_id: int | None = None


@dataclass
class Chunk:
    """What was found among the next rows of a table."""

    goes: list[Leaving] = field(default_factory=list)
    stays: Counter[Stays] = field(default_factory=Counter)
    sent: int = 0
    """Deliveries that go with their events."""
    sent_stays: Counter[Stays] = field(default_factory=Counter)
    next: Place | None = None
    """Where to go on; ``None``: there are no more rows."""


def managers_of(conn: Connection, subjects: Collection[str]) -> dict[str, Mapping[Any, Any]]:
    """What decides about the managers that these events are about, under the names that a run's row has."""
    m, found = manager.c, dict[str, Mapping[Any, Any]]()
    numbers = {int(one[9:]) for one in subjects if one.startswith("managers/") and one[9:].isascii() and len(one) < 28}
    for chunk in chunks(sorted(numbers)):
        query = select(m.manager_id, m.status.label("run_status"), m.ended_at, m.updated_at)
        for row in conn.execute(query.where(m.manager_id.in_(chunk)).with_hint(manager, _PRIMARY, "mysql")).mappings():
            found[manager_subject(row["manager_id"])] = {"run": None, **row}
    return found


def jobs_of_managers(table: Table, conn: Connection, before: datetime, after: Place) -> Chunk:
    """A chunk of rows about which nothing but their manager decides."""
    key, m = MANAGER_TABLES[table.name], manager.c
    columns = (key.label("key"), m.manager_id, m.status, m.ended_at, m.updated_at)
    query = select(*columns).join_from(table, manager, m.manager_id == table.c.manager_id, isouter=True)
    query = query.where(key > after[0]).order_by(key).limit(CHUNK).with_hint(table, _PRIMARY, "mysql")
    rows = conn.execute(query).mappings().all()
    chunk = Chunk(next=(rows[-1]["key"], 0) if len(rows) == CHUNK else None)
    for row in rows:
        why = run_stays(row["status"], row["ended_at"], row["updated_at"], before)
        if why is None:
            chunk.goes.append(Leaving((row["key"], 0), None, row["manager_id"]))
        else:
            chunk.stays[why] += 1
    return chunk


def held_managers(conn: Connection, manager_ids: Collection[int], before: datetime) -> set[int]:
    """Those of the managers that ended before then. They are locked, in the order of their ids."""
    m, found = manager.c, set[int]()
    for chunk in chunks(sorted(manager_ids)):
        old = (m.status.in_(_OVER), m.ended_at < before, m.updated_at < before)
        query = select(m.manager_id).where(m.manager_id.in_(chunk), *old).order_by(m.manager_id).with_for_update()
        found |= set(conn.execute(query.with_hint(manager, _PRIMARY, "mysql")).scalars())
    return found


def remove_of_managers(
    conn: Connection, table: str, leaving: Sequence[Leaving], held: Collection[int], now: datetime
) -> dict[str, int]:
    """Remove what belongs to the managers that are held, and write down that jobs of them are gone."""
    mine = [one for one in leaving if one.manager_id in held]
    gone = delete_rows(conn, MANAGER_TABLES[table], "PRIMARY", sorted(one.key[0] for one in mine))
    touched = sorted({one.manager_id for one in mine if one.manager_id is not None})
    if gone and table == "manager_item":
        conn.execute(update(manager).where(manager.c.manager_id.in_(touched)).values(jobs_pruned_at=now))
    return {table: gone} if mine else {}


def mark_managers(conn: Connection, gone: Sequence[Leaving]) -> None:
    """Write down with the managers up to which event theirs were removed."""
    m, through = manager.c, dict[int, int]()
    for one in gone:
        if one.manager_id is not None:
            through[one.manager_id] = max(one.key[0], through.get(one.manager_id, 0))
    for manager_id, seq in through.items():
        known = m.pruned_through.is_(None) | (m.pruned_through < seq)
        conn.execute(update(manager).where(m.manager_id == manager_id, known).values(pruned_through=seq))
