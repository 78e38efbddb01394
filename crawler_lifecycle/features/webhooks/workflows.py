"""``CrawlWebhookWorkflow`` delivers events to one webhook until the webhook is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.domain import names
from crawler_lifecycle.workflows.calls import (
    MustLeave,
    StepInterrupted,
    call,
    history_full,
    pause,
    reason,
)
from crawler_lifecycle.workflows.requests import workflow_input

from .activities import FollowEnd, WebhookActivities
from .ports import WebhookOrder

#: Seconds until a paused webhook is checked again, or one with a permanent error. No signal wakes
#: this workflow if the webhook was changed during an outage of Temporal.
PAUSED_S = BROKEN_S = 60.0
#: Seconds until the next try after a failed delivery.
FAILING_S = 1.0
#: The wait doubles up to this value while the same event fails.
FAILING_MAX_S = 60.0


@workflow.defn(name=names.WEBHOOK_WORKFLOW)
class CrawlWebhookWorkflow:
    """The workflow of one webhook.

    It runs one activity after another, and each delivers events for some minutes.
    """

    def __init__(self) -> None:
        self._woken = False
        self._stuck: int | None = None
        self._wait_s = FAILING_S

    @workflow.signal(
        dynamic=True, description="wake: the webhook was changed; other signals are ignored"
    )
    def _on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        self._woken = self._woken or name == names.SIGNAL_WAKE

    @workflow.run
    async def run(self, order: Any = None, *surplus: Any) -> str:
        """Deliver events.

        ``order`` is a ``WebhookOrder``. The workflow fails for any other input, and ignores further
        arguments.
        """
        order = workflow_input(WebhookOrder, order)
        with suppress(MustLeave):
            while not history_full():
                if await self._turn(order):
                    return "deleted"
        return workflow.continue_as_new(order)

    async def _turn(self, order: WebhookOrder) -> bool:
        """Run the activity once, and wait after a problem.

        Return whether the webhook was deleted.
        """
        self._woken = False
        try:
            found = await call(WebhookActivities.follow_webhook, order, wake=lambda: self._woken)
        except StepInterrupted:
            return False
        except (ActivityError, ApplicationError) as error:
            workflow.logger.error(
                "webhook %s receives no events now: %s", order.name, reason(error)
            )
            await pause(BROKEN_S, lambda: self._woken)
            return False
        workflow.set_current_details(f"deliveries: {found.how}")
        if found.how is FollowEnd.PAUSED:
            await pause(PAUSED_S, lambda: self._woken, "paused")
        elif found.how is FollowEnd.FAILING:
            same = found.stuck_seq == self._stuck
            self._stuck, self._wait_s = (
                found.stuck_seq,
                min(2 * self._wait_s, FAILING_MAX_S) if same else FAILING_S,
            )
            await pause(
                max(self._wait_s, min(found.wait_s or 0.0, FAILING_MAX_S)), lambda: self._woken
            )
        return found.how is FollowEnd.DELETED
