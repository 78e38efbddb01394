"""Routes of what runs leave: supporting files, items, archives and logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from crawler_lifecycle.activities.run_files import FileList, OpenedFile, RunFiles
from crawler_lifecycle.domain.item_table import ItemTable
from crawler_lifecycle.gateway.api.paging import FileChoice, FilesChoice, ItemsChoice, LogChoice
from crawler_lifecycle.gateway.runs.answers import TaskFilePage
from crawler_lifecycle.gateway.runs.commands import undeleted
from crawler_lifecycle.gateway.runs.deliveries import reading
from crawler_lifecycle.gateway.runs.routes import RunId
from crawler_lifecycle.gateway.streams.logs import LoggedTask, LogReader, find_task
from crawler_lifecycle.gateway.streams.responses import Streamed
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.tasks import TaskReader
from crawler_lifecycle.web.problems import Problem

#: Files that are read at the same moment, and tables that are made, whatever the number of readers.
THREADS, TABLES = 4, 2
#: A crawler's files are not ours: no browser may take one for a page.
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Security-Policy": "sandbox"}


def add_files(app: FastAPI, files: RunFiles, runs: RunReader, tasks: TaskReader) -> None:
    """Add ``GET /v1/runs/{run_id}/files``, ``…/file`` and ``…/items``."""
    threads, tables = CapacityLimiter(THREADS), CapacityLimiter(TABLES)

    @app.get("/v1/runs/{run_id}/files", operation_id="listFiles")
    async def list_files(run_id: RunId, choice: Annotated[FilesChoice, Query()]) -> TaskFilePage:
        """Supporting files of a run: as they lie in the folders of its tasks now, also while they are written, without
        those of attempts that were replaced. Where this gateway cannot read these, as the newest archive has them."""

        def read() -> FileList:
            run = undeleted(runs, run_id)
            task = None if choice.task is None else find_task(tasks, run.ref, choice.task).ref
            with reading(run_id):
                return files.list(run, task)

        listed = await to_thread.run_sync(read, limiter=threads)
        return TaskFilePage(run_id=run_id, **{name: getattr(listed, name) for name in FileList.__dataclass_fields__})

    @app.get("/v1/runs/{run_id}/items", operation_id="getItems")
    async def get_items(run_id: RunId, choice: Annotated[ItemsChoice, Query()]) -> ItemTable:
        """The first 200 items of a file (JSON Lines, JSON, CSV) as a table of texts: the columns that most of them
        fill. Never more than 2 MiB of the file are read."""

        return await to_thread.run_sync(items_of, files, runs, run_id, choice.name, limiter=tables)

    @app.get(
        "/v1/runs/{run_id}/file",
        operation_id="getFile",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}, "description": "The bytes of the file"}},
    )
    async def get_file(run_id: RunId, choice: Annotated[FileChoice, Query()]) -> Streamed:
        """One supporting file, byte by byte, as far as it is written now: by its ``name`` in the list, or by the path
        that it has in the folder of a task."""

        def begin() -> OpenedFile:
            run = undeleted(runs, run_id)
            with reading(run_id):
                if choice.path is None:
                    opened, what = files.open(run, str(choice.name)), f"name: {choice.name!r}"
                else:
                    task = find_task(tasks, run.ref, choice.task).ref
                    opened, what = (
                        files.of_task(run.ref, task, choice.path),
                        f"path: {choice.path!r} of task {task.task_id}",
                    )
            if opened is None:
                raise missing(run_id, what)
            return opened

        opened = await to_thread.run_sync(begin, limiter=threads)

        async def chunks() -> AsyncGenerator[bytes, None]:
            while (piece := await to_thread.run_sync(next, opened.pieces, None, limiter=threads)) is not None:
                yield piece

        named = choice.path or str(choice.name)
        name = quote(named.rsplit("/", 1)[-1], safe="", errors="replace")
        headers = {**_HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return Streamed(chunks(), "application/octet-stream", headers)


def items_of(files: RunFiles, runs: RunReader, run_id: int, name: str) -> ItemTable:
    """The first items of a file of the run. Blocks. Raises ``Problem`` when there is no such run or file."""
    run = undeleted(runs, run_id)
    with reading(run_id):
        table = files.table(run, name)
    if table is None:
        raise missing(run_id, f"name: {name!r}")
    return table


def missing(run_id: int, what: str) -> Problem:
    """The answer for a file that is not there."""
    told = f"{what} is no file that can be read here; GET /v1/runs/{run_id}/files lists what can"
    return Problem(404, "file_not_found", told, run_id=run_id)


#: A crawler's output is not ours: no browser may take it for a page.
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
TEXT = "text/plain; charset=utf-8"


def add_logs(app: FastAPI, reader: LogReader, runs: RunReader, tasks: TaskReader) -> None:
    """Add ``GET /v1/runs/{run_id}/logs``."""

    @app.get("/v1/runs/{run_id}/logs", operation_id="getLog", response_class=PlainTextResponse)
    async def get_log(run_id: RunId, choice: Annotated[LogChoice, Query()]) -> Streamed:
        """The output of a task, as it was printed: its last lines and, with ``follow``, what comes until it has ended.

        Where the cluster is out of this gateway's reach there is the end of the log that was kept, once the task has
        ended.
        """

        def task() -> LoggedTask:
            return find_task(tasks, undeleted(runs, run_id).ref, choice.task)

        chunks = await reader.read(await run_in_threadpool(task), choice.tail, follow=choice.follow)
        return reader.answer(chunks, TEXT, HEADERS)
