"""The web pages of a run's log, files and items."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import FastAPI, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.activities.run_files import FileList, RunFiles
from crawler_lifecycle.domain.errors import LifecycleError, RunDeleted
from crawler_lifecycle.domain.last_words import is_loud
from crawler_lifecycle.domain.log_search import LINE_MAX, FoundLine
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.gateway.access.slots import Slots
from crawler_lifecycle.gateway.api.paging import FilesChoice, ItemsChoice, LogChoice, NameChoice
from crawler_lifecycle.gateway.runs.commands import check_kept, undeleted
from crawler_lifecycle.gateway.runs.deliveries import reading
from crawler_lifecycle.gateway.runs.items import RunItems
from crawler_lifecycle.gateway.runs.output import FILES_AT_ONCE, HEADERS, TEXT, logged_task, missing
from crawler_lifecycle.gateway.runs.routes import RunId
from crawler_lifecycle.gateway.streams.logs import LoggedTask, LogReader, find_task, first_task
from crawler_lifecycle.gateway.streams.responses import StreamedResponse
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.forms import query_of
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    filters_of,
    held,
    held_sorts,
    list_page,
)
from crawler_lifecycle.gateway.ui.parts.rendering import ALONE, answer
from crawler_lifecycle.runner.item_files import is_items
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.web.problems import Problem, of_error

from .columns import FILES
from .head import RunHead

#: The statuses of tasks that failed.
FAILED = (TaskStatus.FAILED, TaskStatus.LOST)
#: The maximum number of lines of a log in the first response of the page.
LINES = 500
#: The maximum number of bytes of a log in the first response of the page.
BYTES = 256 * 1024
#: The maximum number of items on one page.
ROWS = 200
#: Terminal escape sequences, all other control characters except line break and tab, and characters
#: that change the text direction.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ "
    r"-/]*[0-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    "|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


class ShownItems(ItemsChoice):
    """The parameters of the API, and ``stats``, which also shows statistics."""

    stats: bool = False


def plain(data: bytes) -> str:
    """Return the output of a task as text, without characters that a terminal or a page could
    misinterpret.
    """
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return _ESCAPES.sub("", text)


@dataclass(frozen=True, slots=True)
class ShownLine:
    """One line on the page of a log."""

    number: int
    text: str
    level: str


@dataclass(frozen=True, slots=True)
class ShownLog:
    """The content of the page of a log: its end, the lines around one line, or the lines that a
    search found."""

    text: str = ""
    """The end of the log."""
    lines: Sequence[ShownLine] = ()
    line: int | None = None
    """The line that the other lines surround."""
    next: int | None = None
    """The line at which the search has to continue."""
    away: str | None = None
    """The reason why nothing is shown."""


def add_log(app: FastAPI, reader: LogReader, head: RunHead) -> None:
    """Add the page of a log, and the download of the whole log."""

    @app.get("/runs/{run_id}/log")
    async def show_log(run_id: RunId, request: Request) -> Response:
        """Show the end of a task's log, the lines around one line, the lines that match a search,
        or the reason why the log cannot be shown.

        Without parameters, redirect from the log of a failed run to the last error of its first
        failed task or, if its log has none, to the end of that log.
        """
        choice = query_of(request, LogChoice)
        row, values = await head.read(run_id)
        alone = ALONE in request.scope
        try:
            check_kept(row)
            if row.status == RunStatus.FAILED and not (alone or request.query_params):
                failed = await run_in_threadpool(first_task, reader.tasks, row.ref, FAILED)
                if failed is not None:
                    end = f"{request.url.path}?task={failed.ref.task_id}"
                    found = await shown_log(reader, failed, LogChoice(around="error"))
                    return RedirectResponse(f"{end}&around=error#found" if found.lines else end)
            task = await run_in_threadpool(find_task, reader.tasks, row.ref, choice.task)
        except (Problem, RunDeleted) as error:
            return empty_tab(request, "Log", error, values)
        # The stream of the page updates only the status. The lines come from the stream of the log.
        shown = ShownLog() if alone else await shown_log(reader, task, choice)
        asked = choice.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        return answer(
            request,
            "log.html",
            newest=LINES,
            choice=choice,
            link=lambda **more: urlencode({**asked, "task": task.ref.task_id, **more}),
            task=task,
            log=shown,
            **values,
        )

    @app.get("/runs/{run_id}/log/whole")
    async def fetch_log(run_id: RunId, choice: Annotated[FilesChoice, Query()]) -> StreamedResponse:
        """Send the whole log of a task up to now, byte for byte."""
        asked = await logged_task(reader, run_id, choice.task)
        named = f'attachment; filename="run-{run_id}-task-{asked.ref.task_id}.log"'
        return reader.answer(
            await reader.whole(asked), TEXT, {**HEADERS, "Content-Disposition": named}
        )


async def shown_log(reader: LogReader, task: LoggedTask, choice: LogChoice) -> ShownLog:
    """Return the chosen part of a log, or the reason why it cannot be shown."""
    try:
        if choice.query is not None:
            found, next_line = await reader.matching(task, choice.query, choice.line or 1)
            lines = [line for match in found for line in _lines(match)]
            return ShownLog(lines=lines, next=next_line)
        if choice.around is not None:
            piece, line = await reader.around(task, choice.line, choice.before, choice.after)
            return ShownLog(lines=_lines(piece), line=line)
        end = await reader.read(task, LINES, follow=False)
    except (Problem, LifecycleError) as error:
        return ShownLog(away=str(error))
    kept = b""
    async for chunk in end.chunks:
        kept = (kept + chunk)[-BYTES:]
    return ShownLog(plain(kept))


def _lines(piece: FoundLine) -> list[ShownLine]:
    found = []
    for number, line in enumerate(piece.data.removesuffix(b"\n").split(b"\n"), piece.number):
        text = plain(line[:LINE_MAX])
        level = ""
        if is_loud(text, warnings=True):
            level = "error" if is_loud(text) else "warning"
        found.append(ShownLine(number, text, level))
    return found


def empty_tab(
    request: Request, tab: str, error: Problem | RunDeleted, values: Mapping[str, Any]
) -> Response:
    """Return a tab that shows the reason instead of data. Raises the error if the address names a
    file or a task, or if only another service has failed.
    """
    if request.query_params or of_error(error).status not in (404, 410):
        raise error
    return answer(request, "empty_tab.html", tab=tab, reason=str(error), **values)


#: The maximum size in bytes of a text file that the page shows.
TEXT_MAX = 256 * 1024
#: The maximum size in bytes of a picture that the page shows.
PICTURE_MAX = 2 * 1024 * 1024
#: Types of pictures by their first bytes, because a crawler can choose any file name. SVG is
#: excluded because it can run scripts.
_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


FILES_OF = Chooser(FILES, "", "Name", sorts=held_sorts(FILES.columns))


def add_files(app: FastAPI, files: RunFiles, head: RunHead, runs: RunReader) -> None:
    """Add the web pages of the list of files, and of one file."""
    threads = Slots(*FILES_AT_ONCE)

    @app.get("/runs/{run_id}/files")
    async def show_files(run_id: RunId, request: Request) -> Response:
        """List the files of a run, from the folders of its tasks or from its archive."""

        def listed() -> FileList:
            row = undeleted(runs, run_id)
            with reading(run_id):
                return files.list(row)

        filters = filters_of(request, HeldFilters)
        _, values = await head.read(run_id)
        try:
            here = await threads.run(request, listed)
        except (Problem, RunDeleted) as error:
            return empty_tab(request, "Files", error, values)
        rows = [
            {"run_id": run_id, "name": f.name, "bytes": f.bytes, "items": is_items(f.name)}
            for f in here.files
        ]
        own = {"template": "files.html", "tab": "Files", "listed": here, **values}
        return list_page(request, FILES_OF, filters, held(FILES_OF, rows), **own)

    @app.get("/runs/{run_id}/file")
    async def show_file(
        run_id: RunId, choice: Annotated[NameChoice, Query()], request: Request
    ) -> Response:
        """Show the beginning of one file, as text or as a picture."""

        def begin() -> tuple[int, bytes]:
            row = undeleted(runs, run_id)
            with reading(run_id):
                opened = files.open(row, choice.name)
                if opened is None:
                    raise missing(run_id, f"name: {choice.name!r}")
                return opened.size, b"".join(opened.part(0, PICTURE_MAX))

        size, data = await threads.run(request, begin)
        kind = next((kind for mark, kind in _PICTURES.items() if data.startswith(mark)), None)
        picture = (
            f"data:{kind};base64,{base64.b64encode(data).decode()}"
            if kind and size <= PICTURE_MAX
            else None
        )
        text = None if kind or _BINARY.search(data[:TEXT_MAX]) else plain(data[:TEXT_MAX])
        _, values = await head.read(run_id)
        values |= {
            "name": choice.name,
            "size": size,
            "picture": picture,
            "text": text,
            "short": PurePosixPath(choice.name).name,
            "cut": size > TEXT_MAX,
            "items": is_items(choice.name),
        }
        return answer(request, "file.html", asked=urlencode({"name": choice.name}), **values)


def add_items(app: FastAPI, items: RunItems, head: RunHead) -> None:
    """Add the web page of items: a table, a filter, and optional statistics of the fields."""

    @app.get("/runs/{run_id}/items")
    async def show_items(
        run_id: RunId, choice: Annotated[ShownItems, Query()], request: Request
    ) -> Response:
        """Show items as a table, in which the fields that most items have are the first columns."""
        _, values = await head.read(run_id)
        stats = None
        try:
            table = await items.tables.run(request, items.table, run_id, choice, ROWS)
            if choice.stats:
                stats = await items.tables.run(request, items.stats, run_id, choice)
        except (Problem, RunDeleted) as error:
            return empty_tab(request, "Items", error, values)
        asked = choice.model_dump(exclude_defaults=True, exclude={"offset", "stats"})
        return answer(
            request,
            "items.html",
            **values,
            link=lambda **more: urlencode(asked | more),
            choice=choice,
            table=table,
            stats=stats,
            before=max(0, table.offset - ROWS) if table.offset else None,
        )
