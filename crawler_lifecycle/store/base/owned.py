"""The common part of the stores of managers and graphs: lists, single rows, the unit of work, and
the output of user code.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, select

from crawler_lifecycle.domain.task import tail
from crawler_lifecycle.features.graphs.ports import GraphFence
from crawler_lifecycle.features.managers.domain.manager import OUTPUT_BYTES
from crawler_lifecycle.features.managers.ports import ManagerFence

from .bulk import put_row
from .rows import seen
from .search import ListColumns, Listing, Reach, counted, in_statuses
from .unit import RowUnit, StorePart, check_owner, read_row

#: The maximum numbers of newest failures that are read, and of successes of one name that are
#: compared with them.
FAILED_MAX = 100
SUCCESSES_MAX = 100

R = TypeVar("R")
U = TypeVar("U", bound=RowUnit)


class OwnedPart(StorePart, Generic[U, R]):
    """The base class of the parts for managers and for graphs.

    ``R`` is the class of the rows that readers get.
    """

    kind: type[U]
    log: Table
    """The table with the output of user code."""
    listed: ListColumns
    """The columns that are read for searching and sorting."""
    columns: Sequence[Column[Any]]
    """The columns that readers see."""
    state: Column[str]
    """The column by which a list can be filtered."""
    fields: Mapping[str, ColumnElement[Any]] = {}
    """The columns of ``MANAGER_WORDS``."""
    unless: Sequence[ColumnElement[bool]] = ()
    """The conditions of a list that is not limited to certain states."""

    @abstractmethod
    def _read(self, conn: Connection, query: Select[Any], *, strict: bool = False) -> list[R]:
        """Return the rows of a query of ``columns``.

        If ``strict`` is true, raise ``RowUnreadable`` for an invalid row.
        """

    def _one(self, *which: ColumnElement[bool]) -> R | None:
        """Return the oldest row that meets these conditions."""
        key = self.listed.key
        query = select(*self.columns).where(*which, *seen(key.table)).order_by(key).limit(1)
        with self._db.reading() as conn:
            return next(iter(self._read(conn, query, strict=True)), None)

    def _listing(self, before_id: int | None, states: Sequence[str], name: str | None) -> Listing:
        kinds = in_statuses(self.state, states, self.fields) or self.unless
        return Listing(self.listed, name, kinds, before_id)

    def newest(
        self,
        before_id: int | None = None,
        limit: int = 50,
        *,
        states: Sequence[str] = (),
        name: str | None = None,
    ) -> list[R]:
        """Return rows in one of these states and with this name, newest first.

        Drafts of graphs are included only when ``states`` names them.
        """
        with self._db.reading() as conn:
            return self._read(
                conn, self._listing(before_id, states, name).rows(limit, *self.columns)
            )

    def failures(self, failed: str, success: str, known: Iterable[R | None]) -> list[R]:
        """Return the newest rows with the status ``failed``, those of ``known`` that have it, and
        the newest rows with the status ``success`` and the same names, in the order of their ends,
        newest first. All rows without a name count as one name.
        """
        key = self.listed.key.name

        def end(row: Any) -> tuple[datetime, int]:
            return row.ended_at or row.updated_at, getattr(row, key)

        rows: list[Any] = [*self.newest(limit=FAILED_MAX, states=[failed]), *filter(None, known)]
        found = {getattr(row, key): row for row in rows if getattr(row, self.state.name) == failed}
        for name in {row.name for row in found.values()}:
            rows = self.newest(limit=SUCCESSES_MAX, states=[success], name=name)
            found |= {getattr(row, key): row for row in rows}
        return sorted(found.values(), key=end, reverse=True)

    def search(
        self,
        search: str | None,
        sort: str | None = None,
        before_id: int | None = None,
        offset: int = 0,
        limit: int = 50,
        *,
        states: Sequence[str] = (),
        name: str | None = None,
    ) -> tuple[list[R], Reach]:
        """Return the rows of ``newest`` that contain the text ``search``, or all its rows in the
        order of ``sort`` (one of ``SORTS``; a leading ``-`` reverses the order), starting at
        ``offset``. The second value shows how far the search reached.
        """
        listing = self._listing(before_id, states, name)
        key = self.listed.key
        with self._db.reading() as conn:
            ids, reach = listing.search(conn, search, sort, (offset, limit), self._clock())
            rows = self._read(conn, select(*self.columns).where(key.in_(ids))) if ids else []
        found = {getattr(row, key.name): row for row in rows}
        return [found[id] for id in ids if id in found], reach

    def count_listed(
        self, most: int, *, states: Sequence[str] = (), name: str | None = None
    ) -> int:
        """Return the number of rows that ``newest`` finds with these filters, at most ``most``."""
        with self._db.reading() as conn:
            return counted(conn, self._listing(None, states, name).page(most), most)

    @contextmanager
    def _unit(self, id: int, fence: ManagerFence | GraphFence | None = None) -> Iterator[U]:
        """Lock the row and check the fence.

        At the end of the block, write the row, and append an event if the row changed.

        Every transaction locks this row first, which prevents deadlocks.
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

    def output(self, id: int) -> str:
        """Return the log of the manager or graph with this number; empty if there is none."""
        [key] = self.log.primary_key
        rows = self._rows(select(self.log.c.log_tail).where(key == id))
        return str(rows[0]["log_tail"]) if rows else ""

    def keep_output(self, id: int, text: str) -> None:
        """Append to the log of the manager or graph.

        Only the last ``OUTPUT_BYTES`` bytes of the log are kept.
        """
        [key] = self.log.primary_key

        def write(conn: Connection) -> None:
            before = (
                conn.execute(select(self.log.c.log_tail).where(key == id)).scalar_one_or_none()
                or ""
            )
            put_row(
                conn, self.log, {key.name: id}, {"log_tail": tail(f"{before}{text}", OUTPUT_BYTES)}
            )

        self._db.inserting("log", write)
