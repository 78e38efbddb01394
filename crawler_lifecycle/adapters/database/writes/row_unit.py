"""The unit of work of what is one row with many rows of its own below it: managers and graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Table, insert, select, update

from crawler_lifecycle.adapters.database.engine import KeyTaken
from crawler_lifecycle.adapters.database.schema.row_validation import check
from crawler_lifecycle.adapters.database.schema.rows import stop_of, tail
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import Fenced, RunIsLive, RunNotFound
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.ports import Owner

from .unit_of_work import StorePart, insert_event

_FORMER_MAX = 20

#: Columns of a stop that nobody asked for.
NO_STOP: Mapping[str, Any] = {
    "stop_requested_at": None,
    "stop_force": False,
    "stop_requested_by": None,
    "stop_reason": None,
    "stop_limit": None,
    "stop_escalated": False,
}


def read_row(
    conn: Connection, table: Table, id: int, columns: Sequence[Column[Any]] | None = None, *, lock: str | None = None
) -> dict[Any, Any]:
    """A row of ``table``, until the end of the transaction locked against everybody (``lock="write"``) or against
    those who lock it so (``"share"``).

    Raises ``RunNotFound``, and ``RowUnreadable`` when nobody can go on with what stands there.
    """
    [key] = table.primary_key
    query = select(*(columns or table.c)).where(key == id)
    if lock is not None:
        query = query.with_for_update(read=lock == "share")
    known = 0 < id <= ID_MAX  # SQLite's driver does not even take a larger one
    row = conn.execute(query).mappings().one_or_none() if known else None
    if row is None:
        raise RunNotFound(f"There is no {table.name} {id}")
    check(table, row, graver=True)
    return dict(row)


@dataclass
class RowUnit:
    """A write transaction on a row that is locked, so that no other writer of ours is in between.

    ``row`` is the row as it will be committed: changes are collected, and written when the transaction ends.
    """

    table: ClassVar[Table]

    conn: Connection
    row: dict[Any, Any]
    now: datetime
    changed: bool = False
    """Whether to tell of it with one event."""

    def __post_init__(self) -> None:
        self._before = dict(self.row)

    @property
    def id(self) -> int:
        return int(self.row[f"{self.table.name}_id"])

    @property
    def stop(self) -> StopIntent | None:
        return stop_of(self.row)

    def set(self, **values: Any) -> None:
        """Change columns; the event tells of it when one of them differs."""
        self.changed = self.changed or any(self.row[name] != value for name, value in values.items())
        self.row.update(values)

    def write(self) -> None:
        """Write what differs from the row as it was read."""
        new = {name: value for name, value in self.row.items() if self._before[name] != value}
        if new:
            self.row["updated_at"] = new["updated_at"] = self.now
            self.conn.execute(update(self.table).where(self.table.c[f"{self.table.name}_id"] == self.id).values(**new))
            self._before = dict(self.row)

    def take(self, owner: Owner, *, over: bool) -> bool:
        """Make this its owner; whether another one had it, so that its next attempt begins. Again: nothing more.

        ``over``: whether it has ended. Raises ``RunIsLive`` for an owner beside one that may live, ``Fenced`` for one
        from which it was taken.
        """
        # Temporal has one open execution of each workflow id: a former owner with this one is closed.
        row, mine = self.row, {"owner_workflow_id": owner.workflow_id, "owner_run_id": owner.first_run_id}
        what = f"{self.table.name.capitalize()} {self.id}"
        if row["owner_run_id"] == owner.first_run_id:
            return False
        if owner.first_run_id in row["former_owners"]:
            raise Fenced(f"{what} was taken from owner {owner.first_run_id}, which may not claim it")
        if row["owner_run_id"] is None:
            self.set(**mine)
            return False
        if not over and row["owner_workflow_id"] != owner.workflow_id:
            raise RunIsLive(f"{what} is owned by workflow {row['owner_workflow_id']!r}; stop it first")
        former = [*row["former_owners"], row["owner_run_id"]][-_FORMER_MAX:]
        self.set(**mine, former_owners=former, attempt=row["attempt"] + 1)
        return True

    def ask_to_stop(self, intent: StopIntent) -> None:
        """Put a stop on record, beside what was asked for before."""
        stop = intent if self.stop is None else self.stop.merged(intent)
        names = ("requested_at", "force", "requested_by", "reason", "limit", "escalated")
        self.set(**{f"stop_{name}": getattr(stop, name) for name in names})

    def append_event(self, subject: str, type: str, key: str | None, body: Mapping[str, Any]) -> None:
        """Append an event about it. Nothing may follow in the transaction."""
        event = {
            "subject": subject,
            "subject_uid": self.row[f"{self.table.name}_uid"],
            "run_id": None,
            "attempt": self.row["attempt"],
            "type": type,
            "event_key": key,
            "body": dict(body),
            "created_at": self.now,
        }
        insert_event(self.conn, event)


class OutputPart(StorePart):
    """Keeps what users' code printed."""

    def _keep_output(self, table: Table, id: int, text: str, most: int) -> None:
        """Append to the log of this id; the last ``most`` bytes of all of it stay."""
        [key] = table.primary_key
        try:
            with self._db.writing() as conn:
                before = conn.execute(select(table.c.log_tail).where(key == id)).scalar_one_or_none()
                kept = tail(f"{before or ''}{text}", most)
                if before is None:
                    conn.execute(insert(table).values({key.name: id, "log_tail": kept}))
                else:
                    conn.execute(update(table).where(key == id).values(log_tail=kept))
        except KeyTaken:
            return  # another worker's first words for it came between: these are lost
