"""A small Temporal that stores schedules and fires, on a clock of the test, without a server or
workflows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from temporalio.client import Schedule, ScheduleActionStartWorkflow, ScheduleCalendarSpec
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.features.schedules.ports import DueOrder

MINUTE = timedelta(minutes=1)


@dataclasses.dataclass
class Fired:
    """One Temporal Schedule of the test."""

    schedule: Schedule
    until: datetime
    """Its minutes up to here had their turn."""


class FiringTemporal:
    """The part of Temporal that the keeper uses, in memory.

    It fires in UTC, by the calendars that it was given.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock, self.up = clock, True
        self.there: dict[str, Fired] = {}
        self.orders: list[DueOrder] = []
        self.data_converter = self

    # --- of ``Workflows``

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Any]:
        if not self.up:
            raise TemporalUnavailable("it is down")
        yield self

    async def start_for(self, order: DueOrder, workflow_id: str) -> str:
        if not self.up:
            raise TemporalUnavailable("it is down")
        if (order.name, order.due_at) not in {(one.name, one.due_at) for one in self.orders}:
            self.orders.append(order)
        return "chain"

    # --- of ``Client`` and ``ScheduleHandle``

    async def decode(self, args: Sequence[Any], _: Any) -> list[Any]:
        return list(args)

    async def create_schedule(self, id: str, schedule: Schedule) -> None:
        self.there[id] = Fired(schedule, self.clock())

    def get_schedule_handle(self, id: str) -> Any:
        async def describe() -> Any:
            if id not in self.there:
                raise RPCError("not found", RPCStatusCode.NOT_FOUND, b"")
            return SimpleNamespace(
                schedule=self.there[id].schedule, info=SimpleNamespace(last_updated_at=self.clock())
            )

        async def change(how: Any) -> None:
            self.there[id].schedule = how(None).schedule

        async def delete() -> None:
            self.there.pop(id)

        return SimpleNamespace(describe=describe, update=change, delete=delete)

    # --- what it does by itself

    def fire(self) -> None:
        """Fire everything due up to now that has not been fired; what is older than the window is
        skipped.
        """
        for one in self.there.values():
            spec, state = one.schedule.spec, one.schedule.state
            while one.until + MINUTE <= self.clock():
                one.until = one.until.replace(second=0, microsecond=0) + MINUTE
                late = self.clock().replace(second=0, microsecond=0) - one.until
                on_time = late <= one.schedule.policy.catchup_window
                if (
                    on_time
                    and not state.paused
                    and any(_has(part, one.until) for part in spec.calendars)
                ):
                    action = one.schedule.action
                    assert isinstance(action, ScheduleActionStartWorkflow)
                    self.orders.append(dataclasses.replace(action.args[0], due_at=one.until))


def _has(calendar: ScheduleCalendarSpec, at: datetime) -> bool:
    values = (at.minute, at.hour, at.day, at.month, at.isoweekday() % 7)
    parts = (
        calendar.minute,
        calendar.hour,
        calendar.day_of_month,
        calendar.month,
        calendar.day_of_week,
    )
    return all(
        any(one.start <= value <= max(one.start, one.end) for one in part)
        for value, part in zip(values, parts, strict=True)
    )
