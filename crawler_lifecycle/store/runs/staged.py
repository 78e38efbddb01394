"""Findings of polls that are not applied yet, and debugging information about tasks that is not
written yet.

A staged row has a finding, details, or both. A poll that is applied immediately leaves the findings
of ended tasks here until their details are fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, func, select

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.last_words import error_of, short
from crawler_lifecycle.domain.task import ALIVE, tail
from crawler_lifecycle.ports.polls import Details, TaskFinding
from crawler_lifecycle.store.base.bulk import CHUNK, chunks, delete_rows, insert_rows
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.columns import compressed, storable

from .live_counters import COUNTERS
from .rows import load_details, load_finding
from .tables import task_finding, task_history, task_observation
from .unit import Unit

#: The columns of a staged row with data from a poll.
_PARTS = ("finding", "details")


def stage(unit: Unit, parts: Mapping[int, Mapping[str, Any]]) -> None:
    """Replace the staged parts (a finding, details) of these tasks.

    A row without any part is deleted.

    The function reads, deletes and inserts, because the syntax of upserts differs between
    databases. PyMySQL does not know the new syntax of MySQL 8, and would send an upsert row by row.
    """
    o = task_observation.c
    t = task_history.c
    rows = []
    for chunk in chunks(sorted(parts)):
        known = unit.conn.execute(
            select(t.task_id, t.task_index, o.task_id.label("earlier"), o.finding, o.details)
            .join_from(task_history, task_observation, t.task_id == o.task_id, isouter=True)
            .where(t.run_id == unit.run_id, t.task_id.in_(chunk))
        )
        replaced = []
        for old in known.mappings():
            part = parts[old["task_id"]]
            new = {
                name: _merged(old[name], part[name]) if name in part else old[name]
                for name in _PARTS
            }
            if old["earlier"] is not None:
                replaced.append(old["earlier"])
            if any(new.values()):
                rows.append(
                    (old["task_id"], unit.run_id, old["task_index"], unit.attempt, *new.values())
                )
        delete_rows(unit.conn, o.task_id, "PRIMARY", replaced)
    names = ("task_id", "run_id", "task_index", "attempt", "finding", "details")
    insert_rows(unit.conn, task_observation, names, rows)


def _merged(earlier: Any, later: Any) -> Any:
    """Return the later part.

    If its log or statistics are missing, they are taken from the earlier part.
    """
    if not isinstance(earlier, Mapping) or not isinstance(later, Mapping):
        return later
    kept = (
        name for name in ("log_tail", "statistics") if earlier.get(name) and not later.get(name)
    )
    return {**later, **{name: earlier[name] for name in kept}}


def staged_rows(unit: Unit) -> Iterable[Sequence[Row]]:
    """Return the staged rows of the run in chunks, so that the log tails of many tasks are never in
    memory together.
    """
    o = task_observation.c
    t = task_history.c
    last = -1
    while True:
        query = select(task_observation, t.status, t.cause).join(
            task_history, t.task_id == o.task_id
        )
        query = query.where(o.run_id == unit.run_id, o.task_index > last)
        rows = unit.conn.execute(query.order_by(o.task_index).limit(CHUNK)).mappings().all()
        if rows:
            yield rows
            last = rows[-1]["task_index"]
        if len(rows) < CHUNK:
            return


def forget_findings(unit: Unit) -> None:
    """Delete the applied findings, except findings of ended tasks whose details are missing."""
    o = task_observation.c
    t = task_history.c
    delete_rows(unit.conn, task_finding.c.run_id, "PRIMARY", [unit.run_id])
    alive = (
        select(o.task_id)
        .join(task_history, t.task_id == o.task_id)
        .where(o.run_id == unit.run_id, o.details.is_(None), t.status.in_(ALIVE))
    )
    delete_rows(unit.conn, o.task_id, "PRIMARY", unit.conn.execute(alive).scalars().all())


def forget_written(unit: Unit, rows: Sequence[Row]) -> None:
    """Delete the staged rows whose details are written, except rows whose finding is not applied
    yet.
    """
    applied = [row for row in rows if not row["finding"] or row["status"] not in ALIVE]
    done = [row["task_id"] for row in applied if row["details"]]
    delete_rows(unit.conn, task_observation.c.task_id, "PRIMARY", done)


def awaiting_details(conn: Connection, run_id: int) -> int:
    """Return the number of ended tasks whose details are not written."""
    o = task_observation.c
    t = task_history.c
    query = (
        select(func.count())
        .select_from(task_observation)
        .join(task_history, t.task_id == o.task_id)
    )
    return int(conn.execute(query.where(o.run_id == run_id, t.status.not_in(ALIVE))).scalar_one())


def shortened(details: Details) -> Details:
    if details.log_tail is None:
        return details
    return replace(details, log_tail=storable(tail(details.log_tail)))


def detail_columns(row: Row) -> dict[str, Any]:
    """Return the columns of a task that its staged row proves, with ``None`` for the others."""
    finding = load_finding(row) if row["finding"] else None
    foreign = finding is not None and is_foreign(finding)
    # Another object has the name of our task, so its node, counters, exit code and log prove
    # nothing about our task.
    seen = finding.observation if finding and not foreign else None
    details = load_details(row) if row["details"] and not foreign else None
    end = seen.end if seen else None
    # Live counters of an executing task may be newer than those of its poll, which ``record_poll``
    # has compared.
    counted = (details, seen) if finding is None or finding.change.after.terminal else ()
    counters = [source.counters for source in counted if source is not None]
    peaks = [source.peak_memory for source in (details, seen) if source is not None]
    error = _error(finding, details) if finding and not foreign else None
    return {
        "task_id": row["task_id"],
        "cause": _with_error(row["cause"], error) if row["status"] not in ALIVE else None,
        "reason": (end.reason if end else None) or (seen.reason if seen else None),
        "exit_code": end.exit_code if end else None,
        "exit_signal": end.signal if end else None,
        "node": seen.node if seen else None,
        "started_at": seen.started_at if seen else None,
        "peak_memory": max((peak for peak in peaks if peak is not None), default=None),
        **{
            name: next((v for c in counters if (v := getattr(c, name)) is not None), None)
            for name in COUNTERS
        },
        "error": error,
        "compressed": compressed(details.log_tail) if details and details.log_tail else None,
        "stats": details.statistics if details else None,
    }


def _error(finding: TaskFinding, details: Details | None) -> str | None:
    line = error_of(finding.change, finding.observation.end, details.log_tail if details else None)
    return None if line is None else short(redaction.current().text(line))


def _with_error(cause: str | None, error: str | None) -> str | None:
    """Return the cause of an end, followed by the crawler's error; ``None`` if the cause does not
    change.
    """
    if cause is None or error is None or error[:100] in cause:
        return None
    return f"{cause}: {error}"


def is_foreign(finding: TaskFinding) -> bool:
    return finding.change.correction == "not_ours"
