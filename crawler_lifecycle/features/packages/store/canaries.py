"""The store of canaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, func, insert, or_, select, update

from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.names import EVENT_CANARY_ACCEPTED, EVENT_CANARY_REJECTED
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.outbox import facts, insert_event
from crawler_lifecycle.store.base.rows import Row, made, seen, wanted
from crawler_lifecycle.store.base.unit import StorePart
from crawler_lifecycle.store.runs.tables import OVER_RUNS, run_code, run_history

from ..domain.canary import GIVEN_MAX, CanaryRow, CanarySettings, CanaryState, Judge, gets_new
from ..domain.judge import ComparedRun, Crawler
from ..domain.version import PackageVersion
from .canary_table import canary
from .rows import follow
from .tables import package

_c = canary.c
_r = run_history.c
_k = run_code.c
#: The number of completed and of failed runs with other versions that are read for each crawler.
OLD_RUNS = 20
#: The maximum number of open canaries that are judged, and of rejected ones that are reported.
CANARIES_MAX = 500
#: Who ends a canary that no person ends.
JUDGE = "judge"
_EVENTS = {
    CanaryState.ACCEPTED: EVENT_CANARY_ACCEPTED,
    CanaryState.REJECTED: EVENT_CANARY_REJECTED,
}
_TOLD = (
    *("canary_id", "package", "project", "old_version", "new_version", "share", "asked", "given"),
    *("state", "ended_at", "ended_by"),
)
_ENDED = [
    *(_r[name] for name in ("run_id", "project", "crawler", "status", "outcome", "ended_by")),
    *(_r[name] for name in ("lacks", "cause", "pages", "items", "fields", "started_at")),
    _r.ended_at,
]


def choose(conn: Connection, canary_id: int) -> tuple[str, str] | None:
    """Return the version, and its digest, for a run that names none; ``None`` if the canary has
    ended.

    Each call counts as one run, so this belongs in the transaction that records the run.
    """
    this = _c.canary_id == canary_id
    query = select(canary).where(this, _c.state == CanaryState.OPEN).with_for_update()
    row = conn.execute(query).mappings().one_or_none()
    if row is None:
        return None
    new = gets_new(row["share"], row["asked"], row["given"])
    counts = {"asked": row["asked"] + 1, "given": row["given"] + new}
    conn.execute(update(canary).where(this).values(**counts))
    which = "new" if new else "old"
    return row[f"{which}_version"], row[f"{which}_digest"]


def start_canary(
    conn: Connection,
    settings: CanarySettings,
    old: PackageVersion,
    new: PackageVersion,
    **values: Any,
) -> None:
    """Insert a canary of a package that has no other one. ``values`` contains further columns."""
    newest = conn.execute(select(func.max(_r.run_id))).scalar_one()
    versions = {"old_version": old.version, "old_digest": old.digest}
    versions |= {"new_version": new.version, "new_digest": new.digest}
    limits = {"share": settings.share, "runs": settings.runs, "judge": [*settings.judge]}
    owner = {"package": new.package, "project": new.project, "holder": new.package}
    counts = {"asked": 0, "given": 0, "after_run_id": newest or 0}
    row = {**versions, **limits, **owner, **counts, "state": CanaryState.OPEN, **values}
    conn.execute(insert(canary).values(**row))


def cancel_canary(
    conn: Connection,
    name: str,
    by: str | None,
    now: datetime,
    why: str,
    version: str | None = None,
) -> None:
    """Cancel the open canary of a package, and close the incident about a rejected one; with
    ``version`` only if the canary tries this version.
    """
    mine = and_(_c.holder == name, *wanted((_c.new_version, version)))
    ended = {"state": CanaryState.CANCELLED, "ended_at": now, "ended_by": by, "result": why}
    conn.execute(update(canary).where(mine, _c.state == CanaryState.OPEN).values(**ended))
    conn.execute(update(canary).where(mine).values(holder=None))


class CanaryStore(StorePart):
    """Canaries, and the runs that they are judged by."""

    def list_canaries(
        self,
        before_id: int | None = None,
        limit: int = 50,
        *,
        package: str | None = None,
        state: str | None = None,
    ) -> list[CanaryRow]:
        """Return the canaries that match all given filters, newest first."""
        mine = (*wanted((_c.package, package), (_c.state, state)), *seen(canary, leads=True))
        query = select(canary).where(*mine).order_by(_c.canary_id.desc()).limit(limit)
        if before_id is not None:
            query = query.where(_c.canary_id < before_id)
        return [_canary(row) for row in self._rows(query)]

    def get_canary(self, canary_id: int) -> CanaryRow | None:
        """Return the canary with this number."""
        rows = self._rows(select(canary).where(_c.canary_id == canary_id, *seen(canary)))
        return _canary(rows[0]) if rows else None

    def held(self, state: CanaryState) -> list[CanaryRow]:
        """Return the canaries in this state that no later change of their packages has settled."""
        query = select(canary).where(_c.state == state, _c.holder.is_not(None))
        query = query.order_by(_c.canary_id.desc()).limit(CANARIES_MAX)
        return [_canary(row) for row in self._rows(query)]

    def new_runs(self, canary_id: int) -> list[ComparedRun]:
        """Return the first ended runs with the new version that no person stopped, at most as many
        as are judged.
        """
        with self._db.reading() as conn:
            row = conn.execute(select(canary).where(_c.canary_id == canary_id)).mappings().one()
            new = (_k.code_digest == row["new_digest"], _k.run_id > row["after_run_id"])
            run_ids = select(_k.run_id).where(*new).order_by(_k.run_id).limit(GIVEN_MAX)
            counted = or_(_r.ended_by.is_(None), _r.ended_by != EndedBy.PERSON)
            query = select(*_ENDED).where(_r.status.in_(OVER_RUNS), counted)
            ended = rows_in(conn, query, _r.run_id, conn.execute(run_ids).scalars())
            first = sorted(ended, key=itemgetter("run_id"))[: row["runs"]]
            return list(_ended(first))

    def old_runs(
        self, canary_id: int, crawlers: Iterable[Crawler]
    ) -> dict[Crawler, list[ComparedRun]]:
        """Return the last ended runs of each crawler with other versions than the new one, newest
        first.
        """
        with self._db.reading() as conn:
            query = select(_c.new_digest, _c.after_run_id).where(_c.canary_id == canary_id)
            digest, after = conn.execute(query).one()
            new = (_k.code_digest == digest, _k.run_id > after, _k.run_id == _r.run_id)
            others = ~exists().where(*new)
            return {crawler: _newest(conn, crawler, others) for crawler in crawlers}

    def end_canary(self, canary_id: int, state: CanaryState, by: str, result: str) -> CanaryRow:
        """End an open canary, make the accepted version current, and append the event.

        An end that was decided before stays, and nothing changes. Raises ``NotInThisState`` if
        there is no such canary, and ``TooManyOpen``.
        """
        this = _c.canary_id == canary_id

        def write(conn: Connection) -> CanaryRow:
            query = select(_c.package, _c.new_version).where(this, *seen(canary))
            found = conn.execute(query).one_or_none()
            if found is None:
                raise NotInThisState(f"there is no canary {canary_id}")
            now = self._clock()
            # Deploys lock the package first, too.
            mine = package.c.name == found.package
            conn.execute(select(package.c.name).where(mine).with_for_update())
            ended = {"state": state, "ended_at": now, "ended_by": by, "result": result}
            if state is CanaryState.ACCEPTED or by != JUDGE:
                ended["holder"] = None  # nobody has to act
            open_ = (this, _c.state == CanaryState.OPEN)
            fresh = conn.execute(update(canary).where(*open_).values(**ended)).rowcount
            row = conn.execute(select(canary).where(this)).mappings().one()
            if fresh and state is CanaryState.ACCEPTED:
                current = {"current": found.new_version, "changed_at": now, "changed_by": by}
                conn.execute(update(package).where(mine).values(**current))
                follow(conn, found.package, by, now)
            if fresh:
                body = {**facts(row, *_TOLD), "name": row["package"], "cause": result}
                subject = f"packages/{found.package}"
                insert_event(conn, now, _EVENTS[state], subject, row["canary_uid"], body)
            return _canary(row)

        return self._db.inserting(f"entries of canary {canary_id}", write)


def _canary(row: Row) -> CanaryRow:
    judge = [Judge(word) for word in row["judge"]]
    return made(CanaryRow, row, state=CanaryState(row["state"]), judge=judge)


def _newest(conn: Connection, crawler: Crawler, others: ColumnElement[bool]) -> list[ComparedRun]:
    project, name = crawler
    query = select(*_ENDED).where(_r.project == project, _r.crawler == name, others)
    query = query.order_by(_r.run_id.desc()).limit(OLD_RUNS)
    query = query.with_hint(
        run_history, "FORCE INDEX (ix_run_history_project_crawler_status_run_id)", "mysql"
    )
    pages = [conn.execute(query.where(_r.status == status)).mappings() for status in OVER_RUNS]
    newest = sorted(chain(*pages), key=lambda row: row["run_id"], reverse=True)
    return list(_ended(row for row in newest if row["ended_by"] != EndedBy.PERSON))


def _ended(rows: Iterable[Row]) -> Iterator[ComparedRun]:
    for row in rows:
        counts = {"pages": row["pages"] or 0, "items": row["items"] or 0}
        yield made(ComparedRun, row, coverage=Coverage.of(row["fields"]), **counts)
