"""Routes of the items of runs: a page of items, all items, and statistics of their fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from starlette.responses import Response

from crawler_lifecycle.activities.run_files import RunFiles
from crawler_lifecycle.domain.item_code import CODE, VERSION, with_code
from crawler_lifecycle.domain.item_export import as_csv, as_jsonl, chosen
from crawler_lifecycle.domain.item_stats import ItemStats, item_stats
from crawler_lifecycle.domain.item_table import DIGITS, ItemTable, item_table, visible
from crawler_lifecycle.domain.items import matching
from crawler_lifecycle.gateway.access import slots
from crawler_lifecycle.gateway.access.slots import Slots
from crawler_lifecycle.gateway.api.paging import FeedChoice, ItemPage, ItemsChoice
from crawler_lifecycle.gateway.streams.logs import find_task
from crawler_lifecycle.gateway.streams.responses import StreamedResponse
from crawler_lifecycle.runner.item_files import feeds, items_of, no_feeds
from crawler_lifecycle.runner.item_reader import Feed, SkippedData
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.tasks import TaskReader

from .commands import undeleted
from .deliveries import reading
from .output import FILES_AT_ONCE, UNTRUSTED, in_threads, missing
from .routes import RunId

#: The maximum number of tables and statistics that are computed at the same time: in total, and for
#: one project.
TABLES = (3, 2)
_TYPES = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}
_CONTENT: dict[str, Any] = {
    "application/jsonl": {"schema": {"type": "string", "description": "One item on each line"}},
    "text/csv": {
        "schema": {
            "type": "string",
            "description": "A line with the field names, and then one line for each item",
        }
    },
}


class _Late(Exception):
    """The reading took longer than ``slots.WORK_S``, or its client has disconnected."""


@dataclass(frozen=True)
class RunItems:
    """Reads the items of runs.

    The methods block, and raise ``Problem``. Call them in a slot: ``tables`` for a page or
    statistics, ``threads`` for each piece of a feed.
    """

    files: RunFiles
    runs: RunReader
    tasks: TaskReader
    tables: Slots = field(default_factory=lambda: Slots(*TABLES))
    threads: Slots = field(default_factory=lambda: Slots(*FILES_AT_ONCE))

    def table(self, run_id: int, choice: ItemsChoice, limit: int) -> ItemTable:
        """Return a page of items. If the time for the reading ends early, a note reports this."""
        with reading(run_id):
            read = _Reading(self, run_id, choice)
            table = item_table(read.in_time(decoder=DIGITS), choice.offset, limit)
        return replace(
            table, total=None if read.late else table.total, notes=[*table.notes, *read.all_notes()]
        )

    def stats(self, run_id: int, choice: ItemsChoice) -> ItemStats:
        """Return statistics of the items.

        If the time for the reading ends early, a note reports this.
        """
        with reading(run_id):
            read = _Reading(self, run_id, choice)
            stats = item_stats(read.in_time(), lambda: read.bytes)
        return replace(stats, notes=read.all_notes())

    def feed(self, run_id: int, choice: FeedChoice) -> Iterator[bytes]:
        """Yield the items in the chosen format, piece by piece."""
        with reading(run_id):
            read = _Reading(self, run_id, choice)
            if not read.feeds:
                raise missing(run_id, "; ".join(read.notes))
            fields = choice.fields.split(",") if choice.fields else None
            items = read.coded(
                chosen(
                    read.items(), choice.field, choice.contains, fields, choice.offset, choice.limit
                )
            )
            if choice.code and fields is not None:
                fields = [CODE, VERSION, *fields]
            try:
                yield from as_csv(items, fields) if choice.format == "csv" else as_jsonl(items)
            except _Late as late:
                raise missing(
                    run_id, f"name: {late}, which yielded no item within {slots.WORK_S:g} s,"
                ) from None


class _Reading:
    """One reading of the items of a run, with notes about it for people."""

    def __init__(self, of: RunItems, run_id: int, choice: ItemsChoice) -> None:
        self._files = of.files
        self._run = undeleted(of.runs, run_id)
        self._choice = choice
        self._skipped = SkippedData()
        self.late = False
        self.bytes = 0
        self.notes: list[str] = []
        self._note: str | None = None
        if choice.name is not None:
            self.feeds = [Feed(choice.name)]
            return
        task = None if choice.task is None else find_task(of.tasks, self._run.ref, choice.task).ref
        listed = of.files.list(self._run, task, whole=True)
        names = [file.name for file in listed.files]
        self.feeds = feeds(names, lambda name: next(self._pieces(name), b""))
        if listed.left_out:
            self.notes.append(
                f"{listed.left_out:,} files were not read: they are links or pipes, or exceed the "
                "limit"
            )
        if listed.note:
            self.notes.append(listed.note)
        if self._run.fields is not None and task is None:
            self._note = self._run.fields.note
        if not self.feeds and listed.readable and not listed.items_missing:
            self.notes.append(no_feeds(names, self._run.items if task is None else None))

    def items(self, **decoder: Any) -> Iterator[Any]:
        """Yield the items of all feeds, one feed after another.

        Raises ``NotDelivered``, ``Problem`` or ``_Late``.
        """
        for item in items_of(self.feeds, self._pieces, self._skipped, **decoder):
            _check(self._name)
            yield item

    def coded(self, items: Iterable[Any]) -> Iterable[Any]:
        """Return these items of ``items``, with the code of each one if it was asked for."""
        if not self._choice.code:
            return items
        return with_code(items, self._files.tasks.codes(self._run.run_id), lambda: self._name)

    def in_time(self, **decoder: Any) -> Iterator[Any]:
        """Yield the items that match the filter, until the time for reading is over."""
        fits = matching(self._choice.field, self._choice.contains)
        try:
            yield from self.coded(filter(fits, self.items(**decoder)))
        except _Late:
            self.late = True
            self.notes.append(
                f"reading ended after {slots.WORK_S:g} s, so items are missing; …/items/feed has "
                "all items"
            )

    def all_notes(self) -> list[str]:
        return [visible(note) for note in (*self.notes, *self._skipped.sentences(self._note))]

    def _pieces(self, name: str) -> Iterator[bytes]:
        self._name = name
        opened = self._files.open(self._run, name)
        if opened is None:
            raise missing(self._run.run_id, f"name: {name!r}")
        for piece in opened.pieces:
            _check(name)
            self.bytes += len(piece)
            yield piece


def _check(name: str) -> None:
    if slots.is_over():
        raise _Late(repr(name))


def add_items(app: FastAPI, items: RunItems) -> None:
    """Add ``GET /v1/runs/{run_id}/items``, ``…/feed`` and ``…/stats`` below it."""

    @app.get("/v1/runs/{run_id}/items")
    async def get_items(
        request: Request, run_id: RunId, choice: Annotated[ItemPage, Query()]
    ) -> ItemTable:
        """A page of the items of a run (from JSON Lines, JSON or CSV) as a table of text cells.

        Its columns are the fields that most items have. `offset` counts only items that match the
        filter.
        """
        return await items.tables.run(request, items.table, run_id, choice, choice.limit)

    @app.get("/v1/runs/{run_id}/items/stats")
    async def get_item_stats(
        request: Request, run_id: RunId, choice: Annotated[ItemsChoice, Query()]
    ) -> ItemStats:
        """For each field of the items of a run: the number of items that have it, the number of
        different values, and the shortest and longest value."""
        return await items.tables.run(request, items.stats, run_id, choice)

    @app.get(
        "/v1/runs/{run_id}/items/feed",
        response_class=Response,
        responses={
            200: {
                "content": _CONTENT,
                "description": "All items that match the filter, in the requested format",
            }
        },
    )
    async def get_feed(
        request: Request, run_id: RunId, choice: Annotated[FeedChoice, Query()]
    ) -> StreamedResponse:
        """All items of a run, or those that match a filter, as JSON Lines or CSV.

        If the connection ends early, items are missing.
        """
        pieces = items.feed(run_id, choice)
        # After the first piece, the head of the response is sent, and an error can only end the
        # connection.
        first = await items.threads.run(request, next, pieces)
        chunks = in_threads(chain([first], pieces), items.threads)
        headers = {
            **UNTRUSTED,
            "Content-Disposition": f'attachment; filename="items-{run_id}.{choice.format}"',
        }
        return StreamedResponse(chunks, _TYPES[choice.format], headers)
