"""Items as JSON Lines and CSV: values in, pieces of bytes out, in memory that does not grow with the items."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import chain
from typing import Any, Final

from .item_table import VALUE
from .items import as_text, matching, plain

#: The first items, whose fields become columns: so many, or fewer where they have so many characters.
HEAD_ITEMS, HEAD_CHARS = 1_000, 2 * 1024 * 1024
#: Columns beside the one with all fields of an item that have none, as JSON.
COLUMNS_MAX, LEFT_OUT = 1_000, "(left out)"
#: Bytes of a piece, and items after which there is one, were it empty: whoever reads may have gone away.
PIECE, PAUSE_ITEMS = 64 * 1024, 500
PAUSE: Final = object()
"""Stands where items were passed over."""
#: Texts that a spreadsheet runs; numbers with a sign are none.
_FORMULA = re.compile(r"[=@\t\r\n\uff1d\uff0b\uff0d\uff20]|[+\-](?!\d[\d.,]*(?:[eE][+-]?\d+)?$)")


def chosen(
    items: Iterable[Any],
    field: str | None = None,
    contains: str | None = None,
    fields: Collection[str] | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> Iterator[Any]:
    """The items with this text in this field, or in any; of these, some; of each, some fields. ``PAUSE`` is between."""
    fits, place = matching(field, contains), 0
    for count, item in enumerate(items, 1):
        place += (taken := fits(item))
        if taken and place > offset:
            cut = fields is not None and isinstance(item, dict)
            yield {name: item[name] for name in fields or () if name in item} if cut else item
        elif not count % PAUSE_ITEMS:
            yield PAUSE
        if limit is not None and place == offset + limit:
            return


def as_jsonl(items: Iterable[Any]) -> Iterator[bytes]:
    """An item a line, as JSON that everybody reads."""
    text = io.StringIO()
    return _pieces(items, text, lambda item: text.write(plain(item) + "\n"))


def as_csv(items: Iterable[Any], fields: Collection[str] | None = None) -> Iterator[bytes]:
    """A line with the names of ``fields``, or of those of the first items, and a record for each item."""
    source, text = iter(items), io.StringIO()
    head, columns, leaves_out = yield from read_head(source)
    names = list(dict.fromkeys(fields or columns))
    more = [LEFT_OUT] if fields is None and leaves_out else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*map(_harmless, names), *more])

    def write(item: Any) -> None:
        row = dict(fields_of(item))
        cells = [_harmless(as_text(row.pop(name, None))) for name in names]
        writer.writerow([*cells, *([plain(row) if row else ""] if more else [])])

    yield from _pieces(chain(head, source), text, write)


def _pieces(items: Iterable[Any], text: io.StringIO, write: Callable[[Any], object]) -> Iterator[bytes]:
    """The text, which ``write`` makes longer by an item, a piece at a time."""
    for item in items:
        if item is not PAUSE:
            write(item)
        if item is PAUSE or text.tell() >= PIECE:
            yield text.getvalue().encode("utf-8", "replace")
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode("utf-8", "replace")


def read_head(items: Iterator[Any]) -> Generator[bytes, None, tuple[list[Any], list[str], bool]]:
    """Take the first items; an empty piece for each ``PAUSE``. Returns them, the columns that their fields become, and
    whether an item may have fields that have no column."""
    head, names, chars, full = list[Any](), dict[str, None](), 0, False
    while not full and (item := next(items, items)) is not items:
        if item is PAUSE:
            yield b""
            continue
        head.append(item)
        names |= dict.fromkeys(fields_of(item))
        chars += len(plain(item))
        full = len(head) >= HEAD_ITEMS or chars >= HEAD_CHARS
    columns = [name for name in names if name != LEFT_OUT and utf8(name) == name][:COLUMNS_MAX]
    return head, columns, full or len(names) > len(columns)


def fields_of(item: Any) -> dict[str, Any]:
    """The fields of an item; what has none is one."""
    return item if isinstance(item, dict) else {VALUE: item}


def utf8(text: str) -> str:
    """The text without half characters."""
    return text.encode("utf-8", "replace").decode()


def _harmless(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text
