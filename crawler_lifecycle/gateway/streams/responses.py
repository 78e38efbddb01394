"""Long responses: limits for clients that stop reading, and how such a response ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from crawler_lifecycle.web.listening import transport_of

logger = logging.getLogger(__name__)

#: A client that takes nothing for so long, in seconds, loses its connection.
STALL_S = 10.0
#: Bytes that may wait in this process, and in the kernel, for one client.
BUFFER = 16 * 1024
KERNEL_BUFFER = 64 * 1024


class Stalled(Exception):
    """The client stopped reading."""


class Streamed(StreamingResponse):
    """A ``StreamingResponse`` that drops a client which stops reading, and closes its generator whatever happens.

    ``entered`` and ``left`` are called when the answer begins and when it is over, ``dropped`` when the client was cut.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str],
        *,
        status_code: int = 200,
        entered: Callable[[], None] = lambda: None,
        left: Callable[[], None] = lambda: None,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(chunks, status_code, headers, media_type)
        self._chunks = chunks
        self._entered, self._left, self._dropped = entered, left, dropped
        self._stall_s = STALL_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = transport_of(scope)
        if transport is not None:
            _keep_small(transport)
        self._entered()
        try:
            # Closed by us: a generator that is cancelled between two chunks would otherwise wait for the collector.
            async with contextlib.aclosing(self._chunks):
                await super().__call__(scope, receive, send)
        except* Stalled:
            self._dropped()
            logger.info("%s: the client took nothing for %g s and was dropped", scope["path"], self._stall_s)
            if transport is not None:
                transport.abort()
                await asyncio.sleep(0)  # the server hears of it in the loop's next round
        finally:
            self._left()

    async def stream_response(self, send: Send) -> None:
        async def within(message: dict[str, object]) -> None:
            try:
                async with asyncio.timeout(self._stall_s):
                    await send(message)
            except TimeoutError:
                raise Stalled from None

        await within({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await within({"type": "http.response.body", "body": chunk, "more_body": True})
        await within({"type": "http.response.body", "body": b"", "more_body": False})


def _keep_small(transport: asyncio.Transport) -> None:
    """Let the buffers under this answer hold little, so that a client that does not read is noticed early."""
    transport.set_write_buffer_limits(high=BUFFER)
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):  # the client may be gone already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
