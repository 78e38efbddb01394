"""Routes that do something to a run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from crawler_lifecycle.domain.bounds import ID_MAX, INT_MAX
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.answers import Accepted, UploadPart, UploadTicket
from crawler_lifecycle.gateway.api.paging import ArchiveChoice
from crawler_lifecycle.gateway.runs.commands import Commanded, Commands
from crawler_lifecycle.gateway.runs.deliveries import Deliveries
from crawler_lifecycle.gateway.runs.requests import AddedTasks, AddTasksBody, ResendExport, ResumeRun, StartRun, StopRun
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.web.problems import JsonBody

from .uploads import Uploads

_START = JsonBody(StartRun)
_STOP = JsonBody(StopRun, optional=True)
_RESUME = JsonBody(ResumeRun, optional=True)
_TASKS = JsonBody(AddTasksBody)
_EXPORT = JsonBody(ResendExport, optional=True)

_PART = JsonBody(UploadPart)

#: An archive, and the same for clients that are made from the document and know no zip.
_ZIP, _BYTES = "application/zip", "application/octet-stream"

RunId = Annotated[int, Path(ge=1, le=ID_MAX)]


def add_commands(app: FastAPI, commands: Commands, clock: Callable[[], datetime]) -> None:
    """Add start, stop, resume, look and child tasks."""

    def answer(outcome: Commanded[RunRow]) -> Accepted:
        return Accepted.of(outcome.row, clock(), note=outcome.note)

    @app.post("/v1/runs", operation_id="startRun", status_code=202, openapi_extra=_START.openapi)
    async def start_run(
        body: Annotated[StartRun, Depends(_START)],
        response: Response,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Accepted:
        """Start a run. The same ``Idempotency-Key`` and body again answer the same run, whenever they come."""
        outcome = await commands.start(signed(body), idempotency_key)
        response.headers["Location"] = f"/v1/runs/{outcome.row.run_id}"
        if not outcome.fresh:
            response.headers["Idempotency-Replayed"] = "true"
        return answer(outcome)

    @app.post(
        "/v1/runs/{run_id}/stop",
        operation_id="stopRun",
        status_code=202,
        openapi_extra=_STOP.openapi,
        responses={200: {"model": Accepted, "description": "It has ended, or this stop was recorded before"}},
    )
    async def stop_run(run_id: RunId, body: Annotated[StopRun, Depends(_STOP)], response: Response) -> Accepted:
        """Stop a run, gracefully or by force. The stop is on record before this is answered."""
        outcome = await commands.stop(run_id, signed(body))
        response.status_code = 202 if outcome.fresh else 200
        return answer(outcome)

    @app.post("/v1/runs/{run_id}/resume", operation_id="resumeRun", status_code=202, openapi_extra=_RESUME.openapi)
    async def resume_run(run_id: RunId, body: Annotated[ResumeRun, Depends(_RESUME)]) -> Accepted:
        """Go on with a run that has ended, as its next attempt."""
        return answer(await commands.resume(run_id, signed(body)))

    @app.post("/v1/runs/{run_id}/look", operation_id="lookAtRun", status_code=202)
    async def look_at_run(run_id: RunId) -> Accepted:
        """Have the cluster asked about a run now, instead of at the next planned look."""
        return answer(await commands.look(run_id))

    @app.post("/v1/runs/{run_id}/tasks", operation_id="addTasks", status_code=202, openapi_extra=_TASKS.openapi)
    async def add_tasks(
        run_id: RunId,
        body: Annotated[AddTasksBody, Depends(_TASKS)],
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> AddedTasks:
        """Add child tasks to a live run. A crawler may call this for its own run with the token it was given."""
        return await commands.add_tasks(run_id, body, idempotency_key)


def add_uploads(app: FastAPI, uploads: Uploads) -> None:
    """Add the tickets for supporting files of tasks in pods."""

    @app.post(
        "/v1/runs/{run_id}/tasks/{index}/attempts/{attempt}/files",
        operation_id="uploadFiles",
        openapi_extra=_PART.openapi,
    )
    async def upload_files(
        run_id: RunId,
        index: Annotated[int, Path(ge=0, le=INT_MAX)],
        attempt: Annotated[int, Path(ge=1, le=INT_MAX)],
        body: Annotated[UploadPart, Depends(_PART)],
    ) -> UploadTicket:
        """A place in object storage for one part of a task's supporting files. The task's runner asks for it."""
        ticket = await run_in_threadpool(uploads.ticket, run_id, index, attempt, body)
        return UploadTicket(url=ticket.url, headers=dict(ticket.headers), expires_at=ticket.expires_at)


def add_deliveries(app: FastAPI, deliveries: Deliveries, clock: Callable[[], datetime]) -> None:
    """Add resending and the download of archives."""

    @app.post("/v1/runs/{run_id}/export", operation_id="resendExport", status_code=202, openapi_extra=_EXPORT.openapi)
    async def resend_export(run_id: RunId, body: Annotated[ResendExport, Depends(_EXPORT)]) -> Accepted:
        """Deliver again what an ended run delivers: the event ``run.ended``, failed pushes, the supporting files."""
        outcome = await deliveries.resend(run_id, body)
        return Accepted.of(outcome.row, clock(), note=outcome.note)

    @app.get(
        "/v1/runs/{run_id}/archive",
        operation_id="downloadArchive",
        response_class=StreamingResponse,
        responses={
            200: {
                "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in (_ZIP, _BYTES)},
                "description": "The zip of the supporting files",
            }
        },
    )
    def download_archive(
        run_id: RunId, choice: Annotated[ArchiveChoice, Query()], request: Request
    ) -> StreamingResponse:
        """The supporting files of a run's newest archived attempt, or of the one that is named."""
        found = deliveries.download(run_id, choice.attempt)
        accept = request.headers.get("accept", "")
        kind = _BYTES if _BYTES in accept and _ZIP not in accept else _ZIP
        return StreamingResponse(found.chunks, media_type=kind, headers=found.headers)
