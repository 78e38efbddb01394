"""A small HTTP server that fails on request, the base of the fakes of Pusher and EventBridge."""

from __future__ import annotations

import ssl
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    """What the server sends back."""

    status: int = 200
    body: bytes = b"{}"
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


class FaultyServer:
    """Serves ``handle`` and, before it, the entries of ``faults``, in order, one for each request.

    ``"hang"``: no response until the end of the test. ``"trickle"``: a response whose head never
    ends. ``"drop"``: the request takes effect, but the connection is closed without a response. An
    ``Answer``: that one, without an effect.
    """

    def __init__(self) -> None:
        self.faults: deque[str | Answer] = deque()
        self.requests = 0
        self.over = threading.Event()
        self.url = ""

    def handle(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        raise NotImplementedError

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        self.requests += 1
        fault = self.faults.popleft() if self.faults else None
        if fault == "hang":
            self.over.wait(600)
            return
        if fault == "trickle":
            self._trickle(handler)
            return
        if isinstance(fault, Answer):
            answer = fault
        else:
            headers = {name.lower(): value for name, value in handler.headers.items()}
            answer = self.handle(handler.command, handler.path, headers, body)
        if fault == "drop":
            return
        handler.send_response(answer.status)
        for name, value in {"Content-Type": answer.content_type, **answer.headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(answer.body)))
        handler.end_headers()
        handler.wfile.write(answer.body)

    def _trickle(self, handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not self.over.wait(0.02):
            try:
                handler.wfile.write(b"x")
            except OSError:
                return


@contextmanager
def serving(server: FaultyServer, tls: ssl.SSLContext | None = None) -> Iterator[None]:
    """Serve on a free loopback port, with the address in ``server.url``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.close_connection = True
            server.respond(self)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # a refused call waits a second for its next try

        def handle_error(self, request: object, client_address: object) -> None:
            # Clients that disconnect are what these tests are about; anything else is a bug of the
            # fake.
            if not isinstance(sys.exception(), OSError):
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    http = Server(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    if tls is not None:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(
        target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.over.set()
        http.shutdown()
        http.server_close()
        thread.join(60)
