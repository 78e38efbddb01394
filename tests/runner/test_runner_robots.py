"""The files of a site, which a crawler process fetches for all, also from hostile sites."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import crawler_lifecycle.runner
from crawler_lifecycle.features.sites.gateway.robots import RobotsCall, SiteFile
from tests.runner.runner_fixture import wait_until

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
        place = self.server.places.get(self.path)
        if place is not None:
            self.send_response(302)
            self.send_header("Location", place)
            self.end_headers()
            return
        self.send_response(200 if self.path in ("/robots.txt", "/rules.txt") else 404)
        self.end_headers()
        self.wfile.write(b"User-agent: *\n")

    def do_POST(self) -> None:
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append(call)
        if "sites" in call:
            lease: dict[str, Any] = {"free": True, "exclusive": False, "probe": False}
            lease |= {"site": "127.0.0.1", "closed_s": 0.0}
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
        self.places: dict[str, str] = {}
        """Where addresses redirect to."""
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_hostile_answers_are_bounded(server: Server) -> None:
    status, body, _ = robots._fetched(f"{server.url}/large", "bot")
    assert (status, len(body)) == (200, robots.FILE_MAX)
    assert robots._fetched(f"{server.url}/none", "bot") == (404, b"", None)
    assert robots._fetched("http://127.0.0.1:9/robots.txt", "bot") == (None, b"", None)
    assert robots._fetched(f"{server.url}/x", "b\u00f6t \u2026") == (None, b"", None)


@pytest.mark.parametrize(
    ("place", "status", "statuses"),
    [
        ("/rules.txt", 200, {"302": 1, "200": 1}),
        ("/robots.txt", 302, {"302": 6}),
        ("http://another.example/x", 302, {"302": 1}),
        ("file:///etc/passwd", 302, {"302": 1}),
    ],
)
def test_each_redirect_within_the_site_takes_a_turn(
    server: Server, place: str, status: int, statuses: dict[str, int]
) -> None:
    server.places["/robots.txt"] = place
    leases = SiteLeases(f"{server.url}/leases", "t")
    shared = robots.SharedRobots(leases)
    shared._fetch(server.url, "/robots.txt", "robots")
    leases.close()
    (report,) = [call["robots"] for call in server.calls if "robots" in call]
    assert report["status"] == status
    last = [call for call in server.calls if "sites" in call][-1]["sites"]["127.0.0.1"]
    assert last["statuses"] == statuses


def test_sites_that_do_not_answer_delay_no_others(server: Server) -> None:
    """Each connection to them opens, but nothing ever comes."""
    leases = SiteLeases(f"{server.url}/leases", "t")
    shared = robots.SharedRobots(leases)
    found: list[Any] = []
    with contextlib.ExitStack() as silent:
        for _ in range(8):
            dead = silent.enter_context(socket.create_server(("127.0.0.1", 0)))
            shared.when_known("http", f"127.0.0.1:{dead.getsockname()[1]}", found.append)
        shared.when_known("http", f"127.0.0.1:{server.server_port}", found.append)
        wait_until(lambda: found, 30)
    leases.close()
    assert found[0] == (200, b"User-agent: *\n"), "before the first of them is given up"


def test_after_too_many_origins_the_rules_are_unknown(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robots, "ORIGINS_MAX", 1)
    leases = SiteLeases(f"{server.url}/leases", "t")
    shared = robots.SharedRobots(leases)
    found: list[Any] = []
    for host in (f"127.0.0.1:{server.server_port}", "b.example", "c.example"):
        shared.when_known("http", host, found.append)
    assert found == [None, None]
    wait_until(lambda: len(found) == 3, 30)
    leases.close()
    assert found[-1] == (200, b"User-agent: *\n")


@pytest.mark.parametrize("status", [0, 99, 600, 999, None])
def test_the_gateway_accepts_the_report_of_each_status(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    monkeypatch.setattr(robots, "_fetched", lambda url, agent: robots._Response(status))
    leases = SiteLeases(f"{server.url}/leases", "t")
    robots.SharedRobots(leases)._fetch(server.url, "/robots.txt", "robots")
    leases.close()
    (report,) = [call for call in server.calls if "robots" in call]
    assert RobotsCall.model_validate(report).robots == SiteFile(status=None)


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
