"""Routes of incidents."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from pydantic import BaseModel

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.features import INCIDENT_KINDS
from crawler_lifecycle.gateway.access.operations import caller_name, signed
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import OfProject, one_of
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.requests import OptionalBodyOf

from ..store.reads import State
from .commands import Assign, ClosedBy, Comment, IncidentCommands, Mute

IncidentId = Annotated[int, Path(ge=1, le=ID_MAX)]


class IncidentFilters(OfProject):
    """Filters of ``GET /v1/incidents``."""

    state: State = "open"
    kind: Annotated[str, one_of({kind: kind for kind in INCIDENT_KINDS})] | None = None
    subject: str | None = None
    assignee: str | None = None
    mine: bool = False
    muted: bool | None = None


class IncidentPage(BaseModel):
    """A page of incidents, newest first."""

    incidents: list[IncidentRow]
    next_page_token: str | None


def add_incidents(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of incidents."""
    store = gateway.store.incidents
    commands = IncidentCommands(store, gateway.clock)

    @app.get("/v1/incidents", **documents(IncidentPage))
    def list_incidents(filters: Annotated[IncidentFilters, Query()], request: Request) -> Response:
        """The incidents, newest first: problems that need attention, once for each cause."""
        assignee = filters.assignee
        if filters.mine:
            assignee = caller_name()
        if filters.mine and assignee is None:
            raise InvalidRequest("mine: this gateway does not know who is calling; give assignee")
        wanted: dict[str, Any] = filters.model_dump(include={"state", "kind", "subject", "muted"})
        found = partial(store.list_incidents, assignee=assignee, **wanted)
        with narrowed(filters.project):
            page, token = filters.read("incident", found, attrgetter("incident_id"))
        return conditional(request, IncidentPage(incidents=page, next_page_token=token))

    @app.get("/v1/incidents/{incident_id}")
    def get_incident(incident_id: IncidentId) -> IncidentRow:
        """One incident."""
        return commands.find(incident_id)

    @app.post("/v1/incidents/{incident_id}/close")
    def close_incident(incident_id: IncidentId, body: OptionalBodyOf[ClosedBy]) -> IncidentRow:
        """Close an incident by hand. It opens again if its cause occurs again."""
        return commands.close(incident_id, signed(body))

    @app.post("/v1/incidents/{incident_id}/mute")
    def mute_incident(incident_id: IncidentId, body: OptionalBodyOf[Mute]) -> IncidentRow:
        """Send no events about an incident until a given time, or for some seconds."""
        return commands.mute(incident_id, body)

    @app.post("/v1/incidents/{incident_id}/assign")
    def assign_incident(incident_id: IncidentId, body: OptionalBodyOf[Assign]) -> IncidentRow:
        """Assign an incident to somebody."""
        return commands.assign(incident_id, body)

    @app.post("/v1/incidents/{incident_id}/comment")
    def comment_incident(incident_id: IncidentId, body: OptionalBodyOf[Comment]) -> IncidentRow:
        """Record a comment about an incident, which replaces the one before."""
        return commands.comment(incident_id, body)
