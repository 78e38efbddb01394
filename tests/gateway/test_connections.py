"""Real sockets of our services: clients that send nothing, half a request head or nonsense, or stop
reading.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from crawler_lifecycle.features.sites.domain.lanes import ASK_RANGE_S
from crawler_lifecycle.web import listening
from crawler_lifecycle.web.listening import Connection, bind
from crawler_lifecycle.web.serving import HEAD_MAX, HEADERS_MAX, TARGET_MAX, BodyLimit, Guard

GET = b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n"


class Patient(Connection):
    """Cuts nobody off before a test says that time is up."""

    head_s = 600.0
    unread_s = 600.0


async def _app(scope: Any, receive: Any, send: Any) -> None:
    large = scope["path"] == "/large"
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [] if large else [(b"content-length", b"2")],
        }
    )
    if large:
        for _ in range(2000):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
    await send({"type": "http.response.body", "body": b"" if large else b"ok"})


def test_a_task_that_waits_for_a_lane_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a new one, it might reach another gateway, and stand at the end of another line."""
    configs: list[uvicorn.Config] = []

    class Server:
        started = True

        def __init__(self, config: uvicorn.Config) -> None:
            configs.append(config)

        def run(self, sockets: Any) -> None:
            pass

    monkeypatch.setattr(listening, "_Server", Server)
    bound = bind("127.0.0.1", 0, "LIFECYCLE_TEST")
    assert listening.run("the service", FastAPI(), bound) == 0
    [config] = configs
    assert config.timeout_keep_alive > ASK_RANGE_S[1] + 5


@pytest.fixture(scope="module")
def server() -> Iterator[uvicorn.Server]:
    bound = bind("127.0.0.1", 0, "LIFECYCLE_TEST")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listening, "_WATCH_EVERY_S", 0.05)
        config = uvicorn.Config(
            Guard(BodyLimit(_app, limit=lambda _: 1000)),
            http=Patient,
            ws="none",
            log_config=None,
            h11_max_incomplete_event_size=HEAD_MAX,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        server.port = bound.getsockname()[1]  # type: ignore[attr-defined]
        yield server
        server.should_exit = True
        thread.join(60)
        bound.close()


@pytest.fixture
def time_is_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def up() -> None:
        monkeypatch.setattr(Patient, "head_s", 0.1)
        monkeypatch.setattr(Patient, "unread_s", 0.1)

    return up


@contextmanager
def _connected(server: Any) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        yield connection


def _rest(connection: socket.socket) -> bytes:
    """Return what arrives until the server closes; fail if it does not."""
    found = b""
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            return found
        if not part:
            return found
        found += part


def _answer(connection: socket.socket, request: bytes) -> tuple[int, Any]:
    connection.sendall(request)
    head, _, body = b"", b"", b""
    while b"\r\n\r\n" not in head:
        part = connection.recv(65536)
        assert part, f"closed after {head!r}"
        head += part
    head, _, body = head.partition(b"\r\n\r\n")
    length = next(
        int(line[15:])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    )
    while len(body) < length:
        body += connection.recv(65536)
    status = int(head.split(b" ")[1])
    return status, json.loads(body) if status >= 400 else body


def test_a_plain_request_is_served_and_the_connection_kept(server: Any) -> None:
    with _connected(server) as connection:
        assert _answer(connection, GET) == (200, b"ok")
        assert _answer(connection, GET) == (200, b"ok")


def test_an_answer_in_two_writes_does_not_wait_for_the_client() -> None:
    with (
        bind("127.0.0.1", 0, "LIFECYCLE_TEST") as bound,
        socket.create_connection(bound.getsockname()),
    ):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_whoever_says_nothing_or_half_a_head_loses_the_connection(
    server: Any, time_is_up: Callable[[], None]
) -> None:
    for said in [b"", b"GET /ok HT", b"GET /ok HTTP/1.1\r\nHost: x\r\nA: "]:
        with _connected(server) as connection:
            connection.sendall(said)
            time_is_up()
            assert _rest(connection) == b"", said


def test_so_does_one_that_begins_a_second_request_and_stops(
    server: Any, time_is_up: Callable[[], None]
) -> None:
    with _connected(server) as connection:
        assert _answer(connection, GET) == (200, b"ok")
        connection.sendall(b"G")
        time_is_up()
        assert _rest(connection) == b""


def test_so_does_one_that_sends_a_head_letter_by_letter(
    server: Any, time_is_up: Callable[[], None]
) -> None:
    def trickle() -> None:
        until = time.monotonic() + 150
        while time.monotonic() < until:
            connection.sendall(b"G")
            time.sleep(0.02)

    time_is_up()
    with _connected(server) as connection, pytest.raises(ConnectionError):
        trickle()


def test_a_client_that_does_not_read_loses_its_connection(
    server: Any, time_is_up: Callable[[], None]
) -> None:
    with _connected(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(GET.replace(b"/ok", b"/large"))
        assert connection.recv(1) == b"H"
        time_is_up()
        # Reading further would keep it open, so only the server is checked.
        state, until = server.server_state, time.monotonic() + 150
        while (state.tasks or state.connections) and time.monotonic() < until:
            time.sleep(0.02)
        assert not state.tasks
        assert not state.connections


def test_what_is_no_http_is_told_so_as_a_problem(server: Any) -> None:
    for request_ in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS handshake
        b"GET\r\n\r\n",
        b"GET /ok HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET /ok HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /ok HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET /ok HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (HEAD_MAX + 100),
        b"GET /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /ok HTTP/1.1\r\n\r\n",
    ]:
        with _connected(server) as connection:
            status, problem = _answer(connection, request_)
            assert (status, problem["status"]) == (400, 400), request_
            assert problem["code"] == "bad_request"
        with _connected(server) as connection:
            assert _answer(connection, GET) == (200, b"ok")


def test_headers_that_count_come_once(server: Any) -> None:
    for name in ["Authorization", "Idempotency-Key", "Origin", "Content-Type", "Host"]:
        with _connected(server) as connection:
            twice = f"{name}: a\r\n{name}: b\r\n".encode()
            status, problem = _answer(
                connection, GET.replace(b"\r\n\r\n", b"\r\n" + twice + b"\r\n")
            )
            # h11 itself refuses a second Host.
            assert (status, problem["code"]) == (
                400,
                "bad_request" if name == "Host" else "duplicate_header",
            ), name


def test_heads_have_limits(server: Any) -> None:
    with _connected(server) as connection:
        status, problem = _answer(connection, GET.replace(b"/ok", b"/ok?" + b"q" * TARGET_MAX))
        assert (status, problem["code"]) == (414, "uri_too_long")
        many = b"".join(b"X-%d: y\r\n" % n for n in range(HEADERS_MAX))
        status, problem = _answer(connection, GET.replace(b"\r\n\r\n", b"\r\n" + many + b"\r\n"))
        assert (status, problem["code"]) == (431, "headers_too_large")
        large = b"X: " + b"y" * HEAD_MAX + b"\r\n"
        status, problem = _answer(connection, GET.replace(b"\r\n\r\n", b"\r\n" + large + b"\r\n"))
        # In one piece it can be read; in several, the server stops reading.
        assert (status, problem["code"]) in ((431, "headers_too_large"), (400, "bad_request"))


def test_an_upgrade_is_not_taken(server: Any) -> None:
    with _connected(server) as connection:
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        upgrade += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        assert _answer(connection, GET.replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n")) == (
            200,
            b"ok",
        )


def test_each_request_has_a_name_that_is_safe_to_log(server: Any) -> None:
    for given, kept in (("abc-1", True), ("a" * 65, False), ("a b", False), ("", False)):
        with _connected(server) as connection:
            connection.sendall(
                GET.replace(
                    b"\r\n\r\n", f"\r\nX-Request-Id: {given}\r\nConnection: close\r\n\r\n".encode()
                )
            )
            head = _rest(connection).lower()
            assert (f"x-request-id: {given}\r\n".encode() in head) is kept
            assert b"x-request-id: " in head
            assert b"x-content-type-options: nosniff" in head
            assert b"cache-control: no-store" in head


async def test_an_address_that_a_client_writes_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class App:
        state = None
        seen: object = None

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.seen = scope["client"], scope["scheme"]

    class Server:
        started = True

        def __init__(self, config: uvicorn.Config) -> None:
            kept.append(config)

        def run(self, sockets: object) -> None:
            pass

    kept, app = list[Any](), App()
    monkeypatch.setattr(listening, "_Server", Server)
    monkeypatch.setattr(listening, "_allow_files", lambda wanted: None)
    served: Any = app
    assert listening.run("a test", served, bind("127.0.0.1", 0, "TEST")) == 0
    [config] = kept
    config.load()
    headers = [(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-proto", b"https")]
    scope = {"type": "http", "client": ("127.0.0.1", 7), "scheme": "http", "headers": headers}
    await config.loaded_app(scope, None, None)
    assert app.seen == (("127.0.0.1", 7), "http")
