"""CHECK constraints.

They refuse impossible values, including values from manual edits, so code that reads rows needs no
such checks.

The constraints are derived from the types of the columns and from the mappings below. SQLite
accepts values of any type in any column, so the constraints for SQLite also check the types. Only
the migration creates constraints.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Float,
    Integer,
    LargeBinary,
    String,
    Table,
    and_,
    func,
    literal_column,
    or_,
    type_coerce,
)

from crawler_lifecycle.domain.bounds import COUNT_MAX, FIRST_YEAR, LAST_YEAR
from crawler_lifecycle.domain.run import RunStatus, Stage, Trigger
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.features.canaries.domain.canary import CanaryState
from crawler_lifecycle.features.graphs.domain.spec import GraphState, StepState
from crawler_lifecycle.features.managers.domain.manager import JobState
from crawler_lifecycle.features.schedules.domain.decision import Decision
from crawler_lifecycle.features.schedules.domain.definition import TargetKind
from crawler_lifecycle.store.columns import UtcTime

#: Tables without constraints: worktables, whose rows are only copied to other tables, and a counter
#: that starts at 0.
_UNCHECKED = frozenset(
    {"task_change", "task_finding", "graph_change", "outbox_counter", "pool_gate"}
)
_WORDS: Mapping[tuple[str, str], type[StrEnum]] = {
    ("run_history", "status"): RunStatus,
    ("run_history", "stage"): Stage,
    ("run_history", "trigger"): Trigger,
    ("task_history", "status"): TaskStatus,
    ("manager", "status"): RunStatus,
    ("manager_item", "state"): JobState,
    ("graph", "state"): GraphState,
    ("graph_step", "state"): StepState,
    ("schedule_due", "decision"): Decision,
    ("schedule_due", "target_kind"): TargetKind,
    ("canary", "state"): CanaryState,
}
_COUNTED = ("pages", "items", "errors", "bytes", "peak_memory", "quiet_ms")
_LEAST = {
    **dict.fromkeys(("task_index", "tries", "generation", "position", "retry", *_COUNTED), 0),
    **dict.fromkeys(("attempt", "next_seq", "seq"), 1),
}
#: JSON columns that contain a list. All others contain an object.
_LISTS = frozenset(
    {
        *(("manager", name) for name in ("tags", "flow_tags", "former_owners")),
        *(("graph", name) for name in ("tags", "former_owners", "commands")),
        ("graph_step", "errors"),
        ("plan", "options"),
        ("canary", "judge"),
        ("package_version", "spiders"),
    }
)
#: The final states of each table. A row in a final state must have ``ended_at``.
_OVER: Mapping[str, list[str]] = {
    **dict.fromkeys(
        ("run_history", "manager"), sorted(status.value for status in RunStatus if status.terminal)
    ),
    "task_history": sorted(status.value for status in TaskStatus if status.terminal),
    "graph": sorted(status.value for status in GraphState if status.final),
}


@functools.cache
def with_checks(table: Table) -> Table:
    """Return the table with its constraints. The name of each constraint shows what it checks."""
    if table.name not in _UNCHECKED:
        for name, rules, dialect in (
            ("words", _words(table), None),
            ("numbers", _numbers(table), None),
            ("times", _times(table), None),
            ("end", _end(table), None),
            ("json", _documents(table, str.lower), "sqlite"),
            ("json", _documents(table, str.upper), "mysql"),
            ("types", _types(table), "sqlite"),
        ):
            if found := list(rules):
                check = CheckConstraint(and_(*found), name=f"ck_{table.name}_{name}")
                table.append_constraint(check.ddl_if(dialect=dialect))
    return table


def _words(table: Table) -> Iterator[ColumnElement[bool]]:
    for column in table.c:
        if words := _WORDS.get((table.name, column.name)):
            yield column.in_([word.value for word in words])


def _numbers(table: Table) -> Iterator[ColumnElement[bool]]:
    for column in table.c:
        # MySQL does not allow a constraint on an autoincrement column. ``errors`` is a number for a
        # task and a list for a step.
        counts = isinstance(column.type, Integer) and not column.primary_key
        if counts and (least := _LEAST.get(column.name)) is not None:
            # A step that has not started has attempt 0.
            yield _or_null(column, column >= (0 if table.name == "graph_step" else least))
            if table.name == "task_history" and column.name in _COUNTED:
                yield _or_null(column, column <= COUNT_MAX)


def _times(table: Table) -> Iterator[ColumnElement[bool]]:
    first: ColumnElement[str] = literal_column(f"'{FIRST_YEAR}-01-01'")
    after: ColumnElement[str] = literal_column(f"'{LAST_YEAR + 1}-01-01'")
    for column in table.c:
        if isinstance(column.type, UtcTime):
            yield _or_null(column, and_(column >= first, column < after))


def _end(table: Table) -> Iterator[ColumnElement[bool]]:
    if over := _OVER.get(table.name):
        state = table.c["state" if table.name == "graph" else "status"]
        yield or_(state.not_in(over), table.c.ended_at.is_not(None))
    if table.name in ("run_history", "manager"):  # STOPPING needs a recorded stop intent
        yield or_(
            table.c.status != RunStatus.STOPPING.value, table.c.stop_requested_at.is_not(None)
        )


def _documents(table: Table, spelled: Any) -> Iterator[ColumnElement[bool]]:
    for column in table.c:
        if isinstance(column.type, JSON):
            kind = "array" if (table.name, column.name) in _LISTS else "object"
            yield _or_null(column, func.json_type(column, type_=String) == spelled(kind))


def _types(table: Table) -> Iterator[ColumnElement[bool]]:
    for column in table.c:
        if isinstance(column.type, UtcTime):
            yield _or_null(
                column,
                and_(
                    type_coerce(column, String).like("____-__-__ __:__:__%"),
                    func.datetime(column).is_not(None),
                ),
            )
        elif not isinstance(column.type, JSON | LargeBinary):
            yield _or_null(column, func.typeof(column, type_=String) == _kind(column))


def _kind(column: Column[Any]) -> str:
    """Return the type that SQLite gives to the values of this column."""
    if isinstance(column.type, Float):
        return "real"
    return "integer" if isinstance(column.type, Integer | Boolean) else "text"


def _or_null(column: Column[Any], rule: ColumnElement[bool]) -> ColumnElement[bool]:
    return or_(column.is_(None), rule) if column.nullable else rule
