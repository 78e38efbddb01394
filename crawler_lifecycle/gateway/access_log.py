"""The access log: the route and the web page that list the actions of people and tokens."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, get_args

from fastapi import FastAPI, Query, Request, Response
from pydantic import BaseModel, Field

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import Moment, OfProject
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    RowPage,
    filters_of,
    held_sorts,
    list_page,
    windowed,
)
from crawler_lifecycle.ports.access import AccessRow, Kind
from crawler_lifecycle.store.access import AccessStore
from crawler_lifecycle.subjects import ACCESS, Subject

from .cursors import decode_positions, encode

_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_US = (datetime(2101, 1, 1, tzinfo=UTC) - _FIRST) // timedelta(microseconds=1)

Word = Annotated[str | None, Field(max_length=200)]


class AccessFilters(OfProject):
    """Filters of ``GET /v1/access``. Each must equal the whole value of the field with this
    name.
    """

    caller: Word = None
    operation: Word = None
    kind: Kind | None = None
    subject: Word = None
    outcome: Word = None
    since: Moment | None = None
    until: Moment | None = None


class PageAccess(AccessFilters, HeldFilters):
    """Filters of the web page of the access log."""


class AccessPage(BaseModel):
    """Rows of the access log, newest first."""

    access: list[AccessRow]
    next_page_token: str | None = None


CHOOSER = Chooser(
    Subject("action", "id", ACCESS, empty="No action is recorded yet."),
    "/access",
    "Who, operation, number or name, outcome, address",
    sorts=held_sorts(ACCESS),
    facets={
        "caller": "Who",
        "operation": "Operation",
        "kind": "Kind",
        "subject": "Number or name",
        "outcome": "Outcome",
    },
    values={"kind": get_args(Kind)},
    typed=("caller", "operation", "subject", "outcome"),
    times={"since": "Since", "until": "Until"},
    title="Access",
    intro="The actions of people and tokens through the API and the web UI, and the refused "
    "requests. Reads are not listed. Equal requests within ten seconds that were refused or failed "
    "share one row.",
    newest_first=True,
)


def add_access_log(app: FastAPI, store: AccessStore, clock: Clock) -> None:
    """Add ``GET /v1/access`` and its web page."""

    @app.get("/v1/access", **documents(AccessPage))
    def list_access(filters: Annotated[AccessFilters, Query()], request: Request) -> Response:
        """The access log: the actions of people and tokens through the gateways, and the refused
        requests, newest first.

        A row appears about a second after its request. Failed requests are counted for ten seconds,
        and `requests` is the number of equal ones.
        """
        return conditional(request, _page(store, filters))

    @app.get("/access", include_in_schema=False)
    def show_access(request: Request) -> Response:
        """List the actions of people and tokens."""
        filters = filters_of(request, PageAccess)

        def found(asked: PageAccess) -> RowPage:
            page = _page(store, asked)
            return RowPage(list(map(asdict, page.access)), page.next_page_token)

        return list_page(request, CHOOSER, filters, windowed(CHOOSER, found), now=clock())


def _page(store: AccessStore, filters: AccessFilters) -> AccessPage:
    if filters.since and filters.until and filters.since >= filters.until:
        fix = "give a later time, or omit one of them"
        raise InvalidRequest(f"until: {filters.until.isoformat()} is not after since; {fix}")
    place = decode_positions("access", filters.page_token, 2)
    size = filters.page_size
    before = (_FIRST + timedelta(microseconds=min(place[0], _MOST_US)), place[1]) if place else None
    own = AccessFilters.model_fields.keys() - OfProject.model_fields.keys()
    wanted = filters.model_dump(include=own)
    with narrowed(filters.project):
        rows = store.list_access(size + 1, before=before, **wanted)
    if len(rows) <= size:
        return AccessPage(access=rows)
    last = rows[size - 1]
    token = encode("access", (last.at - _FIRST) // timedelta(microseconds=1), last.id)
    return AccessPage(access=rows[:size], next_page_token=token)
