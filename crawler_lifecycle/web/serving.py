"""Middleware in front of every HTTP service: checks of heads, limits of bodies, and no tracebacks."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .origins import Check
from .problems import Problem

logger = logging.getLogger(__name__)

#: Path and query together, in bytes.
TARGET_MAX = 8 * 1024
HEADERS_MAX = 100
#: All headers together, in bytes.
HEAD_MAX = 32 * 1024
#: Bodies that are being received or served, all together, in bytes; memory stays bounded however many callers send.
HELD_MAX = 32 * 1024 * 1024
#: Headers of which a second one could be read differently by a proxy than by us.
ONCE = (
    *("host", "authorization", "content-length", "content-type", "transfer-encoding", "origin"),
    *("idempotency-key", "last-event-id", "if-none-match"),
)

#: Where in the scope stands what the line about a request tells beside its end: who called, and what.
ABOUT = "lifecycle.about"
_RUN_PATH = re.compile(r"/v1/runs/(\d{1,18})(?:/|$)")
_REQUEST_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class Guard:
    """The ASGI middleware around what serves: checks heads, names each request, and turns crashes into problem
    documents. One line of the log tells how each request ended.

    A ``Problem`` raised by anything inside becomes its answer. The name of the request is the caller's
    ``X-Request-Id`` or a new one; it is in the answer and, with method, path and run, in every log line of the request.
    """

    def __init__(self, app: ASGIApp, *, check: Check | None = None) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _REQUEST_NAME.fullmatch(given) else uuid.uuid4().hex
        status, began = 0, time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _mark(message, name)
            await send(message)

        method, path = scope["method"], scope["path"]
        about = {"http_request": name, "method": method, "path": path}
        if named := _RUN_PATH.match(path):
            about["run_id"] = int(named[1])
        with structlog.contextvars.bound_contextvars(**about):
            try:
                problem = _check_head(scope, headers) or (self._check(scope, headers) if self._check else None)
                if problem is not None:
                    raise problem
                await self._app(scope, receive, watched)
            except Problem as problem:
                if not status:
                    await problem.response()(scope, receive, watched)
            except Exception:
                logger.exception("%s %s failed", method, path)
                if not status:
                    detail = f"This is a bug in the service; its log has the details under http_request {name}"
                    await Problem(500, "internal_error", detail).response()(scope, receive, watched)
                else:
                    # The status was sent; only a cut connection can tell the client that the rest is missing.
                    raise
            finally:
                extra = {**scope.get(ABOUT, {}), "status": status, "seconds": round(time.monotonic() - began, 4)}
                logger.log(_level(method, status), "%s %s: %s", method, path, status or "no answer", extra=extra)


def _level(method: str, status: int) -> int:
    """Reads that worked are many and change nothing; a service that fails is something to look at."""
    if status >= 500:
        return logging.WARNING
    return logging.DEBUG if method in ("GET", "HEAD") and 0 < status < 400 else logging.INFO


def _mark(message: Message, name: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["X-Request-Id"] = name
    headers["X-Content-Type-Options"] = "nosniff"
    # What a token opens must not stay in anybody's cache; a route that knows better says so itself.
    headers.setdefault("Cache-Control", "no-store")


def _check_head(scope: Scope, headers: Headers) -> Problem | None:
    target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if target > TARGET_MAX:
        return Problem(414, "uri_too_long", f"URL: {target} bytes are more than {TARGET_MAX}; send a shorter one")
    if len(headers.raw) > HEADERS_MAX:
        return Problem(431, "headers_too_large", f"headers: {len(headers.raw)} are more than {HEADERS_MAX}; send fewer")
    # The server bounds a head that is not complete; one that came in a single piece is measured here.
    size = sum(len(name) + len(value) for name, value in headers.raw)
    if size > HEAD_MAX:
        return Problem(431, "headers_too_large", f"headers: {size} bytes are more than {HEAD_MAX}; send fewer")
    for name in ONCE:
        if len(headers.getlist(name)) > 1:
            return Problem(
                400, "duplicate_header", f"{name.title()}: given {len(headers.getlist(name))} times; give it once"
            )
    if "transfer-encoding" in headers and "content-length" in headers:
        # RFC 9112, section 6.1: a proxy that believes the other one would see a second request in the body.
        return Problem(400, "bad_request", "Content-Length: given beside Transfer-Encoding; send one of them")
    return None


# --- bodies -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class BodyLimit:
    """ASGI middleware that reads a body completely before the app sees the request, within limits of size and time.

    So a slow sender costs a coroutine and no thread. ``limit`` gives the size in bytes that this request may have.
    """

    app: ASGIApp
    limit: Callable[[Scope], int]
    timeout_s: float = 20.0
    held_max: int = HELD_MAX
    _held: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = bytearray()
        try:
            if await self._read(body, Headers(scope=scope), self.limit(scope), receive):
                await self.app(scope, _replay(bytes(body), receive), send)
        finally:
            self._held -= len(body)

    async def _read(self, body: bytearray, headers: Headers, limit: int, receive: Receive) -> bool:
        """Fill ``body``; ``False`` when the client left. ``_held`` counts whatever is in it."""
        too_large = Problem(413, "too_large", f"body: more than {limit} bytes; send less at once")
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > limit:
            raise too_large
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    part = message.get("body", b"")
                    body += part
                    self._held += len(part)
                    if len(body) > limit:
                        raise too_large
                    if self._held > self.held_max:
                        detail = "Too many large requests are being received; send this one again in a moment"
                        raise Problem(503, "overloaded", detail, headers={"Retry-After": "2"})
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            detail = f"body: not complete after {self.timeout_s:g} s; send it faster"
            raise Problem(408, "too_slow", detail, headers={"Connection": "close"}) from None


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


# --- tokens -----------------------------------------------------------------------------------------------------------


def bearer(headers: Headers) -> str | None:
    """The token of ``Authorization: Bearer …``; ``None`` when there is no such header. Raises ``Problem`` 401."""
    given = headers.get("authorization")
    if given is None:
        return None
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthorised("unauthenticated", "Authorization: no bearer token; send Authorization: Bearer TOKEN")
    return token.strip()


def password(headers: Headers) -> str | None:
    """The password of ``Authorization: Basic …``, under any name, or the token of ``Bearer …``; ``None`` when there is
    no such header. Raises ``Problem`` 401."""
    scheme, _, given = headers.get("authorization", "bearer").partition(" ")
    if scheme.lower() == "bearer":
        return bearer(headers)
    try:
        if scheme.lower() != "basic":
            raise ValueError(scheme)
        found = base64.b64decode(given.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        found = ""
    if not found:
        detail = "Authorization: no name with a password; log in with the token as password, under any name"
        raise unauthorised("unauthenticated", detail, basic=True)
    return found


def unauthorised(code: str, detail: str, *, error: str | None = None, basic: bool = False) -> Problem:
    """401 that tells the client how to present itself (RFC 6750, section 3; RFC 7617 where ``basic`` is taken)."""
    if basic:
        return Problem(401, code, detail, headers={"WWW-Authenticate": 'Basic realm="crawler-lifecycle"'})
    challenge = 'Bearer realm="crawler-lifecycle"' + (f', error="{error}"' if error else "")
    return Problem(401, code, detail, headers={"WWW-Authenticate": challenge})
