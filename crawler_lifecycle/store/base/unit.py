"""Units of work of managers and graphs, and the base class of all parts of the store."""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, func, select

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.bounds import ID_MAX, MOST
from crawler_lifecycle.domain.errors import (
    Fenced,
    QuotaReached,
    RunIsLive,
    RunNotFound,
    TooManyOpen,
)
from crawler_lifecycle.domain.names import ended_key
from crawler_lifecycle.domain.pools import NO_POOLS, Pools
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.domain.quotas import NO_QUOTAS, Quotas, quota_of
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.features.graphs.ports import GraphFence
from crawler_lifecycle.features.managers.ports import ManagerFence
from crawler_lifecycle.ports.polls import CommittedChanges
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store.engine import Database

from .outbox import facts, insert_event, outbox_counter, outbox_event
from .pools import with_stored
from .rows import Row, T, change_row, made, seen

log = logging.getLogger(__name__)

#: A function that is called after each commit with the transitions and corrections that were added.
Told = Callable[[CommittedChanges], None]


#: The maximum number of open rows of each kind, by the plural of the kind.
Most = Mapping[str, int]

_FORMER_MAX = 20

_STOP = ("requested_at", "force", "requested_by", "reason", "limit", "escalated")
#: The values of the stop columns of a row without a stop.
NO_STOP: Mapping[str, Any] = {f"stop_{name}": None for name in _STOP} | {
    "stop_force": False,
    "stop_escalated": False,
}


def stop_values(stop: StopIntent) -> dict[str, Any]:
    """Return the values of the columns that store this stop."""
    return {f"stop_{name}": getattr(stop, name) for name in _STOP}


def read_row(
    conn: Connection,
    table: Table,
    id: int,
    columns: Sequence[Column[Any]] | None = None,
    *,
    lock: str | None = None,
) -> dict[Any, Any]:
    """Return the row of ``table`` with this number. Raises ``RunNotFound``.

    ``lock`` keeps the row locked until the end of the transaction: ``write`` excludes all other
    locks, and ``share`` only ``write`` locks.
    """
    [key] = table.primary_key
    query = (select(*columns) if columns else select(table)).where(key == id, *seen(table))
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
        now, late = (
            ", ".join(f"{name} {value}" for name, value in fields.items())
            for fields in (found, wanted)
        )
        log.warning("refused a late write: %s may no longer write; the row has %s", late, now)
        raise Fenced(f"{late} may no longer write; the row has {now}")


@dataclass
class RowUnit(ABC):
    """A write transaction on a locked row. Other writers in this program wait until the transaction
    ends.

    ``row`` is the row that will be committed: changes are collected in ``row``, and written at the
    end of the transaction.
    """

    table: ClassVar[Table]
    columns: ClassVar[Sequence[Column[Any]] | None] = None
    """The columns that are read; ``None`` for all columns."""
    change_event: ClassVar[str]
    told: ClassVar[Sequence[str]]
    """The columns that every event of the row contains."""

    conn: Connection
    row: dict[Any, Any]
    now: datetime
    changed: bool = False
    """True if an event must report the change at the end of the transaction."""

    def __post_init__(self) -> None:
        self._before = dict(self.row)

    @property
    def id(self) -> int:
        return int(self.row[f"{self.table.name}_id"])

    @property
    def stop(self) -> StopIntent | None:
        return stop_of(self.row)

    def set(self, **values: Any) -> None:
        """Change columns. If any of the values differs, an event will report the change."""
        self.changed = self.changed or any(
            self.row[name] != value for name, value in values.items()
        )
        self.row.update(values)

    def write(self) -> None:
        """Write the columns that have changed since the row was read."""
        new = {name: value for name, value in self.row.items() if self._before[name] != value}
        if new:
            self.row["updated_at"] = new["updated_at"] = self.now
            change_row(self.conn, self.table, self.row, new)
            self._before = dict(self.row)

    def take(self, owner: Owner, *, over: bool) -> bool:
        """Make ``owner`` the owner of the row. A second call changes nothing.

        Returns true if the row had another owner, so that its next attempt begins. ``over`` is true
        if the manager or graph has ended. Raises ``RunIsLive`` if the other owner may still be
        working, and ``Fenced`` if ``owner`` has already lost the row.
        """
        # Temporal allows only one open execution per workflow id, so a former owner with the same
        # id is closed.
        row = self.row
        mine = {"owner_workflow_id": owner.workflow_id, "owner_run_id": owner.first_run_id}
        what = f"{self.table.name.capitalize()} {self.id}"
        if row["owner_run_id"] == owner.first_run_id:
            return False
        if owner.first_run_id in row["former_owners"]:
            raise Fenced(
                f"{what} was taken from owner {owner.first_run_id}, which may not claim it again"
            )
        if row["owner_run_id"] is None:
            self.set(**mine)
            return False
        if not over and row["owner_workflow_id"] != owner.workflow_id:
            raise RunIsLive(
                f"{what} is owned by workflow {row['owner_workflow_id']!r}; stop it first"
            )
        former = [*row["former_owners"], row["owner_run_id"]][-_FORMER_MAX:]
        self.set(**mine, former_owners=former, attempt=row["attempt"] + 1)
        return True

    def ask_to_stop(self, intent: StopIntent) -> None:
        """Record a stop, merged with an earlier stop."""
        stop = intent if self.stop is None else self.stop.merged(intent)
        self.set(**stop_values(stop))

    @property
    @abstractmethod
    def subject(self) -> str:
        """The subject of the row's events."""

    @abstractmethod
    def figures(self) -> Mapping[str, Any]:
        """Return the counts that events contain in addition to the columns."""

    def announce(self, type: str, key: str | None = None) -> None:
        """Append an event with the current state.

        This must be the last statement in the transaction.
        """
        body = facts(self.row, *self.told, "project", "started_at", "ended_at")
        body |= {"waiting": self.row["waiting_for"], **self.figures()}
        uid = self.row[f"{self.table.name}_uid"]
        insert_event(
            self.conn,
            self.now,
            type,
            self.subject,
            uid,
            body,
            attempt=self.row["attempt"],
            event_key=key,
        )

    def end(self, type: str, **values: Any) -> None:
        """Record the end, and append an event of this type.

        This must be the last statement in the transaction.
        """
        self.set(**values, ended_at=self.now, waiting_for=None)
        self.write()
        self.changed = False
        name = self.table.name
        row = self.row
        key = ended_key(name, self.id, row[f"{name}_uid"], row["attempt"])
        there = select(outbox_event.c.seq).where(outbox_event.c.event_key == key)
        # The event may already exist if this attempt ended before, and a command or a manual edit
        # reopened it.
        self.announce(type, None if self.conn.execute(there).one_or_none() is not None else key)


def stop_of(run: Row) -> StopIntent | None:
    """Return the recorded stop intent; ``None`` if no stop is recorded."""
    if run["stop_requested_at"] is None:
        return None
    return StopIntent(**{name: run[f"stop_{name}"] for name in _STOP})


def _count(conn: Connection, table: Table, *conditions: ColumnElement[bool]) -> int:
    """Return the number of rows that meet all conditions."""
    return conn.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one()


class StorePart:
    """The base class of the parts of the store: the database, the clock and the limits."""

    new_uid: Callable[[], str] = staticmethod(lambda: uuid.uuid4().hex)
    """Return a uid for a new row. The same uid is never returned twice."""

    def __init__(
        self,
        database: Database,
        clock: Clock | None,
        told: Told | None = None,
        most: Most = MOST,
        pools: Pools = NO_POOLS,
        quotas: Quotas = NO_QUOTAS,
    ) -> None:
        self._db = database
        self._clock = clock or utc_now
        self._dated = clock is None
        """True if our clock is compared with the database server's clock."""
        self._told = told
        self._most = most
        self._pools = pools
        self._quotas = quotas

    def known_pools(self) -> Pools:
        """Return the pools that the current caller may use."""
        with self._db.reading() as conn:
            return with_stored(conn, self._pools).of_project(only())

    def _check_most(
        self, conn: Connection, table: Table, is_open: ColumnElement[bool], project: str
    ) -> None:
        """Raise ``TooManyOpen`` or ``QuotaReached`` unless this project may have one more open row
        of this table.

        All projects share the limit of the installation. A project below its equal share is never
        refused because of other projects, so the total can slightly exceed the limit. Other
        transactions that open a row wait for this one, so concurrent transactions cannot exceed it
        further.
        """
        conn.execute(select(outbox_counter.c.seq).with_for_update())
        kind = f"{table.name}s"
        most = self._most[kind]
        mine = table.c.project == project
        quota = quota_of(self._quotas, project, kind)
        if quota is not None and (used := _count(conn, table, is_open, mine)) >= quota:
            text = f"quota {kind} of project {project}: {used} of {quota} in use"
            raise QuotaReached(
                f"{text}; end or delete one, or ask the operator to raise it (LIFECYCLE_QUOTAS)"
            )
        if _count(conn, table, is_open) < most:
            return
        there = Counter(conn.execute(select(table.c.project).where(is_open)).scalars())
        share = most // len({*there, project})
        if there[project] >= max(share, min(most, 1)):
            limit = f"at most {most} {kind} may be open (LIFECYCLE_LIMITS__{kind.upper()})"
            own = f" ({there[project]} of project {project})" if share < most else ""
            raise TooManyOpen(
                f"{limit}, and this limit is reached{own}; end or delete one, or raise the limit"
            )

    def _rows(self, query: Select[Any]) -> Sequence[Row]:
        with self._db.reading() as conn:
            found = conn.execute(query)
            # A lookup in a SQLAlchemy row takes five times as long as in a dictionary.
            names = tuple(found.keys())
            return [dict(zip(names, row, strict=True)) for row in found]

    def _made(self, kind: type[T], query: Select[Any]) -> list[T]:
        """Return the rows of a query as values of a dataclass (``made``)."""
        return [made(kind, row) for row in self._rows(query)]
