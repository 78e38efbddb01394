"""Bulk changes of tasks in a fixed number of statements, which lock only these tasks.

The new values (end times, exit codes, names) differ for each task. One bulk INSERT writes them into
the worktable ``task_change``, and one UPDATE with a join applies them. The alternatives are worse.
A ``CASE`` expression for each chunk compiles a new statement with thousands of parameters each
time. An upsert has no WHERE on MySQL, so it allows no compare-and-set. A temporary table is DDL,
which MySQL's replication with GTIDs restricts inside transactions.

The rows of the worktable are deleted in the same transaction. The key of the worktable starts with
the run, whose row is locked.

Transitions and corrections are inserted from the same worktable just before the UPDATE, so their
strings are sent to the database only once. The findings of a poll are immediately written into a
similar table (``task_finding``). Applying them takes only three statements inside the database, so
locks are held briefly.

These statements and the DELETEs are written by hand. SQLite needs ``UPDATE … FROM``, and MySQL and
MariaDB need index hints. While a table is small, the optimizers prefer a full scan. Such a scan
waits for every locked row, and two runs that do this at the same time cause a deadlock (measured: 3
in 72 runs). An UPDATE of one table needs no hint under READ COMMITTED, because it skips locked rows
that do not match its WHERE.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import TextClause, bindparam, delete, func, select, text

from crawler_lifecycle.domain.audits.corrections import CorrectionKind, untrue_ms
from crawler_lifecycle.domain.task import Change, task_may_become
from crawler_lifecycle.ports.polls import CommittedCorrection, CorrectionRow, TaskChanged
from crawler_lifecycle.store.base.bulk import change_in, delete_rows, insert_mappings
from crawler_lifecycle.store.base.rows import Row, made
from crawler_lifecycle.store.columns import JsonText, UtcTime

from .tables import (
    correction,
    status_transition,
    task_change,
    task_finding,
    task_history,
    task_observation,
)
from .unit import Unit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Move(Change):
    """A change of the status of a task. ``values`` contains further columns of its row."""

    vouched_at: datetime | None = None
    """The time when a poll last confirmed the recorded status; ``None`` if no poll did."""
    evidence: Mapping[str, Any] | JsonText = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


#: The columns of a task that describe its outcome.
OF_END = ("outcome", "ended_by", "cause")
_SAME_TASK = "w.run_id = :run_id AND t.run_id = w.run_id AND t.task_id = w.task_id"
_AS_BELIEVED = f"{_SAME_TASK} AND t.status = w.believed AND t.superseded_by IS NULL"


def _join(work: str) -> str:
    return (
        f"{work} AS w FORCE INDEX (PRIMARY) STRAIGHT_JOIN task_history AS t FORCE INDEX (PRIMARY)"
    )


#: The cause that a poll found, followed by the error from the log unless the cause already contains
#: it.
_CAUSE = {
    dialect: "COALESCE(CASE WHEN t.error IS NULL OR INSTR(w.cause, SUBSTR(t.error, 1, 100)) > 0 "
    "THEN w.cause "
    f"ELSE {joined} END, t.cause)"
    for dialect, joined in (
        ("mysql", "CONCAT(w.cause, ': ', t.error)"),
        ("sqlite", "w.cause || ': ' || t.error"),
    )
}


@functools.cache
def _copy(
    dialect: str,
    work: str,
    replace: tuple[str, ...],
    fill: tuple[str, ...],
    nulls: tuple[str, ...],
    cas: bool,
) -> TextClause:
    """Return the UPDATE that copies columns from the worktable.

    The statement contains only fixed names, and no user input.
    """
    values = {name: f"w.{name}" for name in replace}
    values |= {name: f"COALESCE(w.{name}, t.{name})" for name in fill}
    values |= dict.fromkeys(nulls, "NULL")
    if work == "task_finding":
        values |= {
            "status_since": "COALESCE(w.cluster_time, :now)",
            "ended_at": (
                "CASE WHEN w.terminal THEN COALESCE(w.cluster_time, :now) ELSE t.ended_at END"
            ),
            "cause": _CAUSE[dialect],
        }
    where = _AS_BELIEVED if cas else _SAME_TASK
    if dialect == "sqlite":
        assigned = ", ".join(f"{name} = {value}" for name, value in values.items())
        update = f"UPDATE task_history AS t SET {assigned} FROM {work} AS w WHERE {where}"  # noqa: S608
    else:
        assigned = ", ".join(f"t.{name} = {value}" for name, value in values.items())
        update = f"UPDATE {_join(work)} SET {assigned} WHERE {where}"  # noqa: S608
    return _timed(update)


_TRANSITION = {
    "run_id": "w.run_id",
    "task_id": "w.task_id",
    "attempt": "t.attempt",
    "from_status": "w.believed",
    "to_status": "w.status",
    "cluster_time": "w.cluster_time",
    "committed_at": ":now",
    "lag_ms": "w.lag_ms",
    "source": ":source",
    "evidence": "w.evidence",
}
_CORRECTION = {
    "run_id": "w.run_id",
    "project": ":project",
    "task_id": "w.task_id",
    "attempt": "t.attempt",
    "kind": "w.correction",
    "believed": "w.believed",
    "believed_since": "t.status_since",
    "truth": "w.status",
    "truth_since": "w.cluster_time",
    "found_by": ":source",
    "lag_ms": "w.lag_ms",
    "evidence": "w.evidence",
    "created_at": ":now",
}
#: The milliseconds from a time until now, computed as in ``untrue_ms``.
_LAG = {
    "mysql": "GREATEST(0, ROUND(TIMESTAMPDIFF(MICROSECOND, {}, :now) / 1000))",
    "sqlite": "MAX(0, CAST(ROUND((julianday(:now) - julianday({})) * 86400000) AS INTEGER))",
}
#: The time since which the recorded status was wrong, computed as in
#: ``domain.audits.corrections.untrue_since``. If the cluster does not provide a time, this is the
#: last time when a poll confirmed the recorded status.
_UNTRUE = {
    "mysql": "GREATEST(t.status_since, COALESCE(w.cluster_time, w.vouched_at, t.status_since))",
    "sqlite": "MAX(t.status_since, COALESCE(w.cluster_time, w.vouched_at, t.status_since))",
}


@functools.cache
def _insert_changes(dialect: str, work: str, table: str) -> TextClause:
    """Return the INSERT of the transitions or corrections for the coming changes.

    The INSERT locks the rows of the tasks, because other programs can write them. The later UPDATE
    therefore changes exactly the rows that the INSERT has reported.
    """
    columns, also = (
        (_TRANSITION, "")
        if table == "status_transition"
        else (_CORRECTION, " AND w.correction <> ''")
    )
    if work == "task_finding":
        since = "w.cluster_time" if table == "status_transition" else _UNTRUE[dialect]
        columns = {**columns, "lag_ms": _LAG[dialect].format(since)}
    mysql = dialect == "mysql"
    tables = _join(work) if mysql else f"{work} AS w CROSS JOIN task_history AS t"
    lock = " FOR UPDATE" if mysql else ""
    chosen = (
        f"SELECT {', '.join(columns.values())} FROM {tables} WHERE {_AS_BELIEVED}{also} ORDER "  # noqa: S608
        f"BY w.task_id{lock}"
    )
    return _timed(f"INSERT INTO {table} ({', '.join(columns)}) {chosen}")


def _timed(statement: str) -> TextClause:
    clause = text(statement)
    return clause.bindparams(bindparam("now", type_=UtcTime())) if ":now" in statement else clause


def _apply(
    unit: Unit,
    replace: Sequence[str],
    fill: Sequence[str],
    nulls: Sequence[str] = (),
    *,
    cas: bool = False,
) -> int:
    """Copy columns from the worktable, and empty it. Returns the number of matched rows.

    Columns in ``replace`` are copied unchanged. Columns in ``fill`` are copied only if the
    worktable has a value. Columns in ``nulls`` become null.
    """
    statement = _copy(
        unit.conn.dialect.name, "task_change", tuple(replace), tuple(fill), tuple(nulls), cas
    )
    done = unit.conn.execute(statement, {"run_id": unit.run_id})
    delete_rows(unit.conn, task_change.c.run_id, "PRIMARY", [unit.run_id])
    return done.rowcount


def forget_staged(unit: Unit) -> None:
    """Delete all staged rows of the run."""
    delete_rows(
        unit.conn, task_observation.c.run_id, "ix_task_observation_run_id_task_index", [unit.run_id]
    )
    delete_rows(unit.conn, task_finding.c.run_id, "PRIMARY", [unit.run_id])


def update_tasks(
    unit: Unit,
    rows: Sequence[Mapping[str, Any]],
    *,
    replace: Sequence[str],
    fill: Sequence[str] = (),
    nulls: Sequence[str] = (),
) -> int:
    """Write columns of tasks of the run, except the status. Returns the number of tasks.

    Every row has ``task_id`` and all columns in ``replace`` and ``fill``. Columns in ``nulls``
    become null.
    """
    if not rows:
        return 0
    insert_mappings(unit.conn, task_change, rows, run_id=unit.run_id)
    return _apply(unit, replace, fill, nulls)


def move_tasks(
    unit: Unit,
    moves: Sequence[Move],
    source: str,
    *,
    replace: Sequence[str] = (),
) -> int:
    """Change statuses by compare-and-set, with their transitions and corrections.

    Returns the number of changes.

    A task does not change if its recorded status is not ``before``, if it is superseded, or if the
    status must not become ``after``. In these cases another transaction was faster, and the next
    poll decides again. ``replace`` names the columns in ``Move.values``.
    """
    wanted = {move.task_id: move for move in moves if task_may_become(move.before, move.after)}
    if not wanted:
        return 0
    rows = []
    for move in wanted.values():
        when = move.cluster_time or unit.dated
        lag = untrue_ms(unit.dated, move.cluster_time)
        rows.append(
            _row(
                move, status_since=when, ended_at=when if move.after.terminal else None, lag_ms=lag
            )
        )
    insert_mappings(unit.conn, task_change, rows, run_id=unit.run_id)
    with _remembered(unit):
        moved = _insert_all(unit, "task_change", source)
        columns = ("status", "status_since", *replace)
        _apply(unit, columns, (*OF_END, "ended_at"), ("offered_until",), cas=True)
    if moved:
        unit.changed = True
        unit.update_run(look_revision=unit.next_revision)
    return moved


def _insert_all(unit: Unit, work: str, source: str) -> int:
    """Insert the transitions and corrections for the coming changes.

    Returns the number of tasks that will change.
    """
    values = {"run_id": unit.run_id, "now": unit.dated, "source": source}
    moved = unit.conn.execute(
        _insert_changes(unit.conn.dialect.name, work, "status_transition"), values
    ).rowcount
    if moved:
        values["project"] = unit.run["project"]
        unit.conn.execute(_insert_changes(unit.conn.dialect.name, work, "correction"), values)
    return moved


@contextmanager
def _remembered(unit: Unit) -> Iterator[None]:
    """Collect the transitions and corrections that the block inserts, for an event and for the
    report after the commit.
    """
    s = status_transition.c
    c = correction.c
    t = task_history.c
    # While the row of the run is locked, no other transaction inserts transitions or corrections of
    # the run.
    seq = (
        unit.conn.execute(select(func.max(s.seq)).where(s.run_id == unit.run_id)).scalar_one() or 0
    )
    last = (
        unit.conn.execute(select(func.max(c.id)).where(c.run_id == unit.run_id)).scalar_one() or 0
    )
    yield
    if unit.told is not None:
        moved = select(s.to_status, s.source, s.lag_ms).where(s.run_id == unit.run_id, s.seq > seq)
        unit.told_changes += [TaskChanged(*row) for row in unit.conn.execute(moved)]
    wrong = (
        select(correction, t.cause)
        .join_from(correction, task_history, c.task_id == t.task_id)
        .where(c.run_id == unit.run_id, c.id > last)
        .order_by(c.id)
    )
    for row in map(dict, unit.conn.execute(wrong).mappings()):
        cause = row.pop("cause")
        unit.told_corrections.append(CommittedCorrection(made(CorrectionRow, row), cause))
        unit.corrections.append(unit.told_corrections[-1].row)


def stage_moves(unit: Unit, seen: Collection[int], moves: Sequence[Move]) -> None:
    """Stage the moves of a poll until ``apply_staged``.

    These moves replace earlier staged moves of the ``seen`` tasks.

    The worker of an earlier poll may have died after it staged moves and set the time of the next
    poll, but before the moves were applied. The information about lateness from the earlier poll is
    kept: whether a change was found late, and when a poll last confirmed the recorded status.
    """
    c = task_finding.c
    query = select(c.task_id, c.status, c.correction, c.vouched_at).where(c.run_id == unit.run_id)
    kept = {
        row["task_id"]: row for row in unit.conn.execute(query).mappings() if row["task_id"] in seen
    }
    change_in(unit.conn, delete(task_finding).where(c.run_id == unit.run_id), c.task_id, kept)
    found = [
        _as_late(move, kept.get(move.task_id))
        for move in moves
        if task_may_become(move.before, move.after)
    ]
    insert_mappings(
        unit.conn,
        task_finding,
        [_row(move, terminal=move.after.terminal, vouched_at=move.vouched_at) for move in found],
        run_id=unit.run_id,
    )


def _as_late(move: Move, earlier: Row | None) -> Move:
    """Return the move.

    If an earlier poll found the same change, the move gets the lateness that the earlier poll
    found.
    """
    if earlier is None or earlier["status"] != move.after:
        return move
    moments = [moment for moment in (earlier["vouched_at"], move.vouched_at) if moment is not None]
    vouched = (
        None if move.correction == CorrectionKind.NEVER_EXISTED else min(moments, default=None)
    )
    return replace(move, correction=move.correction or earlier["correction"], vouched_at=vouched)


def apply_staged(unit: Unit, source: str, *, replace: Sequence[str], fill: Sequence[str]) -> None:
    """Apply the staged moves in the same way as ``move_tasks``. The moves stay staged until
    ``forget_staged``.
    """
    with _remembered(unit):
        if not _insert_all(unit, "task_finding", source):
            return
        filled = (*OF_END, *fill)
        dialect = unit.conn.dialect.name
        statement = _copy(
            dialect, "task_finding", ("status", *replace), filled, ("offered_until",), cas=True
        )
        unit.conn.execute(statement, {"run_id": unit.run_id, "now": unit.dated})
        unit.changed = True


def _row(move: Move, **more: Any) -> dict[str, Any]:
    """Return the row of a worktable for this move."""
    facts = {
        name: getattr(move, name) for name in ("task_id", "cluster_time", "correction", *OF_END)
    }
    states = {"believed": move.before.value, "status": move.after.value, "evidence": move.evidence}
    return {**facts, **states, **move.values, **more}
