"""A connection to Temporal that comes late, hangs or is refused."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.domain.errors import SchedulerUnavailable, TemporalUnavailable
from crawler_lifecycle.fakes.services import FakeScheduler
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.workflows import LateTemporal


class _Service:
    def __init__(self, answer: Any) -> None:
        self.service_client = self
        self._answer = answer

    async def check_health(self) -> bool:
        if isinstance(self._answer, Exception):
            raise self._answer
        await asyncio.sleep(float(self._answer))
        return True


async def _late(*answers: Any, timeout_s: float = 120.0) -> LateTemporal:
    left = list(answers)

    async def connect() -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception) and not isinstance(answer, RPCError):
            raise answer
        return _Service(answer)

    late = LateTemporal(connect, timeout_s=timeout_s)
    await late.keep_connecting()
    return late


async def test_it_says_at_once_that_there_is_no_connection_yet() -> None:
    with pytest.raises(TemporalUnavailable, match="not connected yet"):
        await LateTemporal().ping()


async def test_it_connects_when_the_server_comes() -> None:
    late = await _late(RuntimeError("refused"), RuntimeError("refused"), 0.0)
    await late.ping()


class _Answering:
    """Calls whose answer comes when it is given; ``given`` returns when it is there and nobody has taken it yet."""

    def __init__(self, answer: Any = None) -> None:
        self.asked, self._answer = asyncio.Event(), answer
        self._gate = asyncio.Event()

    async def __call__(self) -> Any:
        self.asked.set()
        await self._gate.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def given(self) -> None:
        await self.asked.wait()
        self._gate.set()
        await asyncio.sleep(0)


async def _leaves(task: asyncio.Task[Any], calls: _Answering) -> None:
    await calls.given()
    task.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert task.done(), "it goes on, and the gateway would wait for it for ever"
    assert task.cancelled()


async def test_a_gateway_leaves_also_in_the_moment_in_which_a_connection_is_refused() -> None:
    refused = _Answering(RuntimeError("refused"))
    await _leaves(asyncio.create_task(LateTemporal(refused).keep_connecting()), refused)


async def test_a_gateway_leaves_also_in_the_moment_in_which_temporal_answers() -> None:
    late, answering = await _late(0.0), _Answering()

    async def for_ever() -> None:
        while True:
            await late._call(lambda _: answering())
            await asyncio.sleep(3600)

    await _leaves(asyncio.create_task(for_ever()), answering)


async def test_a_gateway_leaves_also_in_the_moment_in_which_a_blocked_run_is_explained() -> None:
    answering = _Answering()

    class Troubled:
        async def troubled(self) -> dict[str, str]:
            return {"crawl/plain/k": "its next step fails"}

        async def trouble(self, _: str) -> None:
            await answering()

    blocked = Blocked(cast(Any, Troubled()), Metrics(), every_s=3600)
    await _leaves(asyncio.create_task(blocked.run()), answering)


async def test_a_hanging_server_and_a_refusing_one_are_unavailable() -> None:
    late = await _late(60.0, timeout_s=0.05)
    with pytest.raises(TemporalUnavailable, match="did not answer within"):
        await late.ping()
    late = await _late(RPCError("Namespace default is not found.", RPCStatusCode.NOT_FOUND, b""))
    with pytest.raises(TemporalUnavailable, match="NOT_FOUND"):
        await late.ping()


async def test_many_callers_ask_a_failing_scheduler_service_once() -> None:
    scheduler = FakeScheduler()
    scheduler.faults.add(SchedulerUnavailable("down"), 1)
    crawlers = Crawlers(scheduler, clock=lambda: 0.0)
    answers = await asyncio.gather(*(crawlers.all() for _ in range(50)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {SchedulerUnavailable}
