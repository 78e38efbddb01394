"""The HTTP side: connections, responses with and without faults, watches."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.kube_api import faults as f
from tests.support.kube_api.controllers import Controllers
from tests.support.kube_api.driver import Driver
from tests.support.kube_api.faults import Fault, Script
from tests.support.kube_api.problems import Problem
from tests.support.kube_api.routes import Reply, Routes, Stream, Wanted
from tests.support.kube_api.store import NAMESPACES, Change, Object, Store


@dataclass(frozen=True)
class Seen:
    """A request that was received."""

    method: str
    target: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]
    at: float


class FakeApiServer(Driver):
    """An API server on loopback; a context manager.

    The methods of ``Driver`` change the cluster. ``faults.add("GET", r"/pods\\?", throttled("2"))``
    makes requests fail; ``requests`` are those that arrived.
    """

    def __init__(self, folder: Path, namespace: str = "crawls", *, tls: Any = None) -> None:
        store = Store()
        super().__init__(store, Controllers(store), namespace)
        self.routes = Routes(store, self.controllers, self)
        self.faults = Script()
        self.requests: list[Seen] = []
        self.tokens: set[str] | None = None
        """Tokens that are accepted; ``None``: any, and none at all."""
        self.bookmark_s = 60.0
        self.folder = folder
        self.over = threading.Event()
        self._streams: set[_Streaming] = set()
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._http = _Http(self)
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._http.server_port}"
        self.add_namespace("kube-system")
        self.add_namespace(namespace)
        self._thread = threading.Thread(
            target=self._http.serve_forever,
            kwargs={"poll_interval": 0.02},
            name="fake-api",
            daemon=True,
        )
        self._thread.start()

    def __enter__(self) -> FakeApiServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything; wait for its threads."""
        self.over.set()
        self._http.shutdown()
        self.drop_connections()
        self._http.server_close()
        self._thread.join(10)

    # --- for tests

    def kubeconfig(
        self, *, token: str | None = "test", name: str = "kubeconfig", **cluster: Any
    ) -> Path:
        """Write a kubeconfig of this server into the test's folder.

        ``cluster`` has further keys of its cluster entry.
        """
        config = {
            **{"apiVersion": "v1", "kind": "Config", "current-context": "fake", "preferences": {}},
            "contexts": [
                {
                    "name": "fake",
                    "context": {"cluster": "fake", "user": "fake", "namespace": self.namespace},
                }
            ],
            "clusters": [{"name": "fake", "cluster": {"server": self.url, **cluster}}],
            "users": [{"name": "fake", "user": {"token": token} if token is not None else {}}],
        }
        path = self.folder / name
        path.write_text(json.dumps(config))
        return path

    def add_namespace(self, name: str) -> Object:
        """Create an active namespace."""
        return self.store.create(
            NAMESPACES, ("", name), {"metadata": {}, "status": {"phase": "Active"}}
        )

    def deny(self, verb: str, resource: str, name: str | None = None) -> None:
        """Revoke a right from everybody: ``deny("list", "pods")``, ``deny("get", "pods/log")``.

        ``name`` restricts it to one object.
        """
        self.routes.denied.add((verb, resource if name is None else f"{resource} {name}"))

    def allow(self, verb: str, resource: str) -> None:
        """The opposite."""
        self.routes.denied.discard((verb, resource))

    def count(self, method: str = "*", pattern: str = "") -> int:
        """Return how many such requests arrived."""
        return sum(
            method in ("*", r.method) and bool(re.search(pattern, r.target))
            for r in list(self.requests)
        )

    def bookmark(self) -> None:
        """Send a bookmark to every watch that wants them."""
        for stream in list(self._streams):
            stream.bookmark_at = 0.0
        with self.store.changed:
            self.store.changed.notify_all()

    @property
    def watching(self) -> int:
        """Return how many watches are open."""
        return len(self._streams)

    def end_watches(self) -> None:
        """End every watch now, as by its timeout."""
        for stream in list(self._streams):
            stream.until = 0.0
        with self.store.changed:
            self.store.changed.notify_all()

    def drop_connections(self) -> None:
        """Break every connection, as when the server is restarted."""
        with self._lock:
            for sock in list(self._sockets):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server: FakeApiServer) -> None:
        self.api = server
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        import sys

        # Clients that disconnect are what half of the tests are about. Anything else is a bug of
        # the fake.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Over(Exception):
    """The connection has nothing more to send."""


class _Answered(Exception):
    """The fault has responded; the connection continues."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def setup(self) -> None:
        super().setup()
        with self.server.api._lock:
            self.server.api._sockets.add(self.connection)

    def finish(self) -> None:
        with self.server.api._lock:
            self.server.api._sockets.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        try:
            self._serve(self.server.api)
        except _Answered:
            return
        except _Over:
            self.close_connection = True

    do_POST = do_PATCH = do_DELETE = do_PUT = do_GET

    def _serve(self, api: FakeApiServer) -> None:
        wanted = self._wanted(api)
        fault = wanted.fault
        self._before(fault, api)
        try:
            self._authenticate(api, wanted)
            reply = api.routes.answer(wanted)
        except Problem as problem:
            reply = Reply(problem.status, problem.body, headers=problem.headers)
        if isinstance(reply, Stream):
            _Streaming(self, reply, fault).run(api)
            return
        body = (
            reply.body
            if isinstance(reply.body, bytes)
            else json.dumps(_mutated(fault, reply.body)).encode() + b"\n"
        )
        self._send(
            fault, api, reply.status, body, {"Content-Type": reply.content_type, **reply.headers}
        )

    def _wanted(self, api: FakeApiServer) -> Wanted:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        body = json.loads(raw) if raw else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(
            self.command, self.path, unquote(parts.path), query, body, headers, time.monotonic()
        )
        api.requests.append(seen)
        fault = api.faults.of(self.command, self.path)
        return Wanted(
            self.command, seen.path, query, body, headers.get("content-type", ""), fault=fault
        )

    def _authenticate(self, api: FakeApiServer, wanted: Wanted) -> None:
        shown = (self.headers.get("Authorization") or "").split()
        token = shown[1] if len(shown) == 2 and shown[0].lower() == "bearer" else None
        if api.tokens is not None and token not in api.tokens:
            raise Problem(401, "Unauthorized")
        wanted.user = f"system:serviceaccount:{api.namespace}:{token or 'anonymous'}"

    def _before(self, fault: Fault | None, api: FakeApiServer) -> None:
        """Apply faults that keep the request from having an effect."""
        match fault:
            case f.Answer():
                head = {"Content-Type": "application/json", **fault.headers}
                self._send(None, api, fault.status, json.dumps(fault.body).encode(), head)
            case f.Garbage():
                self._send(None, api, 200, fault.body, {"Content-Type": fault.content_type})
            case f.Silence(after_effect=False):
                api.over.wait(fault.seconds)
                raise _Over
            case f.Reset(after_effect=False):
                self._reset()
            case _:
                return
        raise _Answered

    def _send(
        self,
        fault: Fault | None,
        api: FakeApiServer,
        status: int,
        body: bytes,
        headers: dict[str, str],
    ) -> None:
        match fault:
            case f.LostAnswer():
                raise _Over
            case f.Silence():
                api.over.wait(fault.seconds)
                raise _Over
            case f.Reset():
                self._reset()
            case f.Truncated():
                body = body.rstrip()[: -fault.missing]
        chunked = isinstance(fault, f.Cut) and fault.chunked
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
            head, body = self._head(), b"%x\r\n%s\r\n" % (fault.after, body[: fault.after])  # type: ignore[union-attr]
            self.wfile.write(head + body)
            raise _Over
        self.send_header("Content-Length", str(len(body)))
        head = self._head()
        if isinstance(fault, f.Cut):
            self.wfile.write(head + body[: fault.after])
            if fault.reset:
                self._reset()
            raise _Over
        if isinstance(fault, f.Drip):
            self._drip(fault, api, head, body)
            return
        self.wfile.write(head + body)

    def _head(self) -> bytes:
        """Return the head as bytes, so that it is sent together with the body."""
        self._headers_buffer.append(b"\r\n")  # type: ignore[attr-defined]
        head = b"".join(self._headers_buffer)  # type: ignore[attr-defined]
        self._headers_buffer = []
        return head

    def _drip(self, fault: f.Drip, api: FakeApiServer, head: bytes, body: bytes) -> None:
        rest = head + body if fault.head else body
        if not fault.head:
            self.wfile.write(head)
        for at in range(0, len(rest), fault.size):
            if api.over.wait(fault.pause_s):
                raise _Over
            self.wfile.write(rest[at : at + fault.size])

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.close()
        raise _Over


class _Streaming:
    """One watch."""

    def __init__(self, handler: _Handler, stream: Stream, fault: Fault | None) -> None:
        self.handler, self.stream, self.fault = handler, stream, fault
        self.until = time.monotonic() + stream.timeout_s
        self.bookmark_at = 0.0
        self.sent = 0

    def run(self, api: FakeApiServer) -> None:
        handler = self.handler
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        self.bookmark_at = time.monotonic() + api.bookmark_s
        api._streams.add(self)  # before the head: whoever has seen the head may end the watch
        try:
            handler.wfile.write(handler._head())
            self._events(api)
        finally:
            api._streams.discard(self)
        handler.wfile.write(b"0\r\n\r\n")

    def _events(self, api: FakeApiServer) -> None:
        store, stream = api.store, self.stream
        if isinstance(self.fault, f.StreamError):
            self._error(self.fault.status, self.fault.reason, self.fault.message)
            return
        if stream.initial:
            for found in store.find(stream.kind, stream.match):
                self._send("ADDED", found)
        version = stream.version
        if version < store.compacted:
            self._error(410, "Expired", f"too old resource version: {version} ({store.compacted})")
            return
        while True:
            self._maybe_ends()
            # What ends a watch, and what it shows before, are decided at one moment.
            with store.changed:
                if time.monotonic() >= self.until or api.over.is_set():
                    break
                changes, upto = list(store.since(stream.kind, version)), store.version
            for change in changes:
                version = change.version
                for kind, found in _as_seen(change, stream):
                    self._send(kind, found)
                    self._maybe_ends()
            now = time.monotonic()
            if stream.bookmarks and now >= self.bookmark_at:
                # No further than what was sent, whatever happened since.
                version = max(version, upto)
                self._bookmark(version)
                self.bookmark_at = now + api.bookmark_s
            store.wait(
                max(version, upto), max(0.0, min(self.until, self.bookmark_at, now + 0.5) - now)
            )
        if stream.bookmarks and not api.over.is_set():
            self._bookmark(version)  # no further than what was sent

    def _maybe_ends(self) -> None:
        fault = self.fault
        if isinstance(fault, f.StreamEnds) and self.sent >= fault.after:
            if fault.within_event:
                self._chunk(b'{"type":"MODIFIED","object":{"kind":')
            if fault.broken:
                raise _Over
            # In order, so the connection continues; an unannounced close would break the next
            # request on it.
            self.handler.wfile.write(b"0\r\n\r\n")
            raise _Answered

    def _bookmark(self, version: int) -> None:
        kind = self.stream.kind
        meta = {"resourceVersion": str(version), "creationTimestamp": None}
        self._write(
            "BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
        )

    def _send(self, kind: str, found: Object) -> None:
        self._write(kind, found)
        self.sent += 1

    def _error(self, status: int, reason: str, message: str) -> None:
        self._write("ERROR", f.Answer(status, message, reason).body)

    def _write(self, kind: str, found: Object) -> None:
        self._chunk(
            json.dumps(_mutated(self.fault, {"type": kind, "object": found})).encode() + b"\n"
        )

    def _chunk(self, data: bytes) -> None:
        self.handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _as_seen(change: Change, stream: Stream) -> Iterator[tuple[str, Object]]:
    """Return a change as a watch with selectors shows it: an object that stops matching is deleted
    for it.
    """
    was = change.before is not None and stream.match(change.before)
    matches = change.after is not None and stream.match(change.after)
    if matches:
        yield ("MODIFIED" if was else "ADDED"), change.last
    elif was and change.after is not None:
        # An object that stopped matching is shown as it was before, with the version of the change.
        before = change.before or {}
        yield (
            "DELETED",
            {**before, "metadata": {**before["metadata"], "resourceVersion": str(change.version)}},
        )
    elif was:
        yield "DELETED", change.last


def _mutated(fault: Fault | None, body: Any) -> Any:
    if isinstance(fault, f.Mutate):
        body = json.loads(json.dumps(body))
        changed = fault.change(body)
        return body if changed is None else changed
    return body
