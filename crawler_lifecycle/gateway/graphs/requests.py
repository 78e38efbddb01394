"""Bodies of requests that do something to graphs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from crawler_lifecycle.domain.bounds import refusal, travels
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.graph.checks import check, check_name
from crawler_lifecycle.domain.graph.commands import NAMED_MAX, TEXT_MAX
from crawler_lifecycle.domain.graph.pages import PAGES_MAX, step_from_json
from crawler_lifecycle.domain.graph.spec import NAME_MAX, GraphOptions, GraphSpec
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.gateway.managers.requests import Tags
from crawler_lifecycle.gateway.runs.requests import Person, RequestId, StopBody, StrictBody, Travels

GraphName = Annotated[str, Field(min_length=1, max_length=NAME_MAX), Travels]
Names = Annotated[list[str], Field(min_length=1, max_length=NAMED_MAX)]
Reason = Annotated[str, Field(max_length=TEXT_MAX)]


class StartGraph(StrictBody):
    """Body of ``POST /v1/graphs``: all ``steps`` of a small graph, which starts; or the number of ``pages`` and the
    ``fingerprint`` of one that is sent in pages, which is a draft until it is started."""

    id: GraphName | None = None
    name: GraphName | None = None
    steps: list[dict[str, Any]] | None = None
    context: dict[str, Any] = Field(default_factory=dict)
    options: GraphOptions = Field(default_factory=GraphOptions)
    pages: int | None = Field(default=None, ge=1, le=PAGES_MAX)
    fingerprint: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    request_id: RequestId | None = None
    requested_by: Person | None = None
    parent: Person | None = None
    tags: Tags = Field(default_factory=list)

    def check(self) -> None:
        """Raise ``InvalidRequest`` for an id that cannot be, and for fields that do not go together."""
        if self.id is not None:
            check_key(self.id)
        if (self.steps is None) == (self.pages is None):
            raise InvalidRequest("steps: give either the steps, or the number of pages that will follow, and not both")
        if (self.pages is None) != (self.fingerprint is None):
            raise InvalidRequest("fingerprint: goes with pages; give both, or the steps themselves")
        if self.pages is not None and self.context:
            raise InvalidRequest("context: travels in the first page; leave it out here")

    def spec(self) -> GraphSpec:
        """The whole graph, checked. Raises ``InvalidRequest``."""
        spec = GraphSpec([step_from_json(one) for one in self.steps or ()], self.options, self.context)
        check(spec)
        return spec


class CancelGraph(StrictBody):
    """Body of ``POST /v1/graphs/{id}/cancel``: steps by their paths; without ``names`` all."""

    names: Names | None = None
    reason: Reason | None = None
    request_id: RequestId | None = None
    requested_by: Person | None = None


class RetryGraph(StrictBody):
    """Body of ``POST /v1/graphs/{id}/retry``: steps by their paths; without ``names`` all that did not complete."""

    names: Names | None = None
    cascade: bool = True
    fresh: bool = False
    request_id: RequestId | None = None
    requested_by: Person | None = None


class StopGraphBody(StopBody):
    """Body of ``POST /v1/graphs/{id}/stop``; all of it may be left out."""

    reason: Reason | None = None


class ChangedSteps(BaseModel):
    """What became of a command about steps."""

    id: str
    count: int
    """Steps that it changed."""
    state: str
    note: str | None


def check_key(key: str) -> None:
    """Raise ``InvalidRequest`` unless this may be the id of a graph, which is a part of addresses."""
    check_name(key, "id")
    if key != key.strip():  # databases that ignore spaces at the end would take it for another one
        raise refusal("id", key, "leave the white space at its beginning and end out")
    if not travels(graph_workflow_id(key)):
        raise refusal("id", key, "give one that is a little shorter: the workflow's id has graph/ before it")
    if key in (".", ".."):
        raise InvalidRequest(f"id: {key!r} is not allowed; an address cannot end with it")
