"""Keeps a workflow open for each webhook: one that was made while Temporal was away, or that somebody ended."""

from __future__ import annotations

import asyncio
from datetime import datetime

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.webhooks.definition import WEBHOOKS_MAX
from crawler_lifecycle.ports import WebhookReader

from .client import Workflows

#: Seconds between two turns.
TURN_S = 30.0


class WebhookKeeper:
    """In the event loop of a worker; what blocks is in threads. Any number of workers may do this at once."""

    def __init__(self, webhooks: WebhookReader, workflows: Workflows) -> None:
        self._webhooks = webhooks
        self._workflows = workflows
        self._seen: dict[str, datetime] = {}
        self.loop = Loop("the search for webhooks that nobody follows", TURN_S)

    async def run(self) -> None:
        """Until it is cancelled. Raises nothing."""
        await self.loop.run(self._next)

    async def _next(self) -> None:
        await self.turn()

    async def turn(self) -> int:
        """See that each webhook has an open workflow, which knows of every change; how many webhooks.

        Raises ``LifecycleError``.
        """
        rows = await asyncio.to_thread(self._webhooks.list_webhooks, 0, WEBHOOKS_MAX)
        for row in rows:
            # What was changed while Temporal was away woke nobody.
            await self._workflows.start_webhook(row.name, wake=self._seen.get(row.name) != row.updated_at)
            self._seen[row.name] = row.updated_at
        return len(rows)
