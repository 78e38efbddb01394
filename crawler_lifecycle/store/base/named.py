"""The common part of the stores of schedules and webhooks, which people name and define, and whose
rows are kept after a deletion.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import Connection, Table, insert, select

from crawler_lifecycle.domain import projects
from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import RunNotFound

from .outbox import append_events
from .rows import Row, change_row, check_free, made, seen
from .unit import StorePart

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")

Change = tuple[dict[str, Any], Sequence[Row]]
"""The new values of a row, and the events that report the change."""


class NamedPart(StorePart, Generic[R]):
    """The base class of stores of named definitions.

    ``R`` is the class of the rows that readers get.
    """

    table: Table
    kind: type[R]
    otherwise = projects.DEFAULT
    """The project of a new row if a caller with access to all projects does not name a project."""

    @abstractmethod
    def _defined(
        self, conn: Connection, found: dict[Any, Any] | None, now: datetime, *, anew: bool
    ) -> Change:
        """Return the changes that a definition makes.

        ``found`` is the existing row. ``anew`` is true if that row was deleted or does not exist.
        """

    @abstractmethod
    def _deleted(self, conn: Connection, row: dict[Any, Any], now: datetime) -> Change:
        """Return the changes that a deletion makes."""

    @abstractmethod
    def pause(self, name: str, reason: str | None, *args: Any, **more: Any) -> R:
        """Pause the schedule or webhook for this reason, or resume it if the reason is ``None``.
        Raises ``RunNotFound``.
        """

    def put(
        self,
        name: str,
        definition: Mapping[str, Any],
        requested_by: str | None,
        project: str | None = None,
    ) -> tuple[R, bool]:
        """Create the row with this name, or change its definition.

        Returns the row, and whether it changed.

        A deleted row is created again. If ``project`` is ``None``, an existing row keeps its
        project. Raises ``TooManyOpen`` if there are too many rows, and ``DuplicateRequest`` if the
        name belongs to another project.
        """
        write = partial(self._put, name, definition, requested_by, project)
        return self._db.inserting(f"{self.table.name} {name!r}", write)

    def _put(
        self,
        name: str,
        definition: Mapping[str, Any],
        by: str | None,
        project: str | None,
        conn: Connection,
    ) -> tuple[R, bool]:
        with projects.limited(None):
            found = self._locked(conn, name, deleted=True)
        if found is not None:
            check_free(found["project"], project, f"name {name!r}")
        now = self._clock()
        anew = found is None or found["deleted_at"] is not None
        if found is not None and not anew and found["definition"] == dict(definition):
            return made(self.kind, found), False
        owner = projects.chosen(project, self.otherwise) if found is None else found["project"]
        if anew:
            self._check_most(conn, self.table, self.table.c.deleted_at.is_(None), owner)
        more, events = self._defined(conn, found, now, anew=anew)
        new = {
            "definition": dict(definition),
            "requested_by": by,
            "updated_at": now,
            "deleted_at": None,
            **more,
        }
        if found is None:
            first = {"name": name, "project": owner, "revision": 1, "created_at": now}
            conn.execute(insert(self.table).values(**first | new))
        else:
            change_row(conn, self.table, found, {**new, "revision": found["revision"] + 1})
        row = self._needed(conn, name)
        append_events(conn, events)
        return made(self.kind, row), True

    def delete(self, name: str) -> bool:
        """Delete the definition with this name, but keep the records about it. Returns whether the
        definition existed.
        """
        with self._db.writing() as conn:
            row = self._locked(conn, name)
            now = self._clock()
            if row is None:
                return False
            more, events = self._deleted(conn, row, now)
            change_row(conn, self.table, row, {"deleted_at": now, "updated_at": now, **more})
            append_events(conn, events)
            return True

    def get(self, name: str) -> R | None:
        """Return the row with this name, even if it was deleted."""
        rows = self._rows(select(self.table).where(self.table.c.name == name, *seen(self.table)))
        # MySQL ignores spaces at the end of a name.
        return made(self.kind, rows[0]) if rows and rows[0]["name"] == name else None

    def page(self, after_id: int = 0, limit: int = 100, *, deleted: bool = False) -> list[R]:
        """Return rows with a number above ``after_id``, oldest first.

        If ``deleted`` is true, include deleted rows.
        """
        [key] = self.table.primary_key
        query = (
            select(self.table)
            .where(key > after_id, *seen(self.table, leads=True))
            .order_by(key)
            .limit(limit)
        )
        if not deleted:
            query = query.where(self.table.c.deleted_at.is_(None))
        return self._made(self.kind, query)

    def every(self) -> list[R]:
        """Return all rows that were not deleted, oldest first."""
        found: list[R] = []
        while page := self.page(getattr(found[-1], f"{self.table.name}_id") if found else 0, 200):
            found += page
        return found

    def _locked(
        self, conn: Connection, name: str, *, deleted: bool = False
    ) -> dict[Any, Any] | None:
        """Lock and return the row with this name; ``None`` if there is none.

        If ``deleted`` is true, a deleted row is returned too.

        Raises ``InvalidRequest`` if ``name`` ends with spaces, which MySQL ignores.
        """
        query = (
            select(self.table).where(self.table.c.name == name, *seen(self.table)).with_for_update()
        )
        row = conn.execute(query).mappings().one_or_none()
        if row is None or (row["deleted_at"] is not None and not deleted):
            return None
        if row["name"] != name:
            raise refusal("name", name, "remove the spaces at its end")
        return dict(row)

    def _needed(self, conn: Connection, name: str) -> dict[Any, Any]:
        """Lock and return the row with this name.

        Raises ``RunNotFound`` if it does not exist or was deleted.
        """
        row = self._locked(conn, name)
        if row is None:
            noun = self.table.name
            fix = f"see the list of {noun}s (crawlctl {noun} list)"
            raise RunNotFound(f"{noun} {name!r} does not exist; {fix}")
        return row
