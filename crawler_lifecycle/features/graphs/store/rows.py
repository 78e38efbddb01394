"""Converts rows of graphs and steps to the values of the ports and of the engine, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Text, type_coerce

from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.names import request_fingerprint
from crawler_lifecycle.store.base.rows import Fault, Row, made, unreadable, validated
from crawler_lifecycle.store.base.unit import stop_of

from ..domain.engine import Step
from ..domain.spec import GraphOptions, GraphState, StepKind, StepSpec, StepState
from ..ports import GraphRow, StepRow, StepWork
from .tables import MOVING, graph, graph_step

_OPTIONS = TypeAdapter(GraphOptions)
#: All columns of a graph except the context, which may be large.
GRAPH = [column for column in graph.c if column is not graph.c.context]
#: The columns of a graph that readers see.
LISTED = [column for column in GRAPH if column.name not in ("commands", "former_owners")]

STATES = {state.value: state for state in StepState}
_KINDS = {kind.value: kind for kind in StepKind}


# --- graphs ---------------------------------------------------------------------------------------


def load_options(row: Row) -> GraphOptions:
    """Return the options in a graph's row. Raises ``RowUnreadable``."""
    return validated(
        _OPTIONS.validate_python,
        graph,
        row,
        "options",
        "options",
        "set the options that were requested",
    )


def whole_graph(row: Row) -> GraphRow:
    """Return the graph of a row. Raises ``RowUnreadable`` when its options are invalid."""
    load_options(row)
    return graph_row(row)


def graph_row(row: Row) -> GraphRow:
    """Return the graph of a row in a list. Invalid options are reported in ``unreadable``."""
    options = GraphOptions()
    wrong = None
    try:
        options = load_options(row)
    except RowUnreadable as error:
        wrong = str(error)
    return made(
        GraphRow,
        row,
        key=row["graph_key"],
        options=options,
        state=GraphState(row["state"]),
        counts={
            state: row["counts"][state] for state in StepState if state in (row["counts"] or {})
        },
        stop=stop_of(row),
        unreadable=wrong,
    )


# --- steps ----------------------------------------------------------------------------------------

#: The defaults of the fields in ``shape``, which do not change while the step is executing.
_SHAPE: Mapping[str, Any] = {
    **{field.name: field.default for field in fields(Step) if field.default is not MISSING},
    **{
        field.name: field.default
        for field in fields(StepSpec)
        if field.name in ("timeout_s", "backoff_s")
    },
}
_OF_STEP = (
    "deps",
    "missing",
    "ignore_cancelled",
    "ignore_discarded",
    "graft",
    "long",
    "priority",
    "queue",
    "resources",
    "max_parallel",
    "max_attempts",
    "limit_s",
)

_c = graph_step.c
#: The columns of the rows that ``engine_steps`` reads, in its order.
ENGINE = [
    _c.number,
    _c.path,
    _c.kind,
    _c.parent,
    type_coerce(_c.shape, Text),
    *(_c[name] for name in MOVING),
]


def shape_of(
    step: Step, spec: StepSpec | None = None, before: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the ``shape`` of a step, or ``None`` if all fields have their defaults.

    Give ``spec`` for a new step, and the previous shape as ``before`` for an existing step.
    """
    found = {name: value for name in _OF_STEP if (value := getattr(step, name)) != _SHAPE[name]}
    for name in ("timeout_s", "backoff_s"):
        value = getattr(spec, name) if spec is not None else (before or {}).get(name, _SHAPE[name])
        if value != _SHAPE[name]:
            found[name] = value
    return found or None


def new_row(step: Step, spec: StepSpec) -> dict[str, Any]:
    """Return a new row of ``graph_step`` without the column ``graph_id``.

    All such rows have the same columns.
    """
    moving = {name: getattr(step, name) for name in MOVING}
    return {
        "number": step.number,
        "path": step.path,
        # An index finds a step by this hash, because a path may be too long for an index.
        "path_hash": request_fingerprint(step.path),
        "kind": step.kind.value,
        "parent": step.parent,
        "shape": shape_of(step, spec),
        "job": dict(spec.job),
        **moving,
        "state": step.state.value,
        "snoozed": 0,
        "begun_attempt": 0,
    }


def engine_steps(graph_id: int, rows: Sequence[Sequence[Any]], *, strict: bool) -> list[Step]:
    """Return the steps of a graph from all its rows, which have the columns ``ENGINE``.

    Raises ``RowUnreadable`` for an invalid row. Unless ``strict``, an invalid step whose position
    in the graph is known waits instead (``Step.unreadable``). Thousands of rows are read several
    times per second, so valid rows are parsed only once.
    """
    steps = list[Step]()
    size = len(rows)
    while len(steps) < size:
        try:
            _read(rows, steps, range(size), size)
        except (KeyError, ValueError, TypeError, RecursionError):
            wrong = _unreadable_step(graph_id, rows, len(steps))
            if strict or (waiting := _waiting_step(rows, len(steps), str(wrong))) is None:
                raise wrong from None
            steps.append(waiting)
    return steps


def some_steps(rows: Sequence[Sequence[Any]], size: int) -> list[Step] | None:
    """Return the steps of some rows of a graph of this size, or ``None`` if one of these rows is
    invalid.
    """
    steps = list[Step]()
    try:
        _read(rows, steps, [row[0] for row in rows], size)
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    return steps


def _read(
    rows: Sequence[Sequence[Any]], steps: list[Step], numbers: Sequence[int], size: int
) -> None:
    """Append the steps of the rows that ``steps`` does not have yet.

    Raises an error at the first invalid row.

    ``numbers`` are the numbers of the rows, and ``size`` is the number of steps in the graph.
    """
    loads = json.loads
    for number, path, kind, parent, shape, state, attempt, tries, not_before, batch, *rest in rows[
        len(steps) :
    ]:
        step = Step(number, path, _KINDS[kind], parent)
        if shape is not None:
            _shape(step, loads(shape), size)
        step.state = STATES[state]
        step.attempt = attempt
        step.tries = tries
        step.not_before = not_before
        step.batch = batch
        step.alternative, step.run_id, step.run_attempt, step.ending, step.outcome, step.reason = (
            rest
        )
        good = (
            attempt >= 0 <= tries
            and (batch or 0) >= 0 <= (step.run_id or 0)
            and -1 <= (parent or 0) < size
        )
        if (
            not good
            or number != numbers[len(steps)]
            or not (not_before is None or not_before.__class__ is datetime)
        ):
            raise ValueError
        steps.append(step)


def _waiting_step(rows: Sequence[Sequence[Any]], position: int, wrong: str) -> Step | None:
    """Return a step for an invalid row, so that its dependents wait, or ``None`` if its position in
    the graph is unknown.
    """
    number, path, _, parent, shape, *moving = rows[position]
    inside = parent is None or (type(parent) is int and 0 <= parent < len(rows))
    if number != position or not isinstance(path, str) or not inside:
        return None
    step = Step(
        number, path, StepKind.FUNCTION, parent, state=StepState.EXECUTING, unreadable=wrong
    )
    with suppress(KeyError, ValueError, TypeError, RecursionError):
        _shape(step, json.loads(shape or "{}"), len(rows))
    before = dict(zip(MOVING, moving, strict=True))
    step.batch, step.alternative = (
        number if type(number) is int else None
        for number in (before["batch"], before["alternative"])
    )
    step.missing = (*step.missing, "")  # no step has this path
    return step


def _shape(step: Step, shape: Mapping[str, Any], size: int) -> None:
    """Set the fields of the step from its shape.

    Raises ``ValueError``, ``KeyError`` or ``TypeError`` for an invalid shape.
    """
    for name, value in shape.items():
        if name == "deps":
            if not (min(value) >= 0 and max(value) < size):
                raise ValueError(name)
            step.deps = tuple(value)
        elif name == "missing":
            step.missing = tuple(value)
        elif name == "resources":
            step.resources = tuple(tuple((str(k), str(v)) for k, v in pair) for pair in value)
        elif name not in ("timeout_s", "backoff_s"):
            if value is not None and type(value) is not _SHAPE_TYPES[name]:
                raise TypeError(name)
            setattr(step, name, value)


_SHAPE_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("ignore_cancelled", "ignore_discarded", "graft", "long"), bool),
    **dict.fromkeys(("priority", "max_parallel", "max_attempts"), int),
    "queue": str,
    "limit_s": float,
}


def _unreadable_step(graph_id: int, rows: Sequence[Sequence[Any]], position: int) -> RowUnreadable:
    """Return the error for the row at this position."""
    names = ("number", "path", "kind", "parent", "shape", *MOVING)
    row = {"graph_id": graph_id, **dict(zip(names, rows[position], strict=True))}
    if row["number"] != position:
        fault = Fault(
            "number",
            row["number"],
            f"step {position} is missing: insert its row, or cancel the graph's run",
        )
        return unreadable(graph_step, row, fault)
    if row["kind"] not in _KINDS:
        fix = "a newer version knows it; let the workers of that version continue the graph"
        return unreadable(graph_step, row, Fault("kind", row["kind"], fix))
    shape = row.pop("shape")
    fix = "give the number of a step of this graph"
    if row["parent"] is not None and not 0 <= row["parent"] < len(rows):
        return unreadable(graph_step, row, Fault("parent", row["parent"], fix))
    fix = "set the shape that was sent; its deps must be numbers of steps of this graph"
    return unreadable(graph_step, row, Fault("shape", shape, fix, document=True))


def step_row(row: Row, deps: Sequence[str]) -> StepRow:
    """Return the step of a row. ``deps`` are the paths of its dependencies."""
    return made(
        StepRow,
        row,
        state=StepState(row["state"]),
        deps=deps,
        max_attempts=(row["shape"] or {}).get("max_attempts", 1),
        errors=row["errors"] or (),
    )


def work_of(row: Row, *, attempt: int, tries: int) -> StepWork:
    """Return the step of a row with the fields that this execution needs."""
    shape = row["shape"] or {}
    shaped = {
        name: shape.get(name, _SHAPE[name])
        for name in ("max_attempts", "backoff_s", "timeout_s", "graft")
    }
    return made(
        StepWork,
        row,
        **shaped,
        kind=StepKind(row["kind"]),
        deps=tuple(shape.get("deps", ())),
        attempt=attempt,
        tries=tries,
    )
