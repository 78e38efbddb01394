"""The scheduler client and responses that no service of ours sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn

from crawler_lifecycle.adapters.scheduler import ANSWER_MAX, HttpSchedulerClient
from crawler_lifecycle.domain.errors import (
    CallTooLarge,
    DeploymentExpired,
    DeploymentRefused,
    SchedulerUnavailable,
)
from tests.contracts.services.services_harness import deployment

CALL = deployment()
GOOD = {"tasks": [{"index": 0, "state": "created", "name": "n", "uid": "u", "reason": None}]}
PROBLEM = {"content-type": "application/problem+json"}


def _client(answer: httpx.Response | Exception) -> HttpSchedulerClient:
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return HttpSchedulerClient("http://scheduler.test/", transport=httpx.MockTransport(handle))


def _deploy(answer: httpx.Response | Exception) -> list[object]:
    return list(_client(answer).deploy(CALL))


@pytest.mark.parametrize("status", [200, 201])
def test_both_good_statuses_are_read_and_new_fields_are_ignored(status: int) -> None:
    answer = {"tasks": [{**GOOD["tasks"][0], "zone": "b"}], "version": 2}
    assert len(_deploy(httpx.Response(status, json=answer))) == 1


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"<html>Bad gateway</html>",
            b"null",
            b"[]",
            b"{}",
            b'{"tasks": {}}',
            b'{"tasks": []}',
        ),
        b'{"tasks": [{"index": "0", "state": "created"}]}',
        b'{"tasks": [{"index": 1, "state": "created"}]}',
        b'{"tasks": [{"index": 0, "state": "running"}]}',
        b'{"tasks": [{"index": 0, "state": "created"}, {"index": 0, "state": "created"}]}',
        *(b"[" * 100_000, b"\xff\xfe"),
    ],
)
def test_an_answer_that_is_none_says_nothing(body: bytes) -> None:
    with pytest.raises(SchedulerUnavailable):
        _deploy(httpx.Response(201, content=body))


@pytest.mark.parametrize(
    "status", [408, 409, 421, 425, 429, 500, 501, 502, 503, 504, 599, 301, 302, 307, 204, 206, 304]
)
def test_statuses_of_the_moment_are_tried_again(status: int) -> None:
    with pytest.raises(SchedulerUnavailable, match=str(status)):
        _deploy(httpx.Response(status, headers={"location": "http://elsewhere.test/"}))


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("17", 17),
        ("86400", 60),
        ("0", 0),
        (None, None),
        ("soon", None),
        ("-1", None),
        ("9" * 5000, None),
    ],
)
def test_what_it_asks_us_to_wait_is_kept_within_bounds(
    told: str | None, seconds: float | None
) -> None:
    with pytest.raises(SchedulerUnavailable) as raised:
        _deploy(httpx.Response(503, headers={} if told is None else {"Retry-After": told}))
    assert raised.value.retry_after_s == seconds


@pytest.mark.parametrize("status", [400, 403, 404, 405, 407, 415, 422, 451])
def test_a_refusal_is_final_only_in_the_services_own_words(status: int) -> None:
    """A proxy or a wrong address also returns client errors."""
    with pytest.raises(SchedulerUnavailable):
        _deploy(httpx.Response(status, content=b"<html>Forbidden</html>"))
    with pytest.raises(SchedulerUnavailable):
        _deploy(httpx.Response(status, json={"detail": "Not Found"}))
    with pytest.raises(DeploymentRefused, match="not for you"):
        _deploy(httpx.Response(status, json={"detail": "not for you"}, headers=PROBLEM))


@pytest.mark.parametrize("status", [413, 414, 431])
def test_a_call_that_is_too_large_is_our_fault_and_no_verdict_whoever_words_it(status: int) -> None:
    for answer in (
        httpx.Response(status, json={"detail": "send less at once"}, headers=PROBLEM),
        httpx.Response(status, content=b"<html>"),
    ):
        with pytest.raises(SchedulerUnavailable, match=str(status)) as caught:
            _deploy(answer)
        assert isinstance(caught.value, CallTooLarge) == (status == 413)
    if status == 413:
        assert "for task 0 alone; raise the limit of the service or of its proxy" in str(
            caught.value
        )


def test_a_name_or_uid_that_no_row_can_hold_whole_is_no_answer() -> None:
    for name, most in (("name", 255), ("uid", 100)):
        answer = {"tasks": [{**GOOD["tasks"][0], name: "x" * most}]}
        assert len(_deploy(httpx.Response(201, json=answer))) == 1
        answer = {"tasks": [{**GOOD["tasks"][0], name: "x" * (most + 1)}]}
        with pytest.raises(SchedulerUnavailable, match=name):
            _deploy(httpx.Response(201, json=answer))


def test_401_says_nothing_about_the_deployment_whoever_words_it() -> None:
    for answer in (
        httpx.Response(401, json={"detail": "who are you?"}, headers=PROBLEM),
        httpx.Response(401, content=b"<html>"),
    ):
        with pytest.raises(SchedulerUnavailable, match="LIFECYCLE_SCHEDULER__TOKEN"):
            _deploy(answer)


@pytest.mark.parametrize("token", [None, "secret"])
def test_the_token_is_shown_when_there_is_one(token: str | None) -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"crawlers": []})

    HttpSchedulerClient(
        "http://scheduler.test", token=token, transport=httpx.MockTransport(handle)
    ).crawlers()
    assert seen[0].headers.get("authorization") == (f"Bearer {token}" if token else None)


def test_410_is_expired() -> None:
    with pytest.raises(DeploymentExpired):
        _deploy(httpx.Response(410))


@pytest.mark.parametrize(
    "error",
    [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("cut")],
)
def test_no_answer_says_nothing(error: Exception) -> None:
    with pytest.raises(SchedulerUnavailable, match="cannot be reached"):
        _deploy(error)


def test_an_endless_answer_is_cut() -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(ANSWER_MAX // 65536 + 2):
            yield b" " * 65536

    with pytest.raises(SchedulerUnavailable, match="larger than"):
        _deploy(httpx.Response(201, content=chunks()))


def test_wrong_crawler_lists_say_nothing() -> None:
    for answer in (
        httpx.Response(200, json={"crawlers": [{"name": "x", "kind": "rocket"}]}),
        httpx.Response(200, json={"crawlers": [{"name": "x", "kind": "command"}]}),
        httpx.Response(200, json=[]),
        httpx.Response(422, json={"detail": "?"}),
        httpx.Response(410),
    ):
        with pytest.raises(SchedulerUnavailable):
            _client(answer).crawlers()


def test_a_server_that_takes_the_call_and_hangs_up_or_trickles() -> None:
    given_up = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            first, _ = server.accept()
            first.recv(65536)
            first.close()  # it has taken effect, and the response is lost
            second, _ = server.accept()
            second.recv(65536)
            second.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n")
            while not given_up.wait(0.05):  # each read is quick, but they never end
                with suppress(OSError):
                    second.sendall(b" ")
            second.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client = HttpSchedulerClient(url, 120.0)
        with pytest.raises(SchedulerUnavailable, match="cannot be reached"):
            client.deploy(CALL)
        client._timeout_s = 0.3  # for the whole response, while each read may take long
        with pytest.raises(SchedulerUnavailable, match="slower than"):
            client.deploy(CALL)
        given_up.set()
        client.close()
        thread.join(60)


def test_an_idle_connection_is_given_up_before_the_server_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a deployment could be sent just when the service closes the connection, and fail."""
    now = [1000.0]
    monkeypatch.setattr("httpcore._sync.http11.time", SimpleNamespace(monotonic=lambda: now[0]))
    came: list[int] = []

    class Service(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            came.append(self.client_address[1])
            body = b'{"crawlers": []}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = HttpSchedulerClient(f"http://127.0.0.1:{server.server_port}", 120.0)
        client.crawlers()
        client.crawlers()
        now[0] += uvicorn.Config("the service").timeout_keep_alive - 1
        client.crawlers()
        client.close()
        server.shutdown()
    assert came[0] == came[1] != came[2]


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            connection, _ = server.accept()
            connection.recv(65536)
            connection.sendall(
                b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{"crawlers": []'
            )
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client = HttpSchedulerClient(f"http://127.0.0.1:{port}", 120.0)
        with pytest.raises(SchedulerUnavailable, match="violates its contract"):
            client.crawlers()
        client.close()
        thread.join(60)


@pytest.mark.parametrize(("scheme", "checked"), [("https", True), ("HTTPS", True), ("http", False)])
def test_certificates_are_checked_however_the_scheme_is_written(
    monkeypatch: pytest.MonkeyPatch, scheme: str, checked: bool
) -> None:
    made, real = list[object](), httpx.Client

    def client(**options: Any) -> httpx.Client:
        made.append(options["verify"])
        return real(**options)

    monkeypatch.setattr(httpx, "Client", client)
    HttpSchedulerClient(f"{scheme}://scheduler.example.com").close()
    assert made == [checked]
