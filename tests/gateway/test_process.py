"""The gateway as a process: what it needs to start, how it exits, and clients that want too much."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from crawler_lifecycle.gateway.access.tokens import new_token
from tests.gateway.gateway_process import environment, gateway, refused

pytestmark = pytest.mark.processes

MIB = 1024 * 1024


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """A client with long timeouts: a gateway on a starved machine is slow, but not broken."""
    with httpx.Client(timeout=60) as client:
        yield client


def test_it_lives_without_database_and_temporal_and_leaves_when_asked(
    tmp_path: Path, http: httpx.Client
) -> None:
    with gateway(environment(tmp_path), tmp_path) as running:
        url = running.url
        assert http.get(f"{url}/healthz").json() == {"status": "alive"}
        ready = http.get(f"{url}/readyz")
        assert ready.status_code == 503
        assert ready.json()["ready"] is False
        assert "Temporal cannot be reached" in ready.json()["checks"]["temporal"]
        assert ready.json()["checks"]["database"] != "ok"
        assert http.get(f"{url}/v1/runs").json()["code"] == "store_unavailable"
        with http.stream("GET", f"{url}/v1/events") as answer:
            lines = answer.iter_lines()
            assert next(lines) == ": the database does not answer; waiting for it"
            running.process.send_signal(signal.SIGTERM)
            # The response is complete. A truncated one, as if the gateway had waited for its
            # readers, would raise an error.
            assert not [line for line in lines if line.startswith("event:")]
        assert running.process.wait(60) == 0
        assert "Traceback" not in running.log.read_text()


def test_greedy_clients_cost_little_memory_and_others_are_served(
    tmp_path: Path, http: httpx.Client
) -> None:
    """A thousand sockets that send half a request, and bodies of 100 MB, with and without their
    length.
    """
    with (
        gateway(environment(tmp_path), tmp_path) as running,
        _many_files(),
        contextlib.ExitStack() as stack,
    ):
        before = running.memory()
        for n in range(1000):
            connection = socket.create_connection(("127.0.0.1", running.port))
            stack.callback(connection.close)
            if n % 2:
                connection.sendall(
                    b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
                )
        json = {"content-type": "application/json"}
        for _ in range(3):
            assert http.get(f"{running.url}/healthz").status_code == 200
            assert http.get(f"{running.url}/v1/crawlers").json()["code"] == "scheduler_unavailable"
            told = _status(running.port, b"Content-Length: 104857600\r\n", b"")
            assert told == 413
            told = _status(
                running.port,
                b"Transfer-Encoding: chunked\r\n",
                (b"10000\r\n" + b" " * 65536 + b"\r\n") * 40,
            )
            assert told == 413
        assert (
            http.post(f"{running.url}/v1/runs", content=b"[" * MIB, headers=json).status_code == 422
        )
        assert running.memory() < 200 * MIB, f"{before} before"


def _status(port: int, headers: bytes, body: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        head = (
            b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + headers
            + b"\r\n"
        )
        with contextlib.suppress(ConnectionError):  # it need not read what it refuses to the end
            connection.sendall(head + body)
        return int(connection.recv(4096).split(b" ")[1])


@contextlib.contextmanager
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_with_tokens_it_listens_anywhere_and_lets_in_who_has_one(
    tmp_path: Path, http: httpx.Client
) -> None:
    token, lines = new_token("portal", "read")
    (tmp_path / "tokens.toml").write_text(lines)
    settings = environment(
        tmp_path,
        LIFECYCLE_GATEWAY__HOST="0.0.0.0",
        LIFECYCLE_GATEWAY__CALLERS_FILE="tokens.toml",
    )
    del settings["LIFECYCLE_GATEWAY__AUTH_DISABLED"]
    with gateway(settings, tmp_path) as running:
        url = f"http://127.0.0.1:{running.port}"
        assert http.get(f"{url}/healthz").status_code == 200
        assert http.get(f"{url}/v1/runs").status_code == 401
        # It is not in the file, and there is no database that could contain it.
        assert (
            http.get(f"{url}/v1/runs", headers={"Authorization": "Bearer wrong"}).status_code == 503
        )
        right = {"Authorization": f"Bearer {token}"}
        assert http.get(f"{url}/v1/runs", headers=right).json()["code"] == "store_unavailable"
        assert http.post(f"{url}/v1/runs", headers=right, json={"crawler": "x"}).status_code == 403
        assert http.get(f"{url}/readyz").json()["checks"]["tokens"] == "ok"
        told = running.log.read_text()
        assert "GET /v1/runs: 401" in told
        assert token not in told


def test_a_taken_port_names_address_and_fix(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = refused(environment(tmp_path, LIFECYCLE_GATEWAY__PORT=port), tmp_path)
    assert f"127.0.0.1:{port}: the address is taken" in told
    assert "LIFECYCLE_GATEWAY__PORT" in told


def test_a_database_url_that_is_none_is_told_at_once(tmp_path: Path) -> None:
    told = refused(environment(tmp_path, LIFECYCLE_DATABASE__URL="mongodb://x"), tmp_path)
    assert told.startswith("error: ") or "\nerror: " in told
