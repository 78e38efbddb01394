"""The one translation of Temporal's errors."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.temporal.errors import TemporalRefused, allowing, answering


@pytest.mark.parametrize("status", list(RPCStatusCode))
async def test_every_error_of_the_server_is_temporal_unavailable(status: RPCStatusCode) -> None:
    with pytest.raises(TemporalRefused, match=rf"\({status.name}\): in its words") as caught:
        async with answering(60):
            raise RPCError("in its words", status, b"")
    assert caught.value.code == "TemporalUnavailable"
    assert caught.value.forbidden is (status is RPCStatusCode.PERMISSION_DENIED)


async def test_no_answer_in_time_is_temporal_unavailable() -> None:
    with pytest.raises(TemporalUnavailable, match=r"did not respond within 0\.01 s"):
        async with answering(0.01):
            await asyncio.Event().wait()


async def test_a_defect_of_ours_stays_what_it_is() -> None:
    with pytest.raises(KeyError):
        async with answering(60):
            raise KeyError("x")


async def test_an_allowed_status_is_an_answer() -> None:
    async with answering(60):
        with allowing(RPCStatusCode.NOT_FOUND, RPCStatusCode.ALREADY_EXISTS):
            raise RPCError("gone", RPCStatusCode.NOT_FOUND, b"")
    with pytest.raises(RPCError), allowing(RPCStatusCode.NOT_FOUND):
        raise RPCError("too much", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
