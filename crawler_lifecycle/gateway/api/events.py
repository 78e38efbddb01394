"""The route of the event stream."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Header, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import RunNotFound, StoreUnavailable
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.responses import Streamed
from crawler_lifecycle.ports import RunReader
from crawler_lifecycle.web.problems import FieldError, Problem

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # nginx would collect the events


class StreamChoice(BaseModel):
    """Parameters of ``GET /v1/events``."""

    model_config = ConfigDict(extra="forbid")

    after: int | None = Field(default=None, ge=0, le=ID_MAX)
    run_id: int | None = Field(default=None, ge=1, le=ID_MAX)


def add_stream(app: FastAPI, feed: Feed, runs: RunReader) -> None:
    """Add ``GET /v1/events``."""

    @app.get(
        "/v1/events",
        operation_id="streamEvents",
        # The format is FastAPI's (``fastapi.sse``); its own loop would encode each event anew for each reader.
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def stream_events(
        choice: Annotated[StreamChoice, Query()], last_event_id: Annotated[str | None, Header()] = None
    ) -> Streamed:
        """Events as they are committed: ``hello``, then those after ``Last-Event-ID`` or ``after`` (default: new ones).

        ``id`` is the event's number, ``event`` its type, ``data`` the whole of it as JSON. Nothing is left out or
        repeated when a client comes back with the last id it saw. ``run_id`` keeps to one run. ``hello`` tells where
        the stream begins; with ``reset`` it is not where the client left off, because what followed was removed or
        belongs to another database: it should read everything anew. Such a ``hello`` may come later, too. ``after=0``
        begins with the oldest event that is on record.
        """
        after = _last(last_event_id) if last_event_id else choice.after
        if choice.run_id is not None:
            await _check_run(runs, choice.run_id)
        return Streamed(
            feed.stream(after, choice.run_id),
            "text/event-stream",
            _HEADERS,
            entered=feed.enter,
            left=feed.leave,
            dropped=feed.dropped,
        )


def _last(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= ID_MAX:
        return int(text)
    message = "is no id of this stream; send the id of the last event, or leave it out"
    error = FieldError(field="Last-Event-ID", value=repr(text)[:120], message=message)
    raise Problem(422, "invalid_request", f"Last-Event-ID: {message}", errors=[error])


async def _check_run(runs: RunReader, run_id: int) -> None:
    try:
        row = await run_in_threadpool(runs.get_run, run_id)
    except StoreUnavailable:
        return  # the stream outlasts an outage, so it may begin in one: browsers do not come back after an error
    if row is None:
        raise RunNotFound(f"run {run_id} does not exist; GET /v1/runs lists what there is")
