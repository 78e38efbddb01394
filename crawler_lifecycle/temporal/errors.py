"""Translation of Temporal's errors: time limits and gRPC errors become ``TemporalUnavailable``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle.domain.errors import TemporalUnavailable


class TemporalRefused(TemporalUnavailable):
    """Temporal responded with an error, because it is overloaded or a namespace or permission is
    missing.
    """

    reason: str = ""
    """The error message of the server."""
    forbidden: bool = False
    """True if this account is not allowed to make the call."""


@asynccontextmanager
async def answering(timeout_s: float) -> AsyncIterator[None]:
    """Limit the calls in this context to ``timeout_s`` seconds, and translate their errors.

    Raises ``TemporalRefused`` for a gRPC error, and ``TemporalUnavailable`` after the time limit.
    """
    try:
        # Not ``wait_for``, which before Python 3.12 loses a cancellation that arrives together with
        # the response. A background task would then run forever in a process that shuts down.
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise TemporalUnavailable(f"Temporal did not respond within {timeout_s:g} s") from None
    except RPCError as error:
        refused = TemporalRefused(f"Temporal refused the call ({error.status.name}): {error}")
        refused.reason = error.message
        refused.forbidden = error.status == RPCStatusCode.PERMISSION_DENIED
        raise refused from error


@contextmanager
def allowing(*statuses: RPCStatusCode) -> Iterator[None]:
    """Suppress gRPC errors with one of these statuses, where such an error is a normal answer."""
    try:
        yield
    except RPCError as error:
        if error.status not in statuses:
            raise
