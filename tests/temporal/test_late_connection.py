"""A connection to Temporal that comes late, hangs or is refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.temporal.client import Workflows
from tests.support.answering import Answering, leaves


class _Service:
    def __init__(self, answer: Any) -> None:
        self.service_client = self
        self._answer = answer

    async def check_health(self) -> bool:
        if isinstance(self._answer, Exception):
            raise self._answer
        if isinstance(self._answer, Answering):
            await self._answer()
        else:
            await asyncio.sleep(float(self._answer))
        return True


async def _late(*answers: Any, timeout_s: float = 120.0) -> Workflows:
    left = list(answers)

    async def connect() -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception) and not isinstance(answer, RPCError):
            raise answer
        return _Service(answer)

    late = Workflows(timeout_s=timeout_s)
    await late.keep_connecting(connect)
    return late


async def test_it_says_at_once_that_there_is_no_connection_yet() -> None:
    with pytest.raises(TemporalUnavailable, match="not connected yet"):
        await Workflows().ping()


async def test_it_connects_when_the_server_comes() -> None:
    late = await _late(RuntimeError("refused"), RuntimeError("refused"), 0.0)
    await late.ping()


async def test_a_gateway_leaves_also_in_the_moment_in_which_a_connection_is_refused() -> None:
    refused = Answering(RuntimeError("refused"))
    await leaves(asyncio.create_task(Workflows().keep_connecting(refused)), refused)


async def test_a_gateway_leaves_also_in_the_moment_in_which_temporal_answers() -> None:
    answering = Answering()
    late = Workflows(cast(Any, _Service(answering)))

    async def for_ever() -> None:
        while True:
            await late.ping()
            await asyncio.sleep(3600)

    await leaves(asyncio.create_task(for_ever()), answering)


async def test_a_hanging_server_and_a_refusing_one_are_unavailable() -> None:
    late = await _late(60.0, timeout_s=0.05)
    with pytest.raises(TemporalUnavailable, match="did not respond within"):
        await late.ping()
    late = await _late(RPCError("Namespace default is not found.", RPCStatusCode.NOT_FOUND, b""))
    with pytest.raises(TemporalUnavailable, match="NOT_FOUND"):
        await late.ping()


async def test_a_run_begins_also_where_its_steps_cannot_be_put_first() -> None:
    """The call may be lost, forbidden, or unknown to an older server."""
    await Workflows().has_begun("crawl/books/1")
    for answer in (RPCError("unknown field", RPCStatusCode.INVALID_ARGUMENT, b""), TimeoutError()):
        service = SimpleNamespace(update_workflow_execution_options=AsyncMock(side_effect=answer))
        client = cast(Any, SimpleNamespace(namespace="default", workflow_service=service))
        await Workflows(client).has_begun("crawl/books/1")
        [[order], _] = service.update_workflow_execution_options.call_args
        assert order.workflow_execution.workflow_id == "crawl/books/1"
        assert order.update_mask.paths == ["priority.priority_key"]
