"""Commands about incidents, for the API and the web UI, and their bodies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, Field

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.bounds import storable
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.gateway.runs.commands import existing
from crawler_lifecycle.gateway.runs.requests import SignedBody, StrictBody
from crawler_lifecycle.web.problems import refused

from ..store.incidents import IncidentStore
from ..store.tables import NAME_MAX, TEXT_MAX

#: The longest mute, in seconds.
MUTE_MAX_S = 365 * 86_400


class ClosedBy(SignedBody):
    """Body of ``POST /v1/incidents/{incident_id}/close``. All fields are optional."""


class Mute(StrictBody):
    """Body of ``POST /v1/incidents/{incident_id}/mute``: at most one of the fields. Without any,
    the mute ends.
    """

    until: Annotated[AwareDatetime, AfterValidator(storable)] | None = None
    for_s: Annotated[float, Field(gt=0, le=MUTE_MAX_S)] | None = None


class Assign(StrictBody):
    """Body of ``POST /v1/incidents/{incident_id}/assign``. Without a name, nobody takes care of
    it."""

    assignee: Annotated[str, Field(min_length=1, max_length=NAME_MAX)] | None = None


class Comment(StrictBody):
    """Body of ``POST /v1/incidents/{incident_id}/comment``. Without a text, the comment is
    removed."""

    comment: Annotated[str, Field(min_length=1, max_length=TEXT_MAX)] | None = None


@dataclass(eq=False)
class IncidentCommands:
    """The commands about one incident. Each returns the changed row. All raise ``Problem`` 404."""

    store: IncidentStore
    clock: Clock

    def find(self, incident_id: int) -> IncidentRow:
        """Return the incident."""
        return existing("incident", incident_id, self.store.get_incident(incident_id))

    def close(self, incident_id: int, body: ClosedBy) -> IncidentRow:
        """Close the incident. If it is already closed, nothing changes."""
        self.find(incident_id)
        return self.store.close_incident(incident_id, body.requested_by or "a person")

    def mute(self, incident_id: int, body: Mute) -> IncidentRow:
        """Send no events about it until this time. Raises ``Problem`` 422."""
        now = self.clock()
        until = body.until
        if until is not None and body.for_s is not None:
            raise refused("for_s", "not allowed with until; give one of them")
        if until is not None and until <= now:
            raise refused("until", f"{until:%Y-%m-%d %H:%M} is in the past; give a later time")
        if body.for_s is not None:
            until = now + timedelta(seconds=body.for_s)
        return self._change(incident_id, muted_until=until)

    def assign(self, incident_id: int, body: Assign) -> IncidentRow:
        """Record who takes care of it."""
        return self._change(incident_id, assignee=body.assignee)

    def comment(self, incident_id: int, body: Comment) -> IncidentRow:
        """Record a comment, which replaces the previous one."""
        return self._change(incident_id, comment=body.comment)

    def _change(self, incident_id: int, **values: Any) -> IncidentRow:
        self.find(incident_id)
        return self.store.change_incident(incident_id, **values)
