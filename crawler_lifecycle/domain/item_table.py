"""A page of items as a table. Any items can be shown, and memory use does not depend on the number
of items. Every cell is a string, and numbers keep all digits in the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from crawler_lifecycle.runner.item_reader import ItemDecoder

#: The maximum number of columns in a table, and the maximum length of a cell and of a column's
#: name. A page ends early after ``CELLS_MAX`` cells. A long column name counts as several cells.
COLUMNS_MAX = 50
CELL_MAX = 300
NAME_MAX = 100
CELLS_MAX = 50_000
#: The maximum number of items that are counted after the page, and the maximum depth to which
#: nested lists are shown.
COUNT_MAX = 50_000
_DEPTH_MAX = 20
#: The column for items that are not objects.
VALUE = "(value)"

#: Control characters and the Unicode symbols for them. Tab and line feed stay unchanged.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}


@dataclass(frozen=True, slots=True)
class ItemColumn:
    """A column, and the number of shown items that have a value in this column."""

    name: str
    filled: int


@dataclass(frozen=True, slots=True)
class ItemTable:
    """A page of items. Each row contains a string or ``None`` for each column."""

    offset: int
    """The number of items before the page."""
    columns: list[ItemColumn] = field(default_factory=list)
    rows: list[list[str | None]] = field(default_factory=list)
    next: int | None = None
    """The offset of the next page, or ``None`` if no item follows."""
    total: int | None = None
    """The number of all items, or ``None`` if more items follow than were counted."""
    columns_left_out: int = 0
    notes: list[str] = field(default_factory=list)
    """Sentences for the reader about unreadable data, or about why there are no items."""


class Number(str):
    """A number, kept as the text in the file with all its digits."""

    __slots__ = ()


class _Object(dict[str, Any]):
    """A JSON object. If ``repeated`` is true, the object contains a name more than once, and the
    last value for that name is used.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = len(self) < len(pairs)


def item_table(items: Iterable[Any], offset: int, limit: int) -> ItemTable:
    """Return one page of these items.

    The items must be read with ``DIGITS``, which keeps the digits of numbers.
    """
    source = iter(items)
    passed = sum(1 for _ in islice(source, offset))
    filled: Counter[str] = Counter()
    rows: list[dict[str, str | None]] = []
    repeated = False
    cells = 0
    while len(rows) < limit and cells < CELLS_MAX and (item := next(source, source)) is not source:
        repeated |= getattr(item, "repeated", False)
        fields = item if isinstance(item, dict) else {VALUE: item}
        filled.update(
            {name: int(value not in (None, "", [], {})) for name, value in fields.items()}
        )
        rows.append({name: cell(value) for name, value in fields.items()})
        cells += sum(1 + len(name) // CELL_MAX for name in fields)
    more = sum(1 for _ in islice(source, COUNT_MAX))
    # The sort is stable: of columns with the same count, the earlier one comes first.
    chosen = sorted(filled, key=lambda name: -filled[name])[:COLUMNS_MAX]
    columns = [ItemColumn(visible(name, NAME_MAX) or "(no name)", filled[name]) for name in chosen]
    shown = passed + len(rows)
    notes = ["some items contain a field twice; the last value is shown"] if repeated else []
    return ItemTable(
        passed,
        columns,
        [[row.get(name) for name in chosen] for row in rows],
        shown if more else None,
        shown + more if more < COUNT_MAX else None,
        len(filled) - len(chosen),
        notes,
    )


def visible(text: str, most: int = CELL_MAX) -> str:
    """Return the text for a screen: surrogates are omitted, control characters become symbols, and
    a long text is cut with ``…``.
    """
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.encode("utf-8", "replace").decode("utf-8").translate(_VISIBLE)


_numbers = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), Number)
#: A JSON decoder that keeps all digits of numbers.
DIGITS = ItemDecoder(object_pairs_hook=_Object, strict=False, **_numbers)


def cell(value: Any) -> str | None:
    """Return a value as the text of a cell: ``None`` for null, and JSON for anything that is not a
    string.
    """
    if value is None:
        return None
    return visible(value if isinstance(value, str) else _written(value, 0))


def _written(value: Any, depth: int) -> str:
    """Return a value as JSON. Numbers keep their digits."""
    if isinstance(value, Number):
        return value
    if not isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    if depth == _DEPTH_MAX:
        return "…"
    if isinstance(value, list):
        return f"[{', '.join(_written(inner, depth + 1) for inner in value)}]"
    pairs = (
        f"{json.dumps(name, ensure_ascii=False)}: {_written(inner, depth + 1)}"
        for name, inner in value.items()
    )
    return f"{{{', '.join(pairs)}}}"
