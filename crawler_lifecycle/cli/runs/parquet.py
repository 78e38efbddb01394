"""Items as a Parquet file, which is written in groups of rows.

This needs the extra ``parquet`` (pyarrow).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any

from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.domain.item_export import LEFT_OUT, PAUSE, fields_of, read_head, utf8
from crawler_lifecycle.domain.items import as_text, plain

#: The maximum number of rows and cells in a group, and of characters in its strings.
ROWS = 20_000
CELLS = 1_000_000
CHARS = 8 * 1024 * 1024
#: Type of a column -> a test whether a value fits into such a column. A column with values that fit
#: into none of these types has the type string.
_FITS: dict[str, Callable[[Any], bool]] = {
    "bool_": lambda value: isinstance(value, bool),
    "int64": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "float64": lambda value: type(value) is float or (type(value) is int and abs(value) <= 2**53),
}


def as_parquet(items: Iterable[Any], fields: Collection[str] | None = None) -> Iterator[bytes]:
    """Yield the bytes of a Parquet file.

    The columns are ``fields``, or the fields of the first items.

    The values of the first items determine the type of a column. Values that do not fit their
    column are written as JSON to an extra column. Raises ``CommandFailed`` if pyarrow is missing.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        fix = 'pip install "crawler-lifecycle[parquet]"'
        raise CommandFailed(Exit.ERROR, "--format parquet needs pyarrow", str(error), fix) from None
    source = (item for item in items if item is not PAUSE)
    sink = io.BytesIO()
    head, names, _ = yield from read_head(source)
    kinds = {name: _kind([fields_of(item).get(name) for item in head]) for name in fields or names}
    columns = [pyarrow.field(name, getattr(pyarrow, kind)()) for name, kind in kinds.items()]
    schema = pyarrow.schema([*columns, pyarrow.field(LEFT_OUT, pyarrow.string())])
    with parquet.ParquetWriter(sink, schema) as writer:
        most = min(ROWS, CELLS // len(schema))
        for group in _groups(
            (_row(item, kinds, fields is None) for item in chain(head, source)), most
        ):
            writer.write_table(pyarrow.Table.from_pylist(group, schema))
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()


def _kind(values: Iterable[Any]) -> str:
    """Return a column type that fits all values."""
    some = [value for value in values if value is not None]
    return next((kind for kind, fits in _FITS.items() if some and all(map(fits, some))), "string")


def _row(item: Any, kinds: dict[str, str], whole: bool) -> dict[str, Any]:
    row = dict[str, Any]()
    rest = dict[str, Any]()
    for name, value in fields_of(item).items():
        kind = kinds.get(name)
        if kind == "string":
            row[name] = None if value is None else utf8(as_text(value))
        elif kind is not None and (value is None or _FITS[kind](value)):
            row[name] = value
        elif kind is not None or whole:
            rest[name] = value
    return row | {LEFT_OUT: utf8(plain(rest)) if rest else None}


def _groups(rows: Iterable[dict[str, Any]], most: int) -> Iterator[list[dict[str, Any]]]:
    group = list[dict[str, Any]]()
    chars = 0
    for row in rows:
        group.append(row)
        chars += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(group) >= most or chars >= CHARS:
            yield group
            group = []
            chars = 0
    yield group
