"""Changes many steps at once. The number of statements hardly depends on the number of steps (see
``bulk.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import TextClause, select, text, update

from crawler_lifecycle.domain.values import encode, packed
from crawler_lifecycle.store.base.bulk import change_in, delete_rows, insert_mappings, rows_in

from ..domain.engine import Graph, Step
from ..domain.kinds import CONTAINING
from ..domain.spec import StepSpec, StepState
from .rows import new_row, shape_of
from .tables import MOVING, graph_change, graph_result, graph_step
from .unit import GraphUnit

#: The maximum number of errors of a step that are kept, and of characters in an error.
ERRORS_MAX = 20
ERROR_MAX = 4000

_FINAL = ", ".join(f"'{state.value}'" for state in StepState if state.final)
#: States of a step after an execution that failed or was lost.
_FAILED = (StepState.RETRYABLE, StepState.DISCARDED, StepState.SUSPENDED, StepState.AVAILABLE)
#: The error text of an execution that was lost.
LOST = "the worker that executed the step ended or stopped reporting"

#: The state and the missing dependencies of each step before a change.
Before = Sequence[tuple[StepState, tuple[str, ...]]]


def states_of(graph: Graph) -> Before:
    """Return the current states of the steps, for a later comparison in ``write_steps``."""
    return [(step.state, step.missing) for step in graph.steps]


def insert_steps(unit: GraphUnit, added: Sequence[tuple[Step, StepSpec]]) -> None:
    """Insert new steps in their current state."""
    rows = [new_row(step, spec) for step, spec in added]
    insert_mappings(unit.conn, graph_step, rows, graph_id=unit.id)


def write_steps(unit: GraphUnit, graph: Graph, before: Before) -> None:
    """Write the changes to the graph's steps, and insert the new steps."""
    changed = [graph.steps[number] for number in sorted(graph.changed) if number < len(before)]
    known = [step for step in changed if step.unreadable is None]
    released = [
        step.number for step in changed if step.unreadable is not None and step.batch is None
    ]
    release = update(graph_step).where(graph_step.c.graph_id == unit.id).values(batch=None)
    change_in(unit.conn, release, graph_step.c.number, released)
    failed = {
        step.number: step
        for step in known
        if before[step.number][0] is StepState.EXECUTING
        and step.state in _FAILED
        and step.kind not in CONTAINING
    }
    more = {
        "shape": _shapes(unit, [step for step in known if step.missing != before[step.number][1]]),
        "errors": _errors(unit, failed),
        "result_bytes": _keep_records(unit, graph.records),
    }
    rows = [_changed(unit, step, before[step.number][0], more) for step in known]
    if rows:
        insert_mappings(unit.conn, graph_change, rows, graph_id=unit.id)
        unit.conn.execute(_apply(unit.conn.dialect.name), {"graph_id": unit.id})
        delete_rows(unit.conn, graph_change.c.graph_id, "PRIMARY", [unit.id])
    insert_steps(unit, graph.added)


def _changed(
    unit: GraphUnit, step: Step, before: StepState, more: Mapping[str, Mapping[int, Any]]
) -> dict[str, Any]:
    began = step.state is StepState.EXECUTING and before is not StepState.EXECUTING
    return {
        "number": step.number,
        **{name: getattr(step, name) for name in MOVING},
        "state": step.state.value,
        **{name: found.get(step.number) for name, found in more.items()},
        "started_at": unit.now if began else None,
        "ended_at": unit.now if step.state.final else None,
    }


@functools.cache
def _apply(dialect: str) -> TextClause:
    """Return the UPDATE that copies columns from the worktable.

    The text of the statement consists of fixed names only, and contains no user input.
    """
    values = {name: f"w.{name}" for name in MOVING}
    values |= {
        name: f"COALESCE(w.{name}, s.{name})"
        for name in ("shape", "errors", "started_at", "result_bytes")
    }
    values["ended_at"] = (
        f"CASE WHEN w.state IN ({_FINAL}) THEN COALESCE(s.ended_at, w.ended_at) END"
    )
    where = "w.graph_id = :graph_id AND s.graph_id = w.graph_id AND s.number = w.number"
    if dialect == "sqlite":
        assigned = ", ".join(f"{name} = {value}" for name, value in values.items())
        return text(f"UPDATE graph_step AS s SET {assigned} FROM graph_change AS w WHERE {where}")  # noqa: S608
    assigned = ", ".join(f"s.{name} = {value}" for name, value in values.items())
    tables = (
        "graph_change AS w FORCE INDEX (PRIMARY) STRAIGHT_JOIN graph_step AS s FORCE INDEX "
        "(PRIMARY)"
    )
    return text(f"UPDATE {tables} SET {assigned} WHERE {where}")  # noqa: S608


def with_error(errors: Sequence[Any] | None, attempt: int, at: str, error: str | None) -> list[Any]:
    """Return the errors of a step after adding this error. Only the last ``ERRORS_MAX`` errors are
    returned.
    """
    new = {"attempt": attempt, "at": at, "error": (error or "it failed")[:ERROR_MAX]}
    return [*(errors or ()), new][-ERRORS_MAX:]


def _keep_records(unit: GraphUnit, records: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
    """Replace the recorded results of these steps. Return the size of each new result in bytes."""
    values = {number: encode(dict(record)) for number, record in records.items()}
    rows = [
        {"number": number, "part": 0, "data": b"".join(packed([value]))}
        for number, value in values.items()
    ]
    delete_rows(
        unit.conn, graph_result.c.number, "PRIMARY", sorted(values), of={"graph_id": unit.id}
    )
    if rows:
        insert_mappings(unit.conn, graph_result, rows, graph_id=unit.id)
    return {number: len(value) for number, value in values.items()}


def _errors(unit: GraphUnit, failed: Mapping[int, Step]) -> dict[int, list[Any]]:
    """Return the new list of errors of each of these steps."""
    s = graph_step.c
    found = dict[int, list[Any]]()
    at = unit.now.isoformat()
    query = select(s.number, s.errors).where(s.graph_id == unit.id)
    for row in rows_in(unit.conn, query, s.number, failed):
        step = failed[row["number"]]
        lost = step.state in (StepState.SUSPENDED, StepState.AVAILABLE)
        found[step.number] = with_error(
            row["errors"], step.attempt, at, LOST if lost else step.reason
        )
    return found


def _shapes(unit: GraphUnit, steps: Sequence[Step]) -> dict[int, Any]:
    """Return the new shapes of steps whose missing dependencies have changed."""
    s = graph_step.c
    by_number = {step.number: step for step in steps}
    query = select(s.number, s.shape).where(s.graph_id == unit.id)
    rows = rows_in(unit.conn, query, s.number, by_number)
    return {row["number"]: shape_of(by_number[row["number"]], before=row["shape"]) for row in rows}
