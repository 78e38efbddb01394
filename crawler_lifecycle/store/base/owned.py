"""The common part of the stores of managers and graphs: lists, single rows, the unit of work, and
the output of user code.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, func, select

from crawler_lifecycle.domain.conditions import normalised
from crawler_lifecycle.domain.task import tail
from crawler_lifecycle.features.graphs.ports import GraphFence
from crawler_lifecycle.features.managers.domain.manager import OUTPUT_BYTES
from crawler_lifecycle.features.managers.ports import ManagerFence

from .bulk import CHUNK, chunks, put_row, rows_in
from .rows import Row, seen
from .search import ListColumns, Listing, Reach, counted, in_statuses, united
from .unit import RowUnit, StorePart, check_owner, read_row

#: The maximum numbers of newest failures that are read, and of successes of one name that are
#: compared with them. Successes without a name may have other labels, so more of them are read.
FAILED_MAX = 100
SUCCESSES_MAX = 100
UNNAMED_MAX = 2_000
#: The number of names whose successes are read at once.
GROUPS_MAX = 50

R = TypeVar("R")
U = TypeVar("U", bound=RowUnit)


class OwnedPart(StorePart, Generic[U, R]):
    """The base class of the parts for managers and for graphs.

    ``R`` is the class of the rows that readers get.
    """

    kind: type[U]
    label: Column[Any]
    """The column whose value ends the path of the row's page."""
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

    def failures(self, failed: str, success: str, known: Iterable[str | int]) -> list[R]:
        """Return the newest rows with the status ``failed``, older ones whose ``label`` is in
        ``known``, and for each of them the row with the status ``success`` and the same project and
        name that ended last. Rows without a name are compared by their labels, without numbers. The
        result is in the order of the ends, newest first.
        """
        table = self.listed.key.table.c
        end = func.coalesce(table.ended_at, table.updated_at).label("end")
        columns = [self.listed.key, table.project, self.listed.name, self.label, end]
        query = select(*columns)
        with self._db.reading() as conn:
            newest = self._listing(None, [failed], None).rows(FAILED_MAX, *columns)
            found: list[Row] = list(conn.execute(newest).mappings())
            mine = query.where(self.state == failed, *seen(self.listed.key.table))
            found += rows_in(conn, mine, self.label, known)
            groups = {self._alike(row): row for row in found}
            last: dict[Hashable, Row] = {}
            for part in chunks(list(groups.values()), GROUPS_MAX):
                pages = [self._successes(query.where(self.state == success), row) for row in part]
                rows = conn.execute(select(united(pages))).mappings().all()
                for row in sorted(rows, key=itemgetter("end", self.listed.key.name)):
                    last[self._alike(row)] = row
            found += [row for group, row in last.items() if group in groups]
            ends = {row[self.listed.key.name]: row["end"] for row in found}
            whole = [
                row
                for ids in chunks(sorted(ends), CHUNK)
                for row in self._read(conn, select(*self.columns).where(self.listed.key.in_(ids)))
            ]
        id_of = attrgetter(self.listed.key.name)
        return sorted(whole, key=lambda row: (ends[id_of(row)], id_of(row)), reverse=True)

    def _alike(self, row: Row) -> Hashable:
        """Return what a row has in common with those whose success shows that it has recovered: the
        project and the name or, without a name, the label without its numbers.
        """
        return row["project"], row["name"] or normalised(str(row[self.label.name]))

    def _successes(self, query: Select[Any], row: Row) -> Select[Any]:
        """Limit the query to the newest rows that may be alike to this row."""
        name = self.listed.name
        query = query.where(self.listed.key.table.c.project == row["project"])
        if row["name"] is not None:
            query = query.where(name == row["name"]).limit(SUCCESSES_MAX)
        else:
            label = normalised(str(row[self.label.name]))
            label = re.sub(r"([%_/])", r"/\1", label)
            pattern = re.sub("[#~… ]", "%", label)
            query = query.where(name.is_(None), self.label.like(pattern, escape="/"))
            query = query.limit(UNNAMED_MAX)
        return query.order_by(self.listed.key.desc())

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
