"""Middleware for responses to browsers: it adds security headers, and shows problems as HTML pages.

It is the outermost middleware, so browsers get an HTML page for every refused request. Programs do
not ask for HTML, and get problem documents.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope

from crawler_lifecycle.gateway.converter import Converter
from crawler_lifecycle.gateway.ui.parts.rendering import html
from crawler_lifecycle.web.problems import MEDIA_TYPE

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; worker-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Pages(Converter):
    """ASGI middleware around all others, which adds headers and HTML pages of problems."""

    def holds(self, scope: Scope, headers: MutableHeaders) -> bool:
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)  # a crawler's file has a stricter policy
        accepts = Headers(scope=scope).get("accept", "").lower()
        # A stream is not a page.
        reads_html = "text/html" in accepts and "text/event-stream" not in accepts
        return reads_html and headers.get("content-type") == MEDIA_TYPE

    def convert(self, scope: Scope, start: Message, problem: dict[str, Any]) -> bytes:
        """Return the HTML page for a problem document, or redirect to the login."""
        answer = MutableHeaders(scope=start)
        status = problem["status"]
        path = _path(scope)
        answer["content-type"] = "text/html; charset=utf-8"
        if status != 401 or scope["method"] != "GET":
            sent = scope["method"] == "POST"
            return html("problem.html", path=scope["path"], problem=problem, sent=sent).encode()
        if Headers(scope=scope).get("sec-fetch-site") in ("cross-site", "same-site"):
            # After a link on another site, browsers do not send the session cookie. After a link on
            # our own page, they do.
            start["status"] = 200
            del answer["www-authenticate"]
            return html("go_on.html", path=scope["path"], target=path).encode()
        start["status"] = 303
        answer["location"] = "/login" if path == "/" else f"/login?next={quote(path, safe='/')}"
        return b""


def _path(scope: Scope) -> str:
    """Return the path and query of the request. The result can never be the address of another
    host.
    """
    path = "/" + quote(scope["path"].lstrip("/\\"), safe="/")
    asked = scope["query_string"].decode("latin-1")
    return f"{path}?{asked}" if asked else path
