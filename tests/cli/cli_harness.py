"""A small gateway on a socket, for commands that run in separate processes."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.cli.cli_answers import RUN, TASKS


@dataclass
class Served:
    """Its responses: the next of ``runs`` for each request (the last one repeats), a log, and an
    archive.
    """

    url: str
    runs: list[dict[str, Any]] = field(default_factory=lambda: [RUN])
    log: list[bytes] = field(default_factory=list)
    archive: bytes = b""
    cut_after: int | None = None
    """The connection breaks after so many bytes of the archive."""
    token: str | None = None
    hold: threading.Event = field(default_factory=threading.Event)
    """A log goes on until this is set."""
    paths: list[str] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """The run as it is now."""
        return self.runs.pop(0) if len(self.runs) > 1 else self.runs[0]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.archive).hexdigest()


@contextmanager
def serve() -> Iterator[Served]:
    """Serve on a free loopback port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.paths.append(self.path)
            path = self.path.partition("?")[0]
            if (
                served.token is not None
                and self.headers.get("Authorization") != f"Bearer {served.token}"
            ):
                return self.answer(
                    {"code": "unauthenticated", "detail": "no token that is known here"}, 401
                )
            if path.endswith("/logs"):
                return self.stream_log()
            if path.endswith("/archive"):
                return self.send_archive()
            if path == "/readyz":
                return self.answer({"ready": True, "checks": {"database": "ok", "temporal": "ok"}})
            if path.endswith("/tasks"):
                return self.answer({"tasks": TASKS})
            if path.endswith("/corrections"):
                return self.answer({"corrections": []})
            return self.answer({"runs": [RUN]} if path == "/v1/runs" else served.run())

        def answer(self, document: dict[str, Any], status: int = 200) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def stream_log(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in served.log:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            served.hold.wait(150)
            self.wfile.write(b"0\r\n\r\n")

        def send_archive(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/zip")
            self.send_header("Content-Length", str(len(served.archive)))
            self.end_headers()
            self.wfile.write(served.archive[: served.cut_after])
            self.close_connection = served.cut_after is not None

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served = Served(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
