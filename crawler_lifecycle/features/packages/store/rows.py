"""Versions of packages as they are read, and the entries of the catalogue that follow them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Select, select, update

from crawler_lifecycle.features.catalogue.store.entries import (
    EntryChange,
    packages_of,
    sync_package,
)
from crawler_lifecycle.store.base.rows import Row, made, seen

from ..domain.entries import entries_of, is_usable, possible_names
from ..domain.version import PackageVersion
from .tables import package, package_version

_p = package.c
_v = package_version.c
#: The columns of versions in lists.
LISTED = [column for column in _v if column is not _v.spiders]


def version_of(conn: Connection, name: str, version: str | None = None) -> PackageVersion | None:
    """Return a version of a package that the caller may see, by default the current one."""
    wanted = _p.current if version is None else version
    query = select_versions(_v).where(_p.name == name, _v.version == wanted, *seen(package))
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else version_row(row)


def select_versions(columns: Iterable[Column[Any]]) -> Select[Any]:
    """Return the query for these columns of versions."""
    joined = package.join(package_version, _v.package == _p.name)
    current = (_p.current == _v.version).label("current")
    return select(*columns, _p.project, current).select_from(joined)


def version_row(row: Row) -> PackageVersion:
    """Return the version in a row of ``select_versions``."""
    spiders = row.get("spiders")
    current = bool(row["current"])
    return made(PackageVersion, row, commit=row["commit_id"], spiders=spiders, current=current)


def make_current(
    conn: Connection, name: str, version: str, by: str | None, now: datetime
) -> list[str]:
    """Make a version of a package current, and let the entries ``follow`` it. If the present one is
    older, record it as the previous one.
    """
    query = select(_v.version).select_from(package.join(package_version, _v.package == _p.name))
    both = query.where(_p.name == name, _v.version.in_([version, _p.current]))
    older = conn.execute(both.order_by(_v.version_id).limit(1)).scalar_one()
    current = {"current": version, "former": None if older == version else older}
    current |= {"changed_at": now, "changed_by": by}
    conn.execute(update(package).where(_p.name == name).values(**current))
    return follow(conn, name, by, now)


def follow(conn: Connection, name: str, by: str | None, now: datetime) -> list[str]:
    """Make the spiders of a package's current version its entries, and remove the entries of a
    package that was deleted. Return the spiders for which no entry is possible.

    This belongs in the transaction that changes the package. Raises ``TooManyOpen``.
    """
    current = version_of(conn, name)
    if current is None:
        return sync_package(conn, name, [], EntryChange("", now, by))
    if current.note is not None:
        return []  # the spiders are unknown, so the entries stay as they are
    documents = entries_of(current, packages_of(conn, possible_names(current)))
    usable = [document for document in documents if is_usable(document)]
    taken = sync_package(conn, name, usable, EntryChange(current.project, now, by))
    missing = [*taken, *(document["name"] for document in documents if document not in usable)]
    return [str(document["spider"]) for document in documents if document["name"] in missing]
