"""Items of a feed, one after the other, in memory that does not grow with the feed: bytes in, values out.

A feed is a file with items: JSON Lines, a JSON list, CSV. Crawlers write it, so whatever the bytes are, there are
items, or a count of what was skipped and a sentence.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, TextIO, cast

#: Characters of one item. A longer one is skipped and counted.
ITEM_MAX = 8 * 1024 * 1024
csv.field_size_limit(ITEM_MAX)  # of this process
_CHUNK = 64 * 1024
#: Lists inside of each other that are written, where they are too many for Python.
_DEPTH_MAX = 50
#: Of a feed in two formats the first of these counts.
_FORMATS = ("jsonl", "jsonlines", "ndjson", "jl", "json", "csv", "tsv")
_NAMED_ITEMS = re.compile(r"(^|/)items[^/]*$", re.IGNORECASE)
_NO_FEED = re.compile(r"(^|/)(skipped\.jsonl$|[^/]*/pages/)")
#: The mark of UTF-32 is asked for first: it begins with that of UTF-16.
_BOMS = (
    ("utf-32", (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),
    ("utf-16", (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
)
_SPACE = re.compile(r"[ \t\r\n]*")
#: Reasons for which something is skipped, and what a person reads.
NO_JSON, TOO_LONG, TORN, UNREADABLE, MENDED = "no_json", "too_long", "torn", "unreadable", "mended"
_SENTENCES = {
    NO_JSON: "{0:,} lines were no JSON",
    TOO_LONG: f"{{0:,}} items were longer than {ITEM_MAX:,} characters",
    TORN: "{0:,} last lines were not whole: they are being written, or their crawler died",
    UNREADABLE: "{0:,} files could not be read to their end",
    MENDED: "{0:,} lines were no UTF-8; they were read as Windows-1252, or with marks for what is no text",
}
#: The cure for a run without items.
NO_FEEDS = (
    "this run has left no items yet: a crawler writes them to items.jsonl in the folder CRAWL_FILES_DIR, a JSON object "
    "a line; a Scrapy project gets such a feed by default"
)
# ``json.dumps`` would make one for each value.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
# Python makes no number of more digits than these: they stay a text.
_decoder = json.JSONDecoder(strict=False, parse_constant=lambda _: None, parse_int=lambda n: n if n[4300:] else int(n))


def is_items(name: str) -> bool:
    """Tell whether a file of this name may hold items."""
    return "." in name and _suffix(name) in _FORMATS


def feeds(names: Iterable[str]) -> list[str]:
    """The feeds among the files of a run, in their order.

    Of each task (the first folder of a name) these are the files that are named ``items…``, or else all that may hold
    items. One feed in two formats, such as ``items.jsonl`` and ``items.csv``, counts once.
    """
    best: dict[str, str] = {}
    names = [name for name in names if is_items(name) and not _NO_FEED.search(name)]
    named = {name.partition("/")[0] for name in names if _NAMED_ITEMS.search(name)}
    for name in names:
        if name.partition("/")[0] not in named or _NAMED_ITEMS.search(name):
            stem = name.rpartition(".")[0]
            best[stem] = min(best.get(stem, name), name, key=lambda name: _FORMATS.index(_suffix(name)))
    return list(best.values())


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()


def sentences(skipped: Counter[str]) -> list[str]:
    """Sentences for people about what was skipped."""
    return [text.format(skipped[reason]) for reason, text in _SENTENCES.items() if skipped[reason]]


def read_items(
    name: str,
    pieces: Iterable[bytes],
    skipped: Counter[str],
    notes: list[str] | None = None,
    decoder: json.JSONDecoder = _decoder,
) -> Iterator[Any]:
    """The items of the file of this name, whose bytes are these pieces. What is skipped is counted in ``skipped``, and
    ``notes`` gets sentences about what cannot be read on."""
    kind = _suffix(name)
    text = _text_of(pieces, "" if kind in ("csv", "tsv") else "\n")
    reader = _Reader(name, text, skipped, [] if notes is None else notes, decoder)
    return {"json": reader.values, "csv": reader.records, "tsv": reader.records}.get(kind, reader.json_lines)()


def matching(field: str | None, contains: str | None) -> Callable[[Any], bool]:
    """Tell of an item whether this text is in one field, or in any, in any case; without a text: whether something is
    in that field."""
    wanted = (contains or "").casefold()

    def fits(item: Any) -> bool:
        fields = item if isinstance(item, dict) else {None: item}
        values = fields.values() if field is None else (fields.get(field),)
        return any(value is not None and wanted in as_text(value).casefold() for value in values)

    return fits if field is not None or wanted else lambda _: True


def as_text(value: Any) -> str:
    """A text unchanged, nothing for null, any other value as JSON."""
    return value if isinstance(value, str) else "" if value is None else plain(value)


def plain(value: Any) -> str:
    """The value as JSON that everybody reads: what is no number becomes null, what is nested very deeply ``…``."""
    try:
        return _encoder.encode(value)
    except (ValueError, RecursionError):
        return json.dumps(_bounded(value, 0), ensure_ascii=False)


def _bounded(value: Any, depth: int) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, dict | list):
        return value
    if depth == _DEPTH_MAX:
        return "…"
    if isinstance(value, list):
        return [_bounded(one, depth + 1) for one in value]
    return {name: _bounded(one, depth + 1) for name, one in value.items()}


def _text_of(pieces: Iterable[bytes], newline: str) -> TextIO:
    """The bytes as text. Bytes that are no UTF-8 come as lone surrogates, which are mended line by line.
    ``newline`` ends a line; of ``""`` each kind of end does."""
    rest = iter(pieces)
    begin = b""
    while len(begin) < 4 and (piece := next(rest, b"")):
        begin += piece
    encoding = next((name for name, marks in _BOMS if begin.startswith(marks)), "utf-8-sig")
    errors = "surrogateescape" if encoding == "utf-8-sig" else "replace"
    return io.TextIOWrapper(cast(BinaryIO, _Pieces(chain([begin], rest))), encoding, errors, newline)


class _Pieces(io.BufferedIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = filter(None, pieces)

    def readable(self) -> bool:
        return True

    def read1(self, _size: int = -1, /) -> bytes:
        return next(self._pieces, b"")


@dataclass
class _Reader:
    """One feed; one of the methods that yield items is called once."""

    name: str
    text: TextIO
    skipped: Counter[str]
    notes: list[str]
    decoder: json.JSONDecoder

    def _end(self, why: str) -> None:
        """Note that the rest cannot be read."""
        self.skipped[UNREADABLE] += 1
        self.notes.append(f"{self.name}: {why}")

    def _lines(self) -> Iterator[str]:
        """Whole lines."""
        while line := self.text.readline(ITEM_MAX):
            if len(line) == ITEM_MAX and not line.endswith(("\n", "\r")):
                self.skipped[TOO_LONG] += 1
                while (rest := self.text.readline(ITEM_MAX)) and not rest.endswith("\n"):
                    continue
                continue
            if not line.isascii() and (mended := _mended(line)) is not line:
                self.skipped[MENDED] += 1
                line = mended
            yield line

    def json_lines(self) -> Iterator[Any]:
        for line in self._lines():
            if not (stripped := line.strip()):
                continue
            try:
                yield self.decoder.decode(stripped)
            except (ValueError, RecursionError):
                self.skipped[NO_JSON if line.endswith("\n") else TORN] += 1

    def values(self) -> Iterator[Any]:
        """Items of a list, or items one behind the other."""
        window = _Window(self.text, self.decoder)
        in_list = window.next() == "["
        window.place += in_list
        while window.next() not in ("]", ""):
            try:
                item = window.value()
            except (ValueError, RecursionError) as error:
                self._end(f"it ends in something that is no JSON: {str(error)[:100]}")
                return
            yield item
            follows = window.next()
            if in_list and follows == ",":
                window.place += 1
            elif in_list and follows not in ("]", ""):
                self._end("behind its last item stands something that is no JSON")
                return

    def records(self) -> Iterator[dict[str, str]]:
        """Lines of CSV by the names in the first one."""
        lines = self._lines()
        first = next(lines, "")
        delimiter = "\t" if _suffix(self.name) == "tsv" else max(",;\t|", key=first[:10_000].count)
        rows = filter(None, csv.reader(chain([first], lines), delimiter=delimiter))
        try:
            names = _unlike(next(rows, []))
            for row in rows:
                more = (f"(column {n + 1})" for n in range(len(names), len(row)))
                yield {name: value for name, value in zip(chain(names, more), row, strict=False) if value}
        except csv.Error as error:
            self._end(f"it cannot be read on: {str(error)[:100]}; a quote without its end is one cause")


class _Window:
    """The part of a text in which the next value stands."""

    def __init__(self, text: TextIO, decoder: json.JSONDecoder) -> None:
        self._file, self._decoder = text, decoder
        self._text, self.place = "", 0

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
        more = _mended(self._file.read(size))
        self._text, self.place = self._text[self.place :] + more, 0
        return bool(more)


def _mended(text: str) -> str:
    """The text without the lone surrogates that stand for bytes which are no UTF-8."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogateescape")
    mended = data.decode("utf-8", "replace")
    # Of Windows' own encoding nearly every letter with an accent is wrong; of a spoilt file few are.
    if mended.count("\ufffd") * 2 > len(mended) - len(mended.encode("ascii", "ignore")):
        return data.decode("cp1252", "replace")
    return mended


def _unlike(names: Iterable[str]) -> list[str]:
    """The names of columns, each another one."""
    found: dict[str, None] = {}
    for n, name in enumerate(names):
        own = name.strip()
        found[own if own and own not in found else f"{own} (column {n + 1})".strip()] = None
    return list(found)
