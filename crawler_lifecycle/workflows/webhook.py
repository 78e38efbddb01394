"""``CrawlWebhookWorkflow``: keeps one webhook told, for as long as it is there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.activities.webhooks import Followed, WebhookActivities
from crawler_lifecycle.domain import names
from crawler_lifecycle.ports.webhooks import WebhookOrder

from .calls import Interrupted, MustLeave, call, history_full, pause, reason
from .requests import read_input

#: Seconds until a webhook is looked at again that is paused, or that no retry mends. It may have been changed while
#: Temporal was away, which woke nobody.
PAUSED_S = BROKEN_S = 60.0
#: Seconds until one that told something is tried again: at first, and where it is the same event that is not taken,
#: doubled each time up to the second figure.
FAILING_S, FAILING_MAX_S = 1.0, 60.0


@workflow.defn(name=names.WEBHOOK_WORKFLOW)
class CrawlWebhookWorkflow:
    """One activity after another, each of which follows the outbox for a while. It ends when the webhook is deleted."""

    def __init__(self) -> None:
        self._woken = False
        self._stuck: int | None = None
        self._wait_s = FAILING_S

    @workflow.signal(dynamic=True, description="wake: the webhook was changed; anything else is dropped")
    def _on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        self._woken = self._woken or name == names.SIGNAL_WAKE

    @workflow.run
    async def run(self, order: Any = None, *surplus: Any) -> str:
        """``order`` is a ``WebhookOrder`` and all that is read. Fails for anything else."""
        order = read_input(WebhookOrder, order)
        with suppress(MustLeave):
            while not history_full():
                if await self._turn(order):
                    return "deleted"
        return workflow.continue_as_new(order)

    async def _turn(self, order: WebhookOrder) -> bool:
        """Return whether the webhook was deleted."""
        self._woken = False
        try:
            found = await call(WebhookActivities.follow_webhook, order, wake=lambda: self._woken)
        except Interrupted:
            return False
        except (ActivityError, ApplicationError) as error:
            workflow.logger.error("webhook %s is not told anything now: %s", order.name, reason(error))
            await pause(BROKEN_S, lambda: self._woken)
            return False
        if found.how is Followed.PAUSED:
            await pause(PAUSED_S, lambda: self._woken, "paused")
        elif found.how is Followed.FAILING:
            same = found.stuck_seq == self._stuck
            self._stuck, self._wait_s = found.stuck_seq, min(2 * self._wait_s, FAILING_MAX_S) if same else FAILING_S
            await pause(max(self._wait_s, min(found.wait_s or 0.0, FAILING_MAX_S)), lambda: self._woken)
        return found.how is Followed.DELETED
