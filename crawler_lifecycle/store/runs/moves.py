"""Bulk changes of tasks: a fixed number of statements, which lock only these tasks.

New values differ from task to task (end times, exit codes, names). They are written into the worktable ``task_change``
with one bulk INSERT and applied with one UPDATE that joins it. The alternatives all lose something: ``CASE`` per chunk
compiles a new statement of thousands of parameters each time, an upsert has no WHERE on MySQL (so no compare-and-set),
and a temporary table is DDL, which MySQL's replication with GTIDs restricts inside transactions.

The rows of the worktable never outlive the transaction, and its key begins with the run, whose row is locked.

Transitions and corrections are made out of the same worktable, just before: their texts cross the wire once. What a
look found is written into such a table when it is found (``task_finding``), so that its application is nothing but
three statements inside the database, whose locks are held for as long as those take.

These statements and the DELETEs are spelled by hand. SQLite wants ``UPDATE … FROM``, and MySQL and MariaDB must be told
which index to use: while a table is small their optimizers prefer to read all of it, such a read waits for every row
that some transaction has locked, and two runs that do so at once are a deadlock (measured: 3 in 72 runs). A
single-table UPDATE needs no such care under READ COMMITTED: it skips locked rows that its WHERE does not want.
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
from crawler_lifecycle.domain.task import TaskStatus, task_may_become
from crawler_lifecycle.ports.looks import Corrected, CorrectionRow, TaskChanged
from crawler_lifecycle.store.base.bulk import chunks, delete_rows, insert_mappings
from crawler_lifecycle.store.base.rows import Row, made
from crawler_lifecycle.store.columns import JsonText, UtcTime

from .tables import correction, status_transition, task_change, task_finding, task_history, task_observation
from .unit import Unit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Move:
    """One task that goes from one status to another. ``values`` are further columns of its row."""

    task_id: int
    before: TaskStatus
    after: TaskStatus
    cluster_time: datetime | None = None
    outcome: str | None = None
    cause: str | None = None
    correction: str | None = None
    vouched_at: datetime | None = None
    """The last time at which a look saw that the recorded status was true; ``None`` when none ever did."""
    evidence: Mapping[str, Any] | JsonText = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


_SAME_TASK = "w.run_id = :run_id AND t.run_id = w.run_id AND t.task_id = w.task_id"
_AS_BELIEVED = f"{_SAME_TASK} AND t.status = w.believed AND t.superseded_by IS NULL"


def _join(work: str) -> str:
    return f"{work} AS w FORCE INDEX (PRIMARY) STRAIGHT_JOIN task_history AS t FORCE INDEX (PRIMARY)"


#: The cause that a look found, and the error that was read from the log since, unless it has the same words.
_CAUSE = {
    dialect: "COALESCE(CASE WHEN t.error IS NULL OR INSTR(w.cause, SUBSTR(t.error, 1, 100)) > 0 THEN w.cause "
    f"ELSE {joined} END, t.cause)"
    for dialect, joined in (("mysql", "CONCAT(w.cause, ': ', t.error)"), ("sqlite", "w.cause || ': ' || t.error"))
}


@functools.cache
def _copy(
    dialect: str, work: str, replace: tuple[str, ...], fill: tuple[str, ...], nulls: tuple[str, ...], cas: bool
) -> TextClause:
    """The UPDATE that copies columns from the worktable. All names are ours, so there is nothing to inject."""
    values = {name: f"w.{name}" for name in replace}
    values |= {name: f"COALESCE(w.{name}, t.{name})" for name in fill}
    values |= dict.fromkeys(nulls, "NULL")
    if work == "task_finding":
        values |= {
            "status_since": "COALESCE(w.cluster_time, :now)",
            "ended_at": "CASE WHEN w.terminal THEN COALESCE(w.cluster_time, :now) ELSE t.ended_at END",
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
#: Milliseconds from a time until now, as ``untrue_ms`` counts them.
_LAG = {
    "mysql": "GREATEST(0, ROUND(TIMESTAMPDIFF(MICROSECOND, {}, :now) / 1000))",
    "sqlite": "MAX(0, CAST(ROUND((julianday(:now) - julianday({})) * 86400000) AS INTEGER))",
}
#: The earliest time from which the recorded status was untrue: as ``ledger.untrue_since``, and without a time of the
#: cluster, since a look last saw that it was true.
_UNTRUE = {
    "mysql": "GREATEST(t.status_since, COALESCE(w.cluster_time, w.vouched_at, t.status_since))",
    "sqlite": "MAX(t.status_since, COALESCE(w.cluster_time, w.vouched_at, t.status_since))",
}


@functools.cache
def _tell(dialect: str, work: str, table: str) -> TextClause:
    """The INSERT of the coming changes.

    Other programs may write these rows too, so they are locked: the update finds the values that are reported here.
    """
    columns, also = (_TRANSITION, "") if table == "status_transition" else (_CORRECTION, " AND w.correction <> ''")
    if work == "task_finding":
        since = "w.cluster_time" if table == "status_transition" else _UNTRUE[dialect]
        columns = {**columns, "lag_ms": _LAG[dialect].format(since)}
    mysql = dialect == "mysql"
    tables = _join(work) if mysql else f"{work} AS w CROSS JOIN task_history AS t"
    lock = " FOR UPDATE" if mysql else ""
    chosen = f"SELECT {', '.join(columns.values())} FROM {tables} WHERE {_AS_BELIEVED}{also} ORDER BY w.task_id{lock}"  # noqa: S608
    return _timed(f"INSERT INTO {table} ({', '.join(columns)}) {chosen}")


def _timed(statement: str) -> TextClause:
    clause = text(statement)
    return clause.bindparams(bindparam("now", type_=UtcTime())) if ":now" in statement else clause


def _apply(
    unit: Unit, replace: Sequence[str], fill: Sequence[str], nulls: Sequence[str] = (), *, cas: bool = False
) -> int:
    """Copy columns from the worktable, empty it, and say how many rows were matched.

    ``replace`` columns are taken as they are; ``fill`` columns only where the worktable knows a value; ``nulls``
    columns become null.
    """
    statement = _copy(unit.conn.dialect.name, "task_change", tuple(replace), tuple(fill), tuple(nulls), cas)
    done = unit.conn.execute(statement, {"run_id": unit.run_id})
    delete_rows(unit.conn, task_change.c.run_id, "PRIMARY", [unit.run_id])
    return done.rowcount


def forget_staged(unit: Unit) -> None:
    """Delete the staged findings of the run."""
    delete_rows(unit.conn, task_observation.c.run_id, "ix_task_observation_run_id_task_index", [unit.run_id])
    delete_rows(unit.conn, task_finding.c.run_id, "PRIMARY", [unit.run_id])


def update_tasks(
    unit: Unit,
    rows: Sequence[Mapping[str, Any]],
    *,
    replace: Sequence[str] = (),
    fill: Sequence[str] = (),
    nulls: Sequence[str] = (),
) -> int:
    """Write columns other than the status into tasks of the run; how many tasks there were.

    Every row has ``task_id`` and all columns named in ``replace`` and ``fill``; the columns in ``nulls`` become null.
    """
    if not rows:
        return 0
    insert_mappings(unit.conn, task_change, rows, run_id=unit.run_id)
    return _apply(unit, replace, fill, nulls)


def move_tasks(
    unit: Unit, moves: Sequence[Move], source: str, *, replace: Sequence[str] = (), fill: Sequence[str] = ()
) -> int:
    """Change statuses by compare-and-set, with their transitions and corrections; how many changed.

    A task whose recorded status is not ``before``, that is superseded, or that may not become ``after``, is left as it
    is: somebody else was faster, and the next look will judge again. ``replace`` and ``fill`` name the columns of
    ``Move.values``.
    """
    wanted = {move.task_id: move for move in moves if task_may_become(move.before, move.after)}
    if not wanted:
        return 0
    rows = []
    for move in wanted.values():
        when, lag = move.cluster_time or unit.now, untrue_ms(unit.now, move.cluster_time)
        rows.append(_row(move, status_since=when, ended_at=when if move.after.terminal else None, lag_ms=lag))
    insert_mappings(unit.conn, task_change, rows, run_id=unit.run_id)
    with _remembered(unit):
        moved = _tell_all(unit, "task_change", source)
        columns = ("status", "status_since", *replace)
        _apply(unit, columns, ("outcome", "cause", "ended_at", *fill), ("offered_until",), cas=True)
    unit.changed = unit.changed or moved > 0
    return moved


def _tell_all(unit: Unit, work: str, source: str) -> int:
    """Write transitions and corrections of what will change; how many tasks that are."""
    told = {"run_id": unit.run_id, "now": unit.now, "source": source}
    moved = unit.conn.execute(_tell(unit.conn.dialect.name, work, "status_transition"), told).rowcount
    if moved:
        unit.conn.execute(_tell(unit.conn.dialect.name, work, "correction"), told)
    return moved


@contextmanager
def _remembered(unit: Unit) -> Iterator[None]:
    """Keep the additions of the run's tasks to the ledger for the listener after the commit, and for an event."""
    s, c, t = status_transition.c, correction.c, task_history.c
    # Nobody else appends while the run's row is locked.
    seq = unit.conn.execute(select(func.max(s.seq)).where(s.run_id == unit.run_id)).scalar_one() or 0
    last = unit.conn.execute(select(func.max(c.id)).where(c.run_id == unit.run_id)).scalar_one() or 0
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
        unit.told_corrections.append(Corrected(made(CorrectionRow, row), cause))
        unit.corrections.append(unit.told_corrections[-1].row)


def stage_moves(unit: Unit, seen: Collection[int], moves: Sequence[Move]) -> None:
    """Keep the moves of a look until ``apply_staged``, in place of what an earlier one left for the ``seen`` tasks.

    A look whose findings were never applied (its worker died) has moved the time of the next one all the same. What it
    knew of lateness stays: that a change was found late, and when a look last saw that it was not there yet.
    """
    c = task_finding.c
    query = select(c.task_id, c.status, c.correction, c.vouched_at).where(c.run_id == unit.run_id)
    kept = {row["task_id"]: row for row in unit.conn.execute(query).mappings() if row["task_id"] in seen}
    for chunk in chunks(sorted(kept)):
        unit.conn.execute(delete(task_finding).where(c.run_id == unit.run_id, c.task_id.in_(chunk)))
    found = [_still(move, kept.get(move.task_id)) for move in moves if task_may_become(move.before, move.after)]
    insert_mappings(
        unit.conn,
        task_finding,
        [_row(move, terminal=move.after.terminal, vouched_at=move.vouched_at) for move in found],
        run_id=unit.run_id,
    )


def _still(move: Move, earlier: Row | None) -> Move:
    """The move with the lateness of an earlier look that found the same."""
    if earlier is None or earlier["status"] != move.after:
        return move
    moments = [moment for moment in (earlier["vouched_at"], move.vouched_at) if moment is not None]
    vouched = None if move.correction == CorrectionKind.NEVER_EXISTED else min(moments, default=None)
    return replace(move, correction=move.correction or earlier["correction"], vouched_at=vouched)


def apply_staged(unit: Unit, source: str, *, replace: Sequence[str], fill: Sequence[str]) -> None:
    """``move_tasks`` for the moves that are staged; they stay until they are forgotten."""
    with _remembered(unit):
        if not _tell_all(unit, "task_finding", source):
            return
        filled = ("outcome", "cause", *fill)
        dialect = unit.conn.dialect.name
        statement = _copy(dialect, "task_finding", ("status", *replace), filled, ("offered_until",), cas=True)
        unit.conn.execute(statement, {"run_id": unit.run_id, "now": unit.now})
        unit.changed = True


def _row(move: Move, **more: Any) -> dict[str, Any]:
    """The row of a worktable."""
    told = {name: getattr(move, name) for name in ("task_id", "cluster_time", "outcome", "cause", "correction")}
    states = {"believed": move.before.value, "status": move.after.value, "evidence": move.evidence}
    return {**told, **states, **move.values, **more}
