"""Queries of managers' jobs in the form of Scrapy Cloud, with the facts about their runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, or_, select

from crawler_lifecycle.domain.bounds import ID_MAX, whole
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import manager_workflow_id
from crawler_lifecycle.store.base.rows import Row, seen
from crawler_lifecycle.store.base.unit import read_row
from crawler_lifecycle.store.runs.tables import run_history

from ..domain.manager import job_of_request
from .queries import runs_of
from .rows import STATES, metadata_of
from .tables import manager, manager_item
from .unit import ManagerPart

#: The maximum number of pages that one call reads to find enough jobs.
_ROUNDS = 20


class ManagerJobs(ManagerPart):
    """The methods of ``ManagerStore`` that answer classes' questions about jobs."""

    def job_metadata(self, manager_id: int, key: str) -> dict[str, Any] | None:
        """Return one job in the form of ``rows.metadata_of``, or ``None`` if the job does not
        exist.

        ``key`` is the number of the job's run (as a string) or the request id of this run. A key
        may also identify another run in the same project.
        """
        r = run_history.c
        i = manager_item.c
        number = whole(key)
        with self._db.reading() as conn:
            query = select(r.run_id).where(
                r.run_id == number if number else r.request_id == key, *seen(run_history)
            )
            run_id = conn.execute(query).scalar_one_or_none()
            its_run = (
                runs_of(conn, [{"run_id": run_id}]).get(run_id) if run_id is not None else None
            )
            mine = i.run_id == run_id
            if its_run is None:
                begun_by, seq, retry = job_of_request(key) or (None, 0, 0)
                mine = and_(i.manager_id == begun_by, i.seq == seq, i.retry == retry)
            found = select(manager_item).where(i.manager_id == manager_id, mine).limit(1)
            row = conn.execute(found).mappings().one_or_none()
            return metadata_of(row, its_run) if row is not None or its_run is not None else None

    def owned_jobs(
        self,
        manager_id: int,
        states: Collection[str],
        *,
        all_flows: bool = False,
        spider: str | None = None,
        project_id: str | None = None,
        after: str | None = None,
        limit: int = 500,
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of jobs of the manager whose run is in one of these states, and the
        position of the next page.

        ``states`` are ``pending``, ``running`` or ``finished``. If ``all_flows`` is true, return
        jobs of all managers with the same name. The jobs have the form of ``rows.metadata_of``.
        Jobs that have not finished come first, by run number. Finished jobs follow, latest end
        first. The position is ``None`` on the last page. Raises ``InvalidRequest`` for an unknown
        state or an invalid ``after``.
        """
        if not states or set(states) - STATES.keys():
            raise InvalidRequest(
                f"state: {sorted(states)} is not allowed; give one or more of {', '.join(STATES)}"
            )
        with self._db.reading() as conn:
            row = read_row(conn, manager, manager_id)
            parent = run_history.c.parent
            if all_flows:
                # A flow id may contain any character. The range contains every id with the prefix,
                # because "0" is the next character after "/".
                of = and_(parent > f"manager/{row['name']}/", parent < f"manager/{row['name']}0")
            else:
                mine = parent == manager_workflow_id(row["name"], row["flow_id"])
                of = and_(mine, manager_item.c.manager_id == manager_id)
            if spider is not None:
                of = and_(of, manager_item.c.spider == spider)
            return _pages(conn, of, states, project_id, after, limit)


def _pages(
    conn: Connection,
    of: ColumnElement[bool],
    states: Collection[str],
    project_id: str | None,
    after: str | None,
    limit: int,
) -> tuple[list[dict[str, Any]], str | None]:
    found: list[dict[str, Any]] = []
    for _ in range(_ROUNDS):
        rows, after = _page(conn, of, states, after, limit)
        runs = runs_of(conn, rows)
        jobs = [metadata_of(row, runs[row["run_id"]]) for row in rows if row["run_id"] in runs]
        found += [job for job in jobs if project_id is None or job["project_id"] == project_id]
        if after is None or len(found) >= limit:
            break
    return found, after


def _page(
    conn: Connection,
    of: ColumnElement[bool],
    states: Collection[str],
    after: str | None,
    limit: int,
) -> tuple[Sequence[Row], str | None]:
    """Return one page, and the position after it: ``live:<run>`` or ``ended:<time>:<run>``, or
    ``None`` at the end.
    """
    kind, at, run_id = _position(after)
    r = run_history.c
    statuses = [status for state in states if state != "finished" for status in STATES[state]]
    if kind == "live" and statuses:
        query = (
            _jobs(of)
            .where(r.status.in_(statuses), r.run_id > run_id)
            .order_by(r.run_id)
            .limit(limit)
        )
        rows = conn.execute(query).mappings().all()
        if len(rows) == limit:
            return rows, f"live:{rows[-1]['run_id']}"
        return rows, "ended:" if "finished" in states else None
    if "finished" not in states:
        return [], None
    query = _jobs(of).where(r.status.in_(STATES["finished"]))
    if at is not None:
        query = query.where(
            or_(r.ended_at < at, and_(r.ended_at == at, r.run_id < run_id)), r.ended_at <= at
        )
    rows = (
        conn.execute(query.order_by(r.ended_at.desc(), r.run_id.desc()).limit(limit))
        .mappings()
        .all()
    )
    full = len(rows) == limit
    return (
        rows,
        f"ended:{rows[-1]['run_ended_at'].isoformat()}:{rows[-1]['run_id']}" if full else None,
    )


def _jobs(of: ColumnElement[bool]) -> Select[Any]:
    joined = run_history.join(manager_item, manager_item.c.run_id == run_history.c.run_id)
    query = select(manager_item, run_history.c.ended_at.label("run_ended_at")).select_from(joined)
    return query.where(of, *seen(run_history))


def _position(after: str | None) -> tuple[str, datetime | None, int]:
    """Return the position where a page begins.

    Raises ``InvalidRequest`` if ``after`` is not a valid position.
    """
    if after is None:
        return "live", None, 0
    kind, _, rest = after.partition(":")
    time, _, number = rest.rpartition(":")
    try:
        if kind == "live" and not time:
            return kind, None, min(int(number), ID_MAX)
        if kind == "ended":
            return (
                kind,
                datetime.fromisoformat(time) if time else None,
                min(int(number or 0), ID_MAX),
            )
    except ValueError:
        pass
    raise InvalidRequest(
        f"after: {after[:100]!r} is not allowed; give the position that the previous page returned"
    )
