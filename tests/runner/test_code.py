"""The fetch of deployed code: outages, stops, other contents, and a full disk."""

from __future__ import annotations

import errno
import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.features.packages.adapters.packing import pack
from crawler_lifecycle.runner import code
from crawler_lifecycle.runner.code import CodeUnavailable, NoRoom, fetch_code
from crawler_lifecycle.runner.contract import BadConfiguration
from crawler_lifecycle.runner.package import Package


class Gateway(BaseHTTPRequestHandler):
    """Answers with these statuses, and then with the zip; 0 is silence."""

    zipped = b""
    statuses: list[int]

    def do_GET(self) -> None:
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 0:
            time.sleep(3)
            return
        body = self.zipped if status == 200 else b'{"detail": "the bucket is away"}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[type[Gateway]]:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "crawl.py").write_text("print(1)")
    file = io.BytesIO()
    pack(tmp_path / "shop", file)
    handler = type("Own", (Gateway,), {"zipped": file.getvalue(), "statuses": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.port = server.server_address[1]  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield handler
        server.shutdown()


@pytest.fixture
def variables(gateway: Any, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "rest").write_text("of a try that was killed")
    return {
        "CRAWL_CODE_DIGEST": Package(io.BytesIO(gateway.zipped)).digest(),
        "CRAWL_CODE_URL": f"http://127.0.0.1:{gateway.port}/code",
        "CRAWL_CODE_TOKEN": "token",
        "CRAWL_CODE_DIR": str(tmp_path / "code"),
    }


def test_code_is_fetched_after_an_outage(gateway: Any, variables: dict[str, str]) -> None:
    gateway.statuses = [503, 503]
    said: list[str] = []
    folder = fetch_code(variables, said.append)
    assert folder is not None
    assert os.listdir(folder) == ["crawl.py"]
    assert said == [
        "The code cannot be fetched yet, and is tried again: the gateway answers 503: "
        "the bucket is away"
    ]


def test_a_refusal_and_an_endless_outage_are_reported(
    gateway: Any, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.statuses = [404]
    with pytest.raises(CodeUnavailable, match="404"):
        fetch_code(variables, print)
    monkeypatch.setattr(code, "PATIENCE_S", 0.1)
    gateway.statuses = [503]
    with pytest.raises(CodeUnavailable, match="the bucket is away"):
        fetch_code(variables, print)


@pytest.mark.parametrize("statuses", [[0], [503] * 9])
def test_a_stop_ends_the_fetch_within_a_second(
    gateway: Any, variables: dict[str, str], statuses: list[int]
) -> None:
    gateway.statuses = statuses
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        timer = threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGTERM))
        timer.start()
        began = time.monotonic()
        assert fetch_code(variables, print) is None
        assert time.monotonic() - began < 1.3
        timer.join()
        assert signal.sigtimedwait({signal.SIGTERM}, 1) is not None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_other_contents_and_no_zip_are_refused(gateway: Any, variables: dict[str, str]) -> None:
    with pytest.raises(BadConfiguration, match=f"not sha256:{'0' * 64}; deploy it again"):
        fetch_code({**variables, "CRAWL_CODE_DIGEST": "sha256:" + "0" * 64}, print)
    gateway.zipped = b"no zip"
    with pytest.raises(BadConfiguration, match="cannot be used"):
        fetch_code(variables, print)


def test_a_full_disk_is_named(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Package, "unpack", full)
    with pytest.raises(NoRoom, match="No space left"):
        fetch_code(variables, print)
