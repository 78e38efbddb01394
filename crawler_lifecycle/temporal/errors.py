"""The one translation of Temporal's errors: time limits and gRPC errors become ``TemporalUnavailable``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.domain.errors import TemporalUnavailable


class TemporalRefused(TemporalUnavailable):
    """Temporal answered with an error: it is overloaded, a namespace is missing, or a right."""

    reason: str = ""
    """The server's own words."""
    forbidden: bool = False
    """True if this account lacks the right to the call."""


@asynccontextmanager
async def answering(timeout_s: float) -> AsyncIterator[None]:
    """Around calls that need an answer within ``timeout_s`` seconds.

    Raises ``TemporalRefused`` for a gRPC error and ``TemporalUnavailable`` when the time is over.
    """
    try:
        # Not ``wait_for``: until Python 3.12 it forgets a cancellation that comes together with the answer, and then a
        # background task would go on for ever in a process that is to leave.
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise TemporalUnavailable(f"Temporal did not answer within {timeout_s:g} s") from None
    except RPCError as error:
        refused = TemporalRefused(f"Temporal did not take the call ({error.status.name}): {error}")
        refused.reason, refused.forbidden = error.message, error.status == RPCStatusCode.PERMISSION_DENIED
        raise refused from error


@contextmanager
def allowing(*statuses: RPCStatusCode) -> Iterator[None]:
    """Surrounds a call for which an error with one of these gRPC statuses is an answer too; such an error is
    suppressed.
    """
    try:
        yield
    except RPCError as error:
        if error.status not in statuses:
            raise
