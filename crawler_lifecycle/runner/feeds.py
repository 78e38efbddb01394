"""Counting of the items in the feeds that a crawler writes into its folder, and of the fields that have a value.

So any program that writes ``items.jsonl`` (or CSV, or a JSON list) gets counters. ``item_reader.py`` reads the items,
also for those who look at them. All reading is bounded, because the crawler controls the folder and its files.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from .held import Held, NotOurs
from .item_files import DECLARED, DECLARED_MAX, DEPTH_MAX, feeds, is_items
from .item_reader import GZIP, PAUSE, Feed, Skipped, follow

#: The most names read from a folder, and files considered as feeds.
NAMES_MAX, FILES_MAX = 20_000, 2_000
#: The most bytes read in one pass.
READ_MAX = 16 * 1024 * 1024
#: A byte of a gzip file counts as these many.
GZIP_WEIGHT = 32
#: The most fields reported, and characters of a name. The fields of the first ``ALL_MAX`` items are all counted. After
#: these items, only the fields of every ``EACH``-th item are counted.
FIELDS_MAX, FIELD_NAME_MAX, ALL_MAX, EACH = 30, 60, 20_000, 16
_CHUNK = 64 * 1024


class Feeds:
    """The feeds in one folder. The fields ``wanted`` are reported first, even when no item has a value for them."""

    def __init__(self, folder: str, wanted: Sequence[str] = ()) -> None:
        self._folder, self._wanted = folder, frozenset(wanted)
        self._feeds: dict[Feed, _Feed] = {}

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
            folder = Held(self._folder)
            declared = folder.read(DECLARED, DECLARED_MAX)
            names = [f"/{DECLARED}"] if declared else []
            names += islice(_files(folder, "/", DEPTH_MAX, every=bool(declared)), FILES_MAX)
            found = feeds(names, lambda _: declared or b"")
        except (OSError, NotOurs):
            return False
        self._feeds = {feed: self._feeds.get(feed) or _Feed(feed, self._wanted) for feed in found}
        for feed in self._feeds.values():
            with contextlib.suppress(OSError, NotOurs):
                left -= feed.read(self._folder, left)
        return left <= 0

    def finish(self) -> None:
        """Count the last item of each feed, which may have no line end."""
        for feed in self._feeds.values():
            feed.finish()

    def skipped(self) -> list[str]:
        """Return sentences about data that could not be read."""
        return [sentence for feed in self._feeds.values() for sentence in feed.skipped.sentences()]

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

    def __init__(self, feed: Feed, wanted: frozenset[str]) -> None:
        self._feed, self._fields = feed._replace(name=feed.name[1:]), wanted
        *self._above, self._name = self._feed.name.split("/")
        self._file: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self.items, self.position, self.seen = 0, 0, 0
        self.filled: Counter[str] = Counter(dict.fromkeys(self._fields, 0))
        self.skipped = Skipped()
        self._pieces = _Pieces()
        self._items = follow(self._feed, self._pieces, self.skipped)

    def read(self, folder: str, most: int) -> int:
        """Read up to ``most`` further bytes, and return their number. A replaced file is read from its start.

        Raises ``NotOurs`` and ``OSError``.
        """
        handle = Held(folder, *self._above).open(self._name)
        if handle is None:
            return 0
        with open(handle, "rb") as file:
            found = os.fstat(file.fileno())
            grown = self._pieces.ended and found.st_size > self.position
            if self._file != (found.st_dev, found.st_ino) or found.st_size < self.position or grown:
                self._begin()
                self._file = (found.st_dev, found.st_ino)
            file.seek(self.position)
            took = 0
            while took < most and (chunk := file.read(min(_CHUNK, most - took))):
                if not self.position:
                    self._weight = GZIP_WEIGHT if chunk.startswith(GZIP) else 1
                self.position += len(chunk)
                self._pieces.next = chunk
                self._count()
                took += len(chunk) * self._weight
            return took

    def finish(self) -> None:
        """Count the last item, which may have no line end."""
        self._pieces.ended = True
        self._count()

    def _count(self) -> None:
        for item in self._items:
            if item is PAUSE:
                break
            self.items += 1
            if self.items <= ALL_MAX or self.items % EACH == 0:
                self._read_fields(item)

    def _read_fields(self, item: Any) -> None:
        if not isinstance(item, dict):
            return
        self.seen += 1
        for name, value in item.items():
            fits = len(self.filled) < 10 * FIELDS_MAX and len(name) <= FIELD_NAME_MAX and name.isprintable()
            if (fits or name in self.filled) and value not in (None, "", [], {}):
                self.filled[name] += 1


class _Pieces:
    """The bytes of a file that grows: the next ones, nothing while there are none, and an end."""

    def __init__(self) -> None:
        self.next = b""
        self.ended = False

    def __iter__(self) -> Iterator[bytes]:
        while self.next or not self.ended:
            piece = self.next
            self.next = b""
            yield piece


def _files(folder: Held, above: str, depth: int, *, every: bool) -> Iterator[str]:
    """Yield the paths of files below this folder: all, or those that may be feeds. Names ``items…`` come first."""
    for name in sorted(folder.names(NAMES_MAX)[0], key=lambda name: (name[:5].lower() != "items", name)):
        feed = every or is_items(name)
        if not feed and depth == 1:
            continue
        known = folder.stat(name)
        if feed and known is not None and stat.S_ISREG(known.st_mode):
            yield above + name
        elif known is not None and stat.S_ISDIR(known.st_mode) and depth > 1 and name != "pages":
            with contextlib.suppress(OSError, NotOurs):
                yield from _files(folder.below(name), f"{above}{name}/", depth - 1, every=every)
