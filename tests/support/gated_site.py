"""A site whose pages respond at once until a number of them were requested, and then when the test
permits.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGES = 24
#: Pages that are answered before the others wait.
FREE = 6


class GatedSite(ThreadingHTTPServer):
    """Several sites on one port, each with its own name: ``/name/0`` to ``/name/23``."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.asked: dict[str, Counter[int]] = defaultdict(Counter)
        self.waiting: dict[str, set[int]] = defaultdict(set)
        self.lock = threading.Lock()
        self._gates: dict[str, threading.Event] = defaultdict(threading.Event)

    def address(self, name: str) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}/{name}/0"

    def open(self, name: str) -> None:
        """Answer everything from now on."""
        self.gate(name).set()

    def gate(self, name: str) -> threading.Event:
        with self.lock:
            return self._gates[name]

    def ask(self, name: str, page: int) -> None:
        """Count the page, and wait until its turn comes."""
        with self.lock:
            self.asked[name][page] += 1
            if self._gates[name].is_set() or self.asked[name].total() <= FREE:
                return
            self.waiting[name].add(page)
        self.gate(name).wait(600)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: a killed crawler does not wait for its response."""


class _Handler(BaseHTTPRequestHandler):
    server: GatedSite

    def do_GET(self) -> None:
        found = re.fullmatch(r"/([\w-]+)/(\d+)", self.path)
        if found is None:  # robots.txt, an icon
            self.send_error(404)
            return
        name, page = found[1], int(found[2])
        self.server.ask(name, page)
        links = "".join(f'<a href="/{name}/{n}">{n}</a> ' for n in range(PAGES))
        body = f"<html><head><title>{page}</title></head><body>{links}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def gated_site(host: str = "127.0.0.1") -> Iterator[GatedSite]:
    with GatedSite(host) as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        try:
            yield site
        finally:
            for name in list(site.asked):
                site.open(name)
            site.shutdown()
            thread.join()
