"""The gateway as a process: what it needs to come up, how it goes, and slow clients."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

CODE = (
    "import sys; from crawler_lifecycle.gateway.serve import serve; from crawler_lifecycle.settings import Settings; "
)
CODE += "import os; code = serve(Settings.load()); sys.stderr.flush(); os._exit(code)"


def _environment(tmp_path: Path, **more: str) -> dict[str, str]:
    # Nobody listens on port 9: neither Temporal nor a scheduler service is there.
    return {
        "PATH": os.environ["PATH"],
        "TEMPORAL_ADDRESS": "127.0.0.1:9",
        "LIFECYCLE_GATEWAY__PORT": "0",
        "LIFECYCLE_GATEWAY__OPEN": "true",
        "LIFECYCLE_SCHEDULER__URL": "http://127.0.0.1:9",
        "LIFECYCLE_DATABASE__URL": f"sqlite:///{tmp_path}/missing/runs.db",
        **more,
    }


@contextmanager
def _gateway(environment: dict[str, str], tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE], env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(r"listens on (http://\S+)", line)
            if found:
                yield process, found[1]
                return
        raise AssertionError("it never listened")
    finally:
        process.kill()
        process.communicate()


def _refused(environment: dict[str, str], tmp_path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=30
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_it_lives_without_database_and_temporal_and_leaves_when_asked(tmp_path: Path) -> None:
    with _gateway(_environment(tmp_path), tmp_path) as (process, url):
        assert httpx.get(f"{url}/healthz").json() == {"status": "alive"}
        ready = httpx.get(f"{url}/readyz", timeout=10)
        assert ready.status_code == 503
        assert ready.json()["ready"] is False
        assert "Temporal cannot be reached" in ready.json()["checks"]["temporal"]
        assert ready.json()["checks"]["database"] != "ok"
        assert httpx.get(f"{url}/v1/runs").json()["code"] == "store_unavailable"
        _slow_clients_do_not_slow_others(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


def _slow_clients_do_not_slow_others(url: str) -> None:
    port = int(url.rpartition(":")[2])
    half_open = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    try:
        for n, connection in enumerate(half_open):
            if n % 2:
                connection.sendall(b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        began = time.monotonic()
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert time.monotonic() - began < 1.0
    finally:
        for connection in half_open:
            connection.close()


def test_a_taken_port_names_address_and_cure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = _refused(_environment(tmp_path, LIFECYCLE_GATEWAY__PORT=port), tmp_path)
    assert f"127.0.0.1:{port}: the address is taken" in told
    assert "LIFECYCLE_GATEWAY__PORT" in told


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_it_listens_on_loopback_only(tmp_path: Path, host: str) -> None:
    told = _refused(_environment(tmp_path, LIFECYCLE_GATEWAY__HOST=host), tmp_path)
    assert "LIFECYCLE_GATEWAY__HOST" in told
    assert "127.0.0.1" in told


def test_a_database_url_that_is_none_is_told_at_once(tmp_path: Path) -> None:
    told = _refused(_environment(tmp_path, LIFECYCLE_DATABASE__URL="mongodb://x"), tmp_path)
    assert told.startswith("error: ") or "\nerror: " in told
