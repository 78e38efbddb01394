"""Export of items as JSON Lines and CSV, in pieces of bytes. Memory use does not depend on the
number of items.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import chain
from typing import Any, Final

from .item_table import VALUE
from .items import as_text, matching, plain

#: The columns of a CSV file are the fields of the first items, read up to this number of items or
#: characters.
HEAD_ITEMS = 1_000
HEAD_CHARS = 2 * 1024 * 1024
#: The maximum number of columns, and the name of an additional column that contains all remaining
#: fields as JSON.
COLUMNS_MAX = 1_000
LEFT_OUT = "(left out)"
#: The size of a piece in bytes. After ``PAUSE_ITEMS`` skipped items, a piece is sent even if it is
#: empty, to find out whether the reader is still connected.
PIECE = 64 * 1024
PAUSE_ITEMS = 500
PAUSE: Final = object()
"""A mark that stands for skipped items in a stream of items."""
#: Strings that a spreadsheet would execute as a formula, even after a byte order mark, which
#: readers remove from the first cell. Numbers with a sign are harmless.
_FORMULA = re.compile(
    r"\ufeff*(?:[=@\t\r\n\uff1d\uff0b\uff0d\uff20]|[+\-](?!\d[\d.,]*(?:[eE][+-]?\d+)?$))"
)
_ROW_END = "\r\n"


def chosen(
    items: Iterable[Any],
    field: str | None = None,
    contains: str | None = None,
    fields: Collection[str] | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> Iterator[Any]:
    """Yield the items with this text in this field (or in any field), reduced to these fields.

    ``offset`` and ``limit`` count matching items. ``PAUSE`` is yielded in place of many skipped
    items.
    """
    fits = matching(field, contains)
    matches = 0
    for count, item in enumerate(items, 1):
        matches += (taken := fits(item))
        if taken and matches > offset:
            cut = fields is not None and isinstance(item, dict)
            yield {name: item[name] for name in fields or () if name in item} if cut else item
        elif not count % PAUSE_ITEMS:
            yield PAUSE
        if limit is not None and matches == offset + limit:
            return


def as_jsonl(items: Iterable[Any]) -> Iterator[bytes]:
    """Yield the items as JSON Lines, with one item per line."""
    text = io.StringIO()
    return _pieces(items, text, lambda item: text.write(plain(item) + "\n"))


def as_csv(items: Iterable[Any], fields: Collection[str] | None = None) -> Iterator[bytes]:
    """Yield the items as CSV. The first line contains the names of the columns, which are
    ``fields`` or the fields of the first items.
    """
    source = iter(items)
    text = io.StringIO()
    head, columns, leaves_out = yield from read_head(source)
    rows = chain(head, source)
    del head  # A suspended generator keeps alive the objects that its variables refer to.
    names = list(dict.fromkeys(fields or columns))
    more = [LEFT_OUT] if fields is None and leaves_out else []
    writer = csv.writer(_Rows(text), lineterminator=_ROW_END)
    writer.writerow([*map(_harmless, names), *more])

    def write(item: Any) -> None:
        row = dict(fields_of(item))
        cells = [_harmless(as_text(row.pop(name, None))) for name in names]
        writer.writerow([*cells, *([plain(row) if row else ""] if more else [])])

    yield from _pieces(rows, text, write)


class _Rows:
    """A target for rows of a ``csv.writer`` that ends each row with only a line feed.

    The writer quotes a cell that contains a character of the writer's own line end. Before Python
    3.13, the writer does not quote cells with other carriage returns, but readers end a row at a
    carriage return.
    """

    def __init__(self, text: io.StringIO) -> None:
        self._text = text

    def write(self, row: str) -> int:
        return self._text.write(row.removesuffix(_ROW_END) + "\n")


def _pieces(
    items: Iterable[Any], text: io.StringIO, write: Callable[[Any], object]
) -> Iterator[bytes]:
    """Yield the text in pieces.

    ``write`` appends one item to ``text``.
    """
    for item in items:
        if item is not PAUSE:
            write(item)
        if item is PAUSE or text.tell() >= PIECE:
            yield text.getvalue().encode("utf-8", "replace")
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode("utf-8", "replace")


def read_head(items: Iterator[Any]) -> Generator[bytes, None, tuple[list[Any], list[str], bool]]:
    """Read the first items, and yield an empty piece for each ``PAUSE``.

    Return the items, the columns for their fields, and whether an item may have fields without a
    column.
    """
    head = list[Any]()
    names = dict[str, None]()
    chars = 0
    full = False
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
    """Return the fields of an item.

    An item that is not an object becomes the field ``VALUE``.
    """
    return item if isinstance(item, dict) else {VALUE: item}


def utf8(text: str) -> str:
    """Return the text, omitting surrogates, which UTF-8 cannot represent."""
    return text.encode("utf-8", "replace").decode()


def _harmless(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text
