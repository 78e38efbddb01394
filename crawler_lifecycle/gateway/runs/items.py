"""Routes of the items that runs leave: a page of them, all of them, and statistics of their fields."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Query
from starlette.responses import Response

from crawler_lifecycle.activities.run_files import RunFiles
from crawler_lifecycle.domain.item_export import as_csv, as_jsonl, chosen
from crawler_lifecycle.domain.item_stats import ItemStats, item_stats
from crawler_lifecycle.domain.item_table import DIGITS, ItemTable, item_table, visible
from crawler_lifecycle.domain.items import NO_FEEDS, feeds, matching, read_items, sentences
from crawler_lifecycle.gateway.api.paging import FeedChoice, ItemPage, ItemsChoice
from crawler_lifecycle.gateway.runs.commands import undeleted
from crawler_lifecycle.gateway.runs.deliveries import reading
from crawler_lifecycle.gateway.runs.output import THREADS, UNTRUSTED, in_threads, missing
from crawler_lifecycle.gateway.runs.routes import RunId
from crawler_lifecycle.gateway.streams.logs import find_task
from crawler_lifecycle.gateway.streams.responses import Streamed
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.tasks import TaskReader

#: Tables and statistics that are made at the same moment, and seconds for which one of them reads.
TABLES, READ_S = 2, 20.0
_TYPES = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}
_CONTENT: dict[str, Any] = {
    "application/jsonl": {"schema": {"type": "string", "description": "An item a line"}},
    "text/csv": {"schema": {"type": "string", "description": "A line with names of fields, and one for each item"}},
}


class _Late(Exception):
    """The time for reading is over."""


@dataclass(frozen=True)
class RunItems:
    """Reads the items of runs. Methods block; they raise ``Problem``."""

    files: RunFiles
    runs: RunReader
    tasks: TaskReader

    def table(self, run_id: int, choice: ItemsChoice, limit: int) -> ItemTable:
        """A page of items. After ``READ_S`` it ends, and says so."""
        with reading(run_id):
            read = _Reading(self, run_id, choice)
            table = item_table(read.in_time(decoder=DIGITS), choice.offset, limit)
        return replace(table, total=None if read.late else table.total, notes=[*table.notes, *read.told()])

    def stats(self, run_id: int, choice: ItemsChoice) -> ItemStats:
        """The statistics of items. After ``READ_S`` it ends, and says so."""
        with reading(run_id):
            read = _Reading(self, run_id, choice)
            stats = item_stats(read.in_time())
        return replace(stats, notes=read.told())

    def feed(self, run_id: int, choice: FeedChoice) -> Iterator[bytes]:
        """Items in this format, in pieces."""
        with reading(run_id):
            read = _Reading(self, run_id, choice)
            if not read.names:
                raise missing(run_id, "; ".join(read.notes))
            fields = choice.fields.split(",") if choice.fields else None
            items = chosen(read.items(), choice.field, choice.contains, fields, choice.offset, choice.limit)
            try:
                for piece in as_csv(items, fields) if choice.format == "csv" else as_jsonl(items):
                    read.until = time.monotonic() + READ_S
                    yield piece
            except _Late as late:
                raise missing(run_id, f"name: {late}, which gave no item in {READ_S:g} s,") from None


class _Reading:
    """One reading of the items of a run, and what is to be told about it."""

    def __init__(self, of: RunItems, run_id: int, choice: ItemsChoice) -> None:
        self._files, self._run, self._choice = of.files, undeleted(of.runs, run_id), choice
        self._skipped, self.late = Counter[str](), False
        self.until = time.monotonic() + READ_S
        self.notes: list[str] = []
        if choice.name is not None:
            self.names = [choice.name]
            return
        task = None if choice.task is None else find_task(of.tasks, self._run.ref, choice.task).ref
        listed = of.files.list(self._run, task)
        self.names = feeds(file.name for file in listed.files)
        if listed.left_out:
            self.notes.append(f"{listed.left_out:,} files are not looked at: links, pipes, or one too many")
        self.notes += filter(None, [listed.note, NO_FEEDS if not self.names and listed.readable else None])

    def items(self, **decoder: Any) -> Iterator[Any]:
        """The items of its feeds, one feed after the other. Raises ``NotDelivered``, ``Problem`` and ``_Late``."""
        for name in self.names:
            yield from read_items(name, self._pieces(name), self._skipped, self.notes, **decoder)

    def in_time(self, **decoder: Any) -> Iterator[Any]:
        """The items that fit, until there is no more time."""
        try:
            yield from filter(matching(self._choice.field, self._choice.contains), self.items(**decoder))
        except _Late:
            self.late = True
            self.notes.append(f"reading was ended after {READ_S:g} s: these are not all; …/items/feed gives all")

    def told(self) -> list[str]:
        return [visible(note) for note in (*self.notes, *sentences(self._skipped))]

    def _pieces(self, name: str) -> Iterator[bytes]:
        opened = self._files.open(self._run, name)
        if opened is None:
            raise missing(self._run.run_id, f"name: {name!r}")
        for piece in opened.pieces:
            if time.monotonic() > self.until:
                raise _Late(repr(name))
            yield piece


def add_items(app: FastAPI, items: RunItems) -> None:
    """Add ``GET /v1/runs/{run_id}/items``, ``…/feed`` and ``…/stats`` below it."""
    threads, tables = CapacityLimiter(THREADS), CapacityLimiter(TABLES)

    @app.get("/v1/runs/{run_id}/items", operation_id="getItems")
    async def get_items(run_id: RunId, choice: Annotated[ItemPage, Query()]) -> ItemTable:
        """A page of the items of a run (JSON Lines, JSON, CSV) as a table of texts: the columns that most of them
        fill. `offset` counts the items that fit the filter."""
        return await to_thread.run_sync(items.table, run_id, choice, choice.limit, limiter=tables)

    @app.get("/v1/runs/{run_id}/items/stats", operation_id="getItemStats")
    async def get_item_stats(run_id: RunId, choice: Annotated[ItemsChoice, Query()]) -> ItemStats:
        """For each field of the items of a run: how many have it, different values, shortest and longest."""
        return await to_thread.run_sync(items.stats, run_id, choice, limiter=tables)

    @app.get(
        "/v1/runs/{run_id}/items/feed",
        operation_id="getFeed",
        response_class=Response,
        responses={200: {"content": _CONTENT, "description": "All items that fit, in the format asked for"}},
    )
    async def get_feed(run_id: RunId, choice: Annotated[FeedChoice, Query()]) -> Streamed:
        """All items of a run, or those that fit a filter, as JSON Lines or CSV. An answer that is cut is not whole."""
        pieces = items.feed(run_id, choice)
        # After the first piece the answer's head has gone out, and an error can only cut it.
        first = await to_thread.run_sync(next, pieces, limiter=threads)
        chunks = in_threads(chain([first], pieces), threads)
        headers = {**UNTRUSTED, "Content-Disposition": f'attachment; filename="items-{run_id}.{choice.format}"'}
        return Streamed(chunks, _TYPES[choice.format], headers)
