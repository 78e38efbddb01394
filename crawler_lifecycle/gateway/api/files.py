"""Routes of supporting files of tasks, also while the tasks execute."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Query
from starlette.responses import Response

from crawler_lifecycle.domain.names import files_prefix
from crawler_lifecycle.gateway.streams.logs import CHUNK, LoggedTask, find_task
from crawler_lifecycle.gateway.streams.responses import Streamed
from crawler_lifecycle.ports import FilePart, LiveFiles, RunReader, TaskReader, TaskRef
from crawler_lifecycle.web.problems import Problem

from .answers import TaskFile, TaskFilePage
from .paging import FileChoice, FilesChoice
from .runs import RunId, found

#: Files that one answer names, and tasks whose folders are looked into for it.
FILES_MAX, TASKS_MAX = 2_000, 100
#: Files that are read at the same moment, whatever the number of readers.
THREADS = 4
#: A crawler's files are not ours: no browser may take one for a page.
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Security-Policy": "sandbox"}


def add_files(app: FastAPI, source: LiveFiles | None, runs: RunReader, tasks: TaskReader) -> None:
    """Add ``GET /v1/runs/{run_id}/files`` and ``…/file``."""
    threads = CapacityLimiter(THREADS)

    @app.get("/v1/runs/{run_id}/files", operation_id="listFiles")
    async def list_files(run_id: RunId, choice: Annotated[FilesChoice, Query()]) -> TaskFilePage:
        """Supporting files of a run's tasks as they lie there now, also while they are written; without those of
        attempts that were replaced. Where this gateway cannot read them they come with the archive."""
        return await to_thread.run_sync(_list, runs, tasks, source, run_id, choice.task, limiter=threads)

    @app.get(
        "/v1/runs/{run_id}/file",
        operation_id="getFile",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}, "description": "The bytes of the file"}},
    )
    async def get_file(run_id: RunId, choice: Annotated[FileChoice, Query()]) -> Streamed:
        """One supporting file of a task, byte by byte, as far as it is written now."""

        def part(place: int, task: LoggedTask) -> FilePart | None:
            return None if source is None else source.read(task.run, task.ref, choice.path, place, CHUNK)

        def begin() -> tuple[LoggedTask, FilePart]:
            task = find_task(tasks, found(runs, run_id).ref, choice.task)
            first = part(0, task)
            if first is None:
                what = f"path: {choice.path!r} of task {task.ref.task_id} is no file that can be read here"
                raise Problem(
                    404, "file_not_found", f"{what}; GET /v1/runs/{run_id}/files lists what can", run_id=run_id
                )
            return task, first

        task, first = await to_thread.run_sync(begin, limiter=threads)

        async def chunks() -> AsyncGenerator[bytes, None]:
            now: FilePart | None = first
            place = 0
            while now is not None and now.data:
                data = now.data[: first.size - place]  # what comes after the beginning is for the next question
                yield data
                place += len(data)
                if place >= first.size:
                    return
                now = await to_thread.run_sync(part, place, task, limiter=threads)

        name = quote(choice.path.rsplit("/", 1)[-1], safe="", errors="replace")
        headers = {**_HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return Streamed(chunks(), "application/octet-stream", headers)


def _list(
    runs: RunReader, reader: TaskReader, source: LiveFiles | None, run_id: int, task_id: int | None
) -> TaskFilePage:
    run = found(runs, run_id).ref
    if source is None:
        elsewhere = "they lie where this gateway cannot read; when the run has ended they come with the archive"
        return TaskFilePage(run_id=run_id, readable=False, files=[], left_out=0, note=elsewhere)
    if task_id is not None:
        tasks, more = [find_task(reader, run, task_id).ref], False
    else:
        rows = reader.list_tasks(run_id, limit=TASKS_MAX + 1)
        more = len(rows) > TASKS_MAX
        tasks = [TaskRef(row.task_id, row.task_index, row.attempt, row.cluster_uid) for row in rows[:TASKS_MAX]]
    files: list[TaskFile] = []
    left_out, here = 0, False
    for ref in tasks:
        listed = source.list(run, ref, FILES_MAX - len(files))
        if listed is None:
            continue
        here = True
        left_out += listed.left_out
        prefix = files_prefix(ref.index, ref.attempt)
        files += [
            TaskFile(task_id=ref.task_id, path=path, name=f"{prefix}/{path}", bytes=size) for path, size in listed.files
        ]
    note: str | None = f"only those of the first {TASKS_MAX} tasks; ask with task= for others" if more else None
    if not here:
        note = "no task has a folder here: none has begun, or they were cleared away"
    return TaskFilePage(run_id=run_id, readable=here, files=files, left_out=left_out, note=note)
