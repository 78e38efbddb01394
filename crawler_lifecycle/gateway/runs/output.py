"""Routes of the supporting files and logs of runs."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from crawler_lifecycle.activities.run_files import FileList, OpenedFile, OpenedFiles, RunFiles
from crawler_lifecycle.gateway.access.slots import Slots
from crawler_lifecycle.gateway.api.paging import FileChoice, FilesChoice, LogChoice
from crawler_lifecycle.gateway.streams.logs import LoggedTask, LogReader, find_task, once
from crawler_lifecycle.gateway.streams.responses import StreamedResponse
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.tasks import TaskReader
from crawler_lifecycle.web.problems import Problem, ProblemDocument

from .answers import TaskFilePage
from .commands import undeleted
from .deliveries import reading
from .routes import RunId

#: The maximum number of files that are read at the same time: in total, and for one project.
FILES_AT_ONCE = (6, 4)
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})", re.ASCII)
#: We do not trust the files of crawlers, so no browser may show them as pages of this gateway.
UNTRUSTED = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "sandbox",
}
_BYTES: dict[str, Any] = {"application/octet-stream": {}}


def add_files(app: FastAPI, files: RunFiles, runs: RunReader, tasks: TaskReader) -> None:
    """Add ``GET /v1/runs/{run_id}/files`` and ``…/file``."""
    threads = Slots(*FILES_AT_ONCE)
    reads_on = OpenedFiles(files)

    @app.get("/v1/runs/{run_id}/files")
    async def list_files(
        request: Request, run_id: RunId, choice: Annotated[FilesChoice, Query()]
    ) -> TaskFilePage:
        """The supporting files of a run, from the folders of its tasks, even while they are being
        written. Files of a try are omitted if a later try started from the beginning. Files that
        are no longer in these folders come from the archives.
        """

        def read() -> FileList:
            run = undeleted(runs, run_id)
            task = None if choice.task is None else find_task(tasks, run.ref, choice.task).ref
            with reading(run_id):
                return files.list(run, task)

        listed = await threads.run(request, read)
        return TaskFilePage.from_row(listed, run_id=run_id)

    @app.get(
        "/v1/runs/{run_id}/file",
        response_class=Response,
        responses={
            200: {"content": _BYTES, "description": "The bytes of the file"},
            206: {
                "content": _BYTES,
                "description": "The part that `Range` requests; `Content-Range` describes it",
            },
            416: {
                "model": ProblemDocument,
                "description": "`Range` begins after the end of the file",
            },
        },
    )
    async def get_file(
        request: Request,
        run_id: RunId,
        choice: Annotated[FileChoice, Query()],
        range: Annotated[
            str | None,
            Header(alias="Range", description="A part of the file: `bytes=a-b` or `bytes=a-`"),
        ] = None,
        if_range: Annotated[str | None, Header(include_in_schema=False)] = None,
    ) -> StreamedResponse:
        """The bytes of one supporting file, as far as it is written now.

        Give its ``name`` in the list, or its path in the folder of a task. ``Range`` requests a
        part of it, for example to continue an interrupted download.
        """
        # Other ranges are not supported, and ``If-Range`` cannot be checked. In these cases, the
        # response is the whole file.
        asked = _RANGE.fullmatch(range or "") if if_range is None else None
        first, end = (int(asked[1]), int(asked[2] or 10**18) + 1) if asked else (0, 10**18)
        if first >= end:
            asked = None
            first = 0
            end = 10**18

        def begin() -> OpenedFile:
            run = undeleted(runs, run_id)
            with reading(run_id):
                if choice.path is None:
                    opened = reads_on.open(run, str(choice.name), first)
                    what = f"name: {choice.name!r}"
                else:
                    task = find_task(tasks, run.ref, choice.task).ref
                    opened = files.of_task(run.ref, task, choice.path, first)
                    what = f"path: {choice.path!r} of task {task.task_id}"
                # The file is opened now, because an error cannot be reported after the headers are
                # sent.
                if opened is not None:
                    opened.rest = opened.rest or next(opened.pieces, b"")
            if opened is None:
                raise missing(run_id, what)
            return opened

        opened = await threads.run(request, begin)
        size = opened.size
        if asked and first >= size:
            detail = f"Range: byte {first:,} is beyond the end; the file has {size:,} bytes"
            headers = {"Content-Range": f"bytes */{size}"}
            raise Problem(416, "range_not_satisfiable", detail, headers=headers, run_id=run_id)
        stop = min(end, size)

        def part() -> Iterator[bytes]:
            yield from opened.part(first, stop)
            if asked and choice.name is not None:
                reads_on.keep(run_id, choice.name, opened)

        named = choice.path or str(choice.name)
        name = quote(named.rsplit("/", 1)[-1], safe="", errors="replace")
        headers = {
            **UNTRUSTED,
            "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
            "Accept-Ranges": "bytes",
            "Content-Length": str(stop - first),
        }
        headers |= {"Content-Range": f"bytes {first}-{stop - 1}/{size}"} if asked else {}
        chunks = in_threads(part(), threads)
        status = 206 if asked else 200
        return StreamedResponse(chunks, "application/octet-stream", headers, status_code=status)


async def in_threads(pieces: Iterator[bytes], threads: Slots) -> AsyncGenerator[bytes, None]:
    """Yield the same pieces, each read by one of ``threads``."""
    while (piece := await threads.run(None, next, pieces, None)) is not None:
        yield piece


def missing(run_id: int, what: str) -> Problem:
    """Return the problem 404 for a file that cannot be read here."""
    detail = (
        f"{what} is not a file that can be read here; GET /v1/runs/{run_id}/files lists the "
        "files that can"
    )
    return Problem(404, "file_not_found", detail, run_id=run_id)


#: We do not trust the output of crawlers, so no browser may show it as a page of this gateway.
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
TEXT = "text/plain; charset=utf-8"


def add_logs(app: FastAPI, reader: LogReader) -> None:
    """Add ``GET /v1/runs/{run_id}/logs``."""

    @app.get("/v1/runs/{run_id}/logs", response_class=PlainTextResponse)
    async def get_log(run_id: RunId, choice: Annotated[LogChoice, Query()]) -> StreamedResponse:
        """The last lines of a task's output.

        With ``follow``, new output is added until the task has ended. With ``around``, the response
        is the lines around the last error, or around the line with the given number. The header
        ``X-Log-Line`` contains the number of that line. ``X-Log-First`` contains the number of the
        first line in the response, also with ``follow`` unless the log is very large. With ``q`` or
        ``level``, the response is at most 500 matching lines, each as its number, a colon and the
        line. If it has the header ``X-Log-Next``, repeat the request with that number as ``line``.

        If this gateway cannot read logs from the cluster, only the kept end of the log is
        available, after the task has ended.
        """
        task = await logged_task(reader, run_id, choice.task)
        if choice.around is not None:
            piece, line = await reader.around(task, choice.line, choice.before, choice.after)
            numbers = {"X-Log-Line": str(line), "X-Log-First": str(piece.number)}
            return reader.answer(once(piece.data), TEXT, HEADERS | numbers)
        if choice.query is not None:
            found, next_line = await reader.matching(task, choice.query, choice.line or 1)
            text = b"".join(b"%d:%b\n" % (line.number, line.data) for line in found)
            more = {} if next_line is None else {"X-Log-Next": str(next_line)}
            return reader.answer(once(text), TEXT, HEADERS | more)
        end = await reader.read(task, choice.tail, follow=choice.follow)
        numbers = {} if end.first is None else {"X-Log-First": str(end.first)}
        return reader.answer(end.chunks, TEXT, HEADERS | numbers)


async def logged_task(reader: LogReader, run_id: int, task_id: int | None) -> LoggedTask:
    """Return a task (default: the main task) of a run whose data is not deleted.

    Raises ``Problem`` 404.
    """
    return await run_in_threadpool(
        lambda: find_task(reader.tasks, undeleted(reader.runs, run_id).ref, task_id)
    )
