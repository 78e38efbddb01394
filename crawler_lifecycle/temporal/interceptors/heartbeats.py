"""Interceptor that sends heartbeats for short activities, so that the death of their worker is noticed early.

Looks, deployments and stops beat from inside of their own calls. A database step ends by the database's own time
limits, which are long; its worker's death should not have to wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from crawler_lifecycle.background import Beside, Loop


class HeartbeatInterceptor(Interceptor):
    """Heartbeats for these activities, from the worker's event loop: three in each heartbeat timeout."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Beating(next, self._names)


class _Beating(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, names: frozenset[str]) -> None:
        super().__init__(next)
        self._names = names

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        if info.heartbeat_timeout is None or info.activity_type not in self._names:
            return await super().execute_activity(input)
        every_s = info.heartbeat_timeout.total_seconds() / 3
        async with Beside() as beside:
            beat = _beat if asyncio.iscoroutinefunction(input.fn) else _beat_of_a_thread
            beside.start(Loop("the heartbeat of an activity", every_s, first_s=every_s).run(beat))
            return await super().execute_activity(input)


async def _beat() -> None:
    activity.heartbeat()


async def _beat_of_a_thread() -> None:
    """For an activity that is a plain function: there the SDK waits for the event loop, which must not wait for it."""
    await asyncio.to_thread(activity.heartbeat)
