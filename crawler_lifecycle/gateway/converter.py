"""Conversion of problem documents: the base class of the middleware for browsers and for clients of
scrapyd.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(eq=False)
class Converter:
    """ASGI middleware that converts problem documents to another form.

    A subclass defines which documents it converts, and how.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None
        body = bytearray()

        async def converted(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and self.holds(
                scope, MutableHeaders(scope=message)
            ):
                start = message
            elif start is None:
                await send(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    content = self.convert(scope, start, json.loads(bytes(body)))
                    MutableHeaders(scope=start)["content-length"] = str(len(content))
                    await send(start)
                    await send({"type": "http.response.body", "body": content})

        await self.app(scope, receive, converted)

    def holds(self, scope: Scope, headers: MutableHeaders) -> bool:
        """Return whether a response with these headers is converted.

        This method can change the headers of any response.
        """
        raise NotImplementedError

    def convert(self, scope: Scope, start: Message, problem: dict[str, Any]) -> bytes:
        """Return the new body, and change the status and the headers in ``start``, except the
        length.
        """
        raise NotImplementedError
