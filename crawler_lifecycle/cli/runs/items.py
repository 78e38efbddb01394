"""``crawlctl items``: the items of a run, as text, JSON Lines, CSV or Parquet, and statistics of
their fields.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.output import clean, emit, number, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.domain.item_code import CODE, VERSION, codes_by_folder, with_code
from crawler_lifecycle.domain.item_export import PAUSE, as_csv, as_jsonl, chosen
from crawler_lifecycle.domain.items import plain
from crawler_lifecycle.runner.item_files import feeds, items_of, no_feeds
from crawler_lifecycle.runner.item_reader import SkippedData

from . import tables
from .files import TaskId, fetch, files_of
from .texts import RUN, RunId

#: The default number of items shown.
SHOWN = 100

Format = Literal["jsonl", "csv", "parquet"]


def items(
    run: RunId,
    /,
    *,
    task: TaskId = None,
    field: str | None = None,
    contains: str | None = None,
    fields: str | None = None,
    offset: int = 0,
    limit: int | None = None,
    format: Format | None = None,
    write: Path | None = None,
    code: bool = False,
    stats: bool = False,
) -> int:
    """Show the items that a run found, or write them to a file. The run may still be executing.

    Parameters
    ----------
    field
        only items with a value in this field
    contains
        only items that contain this text, in --field or in any field
    fields
        only these fields of each item, separated by commas
    offset
        omit this many items at the beginning
    limit
        maximum number of items; default: 100 on a terminal, else all
    format
        write all items in this format
    write
        write all items to this new file; its name determines the format
    code
        add the digest (_code) and the version (_version) of the code that made each item
    stats
        show, for each field, how many items have it, and its values
    """
    if (limit is not None and limit < 1) or offset < 0:
        what = f"--limit {limit}" if offset >= 0 else f"--offset {offset}"
        raise WrongUsage(f"{what} is not allowed", "give a larger number, or leave it out")
    if format is None and write is not None:
        known: dict[str, Format] = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
        if (format := known.get(write.suffix)) is None:
            raise WrongUsage(
                f"--write {write}: the format of this name is unknown",
                "add --format jsonl|csv|parquet",
            )
    with current().gateway() as gateway:
        if stats:
            document = gateway.get(
                RUN.path(run, "/items/stats"), task=task, field=field, contains=contains, code=code
            )
            return _show_stats(run, document)
        found = _FeedItems(gateway, run, task)
        names = fields.split(",") if fields else None
        shown = limit or SHOWN
        most = shown + 1 if format is None else limit
        some: Iterable[Any] = chosen(found, field, contains, names, offset, most)
        if code:
            codes = codes_by_folder(gateway.get(RUN.path(run, "/codes"))["codes"])
            some = with_code(some, codes, lambda: found.name)
            names = names and [CODE, VERSION, *names]
        if format is None:
            return _show(run, found, some, shown)
        if not found.feeds:
            raise CommandFailed(
                Exit.NOT_FOUND, f"run {run} has no items", found.why, f"crawlctl files {run}"
            )
        if format == "parquet":
            from .parquet import as_parquet

            pieces = as_parquet(some, names)
        else:
            pieces = as_csv(some, names) if format == "csv" else as_jsonl(some)
        if write is None:
            sys.stdout.buffer.writelines(pieces)
            sys.stdout.buffer.flush()
        else:
            size = fetch(pieces, write)
            document = {"run_id": run, "file": str(write), "bytes": size, "notes": found.notes()}
            emit(
                document,
                names=[write],
                table=lambda: print(f"{clean(write)}: {number(size)} bytes"),
            )
    _say_all(found.notes())
    return Exit.DONE


class _FeedItems:
    """Return the items in the feeds of a run."""

    def __init__(self, gateway: Gateway, run: int, task: int | None) -> None:
        rows, note = files_of(gateway, run, task)
        self._gateway = gateway
        self._run = run
        self._skipped = SkippedData()
        #: The name of the file that is being read.
        self.name = ""
        self._notes = [note] if note else []
        self._note = (gateway.run(run).get("fields") or {}).get("note") if task is None else None
        names = [row["name"] for row in rows]
        self.feeds = feeds(names, lambda name: next(self._pieces(name), b""))
        self.why = note or no_feeds(names)

    def __iter__(self) -> Iterator[Any]:
        return items_of(self.feeds, self._pieces, self._skipped)

    def _pieces(self, name: str) -> Iterator[bytes]:
        self.name = name
        with closing(self._gateway.file(self._run, name)) as pieces:
            yield from pieces

    def notes(self) -> list[str]:
        """Return notes about the files, about the run's items, and about the lines that have been
        read so far.
        """
        return [*self._notes, *self._skipped.sentences(self._note)]


def _show(run: int, found: _FeedItems, items: Iterable[Any], limit: int) -> int:
    texts = [plain(item) for item in items if item is not PAUSE]
    lines = [f"{clean(text)}\n" for text in texts[:limit]]
    rows = [json.loads(text) for text in texts[:limit]]
    document = {"run_id": run, "items": rows, "notes": found.notes()}
    emit(document, names=[], table=lambda: sys.stdout.writelines(lines), rows=rows)
    _say_all(found.notes())
    if not found.feeds:
        say(f"{found.why}; next: crawlctl files {run}")
    elif len(texts) > limit:
        say(f"… the first {limit}; all of them: crawlctl items {run} --write items.jsonl")
    return Exit.DONE


def _show_stats(run: int, document: dict[str, Any]) -> int:
    rows = document["fields"]
    empty = f"run {run} has no items; next: crawlctl files {run}"
    names = [row["name"] for row in rows]
    emit(document, names=names, rows=rows, table=lambda: show_rows(rows, tables.STATS, empty=empty))
    _say_all([f"{number(document['items'])} items", *document["notes"]])
    return Exit.DONE


def _say_all(notes: Iterable[str]) -> None:
    for note in notes:
        say(clean(note))
