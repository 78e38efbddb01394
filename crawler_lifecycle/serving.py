"""How our HTTP services stand on the network: a guard in front of the app, and a port under it."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import Problem

logger = logging.getLogger(__name__)

#: What a request that is being served gets after SIGTERM, in seconds.
GRACE_S = 10
#: Connections at once; more get an answer that tells them to come back, instead of memory.
CONNECTIONS_MAX = 1000

# --- the guard --------------------------------------------------------------------------------------------------------

HeaderCheck = Callable[[Headers], Problem | None]


class Guard:
    """ASGI middleware: checks headers, limits size and duration of bodies, and turns crashes into problem documents.

    The body is read completely before the app sees the request, so that a slow sender costs a coroutine and no thread.
    """

    def __init__(
        self, app: ASGIApp, *, body_max: int, check: HeaderCheck | None = None, body_timeout_s: float = 20.0
    ) -> None:
        self._app = app
        self._body_max = body_max
        self._check = check
        self._timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            headers = Headers(scope=scope)
            problem = self._check(headers) if self._check else None
            if problem is not None:
                raise problem
            body = await self._body(headers, receive)
            if body is None:
                return
            await self._app(scope, _replay(body, receive), watched)
        except Problem as problem:
            await problem.response()(scope, receive, send)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if not started:
                crash = Problem(500, "internal_error", "This is a bug in the service; its log has the details")
                await crash.response()(scope, receive, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; ``None`` when the client left."""
        limit = self._body_max
        too_large = Problem(413, "too_large", f"body: more than {limit} bytes; send less at once")
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            detail = f"body: not complete after {self._timeout_s:g} s; send it faster"
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


def is_loopback(host: str) -> bool:
    """Whether a host name or address, with or without a port, can only mean this machine."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0] if "." in host else host
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.partition(":")[0].lower() == "localhost"


def loopback_only(headers: Headers) -> Problem | None:
    """Refuse what a browser was tricked into sending: a foreign name for our address, or a foreign page's request.

    Without this any web page could drive a service on loopback (DNS rebinding, cross-site requests).
    """
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback(hosts[0]):
        shown = ", ".join(hosts)[:100] or "missing"
        return Problem(403, "foreign_host", f"Host: {shown} is not allowed; use 127.0.0.1 or localhost")
    origin = headers.get("origin")
    if origin is not None:
        scheme, _, host = origin.lower().partition("://")
        if scheme not in ("http", "https") or not is_loopback(host):
            return Problem(403, "foreign_origin", f"Origin: {origin[:100]} is not allowed; only pages of this machine")
    return None


def no_browser(headers: Headers) -> Problem | None:
    """Refuse every request that a web page sent, for services that only programs call."""
    if "origin" in headers:
        return Problem(403, "foreign_origin", "Origin: not allowed; this service is called by programs, not by pages")
    return None


# --- the port ---------------------------------------------------------------------------------------------------------


class Unservable(Exception):
    """The service cannot start; the text says why and what to do."""


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket. Raises ``Unservable`` that names the address, the reason and the setting to change."""
    address = f"{host}:{port}"
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise Unservable(f"{address}: {error.strerror}; set {setting}__HOST to an address of this machine") from None
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            cure = f"end the program that listens there, or set {setting}__PORT to another port"
            raise Unservable(f"{address}: the address is taken; {cure}") from None
        cure = f"set {setting}__HOST and {setting}__PORT to an address that this user may listen on"
        raise Unservable(f"{address}: cannot listen ({error.strerror}); {cure}") from None
    bound.set_inheritable(False)
    return bound


def run(name: str, app: FastAPI, bound: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. Requests being served get ``GRACE_S`` seconds."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=CONNECTIONS_MAX,
    )
    server = uvicorn.Server(config)
    address, port = bound.getsockname()[:2]
    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    # uvicorn raises the signal again after its shutdown; being asked to end and ending is no failure.
    former = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        print(f"{name} listens on http://{where}", file=sys.stderr, flush=True)
        server.run(sockets=[bound])
    finally:
        bound.close()
        for number, handler in former.items():
            signal.signal(number, handler)
    return 0 if server.started else 1
