"""Row validation: impossible values that somebody wrote by hand are reported with a cure and never overwritten.

Every rule is one that our own writers keep. Writers and readers of one row raise ``RowUnreadable``; lists go on, with
the row marked, because one bad row must not hide all others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Boolean, Column, Integer, Table

from crawler_lifecycle.domain.bounds import COUNT_MAX, FIRST_YEAR, LAST_YEAR
from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.graph.spec import GraphState, StepKind, StepState
from crawler_lifecycle.domain.managers.manager import JobState
from crawler_lifecycle.domain.run import RunStatus, Stage, Trigger
from crawler_lifecycle.domain.schedules.decision import Decision
from crawler_lifecycle.domain.schedules.definition import TargetKind
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.store.columns import A_TIME, Broken, UtcTime

Row = Mapping[Any, Any]

#: What stands for a time that cannot be read.
NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN_MAX = 80
_COUNTED = frozenset({"pages", "items", "errors", "bytes", "peak_memory", "quiet_ms"})
#: Documents that are lists; all others are objects.
_LISTS = frozenset(
    {
        *(("manager", name) for name in ("tags", "flow_tags", "former_owners")),
        *(("graph", name) for name in ("tags", "former_owners", "commands")),
        *(("graph_step", "errors"), ("plan", "options")),
    }
)
_ENDED = frozenset(state.value for state in GraphState if state.final)
_LEAST = {
    **{"attempt": 1, "task_index": 0, "tries": 0, "generation": 0, "position": 0, "next_seq": 1, "seq": 1, "retry": 0},
    **dict.fromkeys(_COUNTED, 0),
}
_WORDS: Mapping[tuple[str, str], type[StrEnum]] = {
    ("run_history", "status"): RunStatus,
    ("run_history", "stage"): Stage,
    ("run_history", "trigger"): Trigger,
    ("task_history", "status"): TaskStatus,
    ("manager", "status"): RunStatus,
    ("manager_item", "state"): JobState,
    ("graph", "state"): GraphState,
    ("graph_step", "kind"): StepKind,
    ("graph_step", "state"): StepState,
    ("schedule_due", "decision"): Decision,
    ("schedule_due", "target_kind"): TargetKind,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One value of a row that cannot be, and what to do about it."""

    column: str
    value: object
    cure: str
    document: bool = False
    """True when it is JSON, in which arguments of crawlers stand: its length is told, and nothing of it."""

    @property
    def grave(self) -> bool:
        """Tell whether going on would mean guessing. Not so with counters: the next look writes what it counts."""
        return self.column not in _COUNTED

    def __str__(self) -> str:
        shown = "NULL" if self.value is None else repr(_stored(self.value))
        if self.document and self.value is not None:
            shown = f"a text of {len(shown)} characters"
        return f"{self.column} is {shown[:_SHOWN_MAX]}, which cannot be; {self.cure}"


def unreadable(table: Table, row: Row, fault: Fault) -> RowUnreadable:
    """The error for the first fault of a row; the text begins with table and key."""
    return RowUnreadable(f"{where(table, row)}: {fault}")


def where(table: Table, row: Row) -> str:
    """Table and key of a row, and the run that it belongs to."""
    names = [column.name for column in table.primary_key]
    if "run_id" in row and "run_id" not in names:
        names.append("run_id")
    return f"{table.name} {', '.join(f'{name} {_stored(row[name])}' for name in names if name in row)}"


def check(table: Table, row: Row, *, graver: bool = False) -> None:
    """Raise ``RowUnreadable`` when a value of the row cannot be; with ``graver`` only when nobody can go on with it."""
    for fault in faults(table, row):
        if fault.grave or not graver:
            raise unreadable(table, row, fault)


def salvaged(table: Table, row: Row) -> tuple[dict[str, Any], str | None]:
    """The row for a list, and what is wrong with it (``None``: nothing).

    What cannot be read is empty (null, 0, 1970-01-01, no object); words and numbers that merely cannot be stay as they
    are: a list shows what stands there.
    """
    found = list(faults(table, row))
    if not found:
        return dict(row), None
    values = dict(row)
    for fault in found:
        column = table.c[fault.column]
        if not isinstance(values[fault.column], _python(column)):
            values[fault.column] = _empty(column)
    return values, f"{where(table, row)}: " + "; ".join(str(fault) for fault in found)


def faults(table: Table, row: Row) -> Iterator[Fault]:
    """Everything in the row that cannot be."""
    whole = True
    for name, rule in _rules(table):
        if name in row and (cure := rule(row[name])) is not None:
            whole = False
            yield Fault(name, row[name], cure, isinstance(table.c[name].type, JSON))
    if whole and "status" in row and "ended_at" in row and table.name in ("run_history", "task_history", "manager"):
        yield from _contradictions(table, row)
    if whole and table.name == "graph" and row.get("state") in _ENDED and row.get("ended_at", row) is None:
        yield Fault("ended_at", None, f"a graph that is {row['state']} has ended: set {A_TIME}, or set state back")


def checker(table: Table, names: Sequence[str]) -> Callable[[Sequence[Any]], bool]:
    """Says of the values of these columns whether one of them cannot be; for thousands of short rows."""
    rules = dict(_rules(table))
    mine = [rules[name] for name in names]
    return lambda values: any(rule(value) is not None for rule, value in zip(mine, values, strict=True))


def _contradictions(table: Table, row: Row) -> Iterator[Fault]:
    """Values that can be, but not beside each other."""
    status = row["status"]
    terminal = (TaskStatus if table.name == "task_history" else RunStatus)(status).terminal
    if terminal and row["ended_at"] is None:
        yield Fault("ended_at", None, f"a row that is {status} has ended: set {A_TIME}, or set status back")
    if table.name != "task_history" and status == RunStatus.STOPPING and row["stop_requested_at"] is None:
        what = "run (crawlctl stop)" if table.name == "run_history" else "manager (crawlctl manager stop)"
        cure = f"set it back to PROCESSING, and stop the {what}: a status alone stops nothing"
        yield Fault("status", status, cure)


# --- rules ------------------------------------------------------------------------------------------------------------


@functools.cache
def _rules(table: Table) -> list[tuple[str, Callable[[Any], str | None]]]:
    return [(column.name, _rule(table, column)) for column in table.c]


def _rule(table: Table, column: Column[Any]) -> Callable[[Any], str | None]:
    """A function that says how to mend a value of this column; ``None``: the value is right."""
    kind = _python(column)
    # A step that waits has not begun.
    least = 0 if (table.name == "graph_step" and column.name == "attempt") else _LEAST.get(column.name)
    nullable = bool(column.nullable)
    most = COUNT_MAX if table.name == "task_history" and column.name in _COUNTED else None
    words = _WORDS.get((table.name, column.name))
    allowed = frozenset(words) if words is not None else None
    cure = _cure(column, least, most, words)

    def rule(value: Any) -> str | None:
        if value is None:
            return None if nullable else cure
        if not isinstance(value, kind):
            return cure
        if allowed is not None:
            return None if value in allowed else cure
        if isinstance(value, datetime):
            return None if FIRST_YEAR <= value.year <= LAST_YEAR else cure
        if not isinstance(value, int):
            return None
        return cure if (least is not None and value < least) or (most is not None and value > most) else None

    return rule


def _cure(column: Column[Any], least: int | None, most: int | None, words: type[StrEnum] | None) -> str:
    if words is not None:
        return f"set one of {', '.join(words)}"
    if isinstance(column.type, UtcTime):
        return f"set {A_TIME}, of the years {FIRST_YEAR} to {LAST_YEAR}" + (", or NULL" if column.nullable else "")
    if isinstance(column.type, JSON):
        what = "list" if _python(column) is list else "object"
        return f"set a JSON {what}" + (", or NULL" if column.nullable else "")
    if isinstance(column.type, Integer):
        at_most = f" and at most {most}" if most is not None else ""
        return "set a whole number" + (f" of at least {least}{at_most}" if least is not None else "")
    return "set a text"


def _python(column: Column[Any]) -> type:
    """The type that SQLAlchemy gives for a right value of this column."""
    if isinstance(column.type, UtcTime):
        return datetime
    if isinstance(column.type, JSON):
        return list if (column.table.name, column.name) in _LISTS else dict
    if isinstance(column.type, Boolean):
        return bool
    return int if isinstance(column.type, Integer) else str


def _empty(column: Column[Any]) -> Any:
    if column.nullable:
        return None
    kind = _python(column)
    return NO_TIME if kind is datetime else kind()


def _stored(value: object) -> object:
    """The value as it stands in the database."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return value.stored if isinstance(value, Broken) else value


def evident(table: Table, row: Row, column: str) -> dict[str, Any]:
    """A row of a list; what cannot be read in it is told in its JSON under ``unreadable``, so that the list goes on."""
    values, wrong = salvaged(table, row)
    if wrong is not None:
        values[column] = {**(values[column] or {}), "unreadable": wrong}
    return values
