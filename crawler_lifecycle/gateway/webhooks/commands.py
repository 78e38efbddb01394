"""Webhooks: bodies of requests, and the commands put, pause, resume, test and delete.

First the row, then Temporal. What is on record is carried out even if this process dies in the next moment, or
Temporal is away: workers of the role audit see that each webhook has its workflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.webhooks.addresses import WebhookRules
from crawler_lifecycle.domain.webhooks.definition import VALUES_MAX, WebhookSpec, check_webhook_name
from crawler_lifecycle.gateway.runs.commands import BY_AUDIT, Commanded, existing, notify
from crawler_lifecycle.gateway.runs.requests import PauseBody, Person, StrictBody
from crawler_lifecycle.ports.runs import Event
from crawler_lifecycle.ports.webhooks import WebhookRow
from crawler_lifecycle.store.webhooks import WebhookStore
from crawler_lifecycle.temporal.client import Workflows

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


class PauseWebhook(PauseBody):
    """Body of ``POST /v1/webhooks/{name}/pause``; all of it may be left out."""


class ResumeWebhook(StrictBody):
    """Body of ``POST /v1/webhooks/{name}/resume``; all of it may be left out."""

    skip: bool = False
    """True when what happened until now is not told any more."""
    skip_seq: Annotated[int, Field(ge=1, le=ID_MAX)] | None = None
    """An event that failed, and is not told any more; the others are."""


class AskTest(StrictBody):
    """Body of ``POST /v1/webhooks/{name}/test``; all of it may be left out."""

    requested_by: Person | None = None


@dataclass(frozen=True)
class WebhookCommands:
    """Change webhooks, over the store and Temporal. Errors are ``Problem`` or errors of the domain."""

    webhooks: WebhookStore
    workflows: Workflows
    rules: WebhookRules

    async def seen(self, name: str) -> WebhookRow | None:
        """The webhook of this name, if there is one."""
        row = await run_in_threadpool(self.webhooks.get_webhook, name)
        return None if row is None or row.deleted_at is not None else row

    async def find(self, name: str) -> WebhookRow:
        """The webhook. Raises ``Problem`` 404."""
        return existing("webhook", name, await self.seen(name))

    async def put(self, name: str, body: PutWebhook) -> Commanded[WebhookRow]:
        """Make a webhook, or change its definition. Again the same: nothing more."""
        check_webhook_name(name)
        spec = body.spec()
        self.rules.check(spec)
        put = self.webhooks.put_webhook
        row, fresh = await run_in_threadpool(put, name, spec.document(), body.requested_by)
        note = "It is paused: resume it." if row.paused_at is not None else None
        return await self._woken(row, fresh, note)

    async def delete(self, name: str) -> Commanded[WebhookRow]:
        """Have nothing sent any more; its deliveries stay on record."""
        row = await self.find(name)
        fresh = await run_in_threadpool(self.webhooks.delete_webhook, name)
        return await self._woken(row, fresh)

    async def pause(self, name: str, body: PauseWebhook) -> Commanded[WebhookRow]:
        """Have nothing sent until it is resumed."""
        row = await self.find(name)
        if row.paused_at is not None:
            return Commanded(row, fresh=False, note="It was paused already.")
        return await self._woken(await run_in_threadpool(self.webhooks.pause_webhook, name, body.words()))

    async def resume(self, name: str, body: ResumeWebhook | None = None) -> Commanded[WebhookRow]:
        """Let it go on, with what happened meanwhile unless that is skipped. One that fails tries again at once."""
        row, body = await self.find(name), body or ResumeWebhook()
        if row.paused_at is None and not body.skip and body.skip_seq is None:
            return await self._woken(row, False, "It was not paused.")
        resume = self.webhooks.pause_webhook
        return await self._woken(
            await run_in_threadpool(lambda: resume(name, None, skip=body.skip, skip_seq=body.skip_seq))
        )

    async def test(self, name: str, requested_by: str | None, seen: int | None = None) -> tuple[Event, str | None]:
        """Send it an event that is for it alone; that event, and the note for the caller.

        Raises ``NotInThisState`` when it was tested behind the event ``seen``.
        """
        row = await self.find(name)
        event = await run_in_threadpool(self.webhooks.test_webhook, name, requested_by, seen)
        if row.paused_at is not None:
            return event, "The webhook is paused: this is told when it is resumed."
        return event, await notify(self.workflows.start_webhook(name), f"webhook {name}", BY_AUDIT)

    async def _woken(self, row: WebhookRow, fresh: bool = True, note: str | None = None) -> Commanded[WebhookRow]:
        later = await notify(self.workflows.start_webhook(row.name, wake=True), f"webhook {row.name}", BY_AUDIT)
        return Commanded(row, fresh, " ".join(filter(None, (note, later))) or None)
