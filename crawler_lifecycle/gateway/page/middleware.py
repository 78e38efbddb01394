"""Middleware for answers to browsers: it adds security headers, and shows problems as HTML pages.

It is the outermost middleware: browsers get an HTML page for every refused request. Programs do not ask for HTML, and
get problem documents.
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
    """ASGI middleware around all others, for headers and HTML pages of problems."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        accepts = headers.get("accept", "").lower()
        reads_html = "text/html" in accepts and "text/event-stream" not in accepts  # a stream is not a page
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
    """Convert a problem document to an HTML page, or to a redirect to the login."""
    start, *parts = held
    problem: dict[str, Any] = json.loads(b"".join(part.get("body", b"") for part in parts))
    answer = MutableHeaders(scope=start)
    status, path = problem["status"], _path(scope)
    body = b""
    if status == 401 and scope["method"] == "GET":
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            # After a link on another site, browsers do not send the login cookie. After a link on our page, they do.
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
    """Return path and query of the request. The result can never be the address of another host."""
    path = "/" + quote(scope["path"].lstrip("/\\"), safe="/")
    asked = scope["query_string"].decode("latin-1")
    return f"{path}?{asked}" if asked else path
