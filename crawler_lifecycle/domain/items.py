"""Items of a feed, one after the other, in memory that does not grow with the feed: bytes in, values out.

A feed is a file with items: JSON Lines, a JSON list, CSV. Crawlers write it, so whatever the bytes are, there are
items, or a count of what was skipped and a sentence.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, TextIO

#: Characters of one item. A longer one is skipped and counted.
ITEM_MAX = 8 * 1024 * 1024
_CHUNK = 64 * 1024
_SUFFIX = re.compile(r"\.(jsonl|jsonlines|ndjson|jl|json|csv|tsv)$", re.IGNORECASE)
#: Of a feed in two formats the first of these counts.
_FORMATS = ("jsonl", "jsonlines", "ndjson", "jl", "json", "csv", "tsv")
_NAMED_ITEMS = re.compile(r"(^|/)items[^/]*$", re.IGNORECASE)
_NO_FEED = re.compile(r"(^|/)(skipped\.jsonl$|[^/]*/pages/)")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SPACE = re.compile(r"[ \t\r\n]*")
#: Reasons for which something is skipped, and what a person reads.
NO_JSON, TOO_LONG, TORN, UNREADABLE = "no_json", "too_long", "torn", "unreadable"
_SENTENCES = {
    NO_JSON: "{0:,} lines were no JSON",
    TOO_LONG: f"{{0:,}} items were longer than {ITEM_MAX:,} characters",
    TORN: "{0:,} last lines were not whole: they are being written, or their crawler died",
    UNREADABLE: "{0:,} files could not be read to their end",
}
_decoder = json.JSONDecoder(strict=False, parse_constant=lambda _: None)


def is_items(name: str) -> bool:
    """Tell whether a file of this name may hold items."""
    return _SUFFIX.search(name) is not None


def feeds(names: Iterable[str]) -> list[str]:
    """The feeds among the files of a run, in their order.

    Of each task (the first folder of a name) these are the files that are named ``items…``, or else all that may hold
    items. One feed in two formats, such as ``items.jsonl`` and ``items.csv``, counts once.
    """
    of_task: dict[str, dict[str, str]] = {}
    names = [name for name in names if is_items(name) and not _NO_FEED.search(name)]
    named = {name.partition("/")[0] for name in names if _NAMED_ITEMS.search(name)}
    for name in names:
        task, (stem, _, suffix) = name.partition("/")[0], name.rpartition(".")
        if task in named and not _NAMED_ITEMS.search(name):
            continue
        known = of_task.setdefault(task, {})
        if stem not in known or _FORMATS.index(suffix.lower()) < _FORMATS.index(known[stem].lower()):
            known[stem] = suffix
    return [f"{stem}.{suffix}" for known in of_task.values() for stem, suffix in known.items()]


def sentences(skipped: Counter[str]) -> list[str]:
    """Sentences for people about what was skipped."""
    return [text.format(skipped[reason]) for reason, text in _SENTENCES.items() if skipped[reason]]


def read_items(name: str, pieces: Iterable[bytes], skipped: Counter[str]) -> Iterator[Any]:
    """The items of the file of this name, whose bytes are these pieces. What is skipped is counted in ``skipped``."""
    reader = ItemReader(name, text_of(pieces, lines_only=format_of(name) not in ("csv", "tsv")))
    try:
        yield from reader
    finally:
        skipped.update(reader.skipped)


def format_of(name: str) -> str:
    """The format of a file by its name: ``jsonl``, ``json``, ``csv`` or ``tsv``."""
    found = _SUFFIX.search(name)
    kind = found[1].lower() if found else ""
    return kind if kind in ("json", "csv", "tsv") else "jsonl"


def text_of(pieces: Iterable[bytes], *, lines_only: bool) -> TextIO:
    """The bytes as text. Bytes that are no UTF-8 come as lone surrogates, which ``ItemReader`` mends line by line.
    ``lines_only``: only a line feed ends a line."""
    rest = iter(pieces)
    begin = b""
    while len(begin) < 4 and (piece := next(rest, b"")):
        begin += piece
    encoding, mark = next(((name, mark) for mark, name in _BOMS if begin.startswith(mark)), ("utf-8", b""))
    errors = "surrogateescape" if encoding == "utf-8" else "replace"
    raw = io.BufferedReader(_Pieces(chain([begin[len(mark) :]], rest)), _CHUNK)
    return io.TextIOWrapper(raw, encoding, errors, newline="\n" if lines_only else "")


def decoded(data: bytes) -> tuple[str, str | None]:
    """The bytes as text, and what was unusual about that. A character that is cut at their end is left out."""
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


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        most = min(len(buffer), len(self._rest))
        buffer[:most] = self._rest[:most]
        self._rest = self._rest[most:]
        return most


class ItemReader:
    """The items of one feed: iterate over it once.

    ``cut``: the text is only the beginning of the file, so what ends with it may be a part of an item.
    ``broken`` makes an item of a line that is no JSON; without it such lines are skipped.
    """

    def __init__(
        self,
        name: str,
        text: TextIO,
        *,
        cut: bool = False,
        decoder: json.JSONDecoder = _decoder,
        broken: Callable[[str], Any] | None = None,
    ) -> None:
        self._kind, self._text, self._cut, self._decoder, self._broken = format_of(name), text, cut, decoder, broken
        self.place = 0
        """Characters that the items so far take."""
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        """Sentences about what cannot be read on."""

    def __iter__(self) -> Iterator[Any]:
        return {"json": self._values, "jsonl": self._json_lines}.get(self._kind, self._records)()

    def _lines(self) -> Iterator[str]:
        """Whole lines. The last line of a beginning is left out."""
        while line := self._text.readline(ITEM_MAX):
            if not line.endswith(("\n", "\r")):
                if len(line) == ITEM_MAX:
                    self._skip_line()
                    continue
                if self._cut:
                    break
            self.place += len(line)
            yield line if line.isascii() else _mended(line)
        if self._cut and not self.place:
            self._first_too_long("line")

    def _skip_line(self) -> None:
        self.skipped[TOO_LONG] += 1
        while (rest := self._text.readline(ITEM_MAX)) and not rest.endswith("\n"):
            continue

    def _first_too_long(self, what: str) -> None:
        self.notes.append(f"its first {what} is longer than what is read; download the file to look into it")

    def _json_lines(self) -> Iterator[Any]:
        for line in self._lines():
            if not (stripped := line.strip()):
                continue
            try:
                yield self._decoder.decode(stripped)
            except (ValueError, RecursionError):
                if not line.endswith("\n"):
                    self.skipped[TORN] += 1
                    continue
                self.skipped[NO_JSON] += 1
                if self._broken is not None:
                    yield self._broken(stripped)

    def _values(self) -> Iterator[Any]:
        """Items of a list, or items one behind the other."""
        window = _Window(self._text, self._decoder)
        in_list = window.next() == "["
        window.place += in_list
        while window.next() not in ("]", ""):
            try:
                item = window.value()
            except (ValueError, RecursionError) as error:
                self._end_of_json(error)
                return
            self.place = window.consumed
            yield item
            follows = window.next()
            if in_list and follows == ",":
                window.place += 1
            elif in_list and follows not in ("]", ""):
                self.skipped[UNREADABLE] += 1
                self.notes.append("behind its last item stands something that is no JSON")
                return

    def _end_of_json(self, error: Exception) -> None:
        if not self._cut:
            self.skipped[UNREADABLE] += 1
            self.notes.append(f"it ends in something that is no JSON: {str(error)[:100]}")
        elif not self.place:
            self._first_too_long("item")

    def _records(self) -> Iterator[dict[str, str]]:
        rows = self._rows()
        names = _unlike(next(rows, []))
        for row in rows:
            more = (f"(column {n + 1})" for n in range(len(names), len(row)))
            yield {name: value for name, value in zip(chain(names, more), row, strict=False) if value}

    def _rows(self) -> Iterator[list[str]]:
        """Records of CSV. The last one of a beginning is left out."""
        held: list[str] | None = None
        any_whole = False
        lines = self._lines()
        first = next(lines, "")
        delimiter = "\t" if self._kind == "tsv" else max(",;\t|", key=first[:10_000].count)
        try:
            for row in csv.reader(chain([first], lines), delimiter=delimiter):
                if held:
                    any_whole = True
                    yield held
                held = row
        except csv.Error as error:
            self.skipped[UNREADABLE] += 1
            self.notes.append(f"it cannot be read on: {str(error)[:100]}; a quote without its end is one cause")
            return
        if held and not self._cut:
            yield held
        elif held and not any_whole:
            self._first_too_long("line")


class _Window:
    """The part of a text in which the next value stands."""

    def __init__(self, text: TextIO, decoder: json.JSONDecoder) -> None:
        self._file, self._decoder = text, decoder
        self._text, self.place, self._dropped = "", 0, 0

    @property
    def consumed(self) -> int:
        return self._dropped + self.place

    def next(self) -> str:
        """The next character that is no space; ``""`` at the end."""
        while True:
            found = _SPACE.match(self._text, self.place)
            self.place = found.end() if found else self.place
            if self.place < len(self._text) or not self._grow(_CHUNK):
                return self._text[self.place : self.place + 1]

    def value(self) -> Any:
        """The value that begins here. Raises ``ValueError`` and ``RecursionError``."""
        size = _CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self.place)
            except (ValueError, RecursionError):
                # It may be cut here. Each turn reads twice as much, so that a long value takes linear time.
                if len(self._text) - self.place > ITEM_MAX or not self._grow(size):
                    raise
            else:
                if end < len(self._text) or not self._grow(size):  # a number may go on
                    self.place = end
                    return value
            size *= 2

    def _grow(self, size: int) -> bool:
        more = self._file.read(size)
        if more:
            more = more if more.isascii() else _mended(more)
            self._text, self._dropped, self.place = self._text[self.place :] + more, self.consumed, 0
        return bool(more)


def _mended(text: str) -> str:
    """The text without the lone surrogates that stand for bytes which are no UTF-8."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return decoded(text.encode("utf-8", "surrogateescape"))[0]


def _unlike(names: Iterable[str]) -> list[str]:
    """The names of columns, each another one."""
    found: dict[str, None] = {}
    for n, name in enumerate(names):
        own = name.strip()
        found[own if own and own not in found else f"{own} (column {n + 1})".strip()] = None
    return list(found)
