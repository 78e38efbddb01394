"""The reader of feeds: it turns bytes into items, one after the other. The memory does not grow with the feed.

A feed is a file with items: JSON Lines, a JSON list or CSV. Crawlers write it, so it may contain any bytes. Data that
cannot be read is skipped and counted, and a sentence reports it.
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
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, BinaryIO, TextIO, cast

#: The most characters of one item. A longer item is skipped and counted.
ITEM_MAX = 8 * 1024 * 1024
csv.field_size_limit(ITEM_MAX)  # of this process
#: The most values of one item: its fields, and what is in them at any depth. It limits the memory and the time for one
#: item. An item with more is skipped and counted. A polygon of 30,000 points fits.
VALUES_MAX = 100_000
_CHUNK = 64 * 1024
#: A longer text is decoded value by value.
_LONG = 2 * _CHUNK
#: The most levels of nested lists that are written, if a value has too many levels for Python.
_DEPTH_MAX = 50
#: The formats of feeds. If a feed exists in two formats, the first one in this order counts.
_FORMATS = ("jsonl", "jsonlines", "ndjson", "jl", "json", "csv", "tsv")
_NAMED_ITEMS = re.compile(r"(^|/)items[^/]*$", re.IGNORECASE)
_NO_FEED = re.compile(r"(^|/)(skipped\.jsonl$|[^/]*/pages/)")
#: Byte order marks. UTF-32 comes first, because its mark begins with the mark of UTF-16.
_BOMS = (
    ("utf-32", (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),
    ("utf-16", (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
)
_SPACE = re.compile(r"[ \t\r\n]*")
#: Reasons for skipped or repaired data, and the sentences about them.
NO_JSON, TOO_LONG, TOO_WIDE, TORN = "no_json", "too_long", "too_wide", "torn"
UNREADABLE, MENDED = "unreadable", "mended"
_SENTENCES = {
    NO_JSON: "{0:,} lines were no JSON",
    TOO_LONG: f"{{0:,}} items were longer than {ITEM_MAX:,} characters",
    TOO_WIDE: f"{{0:,}} items had more than {VALUES_MAX:,} values",
    TORN: "{0:,} last lines were incomplete: they are being written, or their crawler died",
    UNREADABLE: "{0:,} files could not be read to their end",
    MENDED: "{0:,} lines were no UTF-8; they were read as Windows-1252, or with replacement characters",
}
#: The sentence about a run without items.
NO_FEEDS = (
    "this run has left no items yet: a crawler writes them to items.jsonl in the folder CRAWL_FILES_DIR, a JSON object "
    "a line; a Scrapy project gets such a feed by default"
)
# ``json.dumps`` would create a new encoder for each value.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_AS_USUAL: dict[str, Any] = {"strict": False, "parse_constant": lambda _: None}


class TooWide(ValueError):
    """An item has more values than ``VALUES_MAX``."""


class ItemDecoder(json.JSONDecoder):
    """A decoder of items. It raises ``TooWide``.

    Python's decoder in C lets no other thread work until it has finished, and counts nothing. So it gets short texts
    only, and of a long text one text or number at a time. A decoder calls Python for numbers only where it must: a call
    for each number costs a third of the time.
    """

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        try:
            return super().raw_decode(s, idx) if len(s) - idx <= _LONG else _Scanner(self)(s, idx)
        except StopIteration as stop:
            raise json.JSONDecodeError("Expecting value", s, stop.value) from None
        except (json.JSONDecodeError, TooWide):
            raise
        except ValueError:
            return _long_numbers.raw_decode(s, idx)


@dataclass
class _Scanner:
    """Decodes one item, and counts its values."""

    decoder: Any
    count: int = -1
    """The item itself is none of its values."""
    names: dict[str, str] = field(default_factory=dict)

    def __call__(self, text: str, at: int) -> tuple[Any, int]:
        self.count += 1
        if self.count > VALUES_MAX:
            raise TooWide(f"an item has more than {VALUES_MAX:,} values")
        decoder = self.decoder
        found: tuple[Any, int]
        if text.startswith("[", at):
            found = decoder.parse_array((text, at + 1), self)
        elif text.startswith("{", at):
            hooks = decoder.object_hook, decoder.object_pairs_hook
            found = decoder.parse_object((text, at + 1), decoder.strict, self, *hooks, self.names)
        else:
            found = decoder.scan_once(text, at)
        return found


_decoder = ItemDecoder(**_AS_USUAL)
#: For what has a number of more than 4,300 digits, which Python refuses to convert: such a number stays a text.
_long_numbers = ItemDecoder(**_AS_USUAL, parse_int=lambda n: n if n[4300:] else int(n))


def is_items(name: str) -> bool:
    """Return whether a file with this name may contain items."""
    return "." in name and _suffix(name) in _FORMATS


def feeds(names: Iterable[str]) -> list[str]:
    """Return the feeds among the files of a run, in their order.

    The first folder of a name is the task. For each task these are the files with a name ``items…``, or else all files
    that may contain items. A feed in two formats, such as ``items.jsonl`` and ``items.csv``, counts once.
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
    """Return sentences for people about skipped data."""
    return [text.format(skipped[reason]) for reason, text in _SENTENCES.items() if skipped[reason]]


def read_items(
    name: str,
    pieces: Iterable[bytes],
    skipped: Counter[str],
    notes: list[str] | None = None,
    decoder: ItemDecoder = _decoder,
) -> Iterator[Any]:
    """Yield the items of a file. ``pieces`` are its bytes.

    ``skipped`` counts the skipped data by reason. ``notes`` receives a sentence if the rest cannot be read.
    """
    kind = _suffix(name)
    text = _text_of(pieces, "" if kind in ("csv", "tsv") else "\n")
    reader = _Reader(name, text, skipped, [] if notes is None else notes, decoder)
    return {"json": reader.values, "csv": reader.records, "tsv": reader.records}.get(kind, reader.json_lines)()


def matching(field: str | None, contains: str | None) -> Callable[[Any], bool]:
    """Return a test of an item: whether this text is in the field, or in any field. Upper and lower case are equal.

    Without a text, the test is whether the field has a value.
    """
    wanted = (contains or "").casefold()

    def fits(item: Any) -> bool:
        fields = item if isinstance(item, dict) else {None: item}
        values = fields.values() if field is None else (fields.get(field),)
        return any(value is not None and wanted in as_text(value).casefold() for value in values)

    return fits if field is not None or wanted else lambda _: True


def as_text(value: Any) -> str:
    """Return a value as text: a text unchanged, an empty text for null, and JSON for any other value."""
    return value if isinstance(value, str) else "" if value is None else plain(value)


def plain(value: Any) -> str:
    """Return the value as standard JSON: NaN and infinity become null, and lists nested too deeply become ``…``."""
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
    """Return the bytes as a text file. Bytes that are no UTF-8 become lone surrogates; ``_mended`` replaces them later.

    ``newline`` ends a line; ``""``: any kind of line end does.
    """
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
    """The reader of one feed. Call one of the methods that yield items, and call it once."""

    name: str
    text: TextIO
    skipped: Counter[str]
    notes: list[str]
    decoder: ItemDecoder

    def _end(self, why: str) -> None:
        """Record that the rest of the feed cannot be read."""
        self.skipped[UNREADABLE] += 1
        self.notes.append(f"{self.name}: {why}")

    def _lines(self) -> Iterator[str]:
        """Yield the lines, without those that are too long."""
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
            except TooWide:
                self.skipped[TOO_WIDE] += 1
            except (ValueError, RecursionError):
                self.skipped[NO_JSON if line.endswith("\n") else TORN] += 1

    def values(self) -> Iterator[Any]:
        """Yield the items of a JSON list, or of JSON values that follow one another."""
        window = _Window(self.text, self.decoder)
        in_list = window.next() == "["
        window.position += in_list
        while window.next() not in ("]", ""):
            try:
                item = window.value()
            except (ValueError, RecursionError) as error:
                self._end(f"the rest cannot be read as JSON: {str(error)[:100]}")
                return
            yield item
            follows = window.next()
            if in_list and follows == ",":
                window.position += 1
            elif in_list and follows not in ("]", ""):
                self._end("the text after its last item is no JSON")
                return

    def records(self) -> Iterator[dict[str, str]]:
        """Yield the records of a CSV file, with the names of its first line."""
        lines = self._lines()
        first = next(lines, "")
        delimiter = "\t" if _suffix(self.name) == "tsv" else max(",;\t|", key=first[:10_000].count)
        quotes = chars = cells = 0

        def counted() -> Iterator[str]:
            nonlocal quotes, chars, cells
            for line in chain([first], lines):
                quotes += line.count('"')
                chars += len(line)
                cells += line.count(delimiter)
                if chars > ITEM_MAX or cells > VALUES_MAX:  # quotes may join any number of lines
                    raise csv.Error(f"an item has more than {ITEM_MAX:,} characters or {VALUES_MAX:,} cells")
                yield line

        rows = csv.reader(counted(), delimiter=delimiter)
        names: list[str] = []
        try:
            for row in rows:
                chars = cells = 0
                if not names:
                    names = _distinct(row)
                elif row:
                    more = (f"(column {n + 1})" for n in range(len(names), len(row)))
                    yield {name: value for name, value in zip(chain(names, more), row, strict=False) if value}
        except csv.Error as error:
            self._end(f"the rest cannot be read: {str(error)[:100]}; one cause is a quote without its end")
        else:
            if quotes % 2:
                self._end("a quote without its end; the lines after it were read as one value")


class _Window:
    """The part of a text that contains the next value."""

    def __init__(self, text: TextIO, decoder: ItemDecoder) -> None:
        self._file, self._decoder = text, decoder
        self._text, self.position = "", 0

    def next(self) -> str:
        """Move to the next character that is no space, and return it; ``""`` at the end."""
        while True:
            found = _SPACE.match(self._text, self.position)
            self.position = found.end() if found else self.position
            if self.position < len(self._text) or not self._grow(_CHUNK):
                return self._text[self.position : self.position + 1]

    def value(self) -> Any:
        """Read the value that begins here. Raises ``ValueError`` and ``RecursionError``."""
        size = _CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self.position)
            except TooWide:
                raise
            except (ValueError, RecursionError):
                # The value may continue in the file. Each turn reads twice as much: a long value takes linear time.
                if len(self._text) - self.position > ITEM_MAX or not self._grow(size):
                    raise
            else:
                if end < len(self._text) or not self._grow(size):  # at the end of the text a number may continue
                    self.position = end
                    return value
            size *= 2

    def _grow(self, size: int) -> bool:
        more = _mended(self._file.read(size))
        self._text, self.position = self._text[self.position :] + more, 0
        return bool(more)


def _mended(text: str) -> str:
    """Return the text with characters in place of its lone surrogates, which stand for bytes that are no UTF-8."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogateescape")
    mended = data.decode("utf-8", "replace")
    # In a Windows-1252 text nearly all characters outside of ASCII are invalid UTF-8. In a damaged file few are.
    if mended.count("\ufffd") * 2 > len(mended) - len(mended.encode("ascii", "ignore")):
        return data.decode("cp1252", "replace")
    return mended


def _distinct(names: Iterable[str]) -> list[str]:
    """Return the names of columns. A name that is empty or occurred before gets the number of its column."""
    found: dict[str, None] = {}
    for n, name in enumerate(names):
        own = name.strip()
        found[own if own and own not in found else f"{own} (column {n + 1})".strip()] = None
    return list(found)
