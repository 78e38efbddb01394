"""``CrawlDueWorkflow`` handles one due time of a schedule, from its firing by Temporal to the start
of its target.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from crawler_lifecycle.domain import names
from crawler_lifecycle.workflows.calls import MustLeave, WithoutSignals, call
from crawler_lifecycle.workflows.requests import invalid, workflow_input

from .activities.due import DueActivities
from .ports import DueOrder

#: The search attribute with the time for which Temporal fired, in whole seconds and without jitter.
_FIRED_FOR = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")


@workflow.defn(name=names.DUE_WORKFLOW)
class CrawlDueWorkflow(WithoutSignals):
    """The workflow of one due time.

    The workflow decides, waits if necessary, and begins the target. It ends as soon as the target
    has begun.
    """

    @workflow.run
    async def run(self, order: Any = None, *surplus: Any) -> str:
        """Handle the due time and return the decision.

        ``order`` is a ``DueOrder``. The workflow fails for any other input, and ignores further
        arguments.
        """
        order = workflow_input(DueOrder, order)
        due_at = (order.due_at or _fired_for()).astimezone(UTC).replace(microsecond=0)
        order = DueOrder(order.name, due_at, order.revision)
        try:
            return await self._run(order)
        except MustLeave:
            workflow.continue_as_new(order)

    async def _run(self, order: DueOrder) -> str:
        acts = DueActivities
        decided = await call(acts.decide_due, order)
        if decided is None:
            return "not due"
        if decided.stop:
            await call(acts.stop_previous_due, decided.due_id)
        if decided.begin and await call(acts.begin_due, decided.due_id) is None:
            return "not begun"
        return str(decided.decision)


def _fired_for() -> datetime:
    found = workflow.info().typed_search_attributes.get(_FIRED_FOR)
    if found is None:
        raise invalid(
            "due_at: missing; a Temporal Schedule starts this workflow, or crawlctl schedule "
            "trigger"
        )
    return found
