"""The route of the event stream."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import FastAPI, Header, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.bounds import ID_MAX, whole
from crawler_lifecycle.domain.errors import InvalidRequest, RowUnreadable, StoreUnavailable
from crawler_lifecycle.domain.names import graph_subject, manager_subject, run_subject
from crawler_lifecycle.features.graphs.domain.spec import NAME_MAX
from crawler_lifecycle.gateway.api.paging import Choice, Id
from crawler_lifecycle.gateway.runs.commands import found as found_run
from crawler_lifecycle.gateway.streams.responses import StreamedResponse
from crawler_lifecycle.web.problems import refused

from .parts import Gateway

# Without the second header, nginx buffers the events.
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class StreamChoice(Choice):
    """Parameters of ``GET /v1/events``."""

    after: int | None = Field(default=None, ge=0, le=ID_MAX)
    run_id: Id | None = None
    manager: Id | None = None
    graph: str | None = Field(default=None, min_length=1, max_length=NAME_MAX)

    def subject(self) -> str | None:
        """Return the subject to which the stream is limited, if any.

        Raises ``InvalidRequest`` if the request names two subjects.
        """
        named = {
            "run_id": self.run_id and run_subject(self.run_id),
            "manager": self.manager and manager_subject(self.manager),
            "graph": self.graph and graph_subject(self.graph),
        }
        given = [(name, subject) for name, subject in named.items() if isinstance(subject, str)]
        if len(given) > 1:
            first = given[0][0]
            second = given[1][0]
            raise InvalidRequest(
                f"{second}: not allowed with {first}; open a stream for each, or one for everything"
            )
        return given[0][1] if given else None


def add_stream(app: FastAPI, gateway: Gateway) -> None:
    """Add ``GET /v1/events``."""
    feed = gateway.feed

    @app.get(
        "/v1/events",
        # Only the format comes from FastAPI (``fastapi.sse``). Its own response class would encode
        # each event for each reader.
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def stream_events(
        choice: Annotated[StreamChoice, Query()],
        last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
    ) -> StreamedResponse:
        """Events in the order of their commits: first ``hello``, then the events after
        ``Last-Event-ID`` or ``after``. Without either, only new events are sent.

        ``id`` is the event's number, ``event`` its type, and ``data`` the whole event as JSON. A
        client that reconnects with its last id misses no event and gets none twice. ``run_id``
        selects the events of one run, ``manager`` those of one manager, and ``graph`` those of one
        graph. ``after=0`` begins with the oldest recorded event.

        ``hello`` has the number after which the stream begins. If its ``reset`` is true, the stream
        does not continue at the client's last id: the next events were removed, or the database has
        been replaced. The client should then read everything again. Such a ``hello`` may also come
        later.
        """
        after = _last(last_event_id) if last_event_id else choice.after
        subject = choice.subject()
        # A stream can begin while the database is down, just as it survives an outage, because
        # browsers do not reconnect after an error.
        with suppress(StoreUnavailable, RowUnreadable):
            if choice.run_id is not None:
                await run_in_threadpool(found_run, gateway.store.runs, choice.run_id)
            elif choice.manager is not None:
                await run_in_threadpool(gateway.manager_views.found, choice.manager)
            elif choice.graph is not None:
                await run_in_threadpool(gateway.graph_views.found, choice.graph)
        return StreamedResponse(
            feed.stream(after, subject),
            "text/event-stream",
            _HEADERS,
            entered=feed.enter,
            left=feed.leave,
            dropped=feed.dropped,
        )


def _last(text: str) -> int:
    if (number := whole(text)) is not None:
        return number
    message = "is not an id of this stream; send the id of the last event, or omit it"
    raise refused("Last-Event-ID", message, text)
