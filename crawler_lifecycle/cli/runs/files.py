"""``crawlctl files`` and ``crawlctl items``: what the tasks of a run left, live or from its archive."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.output import Document, clean, emit, number, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import Session, current

from . import tables
from .downloads import fetch
from .logs import lines
from .show import RunId

#: Of a file, on the terminal.
SHOWN_MAX = 1024 * 1024
#: What feeds write. Without a file that is named like items all of these count.
_FEED = re.compile(r"\.(jsonl|jsonlines|jl|json|csv|xml)$", re.IGNORECASE)
_ITEMS = re.compile(r"(^|/)items[^/]*$", re.IGNORECASE)
_NO_ITEMS = re.compile(r"(^|/)(skipped\.jsonl$|[^/]*/pages/)")

TaskId = Annotated[int | None, Parameter(help="only those of this task, by its id")]


class Files:
    """The files of one run, by the names that they have in its archive."""

    def __init__(self, gateway: Gateway, run: int, task: int | None) -> None:
        found = gateway.files(run, task)
        left_out = int(found.get("left_out") or 0)
        notes = [f"{number(left_out)} more are left out" if left_out else None, clean(found.get("note")) or None]
        self.rows: list[Document] = found["files"]
        self.note = "; ".join(filter(None, notes)) or None
        self._gateway, self._run = gateway, run

    def open(self, row: Document) -> Generator[bytes]:
        return self._gateway.file(self._run, str(row["name"]))


def files(
    run: RunId,
    name: Annotated[str | None, Parameter(help="show this file; without it all are listed")] = None,
    /,
    *,
    task: TaskId = None,
    download: Annotated[Path | None, Parameter(help="fetch the file into this folder, as a new file")] = None,
) -> int:
    """List the supporting files of a run, also while it runs; with a name, show or fetch that one."""
    session = current()
    if name is None and download is not None:
        cure = f"crawlctl files {run} NAME --download FOLDER; crawlctl export {run} --download FOLDER fetches all"
        raise CommandFailed(Exit.USAGE, "--download needs the name of a file", None, cure)
    with session.gateway() as gateway:
        found = Files(gateway, run, task)
        if name is None:
            return _show_list(session, run, found)
        row = next((row for row in found.rows if row["name"] == name), None)
        if row is None:
            raise CommandFailed(Exit.NOT_FOUND, f"run {run} has no file {name!r}", None, f"crawlctl files {run}")
        with closing(found.open(row)) as pieces:
            if download is not None:
                return _download(session, run, str(row["name"]), pieces, download)
            return _show_file(session, run, str(row["name"]), pieces)


def _show_list(session: Session, run: int, found: Files) -> int:
    def table() -> None:
        show_rows(session, found.rows, tables.FILES, empty=f"run {run} has no supporting files")

    names = [row["name"] for row in found.rows]
    emit(session, {"run_id": run, "files": found.rows, "note": found.note}, names=names, table=table, rows=found.rows)
    if found.note:
        session.say(found.note)
    if found.rows:
        session.say(f"next: crawlctl files {run} NAME · crawlctl items {run}")
    return Exit.DONE


def _show_file(session: Session, run: int, name: str, pieces: Generator[bytes]) -> int:
    text, whole = "", True
    for piece in _text(pieces):
        text += piece
        if len(text) > SHOWN_MAX:
            text, whole = text[:SHOWN_MAX], False
            break
    shown = clean(text.replace("\r\n", "\n"), lines=True)
    document = {"run_id": run, "name": name, "text": text, "whole": whole}

    def table() -> None:
        print(shown, end="" if shown.endswith("\n") or not shown else "\n")

    emit(session, document, names=[name], table=table)
    if not whole:
        session.say(f"… its beginning; all of it: crawlctl files {run} {clean(name)} --download .")
    return Exit.DONE


def _download(session: Session, run: int, name: str, pieces: Generator[bytes], folder: Path) -> int:
    target = folder / os.path.basename(name)
    size = fetch(pieces, target, None)
    document = {"run_id": run, "name": name, "file": str(target), "bytes": size}
    emit(session, document, names=[target], table=lambda: print(f"{clean(target)}: {number(size)} bytes"))
    return Exit.DONE


def items(
    run: RunId,
    /,
    *,
    task: TaskId = None,
    limit: Annotated[int, Parameter(help="at most so many lines")] = 100,
) -> int:
    """Show the items that a run found, line by line, also while it runs: files named items…, else every feed."""
    session = current()
    if limit < 1:
        raise CommandFailed(Exit.USAGE, f"--limit {limit} is not allowed", None, "give 1 or more, or leave it out")
    with session.gateway() as gateway:
        found = Files(gateway, run, task)
        feeds = feeds_of(found.rows)
        rows: list[Document] = []
        for row in feeds:
            with closing(found.open(row)) as pieces:
                took = islice(lines(_text(pieces)), limit + 1 - len(rows))
                rows += [{"file": row["name"], "item": _parsed(line), "line": line} for line in took]
    more = len(rows) > limit
    rows = rows[:limit]

    def table() -> None:
        for row in rows:
            print(clean(row["line"]))

    answers = [{"file": row["file"], "item": row["item"]} for row in rows]
    emit(session, {"run_id": run, "items": answers}, names=[], table=table, rows=answers)
    if not feeds:
        session.say(f"run {run} has left no items yet; next: crawlctl files {run}")
    elif more:
        session.say(
            f"… the first {limit} lines; all of them: crawlctl files {run} {clean(feeds[0]['name'])} --download ."
        )
    return Exit.DONE


def feeds_of(rows: Iterable[Document]) -> list[Document]:
    """The files with items: those named so, or else every file of a kind that feeds write."""
    known = [row for row in rows if _FEED.search(str(row["name"])) and not _NO_ITEMS.search(str(row["name"]))]
    return [row for row in known if _ITEMS.search(str(row["name"]))] or known


def _parsed(line: str) -> Any:
    """The item in a line of JSON; the line itself where it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line


def _text(pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)
