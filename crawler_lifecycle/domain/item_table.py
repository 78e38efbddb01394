"""The items that a crawler left in a file, as a table: bytes in, texts out.

For any bytes the result is a table or a sentence, in time and memory proportional to the bytes. Numbers keep their
digits from the file, and every cell is text: nothing is computed.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

#: Bytes of a file that are looked at.
READ_MAX = 2 * 1024 * 1024
#: Items and columns of a table, and characters of a cell and of the name of a column.
ROWS_MAX, COLUMNS_MAX, CELL_MAX, NAME_MAX = 200, 50, 300, 100
#: Further items that are counted, and lists inside of each other that are written.
COUNT_MAX, _DEPTH_MAX = 50_000, 20
#: The column for items without fields, and for lines that are no JSON.
VALUE, LINE = "(value)", "(no JSON)"

_SUFFIX = re.compile(r"\.(jsonl|jsonlines|ndjson|jl|json|csv|tsv)$", re.IGNORECASE)
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: Control characters as their pictures; tab and line feed stay.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class ItemColumn:
    """A column, and how many of the shown items have a value in it."""

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
    """Without ``total``: the estimated number, if all are as long as those that were read."""
    columns_left_out: int = 0
    notes: list[str] = field(default_factory=list)
    """Sentences that a reader should know."""


class Number(str):
    """A number as it is written in the file, with all its digits."""

    __slots__ = ()


class _Object(dict[str, Any]):
    """A JSON object; ``repeated``: a name occurred in it more than once, and the last value counts."""

    repeated = False


def is_items(name: str) -> bool:
    """Return whether a file of this name may hold items that can be shown as a table."""
    return _SUFFIX.search(name) is not None


def item_table(name: str, data: bytes, size: int) -> ItemTable:
    """The table of a file's beginning. ``data`` are its first bytes, ``size`` all of it at that time."""
    cut = size > len(data) or len(data) > READ_MAX
    data = data[:READ_MAX]
    text, note = decoded(data)
    notes = [note] if note else []
    found = _SUFFIX.search(name)
    kind = found[1].lower() if found else ""
    if kind in ("csv", "tsv"):
        source: _Source = _Csv(text, cut, "\t" if kind == "tsv" else None)
    else:
        source = _Json(text, cut) if kind == "json" else _JsonLines(text, cut)
    items = source.items()
    first = list(islice(items, ROWS_MAX))
    more = source.more(items) if len(first) == ROWS_MAX else 0
    columns, rows, left_out = _laid_out(first)
    if any(getattr(item, "repeated", False) for item in first):
        notes.append("some items name a field twice; the last one is shown")
    counted = len(first) + more
    whole = not cut and more < COUNT_MAX
    about = None if whole or not counted else round(counted * size * len(text) / (len(data) * source.place))
    return ItemTable(columns, rows, counted if whole else None, about, left_out, [*notes, *source.notes])


def decoded(data: bytes) -> tuple[str, str | None]:
    """The bytes as text, and notes about unusual ones. A character that is cut at their end is left out."""
    encoding, mark = next(((name, mark) for mark, name in _BOMS if data.startswith(mark)), ("utf-8", b""))
    decoder, body = codecs.getincrementaldecoder(encoding), data[len(mark) :]
    try:
        return decoder().decode(body), None if encoding == "utf-8" else f"it was read as {encoding.upper()}"
    except UnicodeDecodeError:
        text = decoder("replace").decode(body)
    # Of Windows' own encoding nearly every letter with an accent is wrong; of a spoilt file few are.
    if not mark and text.count("\ufffd") * 2 > len(text) - len(text.encode("ascii", "ignore")):
        return data.decode("cp1252", "replace"), "it is no UTF-8; it was read as Windows-1252"
    return text, f"some of its bytes are no {encoding.upper()}"


def visible(text: str, most: int = CELL_MAX) -> str:
    """The text for a screen: no half characters, control characters as their pictures, cut with ``…``."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.encode("utf-8", "replace").decode("utf-8").translate(_VISIBLE)


# --- where items come from --------------------------------------------------------------------------------------------


class _Source:
    """Items one after the other, and whether more follow after the wanted number."""

    def __init__(self, text: str, cut: bool) -> None:
        self.text, self.cut = text, cut
        self.place = 0
        """Characters that the items so far take."""
        self.notes: list[str] = []

    def items(self) -> Iterator[Any]:
        raise NotImplementedError

    def more(self, items: Iterator[Any]) -> int:
        """Count the items that follow, ``COUNT_MAX`` at most."""
        return sum(1 for _ in islice(items, COUNT_MAX))

    def too_long(self, what: str) -> None:
        """Note that not even the first item fits into what is read."""
        self.notes.append(f"its first {what} is longer than {READ_MAX:,} bytes; download the file to look into it")


class _JsonLines(_Source):
    """An item in each line. The last line of a beginning is not looked at: it may be a part of one."""

    def _lines(self) -> Iterator[str]:
        while (end := self.text.find("\n", self.place)) >= 0:
            line = self.text[self.place : end].strip()
            self.place = end + 1
            if line:
                yield line
        rest = self.text[self.place :].strip()
        if rest and not self.cut:
            self.place = len(self.text)
            yield rest

    def items(self) -> Iterator[Any]:
        broken = False
        for line in self._lines():
            item = _json(line)
            if item is None:
                if self._torn():
                    return
                if not broken:
                    self.notes.append("some lines are no JSON; they are shown as they are")
                item, broken = ({LINE: line},), True
            yield item[0]
        if self.cut and not self.place:
            self.too_long("line")

    def more(self, items: Iterator[Any]) -> int:
        lines = list(islice(self._lines(), COUNT_MAX))  # without reading what is in them
        return len(lines) - (1 if lines and _json(lines[-1]) is None and self._torn() else 0)

    def _torn(self) -> bool:
        """Return whether the present line, which is no JSON, is the last one and is cut off; if so, note this."""
        if self.place < len(self.text) or self.text.endswith("\n"):
            return False
        self.notes.append("its last line is not whole: it is being written, or its crawler died")
        return True


class _Json(_Source):
    """A list of items, or items one behind the other, read one by one: so a beginning is enough."""

    def items(self) -> Iterator[Any]:
        text, place = self.text, _end_of_space(self.text, 0)
        in_list = text[place : place + 1] == "["
        place = _end_of_space(text, place + in_list)
        while text[place : place + 1] not in ("]", ""):
            try:
                item, place = _decoder.raw_decode(text, place)
            except (ValueError, RecursionError) as error:
                if not self.cut:
                    self.notes.append(f"it ends in something that is no JSON: {visible(str(error), 100)}")
                elif not self.place:
                    self.too_long("item")
                return
            self.place = place
            yield item
            place = _end_of_space(text, place)
            if in_list and text[place : place + 1] == ",":
                place = _end_of_space(text, place + 1)
            elif in_list and text[place : place + 1] not in ("]", ""):
                self.notes.append("behind its last shown item stands something that is no JSON")
                return


class _Csv(_Source):
    """Records with a header. The last record of a beginning is not read: it may be cut."""

    def __init__(self, text: str, cut: bool, delimiter: str | None) -> None:
        super().__init__(text, cut)
        head = text[:10_000].partition("\n")[0]
        self._delimiter = delimiter or max(",;\t|", key=head.count)

    def _lines(self) -> Iterator[str]:
        for line in io.StringIO(self.text, newline=""):
            self.place += len(line)
            yield line

    def _records(self) -> Iterator[list[str]]:
        held: list[str] | None = None
        any_whole = False
        try:
            for record in csv.reader(self._lines(), delimiter=self._delimiter):
                if held:
                    any_whole = True
                    yield held
                held = record
        except csv.Error as error:
            self.notes.append(f"it cannot be read on: {visible(str(error), 100)}; a quote without its end is one cause")
            return
        if held and not self.cut:
            yield held
        elif self.cut and not any_whole:
            self.too_long("line")

    def items(self) -> Iterator[Any]:
        records = self._records()
        names = _unlike(next(records, []))
        for record in records:
            more = (f"(column {n + 1})" for n in range(len(names), len(record)))
            yield {name: value for name, value in zip(chain(names, more), record, strict=False) if value}


def _unlike(names: Iterable[str]) -> list[str]:
    """The names of columns, each made unique."""
    found: dict[str, None] = {}
    for n, name in enumerate(names):
        own = name.strip()
        found[own if own and own not in found else f"{own} (column {n + 1})".strip()] = None
    return list(found)


def _json(line: str) -> tuple[Any] | None:
    """The value of the line, in a tuple of its own; ``None`` for a line that is no JSON."""
    try:
        return (_decoder.decode(line),)
    except (ValueError, RecursionError):
        return None


def _end_of_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


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
    """A value as text: a text unchanged, ``None`` for null, any other value as JSON."""
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
