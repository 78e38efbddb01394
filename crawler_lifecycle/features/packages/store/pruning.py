"""The removal of versions of packages that nothing needs any more."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, func, select

from crawler_lifecycle.features.canaries.store.rows import of_package, open_canary
from crawler_lifecycle.store.base.unit import StorePart

from .needs import executing, known, named_versions
from .tables import package, package_version

_p = package.c
_v = package_version.c


class PruningStore(StorePart):
    """Removes versions, and knows which code is needed.

    Needed are the current version of a package, the newest ones, those of its open canary, those
    that an open run executes, and those that a schedule, an open manager or an open graph names.
    What these name is kept in all packages.
    """

    def prune(self, keep: int) -> list[tuple[str, str]]:
        """Remove versions that are not needed, and return them as pairs of package and version.

        ``keep`` is the number of newest versions of each package that are needed.
        """
        many = select(_v.package).group_by(_v.package).having(func.count() > keep)
        with self._db.reading() as conn:
            names = sorted(conn.execute(many).scalars())
            named = {found.version for found in named_versions(conn)} if names else set()
        return [(name, version) for name in names for version in self._prune(name, keep, named)]

    def _prune(self, name: str, keep: int, named: Collection[str]) -> list[str]:
        with self._db.writing() as conn:
            lock = select(_p.current).where(_p.name == name).with_for_update()
            current = conn.execute(lock).scalar_one_or_none()
            query = select(_v.version, _v.digest).where(_v.package == name)
            versions = conn.execute(query.order_by(_v.version_id.desc())).all()
            tried = open_canary(conn, of_package(name)) or {}
            kept = {current, *named, tried.get("old_version"), tried.get("new_version")}
            old = {row.version: row.digest for row in versions[keep:] if row.version not in kept}
            needed = executing(conn, old.values())
            gone = [version for version, digest in old.items() if digest not in needed]
            if gone:
                this = (_v.package == name, _v.version.in_(gone))
                conn.execute(delete(package_version).where(*this))
            return gone

    def needed(self, digests: Collection[str]) -> set[str]:
        """Return those of these digests that a version has, or an open run executes."""
        with self._db.reading() as conn:
            return known(conn, digests)
