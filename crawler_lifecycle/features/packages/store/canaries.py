"""The store of canaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import chain
from operator import itemgetter

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    exists,
    func,
    or_,
    select,
    update,
)

from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.features.canaries.domain.canary import GIVEN_MAX, CanaryRow, CanaryState
from crawler_lifecycle.features.canaries.domain.judge import ComparedRun, Crawler
from crawler_lifecycle.features.canaries.store import rows as canary_rows
from crawler_lifecycle.features.canaries.store.rows import canary_row, tell_end
from crawler_lifecycle.features.canaries.store.tables import canary
from crawler_lifecycle.features.catalogue.store.entries import EntryChange, replace_number
from crawler_lifecycle.features.catalogue.store.tables import catalogue_entry
from crawler_lifecycle.ports.entries import number_of
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.rows import Row, made, seen, wanted
from crawler_lifecycle.store.base.unit import StorePart
from crawler_lifecycle.store.runs.tables import OVER_RUNS, run_code, run_history

from .rows import make_current
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
_ENDED = [
    *(_r[name] for name in ("run_id", "project", "crawler", "status", "outcome", "ended_by")),
    *(_r[name] for name in ("lacks", "cause", "pages", "items", "fields", "started_at")),
    _r.ended_at,
]


class CanaryStore(StorePart):
    """Canaries, and the runs that they are judged by."""

    def list_canaries(
        self,
        before_id: int | None = None,
        limit: int = 50,
        *,
        package: str | None = None,
        crawler: str | None = None,
        state: str | None = None,
    ) -> list[CanaryRow]:
        """Return the canaries that match all given filters, newest first.

        ``crawler`` is an entry of the catalogue with versions of its own.
        """
        mine = [*wanted((_c.package, package), (_c.package, crawler), (_c.state, state))]
        if package is not None:
            mine.append(_c.new_digest != "")
        if crawler is not None:
            mine.append(_c.new_digest == "")
        mine += seen(canary, leads=True)
        query = select(canary).where(*mine).order_by(_c.canary_id.desc()).limit(limit)
        if before_id is not None:
            query = query.where(_c.canary_id < before_id)
        return [canary_row(row) for row in self._rows(query)]

    def get_canary(self, canary_id: int) -> CanaryRow | None:
        """Return the canary with this number."""
        rows = self._rows(select(canary).where(_c.canary_id == canary_id, *seen(canary)))
        return canary_row(rows[0]) if rows else None

    def open_canary(self, name: str, *, of_entry: bool = False) -> int | None:
        """Return the number of the canary of a package or entry, if one is open."""
        held = canary_rows.of_entry(name) if of_entry else canary_rows.of_package(name)
        with self._db.reading() as conn:
            row = canary_rows.open_canary(conn, held)
        return None if row is None else row["canary_id"]

    def held(self, state: CanaryState) -> list[CanaryRow]:
        """Return the canaries in this state that no later change of their packages has settled."""
        query = select(canary).where(_c.state == state, _c.holder.is_not(None))
        query = query.order_by(_c.canary_id.desc()).limit(CANARIES_MAX)
        return [canary_row(row) for row in self._rows(query)]

    def new_runs(self, canary_id: int) -> list[ComparedRun]:
        """Return the first ended runs with the new version that no person stopped, at most as many
        as are judged.
        """
        with self._db.reading() as conn:
            row = conn.execute(select(canary).where(_c.canary_id == canary_id)).mappings().one()
            run_ids = _new_runs(row)
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
            row = conn.execute(select(canary).where(_c.canary_id == canary_id)).mappings().one()
            others = _is_other(row)
            return {crawler: _newest(conn, crawler, others) for crawler in crawlers}

    def end_canary(self, canary_id: int, state: CanaryState, by: str, result: str) -> CanaryRow:
        """End an open canary, make the accepted version current, and append the event.

        An end that was decided before stays, and nothing changes. Raises ``NotInThisState`` if
        there is no such canary, and ``TooManyOpen``.
        """
        this = _c.canary_id == canary_id

        def write(conn: Connection) -> CanaryRow:
            query = select(_c.package, _c.new_digest).where(this, *seen(canary))
            found = conn.execute(query).one_or_none()
            if found is None:
                raise NotInThisState(f"there is no canary {canary_id}")
            now = self._clock()
            # Deploys and changes of entries lock the package or the entry first, too.
            of = package.c.name if found.new_digest else catalogue_entry.c.name
            conn.execute(select(of).where(of == found.package).with_for_update())
            ended = {"state": state, "ended_at": now, "ended_by": by, "result": result}
            if state is CanaryState.ACCEPTED or by != JUDGE:
                ended["holder"] = None  # nobody has to act
            open_ = (this, _c.state == CanaryState.OPEN)
            fresh = conn.execute(update(canary).where(*open_).values(**ended)).rowcount
            row = conn.execute(select(canary).where(this)).mappings().one()
            ended_canary = canary_row(row)
            accepted = fresh and state is CanaryState.ACCEPTED
            if accepted and not _accept(conn, ended_canary, by, now):
                # An older build changes entries without an end of their canaries.
                why = "another version was set"
                other = {"state": CanaryState.CANCELLED, "result": why}
                conn.execute(update(canary).where(this).values(**other))
                return replace(ended_canary, state=CanaryState.CANCELLED, result=why)
            if fresh:
                tell_end(conn, row, now)
            return ended_canary

        return self._db.inserting(f"entries of canary {canary_id}", write)


def _accept(conn: Connection, tried: CanaryRow, by: str, now: datetime) -> bool:
    """Make the new version of a canary current. Returns false if the old one is not current."""
    if tried.package is None:
        change = EntryChange(tried.project, now, by)
        numbers = number_of(tried.old_version), number_of(tried.new_version)
        return replace_number(conn, tried.name, *numbers, change)
    make_current(conn, tried.package, tried.new_version, by, now)
    return True


def _new_runs(row: Row) -> Select[tuple[int]]:
    """Return the query for the first runs with the new version of a canary."""
    if row["new_digest"]:
        query = select(_k.run_id).where(_k.code_digest == row["new_digest"])
        return query.where(_k.run_id > row["after_run_id"]).order_by(_k.run_id).limit(GIVEN_MAX)
    query = select(_r.run_id).where(_r.crawler == row["package"], _has_new_number(row))
    # No index has the version, so the search ends when all runs that got it are found.
    return query.order_by(_r.run_id).limit(min(row["given"], GIVEN_MAX))


def _is_other(row: Row) -> ColumnElement[bool]:
    """Return the condition that a run has another version than the new one of a canary."""
    if not row["new_digest"]:
        return ~_has_new_number(row)
    new = (_k.code_digest == row["new_digest"], _k.run_id > row["after_run_id"])
    return ~exists().where(*new, _k.run_id == _r.run_id)


def _has_new_number(row: Row) -> ColumnElement[bool]:
    number = func.coalesce(_r.request["version"].as_string(), "")
    return and_(_r.run_id > row["after_run_id"], number == row["new_version"])


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
