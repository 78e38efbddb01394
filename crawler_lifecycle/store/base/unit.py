"""The unit of work of managers and graphs: one row with many rows below it."""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, func, select, update

from crawler_lifecycle.domain.bounds import ID_MAX, MOST
from crawler_lifecycle.domain.errors import Fenced, RunIsLive, RunNotFound, TooManyOpen
from crawler_lifecycle.domain.managers.manager import OUTPUT_BYTES
from crawler_lifecycle.domain.names import ended_key
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.task import tail
from crawler_lifecycle.ports.graphs import GraphFence
from crawler_lifecycle.ports.looks import Committed
from crawler_lifecycle.ports.managers import ManagerFence
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store.engine import Database

from .bulk import put_row
from .outbox import facts, insert_event, outbox_counter, outbox_event
from .rows import Row

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]


#: Called with the additions of a transaction to the ledger, after the commit.
Told = Callable[[Committed], None]


#: The most open rows of each kind.
Most = Mapping[str, int]

U = TypeVar("U", bound="RowUnit")

_FORMER_MAX = 20

_STOP = ("requested_at", "force", "requested_by", "reason", "limit", "escalated")
#: Columns of a row without a stop.
NO_STOP: Mapping[str, Any] = {f"stop_{name}": None for name in _STOP} | {"stop_force": False, "stop_escalated": False}


def stop_values(stop: StopIntent) -> dict[str, Any]:
    """The columns of a row that keep this stop."""
    return {f"stop_{name}": getattr(stop, name) for name in _STOP}


def read_row(
    conn: Connection, table: Table, id: int, columns: Sequence[Column[Any]] | None = None, *, lock: str | None = None
) -> dict[Any, Any]:
    """A row of ``table``, locked until the end of the transaction: against all others (``lock="write"``) or only
    against writers (``"share"``).

    Raises ``RunNotFound``.
    """
    [key] = table.primary_key
    query = select(*(columns or table.c)).where(key == id)
    if lock is not None:
        query = query.with_for_update(read=lock == "share")
    known = 0 < id <= ID_MAX  # SQLite's driver does not accept larger numbers
    row = conn.execute(query).mappings().one_or_none() if known else None
    if row is None:
        raise RunNotFound(f"There is no {table.name.removesuffix('_history')} {id}")
    return dict(row)


def check_owner(row: Row, fence: ManagerFence | GraphFence) -> None:
    """Raise ``Fenced`` unless the row still belongs to the writer. The error is also logged."""
    wanted = {name: value for name, value in asdict(fence).items() if value is not None}
    found = {name: row[name] for name in wanted}
    if found != wanted:
        now, late = (", ".join(f"{name} {value}" for name, value in one.items()) for one in (found, wanted))
        log.warning("refused a late write: %s may no longer write; on record is %s", late, now)
        raise Fenced(f"{late} may no longer write; on record is {now}")


@dataclass
class RowUnit(ABC):
    """A write transaction on a locked row, so that no other writer of ours comes between.

    ``row`` is the row that will be committed: changes are collected, and written at the end of the transaction.
    """

    table: ClassVar[Table]
    columns: ClassVar[Sequence[Column[Any]] | None] = None
    """Columns that are read; ``None``: all."""
    change_event: ClassVar[str]
    told: ClassVar[Sequence[str]]
    """Columns that every event has."""

    conn: Connection
    row: dict[Any, Any]
    now: datetime
    changed: bool = False
    """True when one event is to report the change."""

    def __post_init__(self) -> None:
        self._before = dict(self.row)

    @property
    def id(self) -> int:
        return int(self.row[f"{self.table.name}_id"])

    @property
    def stop(self) -> StopIntent | None:
        return stop_of(self.row)

    def set(self, **values: Any) -> None:
        """Change columns; an event follows when one of them differs."""
        self.changed = self.changed or any(self.row[name] != value for name, value in values.items())
        self.row.update(values)

    def write(self) -> None:
        """Write the columns that differ from the row that was read."""
        new = {name: value for name, value in self.row.items() if self._before[name] != value}
        if new:
            self.row["updated_at"] = new["updated_at"] = self.now
            self.conn.execute(update(self.table).where(self.table.c[f"{self.table.name}_id"] == self.id).values(**new))
            self._before = dict(self.row)

    def take(self, owner: Owner, *, over: bool) -> bool:
        """Make this the owner.

        Returns whether another one owned the row, so that its next attempt begins. A second call changes nothing.
        ``over``: whether it has ended. Raises ``RunIsLive`` while another owner may live, ``Fenced`` for a former owner
        that lost the row.
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
        """Record a stop, in addition to earlier ones."""
        stop = intent if self.stop is None else self.stop.merged(intent)
        self.set(**stop_values(stop))

    @property
    @abstractmethod
    def subject(self) -> str:
        """The subject of its events."""

    @abstractmethod
    def figures(self) -> Mapping[str, Any]:
        """The figures that events contain in addition to the columns."""

    def announce(self, type: str, key: str | None = None) -> None:
        """Append the event with the present state. Nothing may follow it in the transaction."""
        body = facts(self.row, *self.told, "started_at", "ended_at")
        event = {
            "subject": self.subject,
            "subject_uid": self.row[f"{self.table.name}_uid"],
            "run_id": None,
            "attempt": self.row["attempt"],
            "type": type,
            "event_key": key,
            "body": body | {"waiting": self.row["waiting_for"], **self.figures()},
            "created_at": self.now,
        }
        insert_event(self.conn, event)

    def end(self, type: str, **values: Any) -> None:
        """Set the end, with an event of this type. Nothing may follow it in the transaction."""
        self.set(**values, ended_at=self.now, waiting_for=None)
        self.write()
        self.changed = False
        name, row = self.table.name, self.row
        key = ended_key(name, self.id, row[f"{name}_uid"], row["attempt"])
        there = select(outbox_event.c.seq).where(outbox_event.c.event_key == key)
        # The event exists if this attempt continued after its end: after a command, or a manual edit of its state.
        self.announce(type, None if self.conn.execute(there).one_or_none() is not None else key)


def utc_now() -> datetime:
    return datetime.now(UTC)


def stop_of(run: Row) -> StopIntent | None:
    """The stop intent on record."""
    if run["stop_requested_at"] is None:
        return None
    return StopIntent(**{name: run[f"stop_{name}"] for name in _STOP})


class StorePart:
    """The base of the store's adapters: the database, the clock, and how a unit of work begins and ends."""

    new_uid: Callable[[], str] = staticmethod(lambda: uuid.uuid4().hex)
    """Gives a new row its uid; never the same again."""

    def __init__(self, database: Database, clock: Clock, told: Told | None = None, most: Most = MOST) -> None:
        self._db = database
        self._clock = clock
        self._told = told
        self._most = most

    def _check_most(self, conn: Connection, table: Table, is_open: ColumnElement[bool]) -> None:
        """Raise ``TooManyOpen`` unless this table may have one more open row.

        Concurrent openings wait for this transaction, so that two of them cannot exceed the limit.
        """
        conn.execute(select(outbox_counter.c.seq).with_for_update())
        kind, most = f"{table.name}s", self._most[f"{table.name}s"]
        there = conn.execute(select(func.count()).select_from(table).where(is_open)).scalar_one()
        if there >= most:
            limit = f"{most} may be (LIFECYCLE_LIMITS__{kind.upper()})"
            raise TooManyOpen(f"{there} {kind} are open, and {limit}; end or delete one, or raise that limit")

    def _rows(self, query: Select[Any]) -> Sequence[Row]:
        with self._db.reading() as conn:
            found = conn.execute(query)
            # Plain dictionaries: looking a value up in a row of SQLAlchemy takes five times as long.
            names = tuple(found.keys())
            return [dict(zip(names, row, strict=True)) for row in found]


class OwnedPart(StorePart, Generic[U]):
    """The base of the adapters of managers and of graphs: a unit of work, and the output of users' code."""

    kind: type[U]
    log: Table
    """The table with the output of users' code."""

    @contextmanager
    def _unit(self, id: int, fence: ManagerFence | GraphFence | None = None) -> Iterator[U]:
        """Lock the row first, check the fence, write the row at the end, and append an event if it changed.

        Every transaction locks this row first, so that two of them cannot wait for each other.
        """
        with self._db.writing() as conn:
            row = read_row(conn, self.kind.table, id, self.kind.columns, lock="write")
            if fence is not None:
                check_owner(row, fence)
            unit = self.kind(conn, row, self._clock())
            yield unit
            unit.write()
            if unit.changed:
                unit.announce(unit.change_event)

    def _output(self, id: int) -> str:
        """The log of this id; empty when there is none."""
        [key] = self.log.primary_key
        rows = self._rows(select(self.log.c.log_tail).where(key == id))
        return str(rows[0]["log_tail"]) if rows else ""

    def _keep_output(self, id: int, text: str) -> None:
        """Append to the log of this id; only its last ``OUTPUT_BYTES`` are kept."""
        [key] = self.log.primary_key

        def write(conn: Connection) -> None:
            before = conn.execute(select(self.log.c.log_tail).where(key == id)).scalar_one_or_none() or ""
            put_row(conn, self.log, {key.name: id}, {"log_tail": tail(f"{before}{text}", OUTPUT_BYTES)})

        self._db.inserting("log", write)
