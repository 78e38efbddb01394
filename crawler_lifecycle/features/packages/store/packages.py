"""The store of packages: their versions, and which of them is current."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from crawler_lifecycle.domain.errors import DuplicateRequest, NotInThisState
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.features.canaries.domain.canary import CanarySettings
from crawler_lifecycle.features.canaries.store.rows import (
    cancel_canary,
    choose_version,
    of_package,
    start_canary,
    used_before,
)
from crawler_lifecycle.store.base.rows import Row, check_free, seen
from crawler_lifecycle.store.base.unit import StorePart

from ..domain.version import VERSIONS_MAX, PackageVersion, Spider
from .needs import who_names
from .rows import LISTED, follow, make_current, select_versions, version_of, version_row
from .tables import package, package_version

_p = package.c
_v = package_version.c
#: The number of those who name a version that an error lists.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to record. Its zip is in the code store already."""

    package: str
    version: str
    digest: str = ""
    size: int = 0
    files: int = 0
    commit: str | None = None
    spiders: Sequence[Spider] = ()
    note: str | None = None
    by: str | None = None
    project: str | None = None
    canary: CanarySettings | None = None
    """How the version is tried before it becomes current; ``None``: it is current at once."""


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A version after a command."""

    version: PackageVersion
    fresh: bool
    """True if anything changed."""
    without_entry: Sequence[str] = ()
    """The spiders for which no entry of the catalogue is possible."""


class PackageStore(StorePart):
    """Packages. A package belongs to the project that deployed it first.

    The entries of the catalogue that the current version makes change in the same transaction.
    """

    def add_version(self, new: NewVersion) -> VersionChange:
        """Record a version, and make it current, or begin its canary if an older version is
        current.

        The same version with the same contents changes nothing. Raises ``DuplicateRequest`` if the
        version has other contents, or the name belongs to another project, ``NotInThisState`` if
        the package has too many versions, and ``TooManyOpen``.
        """
        return self._db.inserting(f"package {new.package!r}", lambda conn: self._add(conn, new))

    def check_owner(self, name: str) -> None:
        """Raise ``DuplicateRequest`` for a package of a project that the caller may not see."""
        with self._db.reading() as conn:
            owner = conn.execute(select(_p.project).where(_p.name == name)).scalar_one_or_none()
        if owner is not None:
            check_free(owner, None, f"package {name!r}")

    def check_version(self, new: NewVersion) -> PackageVersion | None:
        """Return the version if it exists with the same contents.

        Raises the errors of ``add_version``.
        """
        with self._db.reading() as conn:
            owner = conn.execute(select(package).where(_p.name == new.package)).mappings()
            return self._checked(conn, new, owner.one_or_none())

    def _checked(
        self, conn: Connection, new: NewVersion, owner: Row | None
    ) -> PackageVersion | None:
        if owner is not None:
            check_free(owner["project"], new.project, f"package {new.package!r}")
        same = version_of(conn, new.package, new.version)
        if same is not None and same.digest != new.digest:
            raise DuplicateRequest(
                f"version: {new.version!r} of package {new.package!r} has other contents; give the "
                "new contents another version"
            )
        count = select(func.count()).where(_v.package == new.package)
        if same is None and conn.execute(count).scalar_one() >= VERSIONS_MAX:
            raise NotInThisState(
                f"package {new.package!r} has {VERSIONS_MAX} versions; delete old ones first"
            )
        return same

    def _add(self, conn: Connection, new: NewVersion) -> VersionChange:
        found = _locked(conn, new.package)
        same = self._checked(conn, new, found)
        if same is not None:
            return VersionChange(same, fresh=False)
        now = self._clock()
        cancel_canary(
            conn, of_package(new.package), new.by, now, f"version {new.version} was deployed"
        )
        old = None if found is None else version_of(conn, new.package)
        columns = ("package", "version", "digest", "size", "files", "note")
        values = {name: getattr(new, name) for name in columns}
        values |= {"commit_id": new.commit, "spiders": [*new.spiders]}
        values |= {"created_at": now, "created_by": new.by}
        conn.execute(insert(package_version).values(**values))
        if found is None:
            owner = {"name": new.package, "project": chosen(new.project)}
            changed = {"changed_at": now, "changed_by": new.by}
            conn.execute(insert(package).values(**owner, **changed, current=new.version))
        missing: Sequence[str] = ()
        if old is None or new.canary is None:
            missing = make_current(conn, new.package, new.version, new.by, now)
        added = version_of(conn, new.package, new.version)
        assert added is not None
        if old is not None and new.canary is not None:
            _start_canary(conn, new, old, added, self.new_uid())
        return VersionChange(added, True, missing)

    def use_version(self, name: str, version: str | None, by: str | None) -> VersionChange:
        """Make a version current; ``None`` is the one that was current before.

        Raises ``NotInThisState`` if there is no such version, and ``TooManyOpen``.
        """

        def write(conn: Connection) -> VersionChange:
            locked = _locked(conn, name)
            wanted = _before(conn, locked) if version is None and locked else version
            found = None if wanted is None else version_of(conn, name, wanted)
            if found is None:
                which = "before the current one" if version is None else repr(version)
                raise NotInThisState(f"package {name!r} has no version {which}")
            now = self._clock()
            choose_version(conn, of_package(name), found.version, by, now)
            if found.current:
                return VersionChange(found, False, follow(conn, name, by, now))
            missing = make_current(conn, name, found.version, by, now)
            return VersionChange(replace(found, current=True), True, missing)

        return self._db.inserting(f"entries of package {name!r}", write)

    def delete_version(
        self,
        name: str,
        version: str,
        by: str | None = None,
        *,
        force: bool = False,
        fall_back: bool = False,
    ) -> PackageVersion | None:
        """Delete a version; ``None`` if there is none. With the last one, the package is deleted.

        With ``fall_back``, another version becomes current in place of the current one: the version
        that was in use before, or else the newest. Raises ``NotInThisState`` for
        the current version of a package that has others without ``fall_back`` and, unless ``force``
        is true, for one that something names for later runs; and ``TooManyOpen``.
        """

        def write(conn: Connection) -> PackageVersion | None:
            locked = _locked(conn, name)
            found = version_of(conn, name, version)
            if found is None or locked is None:
                return None
            versions = _versions(conn, name)
            others = [other for other in versions if other != version]
            if found.current and others and not fall_back:
                raise NotInThisState(
                    f"version: {version!r} is the current one of package {name!r}; make another "
                    "one current first"
                )
            if not force:
                _check_unneeded(conn, name, [version])
            now = self._clock()
            tried = None if found.current else version
            cancel_canary(conn, of_package(name), by, now, "its version was deleted", tried)
            this = (_v.package == name, _v.version == version)
            conn.execute(delete(package_version).where(*this))
            if not others:
                conn.execute(delete(package).where(_p.name == name))
                follow(conn, name, by, now)
            elif found.current:
                before = used_before(conn, name, versions, version, locked["former"])
                make_current(conn, name, before or others[0], by, now)
            return found

        return self._db.inserting(f"entries of package {name!r}", write)

    def delete_package(self, name: str, by: str | None = None, *, force: bool = False) -> int:
        """Delete a package with all versions, and return how many it had.

        Raises ``NotInThisState`` as ``delete_version`` does.
        """
        with self._db.writing() as conn:
            _locked(conn, name)
            if version_of(conn, name) is None:
                return 0
            if not force:
                versions = conn.execute(select(_v.version).where(_v.package == name)).scalars()
                _check_unneeded(conn, name, versions.all())
            now = self._clock()
            cancel_canary(conn, of_package(name), by, now, "the package was deleted")
            count = conn.execute(delete(package_version).where(_v.package == name)).rowcount
            conn.execute(delete(package).where(_p.name == name))
            follow(conn, name, by, now)
            return count

    def list_packages(self, offset: int, limit: int) -> list[PackageVersion]:
        """Return the current versions of packages, by name."""
        query = select_versions(LISTED).where(_v.version == _p.current, *seen(package, leads=True))
        query = query.order_by(_p.name).offset(offset).limit(limit)
        return [version_row(row) for row in self._rows(query)]

    def versions(self, name: str, limit: int = VERSIONS_MAX) -> list[PackageVersion]:
        """Return the newest versions of a package, newest first; empty if there is no such
        package.
        """
        query = select_versions(LISTED).where(_p.name == name, *seen(package))
        query = query.order_by(_v.version_id.desc()).limit(limit)
        return [version_row(row) for row in self._rows(query)]

    def package_version_before(self, name: str) -> str | None:
        """Return the version of a package that was current before; ``None`` if there is none."""
        with self._db.reading() as conn:
            query = select(package).where(_p.name == name, *seen(package))
            row = conn.execute(query).mappings().one_or_none()
            return None if row is None else _before(conn, row)

    def find_version(self, name: str, version: str | None = None) -> PackageVersion | None:
        """Return a version of a package, by default the current one."""
        with self._db.reading() as conn:
            return version_of(conn, name, version)


def _before(conn: Connection, row: Row) -> str | None:
    """Return the version that was current before; ``None`` if there is none."""
    name = row["name"]
    return used_before(conn, name, _versions(conn, name), row["current"], row["former"])


def _start_canary(
    conn: Connection, new: NewVersion, old: PackageVersion, added: PackageVersion, uid: str
) -> None:
    assert new.canary is not None
    owner = {"package": new.package, "project": added.project, "holder": new.package}
    versions = {"old_version": old.version, "old_digest": old.digest}
    versions |= {"new_version": added.version, "new_digest": added.digest}
    began = {"created_at": added.created_at, "created_by": new.by}
    start_canary(conn, new.canary, uid, **owner, **versions, **began)


def _versions(conn: Connection, name: str) -> Sequence[str]:
    """Return all versions of a package, newest first."""
    query = select(_v.version).where(_v.package == name).order_by(_v.version_id.desc())
    return conn.execute(query).scalars().all()


def _locked(conn: Connection, name: str) -> Mapping[Any, Any] | None:
    """Return the row of a package, of whichever project, and lock it."""
    query = select(package).where(_p.name == name).with_for_update()
    return conn.execute(query).mappings().one_or_none()


def _check_unneeded(conn: Connection, name: str, versions: Sequence[str]) -> None:
    needed_by = who_names(conn, name, versions)
    if needed_by:
        what = f"version {versions[0]!r}" if len(versions) == 1 else "a version"
        more = f" and {len(needed_by) - _SHOWN} more" if len(needed_by) > _SHOWN else ""
        raise NotInThisState(
            f"{what} of package {name!r} is named by {', '.join(needed_by[:_SHOWN])}{more}; change "
            "or end them first, or delete it with force"
        )
