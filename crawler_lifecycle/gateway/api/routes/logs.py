"""The route of a task's log."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse

from crawler_lifecycle.gateway.api.paging import LogChoice
from crawler_lifecycle.gateway.streams.logs import LoggedTask, LogReader, find_task
from crawler_lifecycle.gateway.streams.responses import Streamed
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.tasks import TaskReader

from .runs import RunId, found

#: A crawler's output is not ours: no browser may take it for a page.
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
TEXT = "text/plain; charset=utf-8"


def add_logs(app: FastAPI, reader: LogReader, runs: RunReader, tasks: TaskReader) -> None:
    """Add ``GET /v1/runs/{run_id}/logs``."""

    @app.get("/v1/runs/{run_id}/logs", operation_id="getLog", response_class=PlainTextResponse)
    async def get_log(run_id: RunId, choice: Annotated[LogChoice, Query()]) -> Streamed:
        """What a task printed, as it printed it: its last lines and, with ``follow``, what comes until it has ended.

        Where the cluster is out of this gateway's reach there is the end of the log that was kept, once the task has
        ended.
        """

        def task() -> LoggedTask:
            return find_task(tasks, found(runs, run_id).ref, choice.task)

        chunks = await reader.read(await run_in_threadpool(task), choice.tail, follow=choice.follow)
        return Streamed(
            chunks,
            TEXT,
            HEADERS,
            entered=reader.entered,
            left=reader.left,
            dropped=reader.dropped,
        )
