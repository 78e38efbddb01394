"""Reads items from a file in JSON Lines or CSV, line by line. Each line is one job.

Every line is checked before its item is used, and errors name the line.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

from crawler_lifecycle.cli.problems import CommandFailed, WrongUsage
from crawler_lifecycle.runner.item_reader import delimiter_of

from ..domain.manager import PAGE_ITEMS

Format = Literal["jsonl", "csv"]
Args = dict[str, Any]

#: The maximum number of bytes in a line, and in a page of items as JSON. The gateway accepts more.
LINE_MAX = 64 * 1024
PAGE_MAX = 200 * 1024


@dataclass(frozen=True, slots=True)
class Item:
    """The arguments in one line."""

    line: int
    args: Args


@dataclass(frozen=True, slots=True)
class Source:
    """The source of items: a file, or standard input (``-``)."""

    path: Path
    form: Format
    check: Callable[[Args], None]
    """Raises ``ValueError`` with the problem of an item."""

    def items(self) -> Iterator[Item]:
        """Yield every item. Raises ``CommandFailed``, which names the line."""
        with self._open() as file:
            lines = _csv(file, self.path.name) if self.form == "csv" else _json_lines(file)
            yield from self._checked(lines)

    def all_checked(self) -> Iterator[Item]:
        """Return every item, after a check of the whole file. Raises ``CommandFailed``.

        Standard input and pipes can only be read once, so their items are checked one by one.
        """
        if str(self.path) != "-" and self.path.is_file():
            for _ in self.items():
                pass
        return self.items()

    def _checked(self, lines: Iterable[tuple[int, Args | str]]) -> Iterator[Item]:
        for number, found in lines:
            if isinstance(found, str):
                raise self._broken(number, found)
            try:
                self.check(found)
            except ValueError as error:
                raise self._broken(number, str(error)) from None
            yield Item(number, found)

    def _broken(self, line: int, why: str) -> CommandFailed:
        name = "standard input" if str(self.path) == "-" else str(self.path)
        like = 'a JSON object such as {"domain": "example.org"}'
        like = "one value for each name of the header" if self.form == "csv" else like
        return WrongUsage(f"{name}, line {line}: {why}", f"correct the line: give {like}")

    def _open(self) -> AbstractContextManager[BinaryIO]:
        try:
            return nullcontext(sys.stdin.buffer) if str(self.path) == "-" else self.path.open("rb")
        except OSError as error:
            raise WrongUsage(f"--each {self.path} cannot be read", why=str(error)) from None


def pages(items: Iterable[Item]) -> Iterator[tuple[list[Item], bool]]:
    """Yield pages of items that are small enough for the gateway, each with a flag for the last
    page.
    """
    page: list[Item] = []
    size = 0
    for item in items:
        more = len(json.dumps(item.args)) + 32
        if page and (len(page) == PAGE_ITEMS or size + more > PAGE_MAX):
            yield page, False
            page = []
            size = 0
        page.append(item)
        size += more
    if page:
        yield page, True


def format_of(path: Path, given: Format | None) -> Format:
    """Return the given format.

    If no format is given, return CSV for files ``*.csv`` and ``*.tsv``, and JSON Lines for all
    others.
    """
    return given or ("csv" if path.suffix.lower() in (".csv", ".tsv") else "jsonl")


def _json_lines(file: BinaryIO) -> Iterator[tuple[int, Args | str]]:
    """Yield the number of each line, with its item or its error message."""
    number = 0
    while raw := file.readline(LINE_MAX + 1):
        number += 1
        if len(raw) > LINE_MAX:
            yield number, f"it has more than {LINE_MAX} bytes"
            return
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if raw.strip():
            yield number, _parsed(raw)


def _parsed(raw: bytes) -> Args | str:
    try:
        found = json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_no_twins)
    except UnicodeDecodeError:
        return "not valid UTF-8"
    except json.JSONDecodeError as error:
        return f"not valid JSON ({error.msg} at column {error.colno})"
    except (ValueError, RecursionError) as error:
        return str(error) or "nested too deeply"
    if not isinstance(found, dict):
        return "not a JSON object of arguments"
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not valid JSON")


def _no_twins(pairs: list[tuple[str, Any]]) -> Args:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        raise ValueError("a name is given twice")
    return plain


def _csv(file: BinaryIO, name: str) -> Iterator[tuple[int, Args | str]]:
    """Yield the number of each line of a CSV file, with its item or its error message.

    The header determines the delimiter, as in feeds of crawls. Blanks before a value are ignored
    unless it is quoted. An empty value is left out of the item.
    """
    head = file.readline(LINE_MAX + 1)
    lines = chain([head], iter(lambda: file.readline(LINE_MAX + 1), b""))
    delimiter = delimiter_of([head.decode("utf-8-sig", "replace")], name)
    reader = csv.reader(_texts(lines), strict=True, delimiter=delimiter, skipinitialspace=True)
    header: list[str] | None = None
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader, None)
        except UnicodeDecodeError:
            yield reader.line_num + 1, "not valid UTF-8"
            return
        except csv.Error as error:
            yield first, f"not valid CSV ({error})"
            return
        if row is None:
            return
        if not row:
            continue
        if header is None:
            header = [name.strip() for name in row]
            if len(set(header)) != len(header) or not all(header):
                yield first, "the header needs a different name for each column"
                return
        elif len(row) != len(header):
            yield first, f"it has {len(row)} values, but the header has {len(header)} names"
            return
        else:
            yield (
                first,
                {name: value for name, value in zip(header, row, strict=True) if value != ""},
            )


def _texts(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines as text. Each is decoded separately, so that an error names the correct
    line."""
    for number, raw in enumerate(lines):
        yield raw.decode("utf-8" if number else "utf-8-sig")
