"""Webhooks: bodies of requests, and the commands put and test.

If Temporal is unavailable, workers with the role audit check later that each webhook has its
workflow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import Field
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.gateway.api.paging import Id
from crawler_lifecycle.gateway.named import NamedCommands
from crawler_lifecycle.gateway.runs.commands import BY_AUDIT, CommandResult, notify, sentences
from crawler_lifecycle.gateway.runs.requests import PauseBody, SignedBody, StrictBody
from crawler_lifecycle.ports.runs import Event

from ..domain.addresses import WebhookRules
from ..domain.definition import (
    ALERTS,
    VALUES_MAX,
    WEBHOOK,
    WebhookSpec,
    check_webhook_name,
    shown,
    webhook_workflow_id,
)
from ..ports import WebhookOrder, WebhookRow
from ..store import WebhookStore

Values = Annotated[list[str], Field(max_length=VALUES_MAX)]


class PutWebhook(SignedBody):
    """Body of ``PUT /v1/webhooks/{name}``: the kind, the address, the secrets for signatures, and
    the event filters.

    An event must match at least one value of each given filter. An omitted filter selects all
    events.
    """

    kind: Literal["webhook", "slack", "teams", "discord", "email"] = "webhook"
    """``webhook``: signed events for programs. The others are alerts: short messages for people."""
    url: str
    """The https address, or ``env:NAME``, an environment variable that contains it. For ``email``:
    addresses separated by commas. Responses hide the end of a chat's address; if that form is sent
    back, it stands for the address on record.
    """
    secrets: Annotated[list[str], Field(max_length=2)] = Field(default_factory=list)
    """``env:NAME``: an environment variable on workers with the role webhooks. Give two while the
    secret changes. Only webhooks of kind ``webhook`` have secrets, and they need one.
    """
    events: Values = Field(default_factory=list)
    """Types of events, or a name such as ``run.*`` for all types of one kind. The default is all
    types; for alerts, it is ended work and everything that needs a person.
    """
    crawlers: Values = Field(default_factory=list)
    tags: Values = Field(default_factory=list)
    flows: Values = Field(default_factory=list)
    statuses: Values = Field(default_factory=list)
    outcomes: Values = Field(default_factory=list)
    ended_by: Annotated[list[EndedBy], Field(max_length=5)] = Field(default_factory=list)
    project: str | None = None
    """A caller with all projects can name the project whose events the webhook gets. The default is
    all projects.
    """

    def spec(self) -> WebhookSpec:
        """Return the definition. Raises ``InvalidRequest``."""
        names = type(self).model_fields.keys() - {"requested_by", "project"}
        spec = WebhookSpec(**{name: getattr(self, name) for name in names})
        return spec if spec.events or spec.kind == WEBHOOK else replace(spec, events=list(ALERTS))

    def over(self, row: WebhookRow | None) -> Self:
        """Return the body with the address on record, if its address has the form that responses
        show.
        """
        same = (
            row is not None
            and self.kind == row.definition.get("kind")
            and self.url == shown(row.definition)["url"]
        )
        return (
            self.model_copy(update={"url": row.definition["url"]})
            if row is not None and same
            else self
        )


class PauseWebhook(PauseBody):
    """Body of ``POST /v1/webhooks/{name}/pause``. All fields are optional."""


class ResumeWebhook(StrictBody):
    """Body of ``POST /v1/webhooks/{name}/resume``. All fields are optional."""

    skip: bool = False
    """True to send none of the events up to now."""
    skip_seq: Id | None = None
    """The number of a failed event that will no longer be sent. All other events are sent."""


class AskTest(SignedBody):
    """Body of ``POST /v1/webhooks/{name}/test``. All fields are optional."""


@dataclass(frozen=True)
class WebhookCommands(NamedCommands[WebhookRow]):
    """The commands that change webhooks."""

    store: WebhookStore
    rules: WebhookRules

    noun = "webhook"

    async def put(self, name: str, body: PutWebhook) -> CommandResult[WebhookRow]:
        """Create a webhook, or change its definition. A repeat changes nothing."""
        check_webhook_name(name)
        before = await self.seen(name)
        spec = body.over(before).spec()
        self.rules.check(spec)
        note = (
            "The webhook is paused: resume it."
            if before is not None and before.paused_at is not None
            else None
        )
        return await self._put(name, spec.document(), body.requested_by, body.project, note)

    async def test(
        self, name: str, requested_by: str | None, seen: int | None = None
    ) -> tuple[Event, str | None]:
        """Send a test event to this webhook only. Return the event, and a note for the caller if
        any.

        Raises ``NotInThisState`` if a test event with a number higher than ``seen`` already exists.
        """
        row = await self.find(name)
        event = await run_in_threadpool(self.store.test_webhook, name, requested_by, seen)
        if row.paused_at is not None:
            return event, "The webhook is paused: the test is sent after it is resumed."
        begun = self.workflows.start_for(WebhookOrder(name), webhook_workflow_id(name))
        return event, await notify(begun, f"webhook {name}", BY_AUDIT)

    async def _kept(
        self, row: WebhookRow, fresh: bool = True, note: str | None = None
    ) -> CommandResult[WebhookRow]:
        name = row.name
        begun = self.workflows.start_for(WebhookOrder(name), webhook_workflow_id(name), wake=True)
        later = await notify(begun, f"webhook {name}", BY_AUDIT)
        return CommandResult(row, fresh, sentences(note, later))
