"""Feeds that a hostile or broken crawler may leave, and their readers.

As a program (``python -m tests.gateway.hostile_feeds READER``), it reads all of them with one
reader, and prints the cost: MiB of memory, processor seconds, bytes.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from crawler_lifecycle.cli.runs.parquet import as_parquet
from crawler_lifecycle.domain.item_export import as_csv, as_jsonl, chosen
from crawler_lifecycle.domain.item_stats import item_stats
from crawler_lifecycle.domain.item_table import DIGITS, item_table
from crawler_lifecycle.runner.item_reader import ITEM_MAX, VALUES_MAX, Feed, SkippedData, read_items

MIB = 1024 * 1024
PIECE = 64 * 1024
TRICKY = [
    *(
        "\r=1+1",
        "x\r=1+1",
        "\n@x",
        '"\r,=2',
        "\ufeff=3",
        "|cmd",
        "a|=b",
        "\x1b[31m",
        "\u202e",
        "\x00",
        "<script>alert(1)",
    ),
    *("\ud800", "=?utf-8?q?x?=", "{{7*7}}", "--- end of data"),
]


def _lines(items: Iterator[Any]) -> Iterator[bytes]:
    for item in items:
        yield json.dumps(item).encode() + b"\n"


def _names(count: int, mark: object = "") -> dict[str, int]:
    return {f"f{mark}{number}": number for number in range(count)}


#: Name of a feed -> its name as a file, and its bytes.
FEEDS: dict[str, tuple[str, Callable[[], Iterator[bytes]]]] = {
    # The first, because a peak of memory hides all lower ones that follow.
    "endless record": ("items.csv", lambda: iter([b'a,b\n"', *[b'","\n' * 50_000] * 6])),
    "wide": (
        "items.jsonl",
        lambda: _lines(_names(VALUES_MAX, f"{number}.") for number in range(2)),
    ),
    "too wide": ("items.jsonl", lambda: _lines(iter([_names(3 * VALUES_MAX)]))),
    "many lists": ("items.jsonl", lambda: iter([b"[" + b"[]," * (ITEM_MAX // 3 - 2) + b"1]\n"])),
    "many objects": ("items.json", lambda: iter([b"[" + b"{}," * (MIB // 4) + b"1]"])),
    "deep": (
        "items.jsonl",
        lambda: iter([b"[" * ITEM_MAX, b"\n", b'{"a":' * 400 + b"1" + b"}" * 400 + b"\n"]),
    ),
    "huge": (
        "items.jsonl",
        lambda: iter([b'{"a": "', b"x" * (ITEM_MAX - 20), b'"}\n', *[b"y" * MIB] * 32]),
    ),
    "huge numbers": ("items.jsonl", lambda: iter([b'{"a": ' + b"9" * (ITEM_MAX - 20) + b"}\n"])),
    "long names": (
        "items.jsonl",
        lambda: _lines({f"{number}{'n' * MIB}": 1} for number in range(20)),
    ),
    "sparse": (
        "items.jsonl",
        lambda: _lines({f"own{number}": number, "a": 1} for number in range(3_000)),
    ),
    "tricky": (
        "items.jsonl",
        lambda: _lines({text: text, "a": text, "b": [text]} for text in TRICKY),
    ),
    "marked": (
        "items.json",
        lambda: iter([json.dumps([{"a": "ä\r=1"}] * 9, ensure_ascii=False).encode("utf-16")]),
    ),
    "pipes": (
        "items.csv",
        lambda: iter([b"\xef\xbb\xbfa|b\r", b"=1|\x80\r\n" * 99, b'"\r=2"|x\n']),
    ),
    "wide table": ("items.csv", lambda: iter([b"," * MIB * 4, b"\n1\n"])),
    "wide row": (
        "items.tsv",
        lambda: iter([b"a\tb\n", b"x\t" * (VALUES_MAX - 1), b"\n", b"y\t" * MIB, b"\n"]),
    ),
}


#: Nothing of these reaches what a reader does with items, so one reader needs to read them.
WITHOUT_ITEMS = ["too wide", "many lists", "wide table"]


def _cut(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), PIECE):
            yield piece[at : at + PIECE]


def items_of(feed: str, **decoder: Any) -> Iterator[Any]:
    """Return the items of a feed, as a reader gets them."""
    name, pieces = FEEDS[feed]
    return read_items(Feed(name), _cut(pieces()), SkippedData(), **decoder)


def _table(feed: str) -> int:
    table = item_table(items_of(feed, decoder=DIGITS), 0, 1_000)
    return sum(len(cell or "") for row in table.rows for cell in row)


def _stats(feed: str) -> int:
    return len(item_stats(items_of(feed)).fields)


def _filter(feed: str) -> int:
    return sum(map(len, as_jsonl(chosen(items_of(feed), None, "nowhere"))))


READERS: dict[str, Callable[[str], int]] = {
    "table": _table,
    "statistics": _stats,
    "filter": _filter,
    "jsonl": lambda feed: sum(map(len, as_jsonl(chosen(items_of(feed))))),
    "csv": lambda feed: sum(map(len, as_csv(chosen(items_of(feed))))),
    "parquet": lambda feed: sum(map(len, as_parquet(chosen(items_of(feed))))),
}


def _used() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    read = READERS[sys.argv[1]]
    read("tricky")
    took = {}
    for feed in [one for one in FEEDS if read is _table or one not in WITHOUT_ITEMS]:
        before, began = _used(), time.process_time()
        size = read(feed)
        took[feed] = {
            "mib": _used() - before,
            "cpu_s": round(time.process_time() - began, 2),
            "bytes": size,
        }
    print(json.dumps(took))
