"""The items that a crawler left in a file, as a table: bytes in, texts out.

Whatever the bytes are, there is a table or a sentence, in time and memory that grow with the bytes alone. Numbers keep
the digits that stand in the file, and every cell is text: nothing is computed with them.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from .items import NO_JSON, TORN, ItemReader, decoded, format_of

#: Bytes of a file that are looked at.
READ_MAX = 2 * 1024 * 1024
#: Items and columns of a table, and characters of a cell and of the name of a column.
ROWS_MAX, COLUMNS_MAX, CELL_MAX, NAME_MAX = 200, 50, 300, 100
#: Further items that are counted, and lists inside of each other that are written.
COUNT_MAX, _DEPTH_MAX = 50_000, 20
#: The column of what has no fields, and of lines that are no JSON.
VALUE, LINE = "(value)", "(no JSON)"

#: Control characters as their pictures; tab and line feed stay.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}


@dataclass(frozen=True, slots=True)
class ItemColumn:
    """A column, and how many of the shown items have something there."""

    name: str
    filled: int


@dataclass(frozen=True, slots=True)
class ItemTable:
    """The first items of a file. ``rows`` have a text or ``None`` for each column."""

    columns: list[ItemColumn] = field(default_factory=list)
    rows: list[list[str | None]] = field(default_factory=list)
    total: int | None = None
    """All items of the file; ``None`` when it was not read to its end."""
    about: int | None = None
    """Without ``total``: how many there are if all are as long as those that were read."""
    columns_left_out: int = 0
    notes: list[str] = field(default_factory=list)
    """Sentences that a reader should know."""


class Number(str):
    """A number as it stands in the file, with all its digits."""

    __slots__ = ()


class _Object(dict[str, Any]):
    """A JSON object; ``repeated``: a name stood in it more than once, and the last one holds."""

    repeated = False


def item_table(name: str, data: bytes, size: int) -> ItemTable:
    """The table of a file's beginning. ``data`` are its first bytes, ``size`` all of it at that time."""
    cut = size > len(data) or len(data) > READ_MAX
    data = data[:READ_MAX]
    text, note = decoded(data)
    stream = io.StringIO(text, newline="" if format_of(name) in ("csv", "tsv") else "\n")
    reader = ItemReader(name, stream, cut=cut, decoder=_decoder, broken=lambda line: {LINE: line})
    items = iter(reader)
    first = list(islice(items, ROWS_MAX))
    more = sum(1 for _ in islice(items, COUNT_MAX))
    columns, rows, left_out = _laid_out(first)
    notes = [note] if note else []
    if any(getattr(item, "repeated", False) for item in first):
        notes.append("some items name a field twice; the last one is shown")
    if reader.skipped[NO_JSON]:
        notes.append("some lines are no JSON; they are shown as they are")
    if reader.skipped[TORN]:
        notes.append("its last line is not whole: it is being written, or its crawler died")
    counted = len(first) + more
    whole = not cut and more < COUNT_MAX
    about = None if whole or not counted else round(counted * size * len(text) / (len(data) * reader.place))
    notes += [visible(note) for note in reader.notes]
    return ItemTable(columns, rows, counted if whole else None, about, left_out, notes)


def visible(text: str, most: int = CELL_MAX) -> str:
    """The text for a screen: no half characters, control characters as their pictures, cut with ``…``."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.encode("utf-8", "replace").decode("utf-8").translate(_VISIBLE)


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    found.repeated = len(found) < len(pairs)
    return found


_numbers = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), Number)
_decoder = json.JSONDecoder(object_pairs_hook=_object, strict=False, **_numbers)


# --- the table --------------------------------------------------------------------------------------------------------


def _laid_out(items: list[Any]) -> tuple[list[ItemColumn], list[list[str | None]], int]:
    """The columns that most items fill, in the order in which they came, and their cells."""
    fields = [item if isinstance(item, dict) else {VALUE: item} for item in items]
    filled: Counter[str] = Counter()
    for one in fields:
        filled.update({name: int(value not in (None, "", [], {})) for name, value in one.items()})
    # A stable sort: among equals the one that came first.
    chosen = sorted(filled, key=lambda name: -filled[name])[:COLUMNS_MAX]
    rows = [[cell(one[name]) if name in one else None for name in chosen] for one in fields]
    columns = [ItemColumn(visible(name, NAME_MAX) or "(no name)", filled[name]) for name in chosen]
    return columns, rows, len(filled) - len(chosen)


def cell(value: Any) -> str | None:
    """A value as text: a text as it is, ``None`` for null, all else as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return visible(value)
    return visible(_written(value, 0))


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
