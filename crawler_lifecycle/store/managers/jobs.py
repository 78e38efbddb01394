"""Jobs of managers in the form of Scrapy Cloud, with the records of their runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, or_, select

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.manager import job_of_request, manager_workflow_id
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.base.unit import read_row
from crawler_lifecycle.store.runs.tables import run_history

from .queries import runs_of
from .rows import metadata_of
from .tables import manager, manager_item
from .unit import ManagerPart

_STATES = {
    "pending": (RunStatus.INITIALIZING,),
    "running": (RunStatus.PROCESSING, RunStatus.STOPPING),
    "finished": (RunStatus.COMPLETED, RunStatus.FAILED),
}
#: Pages that one call reads at most to find jobs that fit.
_ROUNDS = 20


class ManagerJobs(ManagerPart):
    """Part of ``ManagerStore`` that classes ask about jobs."""

    def job_metadata(self, manager_id: int, key: str) -> dict[str, Any] | None:
        """One job, by the id of its run (as text) or of its request, as ``rows.job_metadata`` has it,
        with ``key``; any run may be asked for, not only the manager's. ``None``: there is none."""
        r, i = run_history.c, manager_item.c
        by_id = key.isascii() and key.isdecimal() and len(key) <= 19 and 0 < int(key) <= ID_MAX
        with self._db.reading() as conn:
            query = select(r.run_id).where(r.run_id == int(key) if by_id else r.request_id == key)
            run_id = conn.execute(query).scalar_one_or_none()
            told = runs_of(conn, [{"run_id": run_id}]).get(run_id) if run_id is not None else None
            mine = i.run_id == run_id
            if told is None:
                begun_by, seq, retry = job_of_request(key) or (None, 0, 0)
                mine = and_(i.manager_id == begun_by, i.seq == seq, i.retry == retry)
            found = select(manager_item).where(i.manager_id == manager_id, mine).limit(1)
            row = conn.execute(found).mappings().one_or_none()
            return metadata_of(row, told) if row is not None or told is not None else None

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
        """Jobs of the manager (``all_flows``: of managers of its name in every flow) whose run is ``pending``,
        ``running`` or ``finished``, as ``job_metadata`` has them, and where the next page begins (``None``: there are
        no more). Finished ones: the latest end first; others: by their start. Raises ``InvalidRequest`` for a page that
        cannot be."""
        if not states or set(states) - _STATES.keys():
            raise InvalidRequest(f"state: {sorted(states)} is not allowed; give some of {', '.join(_STATES)}")
        with self._db.reading() as conn:
            row = read_row(conn, manager, manager_id)
            parent = manager_workflow_id(row["name"], row["flow_id"])
            prefix = f"manager/{row['name']}/"
            # A flow id may contain any character, so the range is of code points: after "/" comes "0".
            of = (
                and_(run_history.c.parent > prefix, run_history.c.parent < f"manager/{row['name']}0")
                if all_flows
                else run_history.c.parent == parent
            )
            if not all_flows:
                of = and_(of, manager_item.c.manager_id == manager_id)
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
        told = runs_of(conn, rows)
        jobs = [metadata_of(row, told[row["run_id"]]) for row in rows if row["run_id"] in told]
        found += [job for job in jobs if project_id is None or job["project_id"] == project_id]
        if after is None or len(found) >= limit:
            break
    return found, after


def _page(
    conn: Connection, of: ColumnElement[bool], states: Collection[str], after: str | None, limit: int
) -> tuple[Sequence[Row], str | None]:
    """One page, and the position after it: ``live:<run>`` or ``ended:<time>:<run>``."""
    kind, at, run_id = _place(after)
    r = run_history.c
    statuses = [status.value for state in states if state != "finished" for status in _STATES[state]]
    if kind == "live" and statuses:
        query = _jobs(of).where(r.status.in_(statuses), r.run_id > run_id).order_by(r.run_id).limit(limit)
        rows = conn.execute(query).mappings().all()
        if len(rows) == limit:
            return rows, f"live:{rows[-1]['run_id']}"
        return rows, "ended:" if "finished" in states else None
    if "finished" not in states:
        return [], None
    query = _jobs(of).where(r.status.in_([status.value for status in _STATES["finished"]]))
    if at is not None:
        query = query.where(or_(r.ended_at < at, and_(r.ended_at == at, r.run_id < run_id)), r.ended_at <= at)
    rows = conn.execute(query.order_by(r.ended_at.desc(), r.run_id.desc()).limit(limit)).mappings().all()
    full = len(rows) == limit
    return rows, f"ended:{rows[-1]['run_ended_at'].isoformat()}:{rows[-1]['run_id']}" if full else None


def _jobs(of: ColumnElement[bool]) -> Select[Any]:
    joined = run_history.join(manager_item, manager_item.c.run_id == run_history.c.run_id)
    query = select(manager_item, run_history.c.ended_at.label("run_ended_at")).select_from(joined)
    return query.where(of)


def _place(after: str | None) -> tuple[str, datetime | None, int]:
    """The position where a page begins. Raises ``InvalidRequest`` for an ``after`` that no page returned."""
    if after is None:
        return "live", None, 0
    kind, _, rest = after.partition(":")
    time, _, number = rest.rpartition(":")
    try:
        if kind == "live" and not time:
            return kind, None, min(int(number), ID_MAX)
        if kind == "ended":
            return kind, datetime.fromisoformat(time) if time else None, min(int(number or 0), ID_MAX)
    except ValueError:
        pass
    raise InvalidRequest(f"after: {after[:100]!r} is not allowed; give what the page before told")
