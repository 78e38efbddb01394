"""Middleware in front of every HTTP service.

It checks headers, limits bodies, and keeps tracebacks out of responses.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crawler_lifecycle.domain.projects import only

from .origins import Check
from .problems import Problem
from .shares import PROCESS, Owner, Shares

logger = logging.getLogger(__name__)

#: The maximum size of path and query together, in bytes.
TARGET_MAX = 8 * 1024
HEADERS_MAX = 100
#: The maximum size of all headers together, in bytes.
HEAD_MAX = 32 * 1024
#: The maximum size in bytes of all bodies together that are being received or served. It limits the
#: memory of the process.
HELD_MAX = 32 * 1024 * 1024
#: Headers that may occur only once. If there were two values, a proxy could use one and we the
#: other.
ONCE = (
    "host",
    "authorization",
    "content-length",
    "content-type",
    "transfer-encoding",
    "origin",
    "idempotency-key",
    "last-event-id",
    "if-none-match",
)

#: The key in the ASGI scope for the fields that a request's log line adds: the caller and the
#: operation.
ABOUT = "lifecycle.about"
#: The key in the ASGI scope that is true for requests that are as frequent as reads.
FREQUENT = "lifecycle.frequent"
#: The key in the ASGI scope that is true for requests whose body the route itself reads in parts.
STREAMED = "lifecycle.streamed"
_RUN_PATH = re.compile(r"/v1/runs/(\d{1,18})(?:/|$)")
_REQUEST_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


@dataclass(eq=False)
class Guard:
    """ASGI middleware around an app. It checks headers, gives each request a name, and responds to
    crashes with a problem document.

    One log line shows the outcome of each request. A ``Problem`` that the app raises becomes the
    response. The name of a request is the caller's ``X-Request-Id``, or a new one. The response
    contains it, and so does every log line of the request, together with the method, path and run.
    """

    app: ASGIApp
    _: KW_ONLY
    check: Check | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _REQUEST_NAME.fullmatch(given) else uuid.uuid4().hex
        status = 0
        began = time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _mark(message, name)
            await send(message)

        method = scope["method"]
        path = scope["path"]
        about = {"http_request": name, "method": method, "path": path}
        if named := _RUN_PATH.match(path):
            about["run_id"] = int(named[1])
        with structlog.contextvars.bound_contextvars(**about):
            try:
                problem = _check_head(scope, headers) or (
                    self.check(scope, headers) if self.check else None
                )
                if problem is not None:
                    raise problem
                await self.app(scope, receive, watched)
            except Problem as problem:
                if not status:
                    await problem.response()(scope, receive, watched)
            except Exception:
                logger.exception("%s %s failed", method, path)
                if not status:
                    detail = (
                        "This is a bug in the service; its log has the details under "
                        f"http_request {name}"
                    )
                    await Problem(500, "internal_error", detail).response()(scope, receive, watched)
                else:
                    # The status has already been sent. Only a closed connection shows the client
                    # that the rest is missing.
                    raise
            finally:
                extra = {
                    **scope.get(ABOUT, {}),
                    "status": status,
                    "seconds": round(time.monotonic() - began, 4),
                }
                logger.log(
                    _level(scope, status),
                    "%s %s: %s",
                    method,
                    path,
                    status or "no response",
                    extra=extra,
                )


def _level(scope: Scope, status: int) -> int:
    """Return the level of the log line.

    Successful reads are frequent and change nothing, while failures need attention.
    """
    if status >= 500:
        return logging.WARNING
    frequent = scope["method"] in ("GET", "HEAD") or scope.get(FREQUENT, False)
    return logging.DEBUG if frequent and 0 < status < 400 else logging.INFO


def _mark(message: Message, name: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["X-Request-Id"] = name
    headers["X-Content-Type-Options"] = "nosniff"
    # A response that requires a token must not stay in a cache. A route can set another value
    # itself.
    headers.setdefault("Cache-Control", "no-store")


def _check_head(scope: Scope, headers: Headers) -> Problem | None:
    target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if target > TARGET_MAX:
        return Problem(
            414,
            "uri_too_long",
            f"URL: {target} bytes are more than {TARGET_MAX}; send a shorter one",
        )
    if len(headers.raw) > HEADERS_MAX:
        return Problem(
            431,
            "headers_too_large",
            f"headers: {len(headers.raw)} are more than {HEADERS_MAX}; send fewer",
        )
    # The server limits only a head that arrives in several pieces, so a head in one piece is
    # measured here.
    size = sum(len(name) + len(value) for name, value in headers.raw)
    if size > HEAD_MAX:
        return Problem(
            431, "headers_too_large", f"headers: {size} bytes are more than {HEAD_MAX}; send fewer"
        )
    for name in ONCE:
        if len(headers.getlist(name)) > 1:
            return Problem(
                400,
                "duplicate_header",
                f"{name.title()}: given {len(headers.getlist(name))} times; give it once",
            )
    if "transfer-encoding" in headers and "content-length" in headers:
        # RFC 9112, section 6.1: a proxy that uses the other header could find a second request in
        # the body.
        return Problem(
            400,
            "bad_request",
            "Content-Length: given together with Transfer-Encoding; send only one",
        )
    return None


# --- bodies ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class BodyLimit:
    """ASGI middleware that reads the whole body before it calls the app.

    Size and time are limited. A slow sender therefore occupies a coroutine but no thread. ``limit``
    returns the maximum number of bytes of a request.
    """

    app: ASGIApp
    limit: Callable[[Scope], int]
    timeout_s: float = 20.0
    held_max: int = HELD_MAX
    _held: Shares = field(default_factory=Shares)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope.get(STREAMED):
            await self.app(scope, receive, send)
            return
        body = bytearray()
        owners = {PROCESS: self.held_max}
        if (project := only()) is not None:
            owners["project", project] = self.held_max // 2
        try:
            if await self._read(body, Headers(scope=scope), self.limit(scope), receive, owners):
                await self.app(scope, _replay(bytes(body), receive), send)
        finally:
            self._held.give_back(owners, len(body))

    async def _read(
        self,
        body: bytearray,
        headers: Headers,
        limit: int,
        receive: Receive,
        owners: Mapping[Owner, int],
    ) -> bool:
        """Fill ``body``. Return ``False`` if the client has disconnected.

        ``_held`` counts the bytes for the owners.
        """
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
                    if len(body) + len(part) > limit:
                        raise too_large
                    if self._held.take(owners, len(part)) is not None:
                        detail = "Too many large requests are being received; try again in a moment"
                        raise Problem(503, "overloaded", detail, headers={"Retry-After": "2"})
                    body += part
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


# --- tokens ---------------------------------------------------------------------------------------


def bearer(headers: Headers) -> str | None:
    """Return the token of ``Authorization: Bearer …``, or ``None`` without this header.

    Raises ``Problem`` 401.
    """
    given = headers.get("authorization")
    if given is None:
        return None
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthorised(
            "unauthenticated", "Authorization: no bearer token; send Authorization: Bearer TOKEN"
        )
    return token.strip()


def password(headers: Headers) -> str | None:
    """Return the password of ``Authorization: Basic …`` (with any user name) or the token of
    ``Bearer …``, or ``None`` without this header. Raises ``Problem`` 401.
    """
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
        detail = (
            "Authorization: no user name with a password; log in with any name, and the token as "
            "the password"
        )
        raise unauthorised("unauthenticated", detail, basic=True)
    return found


def unauthorised(
    code: str, detail: str, *, error: str | None = None, basic: bool = False
) -> Problem:
    """Return a 401 problem, which explains how to authenticate (RFC 6750, section 3; with
    ``basic``, RFC 7617).
    """
    if basic:
        return Problem(
            401, code, detail, headers={"WWW-Authenticate": 'Basic realm="crawler-lifecycle"'}
        )
    challenge = 'Bearer realm="crawler-lifecycle"' + (f', error="{error}"' if error else "")
    return Problem(401, code, detail, headers={"WWW-Authenticate": challenge})
