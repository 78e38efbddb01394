"""Counting of the items in the feeds that a crawler writes into its folder, and of the fields that have a value.

So any program that writes ``items.jsonl`` (or CSV, or a JSON list) gets counters. While the crawler runs, only complete
lines count. All reading is bounded, because the crawler controls the folder and its files.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from .held import Held, NotOurs

#: The most feeds that are counted, names read from a folder, files considered as feeds, and levels of folders.
FEEDS_MAX, NAMES_MAX, FILES_MAX, DEPTH_MAX = 50, 20_000, 2_000, 3
#: The most bytes read in one pass, and of one line. A longer line counts as an item, but its fields are not read.
READ_MAX, LINE_MAX = 16 * 1024 * 1024, 1024 * 1024
#: Characters of an item in a list, as in ``domain/items.py``. A longer item ends the list.
ITEM_MAX = 8 * 1024 * 1024
csv.field_size_limit(ITEM_MAX)  # the limit holds for the whole process
#: The most fields reported, and characters of a name. The fields of the first ``ALL_MAX`` items are all read. After
#: these items, only the fields of every ``EACH``-th item are read.
FIELDS_MAX, FIELD_NAME_MAX, ALL_MAX, EACH = 30, 60, 20_000, 16
_CHUNK = 256 * 1024
#: The rules of ``domain/items.py``: which files are feeds, and which format counts when a feed exists in two.
_FORMATS = ("jsonl", "jsonlines", "ndjson", "jl", "json", "csv", "tsv")
_NAMED_ITEMS = re.compile(r"(^|/)items[^/]*$", re.IGNORECASE)
_NO_FEED = re.compile(r"(^|/)(skipped\.jsonl$|pages/)")
_BETWEEN = re.compile(r"[\s,]*")
#: Python makes no number of more digits than these: they stay a text.
_JSON = json.JSONDecoder(strict=False, parse_constant=lambda _: None, parse_int=lambda n: n if n[4300:] else int(n))


class Feeds:
    """The feeds in one folder. The fields ``wanted`` are reported first, even when no item has a value for them."""

    def __init__(self, folder: str, wanted: Sequence[str] = ()) -> None:
        self._folder, self._wanted = folder, frozenset(wanted)
        self._feeds: dict[str, _Feed] = {}

    @property
    def items(self) -> int | None:
        """The number of items so far; ``None`` without a feed."""
        return sum(feed.items for feed in self._feeds.values()) if self._feeds else None

    @property
    def bytes(self) -> int:
        return sum(feed.position for feed in self._feeds.values())

    def read_on(self) -> bool:
        """Count the data written since the last call, at most ``READ_MAX`` bytes. Return whether more data waits."""
        left = READ_MAX
        try:
            names = feeds(list(islice(_files(Held(self._folder), "", DEPTH_MAX), FILES_MAX)))[:FEEDS_MAX]
        except (OSError, NotOurs):
            return False
        self._feeds = {name: self._feeds.get(name) or _Feed(name, self._wanted) for name in names}
        for feed in self._feeds.values():
            with contextlib.suppress(OSError, NotOurs):
                left -= feed.read(self._folder, left)
        return left <= 0

    def finish(self) -> None:
        """Count the last line of each feed, which may have no line end."""
        for feed in self._feeds.values():
            feed.finish()

    def fields(self) -> dict[str, float]:
        """Return the share of items with a value in each field, 0 to 1: wanted fields first, then the most filled.

        Return nothing if the fields of no item were read.
        """
        filled: Counter[str] = Counter()
        for feed in self._feeds.values():
            filled.update(feed.filled)
        seen = sum(feed.seen for feed in self._feeds.values())
        most = sorted(filled, key=lambda name: (name not in self._wanted, -filled[name]))[:FIELDS_MAX]
        return {name: round(filled[name] / seen, 4) for name in most if seen}


class _Feed:
    """One feed, and the counts of the part that was read."""

    def __init__(self, name: str, wanted: frozenset[str]) -> None:
        *self._above, self._name = name.split("/")
        self._kind, self._fields = _suffix(name), wanted
        self._take = self._values if self._kind == "json" else self._lines
        self._file: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self.items, self.position, self.seen = 0, 0, 0
        self.filled: Counter[str] = Counter(dict.fromkeys(self._fields, 0))
        self._rest, self._too_long = b"", False
        #: The part of a list that has no whole item yet; ``None``: it is no list, or cannot be read on.
        self._text: str | None = ""
        self._is_list = False
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._head: list[str] | None = None
        self._record: list[str] = []
        self._quotes = self._length = 0

    def read(self, folder: str, most: int) -> int:
        """Read up to ``most`` further bytes, and return their number. A replaced file is read from its start.

        Raises ``NotOurs`` and ``OSError``.
        """
        handle = Held(folder, *self._above).open(self._name)
        if handle is None:
            return 0
        with open(handle, "rb") as file:
            found = os.fstat(file.fileno())
            if self._file != (found.st_dev, found.st_ino) or found.st_size < self.position:
                self._begin()
                self._file = (found.st_dev, found.st_ino)
            file.seek(self.position)
            took = 0
            while took < most and (chunk := file.read(min(_CHUNK, most - took))):
                took += len(chunk)
                self.position += len(chunk)
                self._take(chunk)
            return took

    def finish(self) -> None:
        """Count the last line, which may have no line end."""
        if self._rest or self._too_long or self._text:
            self._take(b"\n")
        self._end_record()

    def _lines(self, chunk: bytes) -> None:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._line(self._rest + line)
            self._rest, self._too_long = b"", False
        self._rest += rest
        if len(self._rest) > LINE_MAX:
            self._rest, self._too_long = b"", True

    def _line(self, line: bytes) -> None:
        text = line.strip()
        if self._kind in ("csv", "tsv"):
            self._csv_line(line.decode("utf-8", "replace"))
        elif (text or self._too_long) and self._is_wanted():
            self._read_fields(_value(text))

    def _values(self, chunk: bytes) -> None:
        """Take the complete items of a list. An item that is not JSON or is too long ends the list."""
        if self._text is None:
            return
        text, place = self._text + self._decode(chunk), 0
        if not self._is_list and (text := text.lstrip()):
            self._is_list, text = text[0] == "[", text[1:]
        with contextlib.suppress(ValueError, RecursionError):
            while self._is_list and (found := _BETWEEN.match(text, place)) and found.end() < len(text):
                item, end = _JSON.raw_decode(text, found.end())
                if end == len(text):  # a number may continue
                    break
                place = end
                if self._is_wanted():
                    self._read_fields(item)
        self._text = text[place:] if len(text) - place <= ITEM_MAX and (self._is_list or not text) else None

    def _csv_line(self, line: str) -> None:
        """Add the line to the current record, which ends where the number of quotes is even."""
        self._record.append(line)
        self._quotes += line.count('"')
        self._length += len(line)
        if self._quotes % 2 == 0 or self._length >= LINE_MAX:
            self._end_record()

    def _end_record(self) -> None:
        record, self._record, self._quotes, self._length = "\n".join(self._record), [], 0, 0
        if not record.strip():
            return
        if self._head is not None and not self._is_wanted():
            return
        delimiter = "\t" if self._kind == "tsv" else max(",;\t|", key=record.count)
        try:
            row = next(csv.reader(io.StringIO(record, newline=""), delimiter=delimiter), [])
        except csv.Error:
            return
        if self._head is None:
            self._head = row
        else:
            self._read_fields(dict(zip(self._head, row)))  # noqa: B905 - Python 3.9 has no strict

    def _is_wanted(self) -> bool:
        """Count one more item, and return whether its fields are read."""
        self.items += 1
        return self.items <= ALL_MAX or self.items % EACH == 0

    def _read_fields(self, item: Any) -> None:
        if not isinstance(item, dict):
            return
        self.seen += 1
        for name, value in item.items():
            fits = len(self.filled) < 10 * FIELDS_MAX and len(name) <= FIELD_NAME_MAX and name.isprintable()
            if (fits or name in self.filled) and value not in (None, "", [], {}):
                self.filled[name] += 1


def feeds(names: list[str]) -> list[str]:
    """Return the feeds among these files of a task, by the rules of ``domain/items.py``."""
    known: dict[str, str] = {}
    names = [name for name in names if _suffix(name) in _FORMATS and not _NO_FEED.search(name)]
    for name in [name for name in names if _NAMED_ITEMS.search(name)] or names:
        stem = name.rpartition(".")[0]
        known[stem] = min(known.get(stem, name), name, key=lambda name: _FORMATS.index(_suffix(name)))
    return list(known.values())


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _files(folder: Held, above: str, depth: int) -> Iterator[str]:
    """Yield the paths of files below this folder that may be feeds; names that begin with ``items`` come first."""
    for name in sorted(folder.names(NAMES_MAX)[0], key=lambda name: (not _NAMED_ITEMS.search(name), name)):
        feed = _suffix(name) in _FORMATS
        if not feed and depth == 1:
            continue
        known = folder.stat(name)
        if feed and known is not None and stat.S_ISREG(known.st_mode):
            yield above + name
        elif known is not None and stat.S_ISDIR(known.st_mode) and depth > 1 and name != "pages":
            with contextlib.suppress(OSError, NotOurs):
                yield from _files(folder.below(name), f"{above}{name}/", depth - 1)


def _value(text: bytes) -> Any:
    try:
        return _JSON.decode(text.decode(json.detect_encoding(text), "surrogatepass"))
    except (ValueError, RecursionError):
        return None
