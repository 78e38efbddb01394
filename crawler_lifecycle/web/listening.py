"""The listening socket of an HTTP service: binding, serving, and limits for slow or silent
clients.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from .problems import Problem
from .serving import HEAD_MAX

logger = logging.getLogger(__name__)

#: Seconds that a running request has to finish after SIGTERM.
GRACE_S = 10
#: The maximum number of concurrent connections. A connection without a request counts too: it costs
#: some kilobytes, for ``HEAD_S`` seconds.
CONNECTIONS_MAX = 4096
#: The time in seconds for the head of a request. It begins with the connection, or with the first
#: byte.
HEAD_S = 10.0
#: Seconds for which a client can leave a response unread. After that, its connection is closed.
UNREAD_S = 30.0
#: Seconds for which an unused connection stays open. This is longer than the pause of any task that
#: waits for a lane of a site: each gateway has its own line of such tasks, and a new connection may
#: lead to another gateway.
UNUSED_S = 15
_WATCH_EVERY_S = 2.0
_TRANSPORT = "crawler_lifecycle.transport"


class Unservable(Exception):
    """The service cannot start. The message explains why, and what to do."""


class Connection(H11Protocol):
    """uvicorn's connection, with limits for clients that send or read too slowly.

    uvicorn limits only the pause between two requests. This class also limits the time in which a
    client sends a head, and the time for which it leaves a response unread. Without these limits,
    such connections would stay open forever.
    """

    head_s = HEAD_S
    unread_s = UNREAD_S
    _watch: asyncio.TimerHandle | None = None
    _head_since: float | None = None
    _unread_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, _TRANSPORT: transport}
        self._head_since = self.loop.time()
        self._watch = self.loop.call_later(_WATCH_EVERY_S, self._poll)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        idle = self.cycle is None or self.cycle.response_complete
        if not idle:
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self.loop.time()

    def on_response_complete(self) -> None:
        self._head_since = None
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        super().resume_writing()

    def _poll(self) -> None:
        now = self.loop.time()
        silent = self._head_since is not None and now - self._head_since > self.head_s
        unread = self._unread_since is not None and now - self._unread_since > self.unread_s
        if silent or unread:
            self.transport.abort()
        else:
            self._watch = self.loop.call_later(_WATCH_EVERY_S, self._poll)

    def send_400_response(self, msg: str) -> None:
        """Respond to bytes that are not an HTTP request with a problem document."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        detail = f"{msg.rstrip('.')}; send HTTP/1.1 with a head of at most {HEAD_MAX} bytes"
        answer = Problem(400, "bad_request", detail).response()
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def transport_of(scope: Scope) -> asyncio.Transport | None:
    """Return the connection of a request, for responses that may have to close it, or ``None``
    under another server.
    """
    transport: asyncio.Transport | None = scope.get("state", {}).get(_TRANSPORT)
    return transport


class _Server(uvicorn.Server):
    """uvicorn's server, whose shutdown first calls ``leaving``, because some streams never end on
    their own.
    """

    leaving: Sequence[Callable[[], None]] = ()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for leave in self.leaving:
            leave()
        await super().shutdown(sockets)


def bind(host: str, port: int, setting: str) -> socket.socket:
    """Return a listening socket.

    Raises ``Unservable``, which names the address, the reason and the setting to change.
    """
    address = f"{host}:{port}"
    try:
        family, *_, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise Unservable(
            f"{address}: {error.strerror}; set {setting}__HOST to an address of this machine"
        ) from None
    try:
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        bound = socket.create_server(where, family=family, backlog=2048, dualstack_ipv6=both)
        # Connections inherit this option. Without it, the body of a response, which is written
        # after its head, may wait 40 ms for the client's acknowledgement. By default, asyncio sets
        # it only for sockets with an explicit protocol.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fix = f"stop the program that listens there, or set {setting}__PORT to another port"
            raise Unservable(f"{address}: the address is taken; {fix}") from None
        why = os.strerror(error.errno) if error.errno else str(error)
        fix = f"set {setting}__HOST and {setting}__PORT to an address that this user may listen on"
        raise Unservable(f"{address}: cannot listen ({why}); {fix}") from None


def run(
    name: str, app: FastAPI, bound: socket.socket, headers: Sequence[tuple[str, str]] = ()
) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    Running requests have ``GRACE_S`` seconds to finish. Each response has the given ``headers``.
    The shutdown first calls each function in ``app.state.leaving``, if the app has any.
    """
    _allow_files(CONNECTIONS_MAX + 512)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=list(headers),
        # A client on this machine, or behind a proxy on it, could claim any address as its own.
        proxy_headers=False,
        timeout_keep_alive=UNUSED_S,
        timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=CONNECTIONS_MAX,
        h11_max_incomplete_event_size=HEAD_MAX,
    )
    server = _Server(config)
    server.leaving = getattr(app.state, "leaving", ())
    address, port = bound.getsockname()[:2]
    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    # uvicorn raises the signal again after its shutdown. These handlers ignore it, because a
    # requested end is not a failure.
    former: dict[signal.Signals, Any] = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        logger.info("%s listens on http://%s", name, where)
        server.run(sockets=[bound])
    finally:
        bound.close()
        for number, handler in former.items():
            signal.signal(number, handler)
    return 0 if server.started else 1


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files, because the usual limit of 1,024 is lower than our limit of
    connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
