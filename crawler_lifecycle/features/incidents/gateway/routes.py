"""Routes of incidents."""

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field

from crawler_lifecycle.domain.bounds import ID_MAX, storable
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.incident import KINDS, IncidentRow
from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.gateway.access.operations import caller_name, signed
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import OfProject, cut, one_of
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.commands import existing
from crawler_lifecycle.gateway.runs.requests import Person, StrictBody
from crawler_lifecycle.web.problems import JsonBody

from ..store.reads import State
from ..store.tables import NAME_MAX, TEXT_MAX

#: The longest mute, in seconds.
MUTE_MAX_S = 365 * 86_400
IncidentId = Annotated[int, Path(ge=1, le=ID_MAX)]


class IncidentFilters(OfProject):
    """Filters of ``GET /v1/incidents``."""

    state: State = "open"
    kind: Annotated[str, one_of({kind: kind for kind in KINDS})] | None = None
    subject: str | None = None
    assignee: str | None = None
    mine: bool = False
    muted: bool | None = None


class IncidentPage(BaseModel):
    """A page of incidents, newest first."""

    incidents: list[IncidentRow]
    next_page_token: str | None


class ClosedBy(StrictBody):
    """Body of ``POST /v1/incidents/{incident_id}/close``. All fields are optional."""

    requested_by: Person | None = None


class Mute(StrictBody):
    """Body of ``POST /v1/incidents/{incident_id}/mute``: one of the fields. Without any, the mute
    ends.
    """

    until: Annotated[AwareDatetime, AfterValidator(storable)] | None = None
    for_s: Annotated[float, Field(gt=0, le=MUTE_MAX_S)] | None = None


class Assign(StrictBody):
    """Body of ``POST /v1/incidents/{incident_id}/assign``. Without a name, nobody has it."""

    assignee: Annotated[str, Field(min_length=1, max_length=NAME_MAX)] | None = None


class Comment(StrictBody):
    """Body of ``POST /v1/incidents/{incident_id}/comment``. Without a text, it is removed."""

    comment: Annotated[str, Field(min_length=1, max_length=TEXT_MAX)] | None = None


_Closed = Annotated[ClosedBy, Depends(JsonBody(ClosedBy, optional=True))]
_Mute = Annotated[Mute, Depends(JsonBody(Mute, optional=True))]
_Assign = Annotated[Assign, Depends(JsonBody(Assign, optional=True))]
_Comment = Annotated[Comment, Depends(JsonBody(Comment, optional=True))]


def add_incidents(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of incidents."""
    store = gateway.store.incidents

    @app.get("/v1/incidents", **documents(IncidentPage))
    def list_incidents(filters: Annotated[IncidentFilters, Query()], request: Request) -> Response:
        """The incidents, newest first: problems that need attention, once for each cause."""
        assignee = filters.assignee
        if filters.mine:
            assignee = caller_name()
        if filters.mine and assignee is None:
            raise InvalidRequest("mine: this gateway does not know who calls; give assignee")
        wanted: dict[str, Any] = filters.model_dump(include={"state", "kind", "subject", "muted"})
        before = decode("incident", filters.page_token)
        with narrowed(filters.project):
            rows = store.list_incidents(before, filters.page_size + 1, assignee=assignee, **wanted)
        page, token = cut("incident", rows, filters.page_size, attrgetter("incident_id"))
        return conditional(request, IncidentPage(incidents=page, next_page_token=token))

    @app.get("/v1/incidents/{incident_id}")
    def get_incident(incident_id: IncidentId) -> IncidentRow:
        """One incident."""
        return existing("incident", incident_id, store.get_incident(incident_id))

    @app.post("/v1/incidents/{incident_id}/close")
    def close_incident(incident_id: IncidentId, body: _Closed) -> IncidentRow:
        """Close an incident by hand. It is opened again if its cause occurs again."""
        existing("incident", incident_id, store.get_incident(incident_id))
        return store.close_incident(incident_id, signed(body).requested_by or "a person")

    def change(incident_id: int, **values: Any) -> IncidentRow:
        existing("incident", incident_id, store.get_incident(incident_id))
        return store.change_incident(incident_id, **values)

    @app.post("/v1/incidents/{incident_id}/mute")
    def mute_incident(incident_id: IncidentId, body: _Mute) -> IncidentRow:
        """Send no events about an incident until a time, or for some seconds."""
        until = body.until
        if until is not None and body.for_s is not None:
            raise InvalidRequest("for_s: not allowed with until; give one of them")
        if body.for_s is not None:
            until = gateway.clock() + timedelta(seconds=body.for_s)
        return change(incident_id, muted_until=until)

    @app.post("/v1/incidents/{incident_id}/assign")
    def assign_incident(incident_id: IncidentId, body: _Assign) -> IncidentRow:
        """Record who takes care of an incident."""
        return change(incident_id, assignee=body.assignee)

    @app.post("/v1/incidents/{incident_id}/comment")
    def comment_incident(incident_id: IncidentId, body: _Comment) -> IncidentRow:
        """Record a comment about an incident, which replaces the one before."""
        return change(incident_id, comment=body.comment)
