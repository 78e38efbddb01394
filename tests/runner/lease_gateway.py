"""A gateway that leases the lanes of each host to one process, and a site that keeps a journal."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class LeaseGateway(ThreadingHTTPServer):
    """Leases ``connections`` lanes, which together begin ``requests_per_s`` requests a second.

    Without ``connections``, no host is limited.
    """

    daemon_threads = True

    def __init__(self, connections: int | None = None, requests_per_s: float | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _LeaseHandler)
        self.connections = connections
        self.requests_per_s = requests_per_s
        self.questions: list[dict[str, Any]] = []
        self.closings: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        """The closed sites in the answers to calls that wait for closings."""
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def environment(self) -> dict[str, str]:
        """Return the variables of a task whose leases come from here."""
        url = f"http://127.0.0.1:{self.server_address[1]}/leases"
        return {"CRAWL_LEASES_URL": url, "CRAWL_LEASES_TOKEN": "secret"}

    def statuses(self) -> dict[str, Counter[str]]:
        """Return the reported responses by host."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for question in self.questions:
            for host, demand in question.items():
                found[host].update(demand.get("statuses", {}))
        return dict(found)

    def lease(self, host: str) -> dict[str, Any]:
        lanes = []
        for lane in range(self.connections or 0):
            every_s = 0.0
            first_s = 0.0
            if self.requests_per_s:
                every_s = (self.connections or 1) / self.requests_per_s
                first_s = (lane / self.requests_per_s - time.monotonic()) % every_s
            lanes.append(
                {
                    "lane": lane,
                    "first_s": first_s,
                    "every_s": every_s,
                    "until_s": 6.0,
                    "leaves": False,
                }
            )
        free = self.connections is None
        return {
            "site": host,
            "free": free,
            "exclusive": True,
            "closed_s": 0.0,
            "probe": False,
            "ask_s": 60.0 if free else 2.0,
            "lanes": lanes,
        }


class _LeaseHandler(_Quiet):
    server: LeaseGateway

    def do_GET(self) -> None:
        sites: list[str] = []
        with contextlib.suppress(queue.Empty):
            sites = self.server.closings.get(timeout=10)
        self.answer(200, json.dumps({"sites": sites}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/robots"):
            self.answer(404, b"{}")
            return
        self.server.questions.append(body["sites"])
        leases = {host: self.server.lease(host) for host in body["sites"]}
        self.answer(200, json.dumps({"sites": leases}).encode())


class JournalSite(ThreadingHTTPServer):
    """A site that answers each request after a moment, and counts what it sees."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, host: str = "127.0.0.1", tls: Any = None, delay_s: float = 0.05) -> None:
        if ":" in host:
            self.address_family = 10  # AF_INET6
        super().__init__((host, 0), _SiteHandler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.delay_s = delay_s
        self.began: list[float] = []
        self.open = 0
        self.most_open = 0
        self.headers: list[dict[str, str]] = []
        self._counting = threading.Lock()
        host_text = f"[{host}]" if ":" in host else host
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://{host_text}:{self.server_address[1]}/"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def count(self, change: int) -> None:
        """Count a connection that begins or ends."""
        with self._counting:
            self.open += change
            self.most_open = max(self.most_open, self.open)

    def most_in_a_second(self) -> int:
        return max(sum(start <= at < start + 1 for at in self.began) for start in self.began)


class _SiteHandler(_Quiet):
    server: JournalSite

    def setup(self) -> None:
        self.server.count(1)
        super().setup()

    def finish(self) -> None:
        super().finish()
        self.server.count(-1)

    def do_GET(self) -> None:
        self.server.began.append(time.monotonic())
        self.server.headers.append(dict(self.headers))
        if self.path.startswith("/never"):
            time.sleep(30)
            return
        time.sleep(self.server.delay_s)
        if self.path.startswith("/busy"):
            self.answer(429, b"later", Retry_After="20")
        elif self.path.startswith("/to/"):
            self.answer(302, b"", Location=self.path.removeprefix("/to/"))
        else:
            self.answer(200, b"page" * 50)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"%d" % len(body))
