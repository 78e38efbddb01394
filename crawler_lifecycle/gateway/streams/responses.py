"""Long responses, which end if the client stops reading."""

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

#: Seconds after which a client that reads nothing is disconnected.
STALL_S = 10.0
#: The maximum number of bytes that wait for one client in this process.
BUFFER = 16 * 1024
#: The same limit in the kernel.
KERNEL_BUFFER = 64 * 1024


class ClientStalled(Exception):
    """The client stopped reading."""


class StreamedResponse(StreamingResponse):
    """A ``StreamingResponse`` that disconnects a client that stops reading.

    It always closes its generator. It calls ``entered`` when the response begins, ``left`` when it
    ends, and ``dropped`` if it disconnects the client.
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
        self._entered = entered
        self._left = left
        self._dropped = dropped
        self._stall_s = STALL_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = transport_of(scope)
        if transport is not None:
            _keep_small(transport)
        self._entered()
        try:
            # If the response is cancelled between two chunks, only this closes the generator
            # immediately.
            async with contextlib.aclosing(self._chunks):
                await super().__call__(scope, receive, send)
        except* ClientStalled:
            self._dropped()
            logger.info(
                "%s: the client read nothing for %g s and was disconnected",
                scope["path"],
                self._stall_s,
            )
            if transport is not None:
                transport.abort()
                await asyncio.sleep(0)  # the server notices the abort in the next round of the loop
        finally:
            self._left()

    async def stream_response(self, send: Send) -> None:
        async def within(message: dict[str, object]) -> None:
            try:
                async with asyncio.timeout(self._stall_s):
                    await send(message)
            except TimeoutError:
                raise ClientStalled from None

        await within(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async for chunk in self._chunks:
            await within({"type": "http.response.body", "body": chunk, "more_body": True})
        await within({"type": "http.response.body", "body": b"", "more_body": False})


def _keep_small(transport: asyncio.Transport) -> None:
    """Make the buffers of this response small, so that a client that does not read is noticed
    early.
    """
    transport.set_write_buffer_limits(high=BUFFER)
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):  # the client may be gone already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
