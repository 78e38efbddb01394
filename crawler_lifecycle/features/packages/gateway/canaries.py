"""Routes of canaries, and the conditions of rejected ones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request, Response
from pydantic import BaseModel, Field

from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.features.canaries.domain.canary import CanaryRow, CanaryState
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import Id, OfProject
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.commands import existing
from crawler_lifecycle.gateway.runs.requests import SignedBody
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.web.problems import JsonBody, Problem


class CanaryFilters(OfProject):
    """Filters of ``GET /v1/canaries``."""

    package: str | None = None
    crawler: str | None = None
    """An entry of the catalogue with versions of its own."""
    state: CanaryState | None = None


class CanaryPage(BaseModel):
    """A page of canaries, newest first."""

    canaries: list[CanaryRow]
    next_page_token: str | None


class EndCanary(SignedBody):
    """Body of ``POST /v1/canaries/{canary_id}/accept`` and ``…/reject``."""

    reason: Annotated[str, Field(max_length=2000)] | None = None


_End = Annotated[EndCanary, Depends(JsonBody(EndCanary, optional=True))]


def add_canaries(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of canaries."""
    store = gateway.store.canaries

    def end(canary_id: int, state: CanaryState, body: EndCanary) -> CanaryRow:
        existing("canary", canary_id, store.get_canary(canary_id))
        by = signed(body).requested_by or "a person"
        row = store.end_canary(canary_id, state, by, body.reason or f"{by} {state} it")
        if row.state != state:
            detail = f"canary {canary_id} has already ended: {row.state}; {row.result}"
            raise Problem(409, "not_in_this_state", detail)
        told = f"{row.new_version}: canary {state}"
        kind = "package" if row.package else "crawler"
        present_call().about.append((kind, row.name, told[:60], True))
        return row

    @app.get("/v1/canaries", **documents(CanaryPage))
    def list_canaries(filters: Annotated[CanaryFilters, Query()], request: Request) -> Response:
        """The canaries, newest first: versions that only a share of the runs uses."""
        wanted = {name: getattr(filters, name) for name in ("package", "crawler", "state")}
        with narrowed(filters.project):
            page, token = filters.read(
                "canary", partial(store.list_canaries, **wanted), attrgetter("canary_id")
            )
        return conditional(request, CanaryPage(canaries=page, next_page_token=token))

    @app.post("/v1/canaries/{canary_id}/accept")
    def accept_canary(canary_id: Id, body: _End) -> CanaryRow:
        """Make the new version current, without waiting for more runs."""
        return end(canary_id, CanaryState.ACCEPTED, body)

    @app.post("/v1/canaries/{canary_id}/reject")
    def reject_canary(canary_id: Id, body: _End) -> CanaryRow:
        """Keep the old version current, and give the new one to no further run."""
        return end(canary_id, CanaryState.REJECTED, body)


def conditions(store: Store, _: datetime) -> Iterator[IncidentCondition]:
    """Return the packages and entries whose last new version was rejected."""
    for row in store.canaries.held(CanaryState.REJECTED):
        at = row.ended_at or row.created_at
        fix = f"repair version {row.new_version} and deploy it under another name, or close this"
        if row.package is None:
            fix = f"repair version {row.new_version} and set the crawler again, or close this"
        cause = row.result or ""
        yield IncidentCondition("canary_rejected", row.subject, row.project, cause, at, at, fix=fix)
