"""The log of a task: its end at once, then what comes. Its bytes are a stranger's and are shown as text alone.

What comes is read from ``GET /v1/runs/{id}/logs`` by the page itself (``log.js``), which takes out what ``plain`` does.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.gateway.api.routes.runs import RunId, RunViews, found
from crawler_lifecycle.gateway.page.parts.rendering import answer
from crawler_lifecycle.gateway.streams.logs import LoggedTask, LogReader, find_task
from crawler_lifecycle.gateway.streams.responses import Streamed
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.tasks import TaskReader
from crawler_lifecycle.web.problems import Problem

#: Lines that the page begins with, and bytes of them that are sent with it.
LINES, BYTES = 500, 256 * 1024
#: Escape sequences of terminals, then every other control character but the end of a line and the tabulator, and what
#: turns the direction of a text around.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    "|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class _Choice(BaseModel):
    """Parameters of the page of a log: a task's id; default: the main task's."""

    model_config = ConfigDict(extra="forbid")

    task: int | None = Field(default=None, ge=1, le=ID_MAX)


def plain(data: bytes) -> str:
    """What a task printed as text that no terminal and no page can misread."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return _ESCAPES.sub("", text)


def add_log(app: FastAPI, reader: LogReader, views: RunViews, runs: RunReader, tasks: TaskReader) -> None:
    """Add the page of a log, and the whole of it as a file."""

    @app.get("/runs/{run_id}/log", operation_id="showLog", include_in_schema=False)
    async def show_log(run_id: RunId, choice: Annotated[_Choice, Query()], request: Request) -> Response:
        """The end of a task's log, or a word on where it is."""
        row = await run_in_threadpool(found, runs, run_id)
        task = await run_in_threadpool(find_task, tasks, row.ref, choice.task)
        text, away = await _end(reader, task)
        run = views.of(row, views.clock())
        values: dict[str, Any] = {"run": run, "task": task, "text": text, "away": away, "now": views.clock()}
        return answer(request, "log.html", lines=LINES, **values)

    @app.get("/runs/{run_id}/log/whole", operation_id="fetchLog", include_in_schema=False)
    async def fetch_log(run_id: RunId, choice: Annotated[_Choice, Query()]) -> Streamed:
        """All that a task has printed up to now, byte by byte."""

        def task() -> LoggedTask:
            return find_task(tasks, found(runs, run_id).ref, choice.task)

        asked = await run_in_threadpool(task)
        name = f"run-{run_id}-task-{asked.ref.task_id}.log"
        headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        media_type = "text/plain; charset=utf-8"
        chunks = await reader.whole(asked)
        return Streamed(chunks, media_type, headers, entered=reader.entered, left=reader.left, dropped=reader.dropped)


async def _end(reader: LogReader, task: LoggedTask) -> tuple[str, str | None]:
    """The last lines, and why there are none."""
    try:
        chunks = await reader.read(task, LINES, follow=False)
    except Problem as problem:
        return "", problem.detail
    except LifecycleError as error:
        return "", str(error)
    kept = b""
    async for chunk in chunks:
        kept = (kept + chunk)[-BYTES:]
    return plain(kept), None
