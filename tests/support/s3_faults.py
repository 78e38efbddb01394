"""A proxy between an S3 client and server that causes faults on request, or at random from a seed."""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

#: Every kind of fault that a seed may choose.
KINDS = ("slow_down", "reset", "drop_answer", "wrong_etag", "internal", "damage")
_ETAG = re.compile(rb"(?<=[\"; >])[0-9a-f]{32}")


@dataclass
class Fault:
    """``kind`` for the next ``times`` requests of an operation (``UploadPart``, …; ``*`` is any),
    after ``skip``.

    ``slow_down``, ``internal`` and a three-figure ``status`` with ``code`` answer without passing
    on. ``reset`` breaks the connection after ``after`` bytes of the body. ``hang`` never answers.
    ``drop_answer`` passes on and breaks the connection instead of answering. ``wrong_etag`` passes
    on and answers a wrong one. ``cut`` sends half of the answer.
    """

    kind: str
    operation: str = "*"
    times: int = 1
    skip: int = 0
    after: int = 1000
    status: int = 403
    code: str = "AccessDenied"


class FaultProxy:
    """Forwards HTTP/1.1 to ``upstream``. ``calls`` counts requests by operation."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.faults: list[Fault] = []
        self.calls: Counter[str] = Counter()
        self.over = threading.Event()
        self.url = ""
        self._random: random.Random | None = None
        self._share = 0.0
        self._kinds: Sequence[str] = KINDS
        self._lock = threading.Lock()

    def seeded(self, seed: int, share: float, kinds: Sequence[str] = KINDS) -> None:
        """From now on, cause faults in this share of all requests, in ways that the seed decides."""
        self._random, self._share, self._kinds = random.Random(seed), share, kinds

    def calm(self) -> None:
        """Cause no more faults."""
        self._random, self.faults = None, []

    def choose(self, operation: str) -> Fault | None:
        with self._lock:
            self.calls[operation] += 1
            for fault in self.faults:
                if fault.operation in ("*", operation) and fault.times:
                    if fault.skip:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    return fault
            if self._random is not None and self._random.random() < self._share:
                return Fault(
                    self._random.choice(self._kinds), after=self._random.randrange(1, 100_000)
                )
            return None


def operation_of(method: str, target: str) -> str:
    """Return S3's name for the requested operation."""
    query = parse_qs(urlsplit(target).query, keep_blank_values=True)
    of_object = urlsplit(target).path.strip("/").count("/") > 0
    if "uploadId" in query:
        names = {
            "PUT": "UploadPart",
            "POST": "CompleteMultipartUpload",
            "DELETE": "AbortMultipartUpload",
        }
        return names.get(method, "ListParts")
    if "uploads" in query:
        return "CreateMultipartUpload" if method == "POST" else "ListMultipartUploads"
    names = {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}
    return names.get(method, method) if of_object else f"{method} bucket"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def _respond(self) -> None:
        fault = self.proxy.choose(operation_of(self.command, self.path))
        length = int(self.headers.get("content-length", 0))
        kind = fault.kind if fault else ""
        if fault and kind == "reset":
            self.rfile.read(min(length, fault.after))
            self._break()
            return
        body = self.rfile.read(length)
        if fault and kind in ("slow_down", "internal", "status"):
            status, code = {"slow_down": (503, "SlowDown"), "internal": (500, "InternalError")}.get(
                kind, (fault.status, fault.code)
            )
            self._answer(status, [("Content-Type", "application/xml")], error_document(code))
            return
        if kind in ("garbage", "empty"):
            self._answer(
                200,
                [("Content-Type", "text/html")],
                b"<html><br>hello" if kind == "garbage" else b"",
            )
            return
        if kind == "hang":
            self.proxy.over.wait(600)
            self._break()
            return
        if kind == "damage" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        status, headers, content = self._forward(body)
        if kind == "drop_answer":
            self._break()
        elif kind == "wrong_etag":
            wrong = [
                (name, _spoiled(value.encode()).decode())
                if name.lower() == "etag"
                else (name, value)
                for name, value in headers
            ]
            self._answer(status, wrong, _spoiled(content))
        elif kind == "no_metadata":
            self._answer(
                status,
                [item for item in headers if not item[0].lower().startswith("x-amz-meta-")],
                content,
            )
        elif fault and kind == "header":
            name, _, value = fault.code.partition(": ")
            self._answer(status, [*headers, (name, value)], content)
        elif kind == "cut":
            self._answer(status, headers, content, sent=len(content) // 2)
            self._break()
        else:
            self._answer(status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _respond

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        # Host stays the proxy's, because the signature covers it.
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("expect", "connection")
        }
        upstream = http.client.HTTPConnection(urlsplit(self.proxy.upstream).netloc, timeout=150)
        try:
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            content = answer.read()
            return answer.status, answer.getheaders(), content
        finally:
            upstream.close()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, sent: int | None = None
    ) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value
            elif name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:sent])

    def _break(self) -> None:
        """Reset the connection instead of ending it, so that the client notices at once."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: clients that disconnect are what these tests are about."""


def error_document(code: str) -> bytes:
    """S3's error body."""
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code} from the proxy</Message></Error>'.encode()


def _spoiled(text: bytes) -> bytes:
    return _ETAG.sub(b"0" * 32, text)


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy on a free loopback port."""
    proxy = FaultProxy(upstream)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with _Server(("127.0.0.1", 0), handler) as server:
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield proxy
        finally:
            proxy.over.set()
            server.shutdown()
            thread.join()
