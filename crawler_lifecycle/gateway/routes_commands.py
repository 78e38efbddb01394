"""Routes that do something to a run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Path, Response

from crawler_lifecycle.problems import JsonBody

from .commands import Commands, Outcome
from .paging import ID_MAX
from .schemas import Accepted, ResumeRun, StartRun, StopRun

_START = JsonBody(StartRun)
_STOP = JsonBody(StopRun, optional=True)
_RESUME = JsonBody(ResumeRun, optional=True)

RunId = Annotated[int, Path(ge=1, le=ID_MAX)]


def add_commands(app: FastAPI, commands: Commands, clock: Callable[[], datetime]) -> None:
    """Add start, stop, resume and look."""

    def answer(outcome: Outcome) -> Accepted:
        return Accepted.of(outcome.row, clock(), note=outcome.note)

    @app.post("/v1/runs", operation_id="startRun", status_code=202, openapi_extra=_START.openapi())
    async def start_run(
        body: Annotated[StartRun, Depends(_START)],
        response: Response,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Accepted:
        """Start a run. The same ``Idempotency-Key`` and body again answer the same run, whenever they come."""
        outcome = await commands.start(body, idempotency_key)
        response.headers["Location"] = f"/v1/runs/{outcome.row.run_id}"
        if not outcome.fresh:
            response.headers["Idempotency-Replayed"] = "true"
        return answer(outcome)

    @app.post(
        "/v1/runs/{run_id}/stop",
        operation_id="stopRun",
        status_code=202,
        openapi_extra=_STOP.openapi(),
        responses={200: {"model": Accepted, "description": "It has ended, or this stop was recorded before"}},
    )
    async def stop_run(run_id: RunId, body: Annotated[StopRun, Depends(_STOP)], response: Response) -> Accepted:
        """Stop a run, gracefully or by force. The stop is on record before this is answered."""
        outcome = await commands.stop(run_id, body)
        response.status_code = 202 if outcome.fresh else 200
        return answer(outcome)

    @app.post("/v1/runs/{run_id}/resume", operation_id="resumeRun", status_code=202, openapi_extra=_RESUME.openapi())
    async def resume_run(run_id: RunId, body: Annotated[ResumeRun, Depends(_RESUME)]) -> Accepted:
        """Go on with a run that has ended, as its next attempt."""
        return answer(await commands.resume(run_id, body))

    @app.post("/v1/runs/{run_id}/look", operation_id="lookAtRun", status_code=202)
    async def look_at_run(run_id: RunId) -> Accepted:
        """Have the cluster asked about a run now, instead of at the next planned look."""
        return answer(await commands.look(run_id))
