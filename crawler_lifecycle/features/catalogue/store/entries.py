"""The store of the catalogue: its entries, and all their versions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, delete, func, insert, select, update

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import NotInThisState, RunNotFound, TooManyOpen
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.features.canaries.domain.canary import CanarySettings
from crawler_lifecycle.features.canaries.store.rows import (
    cancel_canary,
    choose_version,
    of_entry,
    open_canary,
    start_canary,
    used_before,
)
from crawler_lifecycle.ports.entries import CatalogueEntry, EntryMark, EntryVersion, number_of
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.rows import Row, check_free, made, seen
from crawler_lifecycle.store.base.unit import StorePart

from .tables import catalogue_change, catalogue_entry

#: The maximum number of entries in the database.
ENTRIES_MAX = 5000
#: Keys that every run takes from the version in use, whichever version it executes.
_OF_CURRENT = ("pool", "limits", "sites", "retries", "ends", "expect", "on_violation", "partial_ok")
_e = catalogue_entry.c
_c = catalogue_change.c


@dataclass(frozen=True, slots=True)
class EntryChange:
    """The columns of a change of an entry."""

    project: str
    """The project of the entry, if the change creates it."""
    at: datetime
    by: str | None = None
    note: str | None = None


class EntryStore(StorePart):
    """Entries of the catalogue. An entry belongs to the project that made it.

    A change adds a version. An older version can be used again under its number.
    """

    def set_entry(
        self,
        name: str,
        document: Mapping[str, Any],
        by: str | None,
        note: str | None = None,
        project: str | None = None,
        canary: CanarySettings | None = None,
    ) -> tuple[CatalogueEntry, bool]:
        """Create an entry, or give it this document: at once, or with ``canary`` to a share of its
        runs until it is judged. Returns the entry, and whether anything changed.

        Raises ``DuplicateRequest`` if the name belongs to another project, ``NotInThisState`` for
        an entry of a package, ``TooManyOpen``, and ``InvalidRequest`` for a canary of an entry that
        names a package, or of a change that a canary cannot try.
        """

        def write(conn: Connection) -> tuple[CatalogueEntry, bool]:
            found = _locked(conn, [name]).get(name)
            if found is not None:
                check_free(found["project"], project, f"crawler {name!r}")
                _check_own(found)
                entry = self._needed(conn, name)
                same = [entry.document]
                if canary is not None:
                    _check_canary(name, canary, entry.document, document)
                    same += _tried(conn, name)
                if dict(document) in same:
                    return entry, False
            owner = chosen(project) if found is None else found["project"]
            if found is None:
                _check_room(conn, 1)
            number = _newest(conn, [name]).get(name, 0) + 1
            change = EntryChange(owner, self._clock(), by, note)
            _add_version(conn, name, number, document, change)
            cancel_canary(conn, of_entry(name), by, change.at, f"version {number} was set")
            if found is None or canary is None:
                _put(conn, name, number, found, change, None)
            else:
                versions = {"old_version": str(found["number"]), "new_version": str(number)}
                began = {"project": owner, "created_at": change.at, "created_by": by}
                start_canary(conn, canary, self.new_uid(), package=name, **versions, **began)
            return self._needed(conn, name), True

        return self._db.inserting(f"crawler {name!r}", write)

    def use_entry(self, name: str, number: int, by: str | None) -> tuple[CatalogueEntry, bool]:
        """Use a version of an entry. Returns the entry, and whether another version was in use.

        Raises ``RunNotFound`` if there is no such entry, and ``NotInThisState`` if there is no such
        version, or for an entry of a package.
        """
        with self._db.writing() as conn:
            found = self._own(conn, name)
            if number not in _numbers(conn, name):
                raise NotInThisState(
                    f"version: crawler {name!r} has no version {number}; see crawlctl crawler "
                    f"history {name}"
                )
            return self._use(conn, found, number, by), found["number"] != number

    def roll_back(self, name: str, by: str | None) -> CatalogueEntry:
        """Use the version of an entry that was in use before the present one. Versions that
        canaries tried and did not accept are skipped.

        Raises the errors of ``use_entry``.
        """
        with self._db.writing() as conn:
            found = self._own(conn, name)
            before = _used_before(conn, found)
            if before is None:
                raise NotInThisState(
                    f"version: crawler {name!r} has no version before version "
                    f"{found['number']} that was in use; choose one (crawlctl crawler use)"
                )
            return self._use(conn, found, int(before), by)

    def entry_version_before(self, name: str) -> str | None:
        """Return the version that an entry used before the present one; ``None`` if there is
        none.
        """
        with self._db.reading() as conn:
            query = select(catalogue_entry).where(_e.name == name, *seen(catalogue_entry))
            row = conn.execute(query).mappings().one_or_none()
            return None if row is None else _used_before(conn, row)

    def delete_entry(self, name: str) -> CatalogueEntry | None:
        """Delete an entry, but keep its versions. Returns the entry; ``None`` if there was none.

        Raises ``NotInThisState`` for an entry of a package.
        """
        with self._db.writing() as conn:
            found = _locked(conn, [name]).get(name)
            entry = self._entry(conn, name)
            if found is None or entry is None:
                return None
            _check_own(found)
            cancel_canary(conn, of_entry(name), None, self._clock(), "the crawler was deleted")
            conn.execute(delete(catalogue_entry).where(_e.name == name))
            return entry

    def get_entry(self, name: str) -> CatalogueEntry | None:
        """Return the entry with this name, or ``None``."""
        with self._db.reading() as conn:
            return self._entry(conn, name)

    def list_entries(self) -> list[CatalogueEntry]:
        """Return all entries by name."""
        query = _entries().where(*seen(catalogue_entry, leads=True)).order_by(_e.name)
        return [made(CatalogueEntry, row) for row in self._rows(query)]

    def entry_marks(self) -> list[EntryMark]:
        """Return which version of each entry is in use, without the documents."""
        query = select(_e.name, _e.project, _e.number, _e.package)
        query = query.where(*seen(catalogue_entry, leads=True)).order_by(_e.name)
        return [made(EntryMark, row) for row in self._rows(query)]

    def entry_version(self, name: str, number: int) -> EntryVersion | None:
        """Return a version of an entry, even if the entry was deleted."""
        found = self._versions(_c.name == name, _c.number == number)
        return found[0] if found else None

    def entry_history(
        self, name: str, before: int | None = None, limit: int = 50
    ) -> Sequence[EntryVersion]:
        """Return the versions of an entry below the number ``before``, newest first."""
        older = [] if before is None else [_c.number < before]
        return self._versions(_c.name == name, *older, limit=limit)

    def _versions(self, *which: Any, limit: int = 1) -> Sequence[EntryVersion]:
        query = select(catalogue_change).where(*which, *seen(catalogue_change))
        rows = self._rows(query.order_by(_c.number.desc()).limit(limit))
        return [made(EntryVersion, row) for row in rows]

    def _entry(self, conn: Connection, name: str) -> CatalogueEntry | None:
        query = _entries().where(_e.name == name, *seen(catalogue_entry))
        row = conn.execute(query).mappings().one_or_none()
        return None if row is None else made(CatalogueEntry, row)

    def _own(self, conn: Connection, name: str) -> Row:
        """Return the row of an entry that belongs to no package, locked."""
        found = _locked(conn, [name]).get(name)
        self._needed(conn, name)
        assert found is not None
        _check_own(found)
        return found

    def _use(self, conn: Connection, found: Row, number: int, by: str | None) -> CatalogueEntry:
        change = EntryChange(found["project"], self._clock(), by)
        choose_version(conn, of_entry(found["name"]), str(number), by, change.at)
        if found["number"] != number:
            _put(conn, found["name"], number, found, change, None)
        return self._needed(conn, found["name"])

    def _needed(self, conn: Connection, name: str) -> CatalogueEntry:
        found = self._entry(conn, name)
        if found is None:
            raise RunNotFound(
                f"crawler {name!r} is not in the database; see the list of crawlers (crawlctl "
                "crawler list)"
            )
        return found


def sync_package(
    conn: Connection,
    package: str,
    documents: Sequence[Mapping[str, Any]],
    change: EntryChange,
) -> list[str]:
    """Make these the entries of a package: add and change them, and remove its others.

    The caller's transaction may be repeated (``Database.inserting``). Returns the names that other
    entries have, which stay as they are. Raises ``TooManyOpen``.
    """
    wanted = {str(document["name"]): document for document in documents}
    former = set(conn.execute(select(_e.name).where(_e.package == package)).scalars())
    rows = _locked(conn, {*former, *wanted})
    taken = [name for name in wanted if name in rows and name not in former]
    ours = {name: document for name, document in wanted.items() if name not in taken}
    gone = former - ours.keys()
    _check_room(conn, len(ours.keys() - former) - len(gone))
    for name in sorted(gone):
        conn.execute(delete(catalogue_entry).where(_e.name == name))
    numbers = _newest(conn, ours)
    known = documents_of(conn, former & ours.keys())
    for name in sorted(ours):
        if name in former and known[name] == dict(ours[name]):
            continue
        number = numbers.get(name, 0) + 1
        _add_version(conn, name, number, ours[name], change)
        _put(conn, name, number, rows.get(name), change, package)
    return sorted(taken)


def replace_number(conn: Connection, name: str, old: int, new: int, change: EntryChange) -> bool:
    """Use the new version of an entry if the old one is in use. Returns whether it was."""
    found = _locked(conn, [name]).get(name)
    if found is None or found["package"] is not None or found["number"] != old:
        return False
    _put(conn, name, new, found, change, None)
    return True


def packages_of(conn: Connection, names: Collection[str]) -> dict[str, str | None]:
    """Return the package that each of these entries belongs to, of whichever project."""
    query = select(_e.name, _e.package)
    return {row["name"]: row["package"] for row in rows_in(conn, query, _e.name, names)}


def documents_of(conn: Connection, names: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Return the documents of these entries that are in use, of whichever project."""
    return {row["name"]: row["document"] for row in rows_in(conn, _entries(), _e.name, names)}


def newest_document(conn: Connection, name: str, project: str) -> Mapping[str, Any] | None:
    """Return the document of the newest version of a project's entry, even if the entry was
    deleted.
    """
    query = select(_c.document).where(_c.name == name, _c.project == project)
    query = query.order_by(_c.number.desc()).limit(1)
    found: Mapping[str, Any] | None = conn.execute(query).scalar_one_or_none()
    return found


def _add_version(
    conn: Connection, name: str, number: int, document: Mapping[str, Any], change: EntryChange
) -> None:
    values = {"name": name, "number": number, "document": dict(document)}
    values |= {"project": change.project, "note": change.note}
    values |= {"changed_at": change.at, "changed_by": change.by}
    conn.execute(insert(catalogue_change).values(**values))


def _put(
    conn: Connection,
    name: str,
    number: int,
    found: Row | None,
    change: EntryChange,
    package: str | None,
) -> None:
    values = {"number": number, "changed_at": change.at, "changed_by": change.by}
    if found is None:
        owner = {"name": name, "project": change.project, "package": package}
        conn.execute(insert(catalogue_entry).values(**owner, **values))
    else:
        values["former"] = found["number"] if number > found["number"] else None
        conn.execute(update(catalogue_entry).where(_e.name == name).values(**values))


def _entries() -> Select[Any]:
    same = and_(_c.name == _e.name, _c.number == _e.number)
    joined = catalogue_entry.join(catalogue_change, same)
    return select(*_e, _c.document).select_from(joined)


def _locked(conn: Connection, names: Collection[str]) -> dict[str, Row]:
    """Return the rows of these entries, locked in the order of their names."""
    query = select(catalogue_entry).order_by(_e.name).with_for_update()
    return {row["name"]: row for row in rows_in(conn, query, _e.name, sorted(names))}


def _numbers(conn: Connection, name: str) -> Sequence[int]:
    """Return the numbers of an entry's versions that the caller may see, newest first."""
    query = select(_c.number).where(_c.name == name, *seen(catalogue_change))
    return conn.execute(query.order_by(_c.number.desc())).scalars().all()


def _used_before(conn: Connection, entry: Row) -> str | None:
    """Return the version that an entry used before the present one."""
    versions = [str(number) for number in _numbers(conn, entry["name"])]
    numbers = (str(entry["number"]), entry["former"] and str(entry["former"]))
    return used_before(conn, entry["name"], versions, *numbers, of_entry=True)


def _newest(conn: Connection, names: Collection[str]) -> dict[str, int]:
    """Return the highest number of each name. A deleted entry counts, too."""
    query = select(_c.name, func.max(_c.number).label("newest")).group_by(_c.name)
    return {row["name"]: row["newest"] for row in rows_in(conn, query, _c.name, names)}


def _tried(conn: Connection, name: str) -> list[Mapping[str, Any]]:
    """Return the document that the open canary of an entry tries, if there is one."""
    row = open_canary(conn, of_entry(name))
    if row is None:
        return []
    query = select(_c.document).where(_c.name == name, _c.number == number_of(row["new_version"]))
    return [conn.execute(query).scalar_one()]


def _check_canary(
    name: str, canary: CanarySettings, old: Mapping[str, Any], new: Mapping[str, Any]
) -> None:
    """Raise ``InvalidRequest`` for a change that a canary cannot try."""
    package = old.get("package") or new.get("package")
    if package is not None:
        fix = (
            f"runs of crawler {name!r} execute package {package!r}, so try a version of the "
            "package: crawlctl deploy --canary"
        )
        raise refusal("canary", canary.share, fix)
    changed = [key for key in _OF_CURRENT if old.get(key) != new.get(key)]
    if changed:
        fix = f"all runs take {', '.join(changed)} from the current version; set it without canary"
        raise refusal("canary", canary.share, fix)


def _check_own(found: Row) -> None:
    if found["package"] is not None:
        raise NotInThisState(
            f"crawler {found['name']!r} comes from package {found['package']!r}; deploy or use "
            "another version of the package, or override the entry in crawlers.yaml"
        )


def _check_room(conn: Connection, more: int) -> None:
    if more <= 0:
        return
    count = conn.execute(select(func.count()).select_from(catalogue_entry)).scalar_one()
    if count + more > ENTRIES_MAX:
        raise TooManyOpen(
            f"the database has {count} crawlers, and at most {ENTRIES_MAX} are allowed; delete some"
        )
