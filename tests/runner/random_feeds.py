"""Random feeds with their items: formats, delimiters, encodings, compressions, quotes and truncated
ends.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from crawler_lifecycle.runner.feeds import Feeds
from crawler_lifecycle.runner.item_files import DECLARED, feeds
from crawler_lifecycle.runner.item_reader import SkippedData, read_items
from tests.runner.surfaces import Surfaces

FORMATS = ("jsonl", "json", "csv", "xml")
#: Suffixes of each format, also wrong ones: JSON is recognized by its first characters.
SUFFIXES = {
    "jsonl": ("jsonl", "jl", "jsonlines", "ndjson", "geojsonl", "ndgeojson", "json", "csv"),
    "json": ("json", "jsonl", "ndjson"),
    "csv": ("csv",),
    "xml": ("xml",),
}
ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252")
WORDS = (
    "",
    "tea",
    "Grün",
    "a, b",
    "x;y",
    "1|2",
    'say "hi"',
    "two\nlines",
    "{",
    "}",
    "[1]",
    '"',
    "\t",
    "0.5",
    "null",
    "ÿé",
)
INCHES = ('19" rack', '"Big" lamp', '7"', '"24"', "plain", "tall")


@dataclass
class Written:
    """A file, its bytes, and its items with the position where each of them ends."""

    name: str
    data: bytes
    items: list[Any]
    ends: list[int]
    cut: bool
    packed: bool
    declared: dict[str, str] | None

    def complete(self) -> int:
        """Return how many items are certainly complete."""
        return sum(end <= len(self.data) for end in self.ends) if self.cut else len(self.items)


def written(seed: int) -> Written:
    """Return the feed with this number."""
    rng = random.Random(seed)
    kind, encoding = rng.choice(FORMATS), rng.choice(ENCODINGS)
    items: list[Any] = [
        _item(rng, texts=kind in ("csv", "xml")) for _ in range(rng.choice((0, 1, 2, 5, 30, 300)))
    ]
    delimiter = rng.choice(",,;;\t|^~:\x1f")
    parts = {"jsonl": _json_lines, "json": _lists, "csv": _records, "xml": _elements}[kind](
        rng, items, delimiter
    )
    if kind == "csv":
        items = [{name: value for name, value in item.items() if value} for item in items]
    if encoding == "cp1252" and any(ord(char) > 255 for part in parts for char in part):
        encoding = "utf-8"
    suffix = rng.choice(SUFFIXES[kind])
    if kind == "csv" and delimiter == "\t":
        suffix = rng.choice(("csv", "tsv"))
    declared = None
    name = f"items.{suffix}"
    if rng.random() < 0.15:
        name = rng.choice(("out/products", "feed.data", "items", "t/2026/11/28/2101/council.json"))
        declared = {"files": name, "format": kind}
    data, ends = b"", list[int]()
    for n, part in enumerate(parts):
        data += part.encode(
            encoding if n == 0 or encoding not in ("utf-16", "utf-8-sig") else _after(encoding)
        )
        ends.append(len(data))
    ends = ends[1 : len(items) + 1]
    cut = rng.random() < 0.25 and len(data) > 4
    gzipped = rng.random() < 0.3
    if gzipped:
        name += ".gz" if declared is None else ""
        packed = _packed(rng, data)
        if cut:
            packed = packed[: rng.randrange(3, len(packed))]
            ends = [len(packed) + 1] * len(ends)
        data = packed
    elif cut:
        data = data[: rng.randrange(4, len(data)) // 2 * 2]  # of UTF-16, without half a character
    return Written(name, data, items, ends, cut, gzipped, declared)


def _after(encoding: str) -> str:
    if encoding == "utf-8-sig":
        return "utf-8"
    return "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def _packed(rng: random.Random, data: bytes) -> bytes:
    """Return the data as gzip with one or several members."""
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    return b"".join(
        gzip.compress(data[a:b]) for a, b in zip([0, *places], [*places, len(data)], strict=True)
    )


def _item(rng: random.Random, *, texts: bool) -> dict[str, Any]:
    item: dict[str, Any] = {name: rng.choice(WORDS) for name in ("name", "text", "price")}
    if not texts:
        item["n"] = rng.choice(
            (
                0,
                -1,
                10**20,
                1.5,
                None,
                True,
                [],
                {},
                {"k": [1, {"z": "\u20ac"}]},
                "x" * rng.choice((1, 9_000)),
            )
        )
    return item


def _json_lines(rng: random.Random, items: list[Any], _: str) -> list[str]:
    """Return lines, some with a comma, or each object on several lines."""
    end, indent = rng.choice(("\n", "\n", "\r\n", ",\n", "\n\n")), rng.choice((None, None, None, 1))
    return [
        "",
        *(json.dumps(one, ensure_ascii=rng.random() < 0.5, indent=indent) + end for one in items),
    ]


def _lists(rng: random.Random, items: list[Any], _: str) -> list[str]:
    """Return one or several lists, with or without surplus commas."""
    indent, comma = rng.choice((None, None, 2)), rng.choice((",", ",\n", ", \n", "\n,\n", ",,\n"))
    begin, last = rng.choice(("[", "[\n")), rng.choice(("]", "\n]\n", ",\n]"))
    if not items:
        return [begin + "]"]
    parts = [begin]
    for n, one in enumerate(items):
        follows = last if n + 1 == len(items) else comma
        if follows == comma and rng.random() < 0.05:
            follows = "]" + rng.choice(("", "\n")) + "["
        parts.append(json.dumps(one, indent=indent) + follows)
    return parts


def _records(rng: random.Random, items: list[Any], delimiter: str) -> list[str]:
    """Return CSV from a proper writer, or hand-written with inches."""
    by_hand = rng.random() < 0.3
    if by_hand:
        for item in items:
            item |= {
                "name": str(rng.randrange(99)),
                "text": rng.choice(INCHES),
                "price": str(rng.random()),
            }
        rows = [delimiter.join(item.values()) for item in items]
        for item in items:
            if item["text"][0] == item["text"][-1] == '"':
                item["text"] = item["text"][1:-1]
        return [delimiter.join(("name", "text", "price")) + "\n", *(row + "\n" for row in rows)]
    quoting = rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    parts = []
    for row in [["name", "text", "price"], *(list(item.values()) for item in items)]:
        text = io.StringIO()
        csv.writer(
            text, delimiter=delimiter, quoting=quoting, lineterminator=rng.choice(("\n", "\r\n"))
        ).writerow(row)
        parts.append(text.getvalue())
    return parts


def _elements(rng: random.Random, items: list[Any], _: str) -> list[str]:
    begin = '<?xml version="1.0" encoding="utf-8"?>\n<items>' + rng.choice(("", "\n"))
    parts = [begin]
    for item in items:
        item["text"] = [item["text"], "b"] if rng.random() < 0.3 else item["text"]
        fields = "".join(f"<{name}>{_xml(value)}</{name}>" for name, value in item.items())
        parts.append(f"<item>{fields}</item>" + rng.choice(("", "\n")))
    return [*parts, "</items>"]


def _xml(value: Any) -> str:
    if isinstance(value, list):
        return "".join(f"<value>{escape(one)}</value>" for one in value)
    return escape(value)


def difference(seed: int, surfaces: Surfaces, asked: Any = None) -> str | None:
    """Return how a feed differs from what was written: read at once, in parts, counted as it grows,
    and reported.

    For ``asked``, see ``Surfaces.difference``.
    """
    feed, rng = written(seed), random.Random(-seed)
    task = {f"t/{feed.name}": feed.data}
    if feed.declared is not None:
        task[f"t/{DECLARED}"] = json.dumps(feed.declared).encode()
    found = feeds(task, lambda name: task[name])
    if [one.name for one in found] != [f"t/{feed.name}"]:
        return f"{feed.name} is no feed: {found}"
    readings = []
    for _ in range(2):
        skipped = SkippedData()
        readings.append(
            (
                list(read_items(found[0], _pieces(rng, feed.data, whole=not readings), skipped)),
                skipped,
            )
        )
    if readings[0] != readings[1]:
        return f"read at once, and in pieces: {[(len(items), told) for items, told in readings]}"
    items, skipped = readings[0]
    whole = feed.complete()
    if items[:whole] != feed.items[:whole]:
        first = next(
            (n for n, (a, b) in enumerate(zip(items, feed.items, strict=False)) if a != b),
            len(items),
        )
        return f"item {first} of {whole}: {items[first : first + 1]}, not {feed.items[first : first + 1]}; {skipped}"
    if len(items) > (len(feed.items) if feed.packed else whole + feed.cut):
        return f"{len(items)} items, and {whole} were written"
    if not feed.cut and skipped.total() and set(skipped) != {"mended"}:
        return f"nothing was cut, and {skipped.sentences()}"
    counted = _counted(rng, feed, surfaces.empty())
    if counted != len(items):
        return f"counted {counted}, read {len(items)}"
    return surfaces.difference(items, asked)


def _pieces(rng: random.Random, data: bytes, *, whole: bool) -> Any:
    if whole:
        return iter([data])
    step = rng.choice((1, 7, 100, 5_000)) if len(data) < 20_000 else rng.choice((997, 65_536))
    return (data[at : at + step] for at in range(0, len(data), step))


def _counted(rng: random.Random, feed: Written, folder: Path) -> int:
    if feed.declared is not None:
        (folder / DECLARED).write_text(json.dumps(feed.declared))
    path = folder / feed.name
    path.parent.mkdir(parents=True, exist_ok=True)
    count = Feeds(str(folder))
    at = 0
    while at < len(feed.data):
        step = rng.randrange(1, len(feed.data) // 3 + 2)
        with path.open("ab") as file:
            file.write(feed.data[at : at + step])
        at += step
        count.read_on()
    count.read_on()
    count.finish()
    return count.items or 0
