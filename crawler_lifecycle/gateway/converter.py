"""Problem documents in another form: the base of the middleware for browsers and for clients of
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
    """ASGI middleware that gives problem documents another form.

    A subclass defines which of them, and the form.
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
        """Return whether an answer with these headers is converted.

        May change the headers of any answer.
        """
        raise NotImplementedError

    def convert(self, scope: Scope, start: Message, problem: dict[str, Any]) -> bytes:
        """Return the new body. Changes status and headers in ``start``, but for the length."""
        raise NotImplementedError
