"""Bodies of requests that do something to webhooks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.webhooks.definition import VALUES_MAX, WebhookSpec
from crawler_lifecycle.gateway.runs.requests import Person, StrictBody

Values = Annotated[list[str], Field(max_length=VALUES_MAX)]


class PutWebhook(StrictBody):
    """Body of ``PUT /v1/webhooks/{name}``: where, what of, and what signs it. Filters that are left out filter
    nothing; an event fits when each filter has one of its values."""

    url: str
    secrets: Annotated[list[str], Field(min_length=1, max_length=2)]
    """``env:NAME``, a variable of the workers of the role webhooks; two while they change."""
    events: Values = Field(default_factory=list)
    """Types of events, or ``run.*`` for all of one kind."""
    crawlers: Values = Field(default_factory=list)
    tags: Values = Field(default_factory=list)
    flows: Values = Field(default_factory=list)
    statuses: Values = Field(default_factory=list)
    outcomes: Values = Field(default_factory=list)
    requested_by: Person | None = None

    def spec(self) -> WebhookSpec:
        """The definition. Raises ``InvalidRequest``."""
        return WebhookSpec(**{name: getattr(self, name) for name in type(self).model_fields if name != "requested_by"})


class PauseWebhook(StrictBody):
    """Body of ``POST /v1/webhooks/{name}/pause``; all of it may be left out."""

    reason: Annotated[str, Field(min_length=1, max_length=2000)] | None = None
    requested_by: Person | None = None


class ResumeWebhook(StrictBody):
    """Body of ``POST /v1/webhooks/{name}/resume``; all of it may be left out."""

    skip: bool = False
    """Whether what happened until now is not told any more."""
    skip_seq: Annotated[int, Field(ge=1, le=ID_MAX)] | None = None
    """An event that failed, and is not told any more; the others are."""


class AskTest(StrictBody):
    """Body of ``POST /v1/webhooks/{name}/test``; all of it may be left out."""

    requested_by: Person | None = None
