"""The removal of versions of packages that nothing needs any more."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, delete, func, select

from crawler_lifecycle.features.schedules.store.tables import schedule
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.unit import StorePart
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, run_code, run_history

from .tables import package, package_version

_p = package.c
_v = package_version.c


class PruningStore(StorePart):
    """Removes versions, and knows which code is needed.

    Needed are the current version of a package, the newest ones, those that an open run executes
    and those that a schedule names. What a schedule names is kept in all packages.
    """

    def prune(self, keep: int) -> list[tuple[str, str]]:
        """Remove versions that are not needed, and return them as pairs of package and version.

        ``keep`` is the number of newest versions of each package that are needed.
        """
        many = select(_v.package).group_by(_v.package).having(func.count() > keep)
        with self._db.reading() as conn:
            names = sorted(conn.execute(many).scalars())
            named = _named_by_schedules(conn) if names else set()
        return [(name, version) for name in names for version in self._prune(name, keep, named)]

    def _prune(self, name: str, keep: int, named: Collection[str]) -> list[str]:
        with self._db.writing() as conn:
            lock = select(_p.current).where(_p.name == name).with_for_update()
            current = conn.execute(lock).scalar_one_or_none()
            query = select(_v.version, _v.digest).where(_v.package == name)
            versions = conn.execute(query.order_by(_v.version_id.desc())).all()
            executing = _executing(conn, {row.digest for row in versions[keep:]})
            gone = [
                row.version
                for row in versions[keep:]
                if row.version != current
                and row.version not in named
                and row.digest not in executing
            ]
            if gone:
                this = (_v.package == name, _v.version.in_(gone))
                conn.execute(delete(package_version).where(*this))
            return gone

    def needed(self, digests: Collection[str]) -> set[str]:
        """Return those of these digests that a version has, or an open run executes."""
        with self._db.reading() as conn:
            query = select(_v.digest).distinct()
            known = {row["digest"] for row in rows_in(conn, query, _v.digest, digests)}
            return known | _executing(conn, digests)


def _executing(conn: Connection, digests: Collection[str]) -> set[str]:
    """Return those of these digests that open runs execute."""
    c = run_code.c
    joined = run_code.join(run_history, run_history.c.run_id == c.run_id)
    query = select(c.code_digest).distinct().select_from(joined)
    query = query.where(run_history.c.status.in_(LIVE_RUNS))
    return {row["code_digest"] for row in rows_in(conn, query, c.code_digest, digests)}


def _named_by_schedules(conn: Connection) -> set[str]:
    query = select(schedule.c.definition).where(schedule.c.deleted_at.is_(None))
    found: set[Any] = set()
    for definition in conn.execute(query).scalars():
        run = definition.get("run")
        if isinstance(run, dict) and run.get("version"):
            found.add(run["version"])
    return found
