"""Items of a file: one job a line, of JSON Lines or CSV, read while they come.

Every line is checked before it counts; what is wrong with one is told with its number.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.domain.managers.manager import PAGE_ITEMS

Format = Literal["jsonl", "csv"]
Args = dict[str, Any]

#: Bytes of one line, and of the items of a page as JSON: below what the gateway takes.
LINE_MAX, PAGE_MAX = 64 * 1024, 200 * 1024


@dataclass(frozen=True, slots=True)
class Item:
    """The arguments of one line."""

    line: int
    args: Args


@dataclass(frozen=True, slots=True)
class Source:
    """The source of items: a file, or standard input (``-``)."""

    path: Path
    form: Format
    check: Callable[[Args], None]
    """Raises ``ValueError`` that says what is wrong with an item."""

    def items(self) -> Iterator[Item]:
        """Every item. Raises ``CommandFailed`` that names the line."""
        with self._open() as file:
            lines = _csv(file) if self.form == "csv" else _json_lines(file)
            yield from self._checked(lines)

    def all_checked(self) -> Iterator[Item]:
        """Every item; of what can be read twice the first is given when all were checked. Raises ``CommandFailed``."""
        if str(self.path) != "-" and self.path.is_file():  # standard input and pipes cannot
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
        like = (
            "one value for each name of the header" if self.form == "csv" else 'one such as {"domain": "example.org"}'
        )
        return CommandFailed(Exit.USAGE, f"{name}, line {line}: {why}", None, f"mend the line: give {like}")

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        if str(self.path) == "-":
            yield sys.stdin.buffer
            return
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise CommandFailed(Exit.USAGE, f"--each {self.path} cannot be read", str(error)) from None
        with file:
            yield file


def pages(items: Iterable[Item]) -> Iterator[tuple[list[Item], bool]]:
    """Items in pages that the gateway takes, each with whether it is the last one."""
    page: list[Item] = []
    size = 0
    for item in items:
        more = len(json.dumps(item.args)) + 32
        if page and (len(page) == PAGE_ITEMS or size + more > PAGE_MAX):
            yield page, False
            page, size = [], 0
        page.append(item)
        size += more
    if page:
        yield page, True


def format_of(path: Path, given: Format | None) -> Format:
    """The format that was named, else that of the file's name, else JSON Lines."""
    return given or ("csv" if path.suffix.lower() == ".csv" else "jsonl")


def _json_lines(file: BinaryIO) -> Iterator[tuple[int, Args | str]]:
    """Numbers of lines, with an item or what is wrong."""
    number = 0
    while raw := file.readline(LINE_MAX + 1):
        number += 1
        if len(raw) > LINE_MAX:
            yield number, f"more than {LINE_MAX} bytes, which no job may have"
            return
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if raw.strip():
            yield number, _parsed(raw)


def _parsed(raw: bytes) -> Args | str:
    try:
        found = json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_no_twins)
    except UnicodeDecodeError:
        return "no UTF-8"
    except json.JSONDecodeError as error:
        return f"no JSON ({error.msg} at column {error.colno})"
    except (ValueError, RecursionError) as error:
        return str(error) or "nested too deeply"
    if not isinstance(found, dict):
        return "no JSON object of arguments"
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _no_twins(pairs: list[tuple[str, Any]]) -> Args:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        raise ValueError("a name is given twice")
    return plain


def _csv(file: BinaryIO) -> Iterator[tuple[int, Args | str]]:
    """The same of CSV; an empty value leaves its name out."""
    reader = csv.reader(_texts(file), strict=True)
    header: list[str] | None = None
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader, None)
        except UnicodeDecodeError:
            yield reader.line_num + 1, "no UTF-8"
            return
        except csv.Error as error:
            yield first, f"no CSV ({error})"
            return
        if row is None:
            return
        if not row:
            continue
        if header is None:
            header = [name.strip() for name in row]
            if len(set(header)) != len(header) or not all(header):
                yield first, "a header needs a name for each column, and each once"
                return
        elif len(row) != len(header):
            yield first, f"{len(row)} values for {len(header)} names of the header"
            return
        else:
            yield first, {name: value for name, value in zip(header, row, strict=True) if value != ""}


def _texts(file: BinaryIO) -> Iterator[str]:
    """The lines of a file, each decoded by itself, so that the one that is no text is known."""
    first = True
    while raw := file.readline(LINE_MAX + 1):
        yield raw.decode("utf-8-sig" if first else "utf-8")
        first = False
