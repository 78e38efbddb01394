"""A page of items as a table: values in, texts out.

Whatever the items are, there is a table, in memory that does not grow with them. Numbers keep the digits that stand in
the file, and every cell is text: nothing is computed with them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

#: Columns of a table, and characters of a cell and of the name of a column. A page ends early after so many cells.
COLUMNS_MAX, CELL_MAX, NAME_MAX, CELLS_MAX = 50, 300, 100, 50_000
#: Further items that are counted, and lists inside of each other that are written.
COUNT_MAX, _DEPTH_MAX = 50_000, 20
#: The column of what has no fields.
VALUE = "(value)"

#: Control characters as their pictures; tab and line feed stay.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}


@dataclass(frozen=True, slots=True)
class ItemColumn:
    """A column, and how many of the shown items have a value in it."""

    name: str
    filled: int


@dataclass(frozen=True, slots=True)
class ItemTable:
    """Items from one place on. ``rows`` have a text or ``None`` for each column."""

    offset: int
    """Items that come before."""
    columns: list[ItemColumn] = field(default_factory=list)
    rows: list[list[str | None]] = field(default_factory=list)
    next: int | None = None
    """The offset of the next page; ``None`` where no item follows."""
    total: int | None = None
    """All items; ``None`` where more follow than were counted."""
    columns_left_out: int = 0
    notes: list[str] = field(default_factory=list)
    """Sentences that a reader should know: what could not be read, and why there are no items."""


class Number(str):
    """A number as it is written in the file, with all its digits."""

    __slots__ = ()


class _Object(dict[str, Any]):
    """A JSON object; ``repeated``: a name occurred in it more than once, and the last value counts."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = len(self) < len(pairs)


def item_table(items: Iterable[Any], offset: int, limit: int) -> ItemTable:
    """The page of these items. They should be read by ``DIGITS``."""
    source = iter(items)
    passed = sum(1 for _ in islice(source, offset))
    filled: Counter[str] = Counter()
    rows: list[dict[str, str | None]] = []
    repeated, cells = False, 0
    while len(rows) < limit and cells < CELLS_MAX and (item := next(source, source)) is not source:
        repeated |= getattr(item, "repeated", False)
        fields = item if isinstance(item, dict) else {VALUE: item}
        filled.update({name: int(value not in (None, "", [], {})) for name, value in fields.items()})
        rows.append({name: cell(value) for name, value in fields.items()})
        cells += len(fields)
    more = sum(1 for _ in islice(source, COUNT_MAX))
    # A stable sort: among equals the one that came first.
    chosen = sorted(filled, key=lambda name: -filled[name])[:COLUMNS_MAX]
    columns = [ItemColumn(visible(name, NAME_MAX) or "(no name)", filled[name]) for name in chosen]
    shown = passed + len(rows)
    notes = ["some items name a field twice; the last one is shown"] if repeated else []
    return ItemTable(
        passed, columns, [[row.get(name) for name in chosen] for row in rows], shown if more else None,
        shown + more if more < COUNT_MAX else None, len(filled) - len(chosen), notes,
    )  # fmt: skip


def visible(text: str, most: int = CELL_MAX) -> str:
    """The text for a screen: no half characters, control characters as their pictures, cut with ``…``."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.encode("utf-8", "replace").decode("utf-8").translate(_VISIBLE)


_numbers = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), Number)
#: Reads numbers with all their digits.
DIGITS = json.JSONDecoder(object_pairs_hook=_Object, strict=False, **_numbers)


def cell(value: Any) -> str | None:
    """A value as text: a text unchanged, ``None`` for null, any other value as JSON."""
    if value is None:
        return None
    return visible(value if isinstance(value, str) else _written(value, 0))


def _written(value: Any, depth: int) -> str:
    """JSON, in which numbers keep their digits."""
    if isinstance(value, Number):
        return value
    if not isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    if depth == _DEPTH_MAX:
        return "…"
    if isinstance(value, list):
        return f"[{', '.join(_written(one, depth + 1) for one in value)}]"
    pairs = (f"{json.dumps(name, ensure_ascii=False)}: {_written(one, depth + 1)}" for name, one in value.items())
    return f"{{{', '.join(pairs)}}}"
