"""A worker that dies during a short step is noticed by its missing heartbeats, not by the step's
timeout.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from crawler_lifecycle.temporal.interceptors import HeartbeatInterceptor
from crawler_lifecycle.workflows.policies import DEAD_S, POLICIES


class Step(ActivityInboundInterceptor):
    """An activity that continues until somebody ends it."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        await self.over.wait()
        return "done"


async def beats_of(name: str, within: timedelta | None) -> int:
    """Run a step with this name until its third heartbeat, or for a moment if there is none.
    Returns the number of heartbeats.
    """
    env, step, beats, noted = ActivityEnvironment(), Step(), [], list[Any]()
    env.info = replace(env.info, activity_type=name, heartbeat_timeout=within)

    def beat(*_: Any) -> None:
        beats.append(1)
        if len(beats) == 3:
            step.over.set()

    env.on_heartbeat = beat
    inbound = HeartbeatInterceptor(["known"], noted.append).intercept_activity(step)

    async def run() -> Any:
        if name != "known" or within is None:
            asyncio.get_running_loop().call_later(0.1, step.over.set)
        return await inbound.execute_activity(ExecuteActivityInput(run, [], None, {}))

    assert await env.run(run) == "done"
    assert [info.activity_type for info in noted] == [name]
    return len(beats)


@pytest.mark.parametrize(
    ("name", "within", "beats"),
    [
        ("known", timedelta(seconds=0.03), 3),
        ("known", None, 0),
        ("other", timedelta(seconds=0.03), 0),
    ],
)
async def test_only_steps_that_do_not_beat_themselves_are_beaten_for(
    name: str, within: timedelta | None, beats: int
) -> None:
    assert await beats_of(name, within) == beats


async def test_heartbeats_of_a_plain_function_do_not_hold_the_event_loop_up() -> None:
    """Its heartbeat waits for the event loop, as in the SDK, and so must not be called there."""
    env, step, loop, noted = ActivityEnvironment(), Step(), asyncio.get_running_loop(), list[Any]()
    env.info = replace(env.info, activity_type="known", heartbeat_timeout=timedelta(seconds=0.03))

    called_in = list[int]()

    def beat(*_: Any) -> None:
        called_in.append(threading.get_ident())
        loop.call_soon_threadsafe(step.over.set)

    env.on_heartbeat = beat
    inbound = HeartbeatInterceptor(["known"], noted.append).intercept_activity(step)

    async def run() -> Any:
        return await inbound.execute_activity(ExecuteActivityInput(lambda: "done", [], None, {}))

    assert await env.run(run) == "done"
    assert threading.get_ident() not in called_in


def test_every_step_that_holds_up_a_run_is_noticed_to_be_dead() -> None:
    """Pushes last at most 5 s; an export, an audit and a deletion delay nobody."""
    slow = {name for name, p in POLICIES.items() if (p.heartbeat_s or p.try_s) > DEAD_S}
    courtesies = {
        "initiate_export_signal",
        "deliver_event",
        "export_supporting_files",
        "resend_pushes",
    }
    assert slow == courtesies | {name for name in POLICIES if "audit" in name or "delete" in name}
