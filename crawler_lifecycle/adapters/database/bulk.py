"""Changes of many tasks in a fixed number of statements.

New values differ from task to task (end times, exit codes, names). They are written into the worktable ``task_change``
with one bulk INSERT and applied with one UPDATE that joins it. SQLAlchemy spells that join ``UPDATE a, b SET …`` for
MySQL 8 and MariaDB and ``UPDATE a SET … FROM b`` for SQLite. The alternatives all lose something: ``CASE`` per chunk
compiles a new statement of thousands of parameters each time, an upsert has no WHERE on MySQL (so no compare-and-set),
and a temporary table is DDL, which MySQL's replication with GTIDs restricts inside transactions.

The rows of the worktable never outlive the transaction, and its key begins with the run, whose row is locked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, delete, func, insert, select, update

from crawler_lifecycle.domain.task import TaskStatus, task_may_become

from .rows import lag_ms
from .tables import correction, status_transition, task_change, task_history
from .unit import Unit

CHUNK = 500

T = TypeVar("T")


def chunks(items: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """``items`` in pieces that fit into one ``IN``."""
    return (items[start : start + size] for start in range(0, len(items), size))


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
    evidence: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


def _stage(unit: Unit, rows: Sequence[Mapping[str, Any]]) -> None:
    unit.conn.execute(insert(task_change), [{"run_id": unit.run_id, **row} for row in rows])


def _apply(
    unit: Unit, replace: Sequence[str], fill: Sequence[str], *where: ColumnElement[bool], **constant: Any
) -> int:
    """Copy columns from the worktable, empty it, and say how many rows were matched.

    ``replace`` columns are taken as they are; ``fill`` columns only where the worktable knows a value.
    """
    t, w = task_history.c, task_change.c
    values: dict[str, Any] = {name: w[name] for name in replace}
    values |= {name: func.coalesce(w[name], t[name]) for name in fill}
    done = unit.conn.execute(
        update(task_history)
        .values(**values, **constant)
        .where(w.run_id == unit.run_id, t.task_id == w.task_id, t.run_id == unit.run_id, *where)
    )
    unit.conn.execute(delete(task_change).where(w.run_id == unit.run_id))
    return done.rowcount


def update_tasks(
    unit: Unit,
    rows: Sequence[Mapping[str, Any]],
    *,
    replace: Sequence[str] = (),
    fill: Sequence[str] = (),
    **constant: Any,
) -> int:
    """Write columns other than the status into tasks of the run; how many tasks there were.

    Every row has ``task_id`` and all columns named in ``replace`` and ``fill``; ``constant`` is the same for all.
    """
    if not rows:
        return 0
    _stage(unit, rows)
    return _apply(unit, replace, fill, **constant)


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
    _stage(unit, [_row(unit, move) for move in wanted.values()])
    t, w = task_history.c, task_change.c
    as_believed = (t.status == w.believed, t.superseded_by.is_(None))
    # Another program may write these rows too: lock them, so that what is read here is what the update finds.
    found = unit.conn.execute(
        select(t.task_id, t.attempt, t.status_since)
        .where(w.run_id == unit.run_id, t.task_id == w.task_id, t.run_id == unit.run_id, *as_believed)
        .order_by(t.task_id)
        .with_for_update()
    ).all()
    columns = ("status", "status_since", *replace)
    _apply(unit, columns, ("outcome", "cause", "ended_at", *fill), *as_believed, offered_until=None)
    moved = [(wanted[task_id], attempt, since) for task_id, attempt, since in found]
    if moved:
        unit.conn.execute(insert(status_transition), [_transition(unit, m, a, source) for m, a, _ in moved])
        unit.changed = True
    wrong = [_correction(unit, m, a, since, source) for m, a, since in moved if m.correction]
    if wrong:
        unit.conn.execute(insert(correction), wrong)
    return len(moved)


def _row(unit: Unit, move: Move) -> dict[str, Any]:
    when = move.cluster_time or unit.now
    return {
        "task_id": move.task_id,
        "believed": move.before.value,
        "status": move.after.value,
        "status_since": when,
        "outcome": move.outcome,
        "cause": move.cause,
        "ended_at": when if move.after.terminal else None,
        **move.values,
    }


def _transition(unit: Unit, move: Move, attempt: int, source: str) -> dict[str, Any]:
    return {
        "run_id": unit.run_id,
        "task_id": move.task_id,
        "attempt": attempt,
        "from_status": move.before.value,
        "to_status": move.after.value,
        "cluster_time": move.cluster_time,
        "committed_at": unit.now,
        "lag_ms": lag_ms(unit.now, move.cluster_time),
        "source": source,
        "evidence": dict(move.evidence),
    }


def _correction(unit: Unit, move: Move, attempt: int, since: datetime, source: str) -> dict[str, Any]:
    return {
        "run_id": unit.run_id,
        "task_id": move.task_id,
        "attempt": attempt,
        "kind": move.correction,
        "believed": move.before.value,
        "believed_since": since,
        "truth": move.after.value,
        "truth_since": move.cluster_time,
        "found_by": source,
        "lag_ms": lag_ms(unit.now, move.cluster_time),
        "evidence": dict(move.evidence),
        "created_at": unit.now,
    }
