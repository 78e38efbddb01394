"""The files of a site, which a crawler process fetches for all, also from hostile sites."""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import crawler_lifecycle.runner

sys.path.append(str(Path(crawler_lifecycle.runner.__file__).parent / "inject"))
import crawl_runner_robots as robots  # type: ignore[import-not-found]
from crawl_runner_leases import SiteLeases  # type: ignore[import-not-found]

GIB = 1024**3


class Handler(BaseHTTPRequestHandler):
    """A site with all kinds of responses, and a gateway that lets the process fetch."""

    server: Server

    def do_GET(self) -> None:
        self.server.paths.append((self.path, self.headers["User-Agent"]))
        if self.path == "/large":
            self.send_response(200)
            self.send_header("Content-Length", str(GIB))
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"a" * 65_536)
            except OSError:
                return
        places = {
            "/loop": "/loop",
            "/away": "http://another.example/x",
            "/file": "file:///etc/passwd",
        }
        if self.path in places or self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", places.get(self.path, "/robots.txt"))
            self.end_headers()
            return
        self.send_response(200 if self.path == "/robots.txt" else 404)
        self.end_headers()
        self.wfile.write(b"User-agent: *\n")

    def do_POST(self) -> None:
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append(call)
        if "sites" in call:
            lease = {"free": True, "exclusive": False, "probe": False, "closed_s": 0.0}
            lease |= {"ask_s": 60.0, "lanes": []}
            answer: Any = {"sites": dict.fromkeys(call["sites"], lease)}
        else:
            status = call.get("robots", {}).get("status")
            body = call.get("robots", {}).get("body", "")
            fetch = "robots" not in call and "tdm" not in call
            answer = {"fetch": fetch, "wait_s": None, "status": status, "body": body}
            answer |= {"sha256": None, "delayed": False}
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths: list[tuple[str, str]] = []
        self.calls: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_hostile_answers_are_bounded(server: Server) -> None:
    status, body = robots._fetched(f"{server.url}/large", "bot")
    assert (status, len(body)) == (200, robots.FILE_MAX)
    assert robots._fetched(f"{server.url}/moved", "bot") == (200, b"User-agent: *\n")
    for path in ("loop", "away", "file"):
        assert robots._fetched(f"{server.url}/{path}", "bot") == (302, b"")
    assert len([path for path, _ in server.paths if path == "/loop"]) <= 6
    assert robots._fetched(f"{server.url}/none", "bot") == (404, b"")
    assert robots._fetched("http://127.0.0.1:9/robots.txt", "bot") == (None, b"")
    assert robots._fetched(f"{server.url}/x", "b\u00f6t \u2026") == (None, b"")


def test_a_process_fetches_both_files_once_and_tells_all_that_wait(server: Server) -> None:
    leases = SiteLeases(f"{server.url}/leases", "t")
    shared = robots.SharedRobots(leases, "shopbot/1.0")
    found: list[Any] = []
    for _ in range(3):
        shared.visit("http", f"127.0.0.1:{server.server_port}")
        shared.when_known("http", f"me:pw@127.0.0.1:{server.server_port}", found.append)
    until = time.monotonic() + 10
    while len(server.paths) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.1)
    leases.close()
    assert found == [(200, b"User-agent: *\n")] * 3
    assert server.paths == [
        ("/robots.txt", "shopbot/1.0"),
        ("/.well-known/tdmrep.json", "shopbot/1.0"),
    ]
    reports = [call for call in server.calls if "robots" in call or "tdm" in call]
    assert base64.b64decode(reports[0]["robots"]["body"]) == b"User-agent: *\n"
    assert reports[1]["tdm"]["status"] == 404
    last = [call for call in server.calls if "sites" in call][-1]["sites"]["127.0.0.1"]
    assert last["statuses"] == {"200": 1, "404": 1}


def test_without_the_gateway_a_crawl_continues(server: Server) -> None:
    leases = SiteLeases("http://127.0.0.1:9/leases", "t")
    found: list[Any] = []
    robots.SharedRobots(leases).when_known("http", "shop.example", found.append)
    until = time.monotonic() + 10
    while not found and time.monotonic() < until:
        time.sleep(0.02)
    leases.close()
    assert found == [None]
