"""The one stream of a page: what it shows is in its address."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.gateway.access.operations import may
from crawler_lifecycle.gateway.api.paging import Moment, RunFilters
from crawler_lifecycle.gateway.page.parts.forms import read
from crawler_lifecycle.gateway.page.parts.rendering import query
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.responses import Streamed
from crawler_lifecycle.web.problems import FieldError, Problem

from .live import WATCHED_MAX, Live, Wanted

ADDRESS = "/page/events"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # nginx would collect the events


class _Choice(BaseModel):
    """The parameters that say what is on the screen; those of the list's filters stand beside them."""

    model_config = ConfigDict(extra="forbid")

    runs: str = Field(default="", pattern=r"^([1-9][0-9]{0,18}(,[1-9][0-9]{0,18})*)?$")
    since: Moment
    show: str = Field(default="rows", pattern="^(rows|page|list)$")
    about: str | None = Field(default=None, max_length=300)
    seen: str = Field(default="", pattern="^([0-9a-f]{8})*$", max_length=4000)


def add_stream(app: FastAPI, live: Live, feed: Feed) -> None:
    """Add ``GET /page/events``."""

    @app.get(ADDRESS, operation_id="streamPage", include_in_schema=False, response_class=Response)
    async def stream_page(request: Request) -> Streamed:
        """What is on one screen, part by part, as soon as it is another one."""
        given = request.query_params.multi_items()
        own = [(name, value) for name, value in given if name in _Choice.model_fields]
        choice = read(_Choice, own)
        filters = read(RunFilters, [pair for pair in given if pair not in own])
        runs = [int(one) for one in choice.runs.split(",") if one]
        if len(runs) > WATCHED_MAX or any(one > ID_MAX for one in runs):
            raise _refused("runs", f"name at most {WATCHED_MAX} runs that exist")
        page, filters_of_list = choice.show == "page", filters if choice.show == "list" else None
        wanted = Wanted(runs, choice.since, may("pressRuns"), page, filters_of_list, choice.about, choice.seen)
        last = request.headers.get("last-event-id")
        if last is not None and not (last.isascii() and last.isdecimal() and len(last) <= 19):
            raise _refused("Last-Event-ID", "is no id of this stream; load the page again")
        chunks = live.stream(wanted, None if last is None else int(last))
        return Streamed(chunks, "text/event-stream", _HEADERS, dropped=lambda: feed.dropped("page"))


def stream_address(
    runs: Collection[int],
    since: datetime,
    *,
    page: bool = False,
    filters: RunFilters | None = None,
    about: str | None = None,
    seen: Iterable[str] = (),
) -> str:
    """Where a page finds its stream: the page of a run, a list that grows at its top, rows that stay, or something
    else that events are about. ``seen``: marks of what it is rendered with."""
    show = "page" if page else "rows" if filters is None else "list"
    said: dict[str, object] = {
        "runs": ",".join(map(str, runs)),
        "since": since.isoformat(),
        "show": show,
        "about": about,
        "seen": "".join(seen),
    }
    if filters is not None:
        said |= filters.model_dump(mode="json", exclude_defaults=True, include=set(RunFilters.model_fields))
    return ADDRESS + query(said)


def _refused(field: str, message: str) -> Problem:
    return Problem(422, "invalid_request", f"{field}: {message}", errors=[FieldError(field=field, message=message)])
