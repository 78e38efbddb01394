"""``crawlctl items``: what a run found, on the terminal and as JSON Lines, CSV or Parquet; statistics of its fields."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.output import clean, emit, number, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.domain.item_export import PAUSE, as_csv, as_jsonl, chosen
from crawler_lifecycle.domain.items import NO_FEEDS, feeds, plain, read_items, sentences

from . import tables
from .files import Files, TaskId, fetch
from .texts import RUN, RunId

#: Items that are shown where nobody asks for more.
SHOWN = 100

Format = Literal["jsonl", "csv", "parquet"]


def items(
    run: RunId,
    /,
    *,
    task: TaskId = None,
    field: Annotated[str | None, Parameter(help="only items with something in this field")] = None,
    contains: Annotated[str | None, Parameter(help="only items with this text, in that field or in any")] = None,
    fields: Annotated[str | None, Parameter(help="only these fields of each, with commas")] = None,
    offset: Annotated[int, Parameter(help="pass over so many of them")] = 0,
    limit: Annotated[int | None, Parameter(help="at most so many; default: 100 on the terminal, else all")] = None,
    format: Annotated[Format | None, Parameter(help="write them all in this format")] = None,
    write: Annotated[Path | None, Parameter(help="into this new file; its name may tell the format")] = None,
    stats: Annotated[bool, Parameter(negative=(), help="show how many items have each field, and its values")] = False,
) -> int:
    """Show the items that a run found, also while it runs, or write them into a file."""
    if (limit is not None and limit < 1) or offset < 0:
        what = f"--limit {limit}" if offset >= 0 else f"--offset {offset}"
        raise CommandFailed(Exit.USAGE, f"{what} is not allowed", None, "give a larger number, or leave it out")
    if format is None and write is not None:
        known: dict[str, Format] = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
        if (format := known.get(write.suffix)) is None:
            raise CommandFailed(Exit.USAGE, f"--write {write} names no format", None, "add --format jsonl|csv|parquet")
    with current().gateway() as gateway:
        if stats:
            document = gateway.get(RUN.path(run, "/items/stats"), task=task, field=field, contains=contains)
            return _show_stats(run, document)
        found = _Found(Files(gateway, run, task))
        if format is not None and not found.names:
            raise CommandFailed(Exit.NOT_FOUND, f"run {run} has no items", found.why, f"crawlctl files {run}")
        names = fields.split(",") if fields else None
        if format is None:
            return _show(
                run, found, chosen(found, field, contains, names, offset, (limit or SHOWN) + 1), limit or SHOWN
            )
        pieces = _written(chosen(found, field, contains, names, offset, limit), format, names)
        if write is None:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        else:
            size = fetch(pieces, write, None)
            document = {"run_id": run, "file": str(write), "bytes": size, "notes": found.notes}
            emit(document, names=[write], table=lambda: print(f"{clean(write)}: {number(size)} bytes"))
    for note in found.notes:
        say(clean(note))
    return Exit.DONE


class _Found:
    """The items in the feeds of a run. ``notes`` are about what was read of them so far."""

    def __init__(self, files: Files) -> None:
        self._files, self._skipped, self._notes = files, Counter[str](), list[str]()
        self.names = feeds(str(row["name"]) for row in files.rows)
        self.why = files.note or NO_FEEDS

    def __iter__(self) -> Iterator[Any]:
        for name in self.names:
            with closing(self._files.open({"name": name})) as pieces:
                yield from read_items(name, pieces, self._skipped, self._notes)

    @property
    def notes(self) -> list[str]:
        return [*filter(None, [self._files.note]), *self._notes, *sentences(self._skipped)]


def _show(run: int, found: _Found, items: Iterable[Any], limit: int) -> int:
    texts = [plain(item) for item in items if item is not PAUSE]
    more, texts = len(texts) > limit, texts[:limit]
    rows = [json.loads(text) for text in texts]

    def table() -> None:
        for text in texts:
            print(clean(text))

    emit({"run_id": run, "items": rows, "notes": found.notes}, names=[], table=table, rows=rows)
    for note in found.notes:
        say(clean(note))
    if not found.names:
        say(f"{found.why}; next: crawlctl files {run}")
    elif more:
        say(f"… the first {limit}; all of them: crawlctl items {run} --write items.jsonl")
    return Exit.DONE


def _show_stats(run: int, document: dict[str, Any]) -> int:
    rows = document["fields"]
    empty = f"run {run} has no items; next: crawlctl files {run}"
    emit(
        document,
        names=[row["name"] for row in rows],
        rows=rows,
        table=lambda: show_rows(rows, tables.STATS, empty=empty),
    )
    say(f"{number(document['items'])} items")
    for note in document["notes"]:
        say(clean(note))
    return Exit.DONE


def _written(items: Iterable[Any], format: Format, fields: list[str] | None) -> Iterator[bytes]:
    if format == "parquet":
        from .parquet import as_parquet

        return as_parquet(items, fields)
    return as_csv(items, fields) if format == "csv" else as_jsonl(items)
