"""Treatment of every answer to a browser: headers, and problems as pages.

It stands in front of everything else, so that whatever refuses a request is told in HTML to those who read HTML.
Programs ask for no HTML and get problem documents as ever.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crawler_lifecycle.gateway.page.parts.rendering import html
from crawler_lifecycle.web.problems import MEDIA_TYPE

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Pages:
    """ASGI middleware around all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        accepts = headers.get("accept", "").lower()
        reads_html = "text/html" in accepts and "text/event-stream" not in accepts  # a stream is no page
        held: list[Message] = []

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answer.setdefault(name, value)  # a crawler's file has a stricter policy
                if reads_html and answer.get("content-type") == MEDIA_TYPE:
                    held.append(message)
                    return
            if held:
                held.append(message)
                if not message.get("more_body", False):
                    for one in _as_page(scope, headers, held):
                        await send(one)
                return
            await send(message)

        await self._app(scope, receive, marked)


def _as_page(scope: Scope, headers: Headers, held: list[Message]) -> list[Message]:
    """The same problem for a person: a page, or the way to the login."""
    start, *parts = held
    problem: dict[str, Any] = json.loads(b"".join(part.get("body", b"") for part in parts))
    answer = MutableHeaders(scope=start)
    status, path = problem["status"], _path(scope)
    body = b""
    if status == 401 and scope["method"] == "GET":
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            # A link on another page led here, and then browsers keep the login back. Led by us, they send it.
            status, body = 200, html("go_on.html", path=scope["path"], target=path).encode()
            del answer["www-authenticate"]
        else:
            status = 303
            answer["location"] = "/login" if path == "/" else f"/login?next={quote(path, safe='/')}"
    if status >= 400:
        sent = scope["method"] == "POST"
        body = html("problem.html", path=scope["path"], problem=problem, sent=sent).encode()
    answer["content-type"] = "text/html; charset=utf-8"
    answer["content-length"] = str(len(body))
    start["status"] = status
    return [start, {"type": "http.response.body", "body": body, "more_body": False}]


def _path(scope: Scope) -> str:
    """The path and query of the request, as an address of ours that cannot be one of another host."""
    path = "/" + quote(scope["path"].lstrip("/\\"), safe="/")
    asked = scope["query_string"].decode("latin-1")
    return f"{path}?{asked}" if asked else path
