"""Counts of the items in the feeds that a crawler writes into its folder, and, for each field, of
the items with a value in that field.

So any program that writes ``items.jsonl`` (or CSV, or a JSON list) gets counters.
``item_reader.py`` reads the items, here and when people view them. All reads are bounded, because
the crawler controls the folder and its files.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from .item_files import (
    DECLARED,
    DECLARED_DEPTH_MAX,
    DECLARED_MAX,
    DEPTH_MAX,
    declared_in,
    feeds,
    is_items,
)
from .item_reader import GZIP, Feed, Keys, SkippedData, follow
from .safe_directory import NotOurs, SafeDirectory

#: The maximum number of names that are read from a folder, and of files that are considered as
#: feeds.
NAMES_MAX = 20_000
FILES_MAX = 2_000
#: The maximum number of bytes read in one pass.
READ_MAX = 16 * 1024 * 1024
#: A byte of a gzip file counts as this many bytes.
GZIP_WEIGHT = 32
#: The maximum number of reported fields, and of characters in a name. Fields are counted in each of
#: the first ``ALL_MAX`` items, and after that only in every ``EACH``-th item.
FIELDS_MAX = 30
FIELD_NAME_MAX = 60
ALL_MAX = 20_000
EACH = 16
_CHUNK = 64 * 1024


class Feeds:
    """The feeds in one folder.

    The ``wanted`` fields are reported first, even when no item has a value in them.

    ``keys`` returns the keys of items from earlier attempts; it is called when a count starts again
    from zero.
    """

    def __init__(
        self, folder: str, wanted: Sequence[str] = (), keys: Callable[[], Keys] = Keys
    ) -> None:
        self._folder = folder
        self._wanted = frozenset(wanted)
        self._new_keys = keys
        self.begin()

    def begin(self) -> None:
        """Reset all counts."""
        self._feeds: dict[Feed, _Feed] = {}
        self._keys = self._new_keys()

    @property
    def items(self) -> int | None:
        """The number of items so far, with each key counted once; ``None`` without a feed."""
        return sum(feed.items for feed in self._feeds.values()) if self._feeds else None

    @property
    def read(self) -> int | None:
        """The number of items read so far; ``None`` without a feed."""
        return sum(feed.read_items for feed in self._feeds.values()) if self._feeds else None

    @property
    def bytes(self) -> int:
        return sum(feed.position for feed in self._feeds.values())

    def read_on(self) -> bool:
        """Count the items in at most ``READ_MAX`` bytes of the data written since the last call.

        Return whether more data is left.
        """
        left = READ_MAX
        try:
            folder = SafeDirectory(self._folder)
            declared = folder.read(DECLARED, DECLARED_MAX)
            names = [f"/{DECLARED}"] if declared else []
            named = [entry.name for entry in declared_in(declared or b"") if entry.name]
            begins = tuple("/" + re.split(r"[*?[]", name)[0] for name in named)
            depth = DECLARED_DEPTH_MAX if begins else DEPTH_MAX
            names += islice(_files(folder, "/", depth, begins), FILES_MAX)
            found = feeds(names, lambda _: declared or b"")
        except (OSError, NotOurs):
            return False
        before = self._feeds
        self._feeds = {
            feed: before.get(feed) or _Feed(feed, self._wanted, self._keys) for feed in found
        }
        for feed in self._feeds.values():
            with contextlib.suppress(OSError, NotOurs):
                left -= feed.read(self._folder, left)
        if any(feed.key and (before[feed].replaced or feed not in self._feeds) for feed in before):
            self.begin()  # a key may have occurred only in the previous file
            return True
        return left <= 0

    def finish(self) -> None:
        """Count the last item of each feed, which may lack a line ending."""
        for feed in self._feeds.values():
            feed.finish()

    def skipped(self) -> list[str]:
        """Return sentences about data that could not be read."""
        return [sentence for feed in self._feeds.values() for sentence in feed.skipped.sentences()]

    @property
    def seen(self) -> int:
        """The number of items whose fields were read."""
        return sum(feed.seen for feed in self._feeds.values())

    def fields(self) -> dict[str, float]:
        """Return the share of items with a value in each field, from 0 to 1: wanted fields first,
        then the fields with the most values.

        The result is empty if no item's fields were read, and if no field has a value.
        """
        filled: Counter[str] = Counter()
        for feed in self._feeds.values():
            filled.update(feed.filled)
        seen = self.seen
        most = sorted(filled, key=lambda name: (name not in self._wanted, -filled[name]))[
            :FIELDS_MAX
        ]
        return {name: round(filled[name] / seen, 4) for name in most if seen}


class _Feed:
    """One feed, and the counts of the part read so far."""

    def __init__(self, feed: Feed, wanted: frozenset[str], keys: Keys) -> None:
        self._feed = feed._replace(name=feed.name[1:])
        self._fields = wanted
        self._keys = keys
        self.replaced = False
        *self._above, self._name = self._feed.name.split("/")
        self._file: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self.items = 0
        self.read_items = 0
        self.position = 0
        self.seen = 0
        self.filled: Counter[str] = Counter(dict.fromkeys(self._fields, 0))
        self.skipped = SkippedData()
        self._pieces = _Pieces()
        self._items = follow(self._feed, self._pieces, self.skipped)

    def read(self, folder: str, most: int) -> int:
        """Read up to ``most`` more bytes, and return their number. If the file was replaced, it is
        read from its start.

        Raises ``NotOurs`` and ``OSError``.
        """
        handle = SafeDirectory(folder, *self._above).open(self._name)
        if handle is None:
            return 0
        with open(handle, "rb") as file:
            found = os.fstat(file.fileno())
            grown = self._pieces.ended and found.st_size > self.position
            if self._file != (found.st_dev, found.st_ino) or found.st_size < self.position or grown:
                self.replaced = self._file is not None
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
        """Count the last item, which may lack a line ending."""
        self._pieces.ended = True
        self._count()

    def _count(self) -> None:
        for items in self._items:
            if not items:
                break
            self.read_items += len(items)
            if self._feed.key:
                items = [
                    item for item in items if self._keys.is_first(self._feed, self.skipped, item)
                ]
            left = max(0, ALL_MAX - self.items)
            after = self.items + left + 1
            for item in chain(items[:left], items[left + -after % EACH :: EACH]):
                self._read_fields(item)
            self.items += len(items)

    def _read_fields(self, item: Any) -> None:
        if not isinstance(item, dict):
            return
        self.seen += 1
        for name, value in item.items():
            fits = (
                len(self.filled) < 10 * FIELDS_MAX
                and len(name) <= FIELD_NAME_MAX
                and name.isprintable()
            )
            if (fits or name in self.filled) and value not in (None, "", [], {}):
                self.filled[name] += 1


class _Pieces:
    """The bytes of a growing file, as an iterator. Until it is closed, it yields the next bytes, or
    empty bytes while there are no new ones.
    """

    def __init__(self) -> None:
        self.next = b""
        self.ended = False

    def __iter__(self) -> Iterator[bytes]:
        while self.next or not self.ended:
            piece = self.next
            self.next = b""
            yield piece


def _files(folder: SafeDirectory, above: str, depth: int, begins: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths of files below this folder that may be feeds, those with names ``items…``
    first.

    ``begins`` are the beginnings of declared paths. If ``begins`` is not empty, all files in the
    folders that may contain such paths are yielded.
    """
    for name in sorted(
        folder.names(NAMES_MAX)[0], key=lambda name: (name[:5].lower() != "items", name)
    ):
        feed = bool(begins) or is_items(name)
        if not feed and depth == 1:
            continue
        known = folder.stat(name)
        below = f"{above}{name}/"
        if feed and known is not None and stat.S_ISREG(known.st_mode):
            yield above + name
        elif (
            known is not None
            and stat.S_ISDIR(known.st_mode)
            and depth > 1
            and _is_searched(below, begins)
        ):
            with contextlib.suppress(OSError, NotOurs):
                yield from _files(folder.below(name), below, depth - 1, begins)


def _is_searched(below: str, begins: tuple[str, ...]) -> bool:
    """Return whether there may be feeds in this folder."""
    if not begins:
        return not below.endswith("/pages/")
    return below.startswith(begins) or any(begin.startswith(below) for begin in begins)
