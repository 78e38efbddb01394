"""The fetch of deployed code: outages, stops, wrong contents, and a full disk."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.features.packages.adapters.packing import pack
from crawler_lifecycle.runner import code, code_cache
from crawler_lifecycle.runner.code import CodeUnavailable, NoRoom, fetch_code
from crawler_lifecycle.runner.contract import BadConfiguration
from crawler_lifecycle.runner.main import CODE_WAIT_MAX, CodeWait
from crawler_lifecycle.runner.package import Package


class Gateway(BaseHTTPRequestHandler):
    """Answers with these statuses, and then with the zip; 0 gives no response."""

    zipped = b""
    statuses: list[int]
    pause_s = 0.0
    """The pause before the last byte."""

    def do_GET(self) -> None:
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 0:
            time.sleep(3)
            return
        body = self.zipped if status == 200 else b'{"detail": "the bucket is away"}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:-1])
        time.sleep(self.pause_s)
        self.wfile.write(body[-1:])

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
    assert said == ["the gateway answers 503: the bucket is away"] * 2


def test_a_slow_download_is_a_reason_to_wait(
    gateway: Any, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "_SLOW_S", 0.1)
    monkeypatch.setattr(code, "_BLOCK", 1)
    gateway.pause_s = 0.5
    waits: list[str] = []
    assert fetch_code(variables, waits.append)
    assert set(waits) == {code.DOWNLOADING}


def test_each_new_reason_is_reported_once_and_the_end_of_the_wait_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stats = tmp_path / "stats.json"
    wait = CodeWait(str(stats))
    wait.report("")
    assert not stats.exists(), "code that came at once is no wait"
    for why in ("503", "503", "x" * 300):
        wait.report(why)
    assert json.loads(stats.read_text()) == {"code_wait": "x" * CODE_WAIT_MAX}
    wait.report("")
    assert json.loads(stats.read_text()) == {}
    lines = [json.loads(line)["crawl_progress"] for line in capfd.readouterr().out.splitlines()]
    assert lines == [{"code_wait": "503"}, {"code_wait": "x" * CODE_WAIT_MAX}, {}]
    CodeWait(str(tmp_path / "missing" / "stats.json")).report("503")
    assert "503" in capfd.readouterr().err


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


def test_an_answer_without_end_is_not_stored(
    gateway: Any, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "PATIENCE_S", 0.1)
    monkeypatch.setattr(code, "ZIP_MAX", len(gateway.zipped) - 1)
    with pytest.raises(CodeUnavailable, match=f"it has more than {code.ZIP_MAX} bytes"):
        fetch_code(variables, print)
    assert os.listdir(variables["CRAWL_CODE_DIR"]) == []


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


@pytest.fixture
def cached(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The same with a cache, which has the code. Python writes compiled modules, as for tasks."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    cached = {**variables, "CRAWL_CODE_CACHE": str(tmp_path / "cache")}
    assert fetch_code(cached, print)
    return cached


def test_cached_code_needs_no_gateway_and_no_compiler(
    gateway: Any, cached: dict[str, str], tmp_path: Path
) -> None:
    gateway.statuses = [500] * 99
    assert fetch_code(cached, print)
    code = tmp_path / "code"
    assert sorted(os.listdir(code)) == ["__pycache__", "crawl.py"]
    (compiled,) = (code / "__pycache__").iterdir()
    before = compiled.stat().st_ino
    subprocess.run([sys.executable, "-c", "import crawl"], cwd=code, check=True)
    assert compiled.stat().st_ino == before, "it was compiled again"


def test_a_task_that_changes_its_code_changes_no_other(
    cached: dict[str, str], tmp_path: Path
) -> None:
    def imported(folder: str) -> bytes:
        return subprocess.check_output([sys.executable, "-c", "import crawl"], cwd=folder)

    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    for folder in (first, second):
        os.mkdir(folder)
        assert fetch_code({**cached, "CRAWL_CODE_DIR": folder}, print)
    Path(first, "crawl.py").write_text("print(5)")
    assert (imported(first), imported(second)) == (b"5\n", b"1\n")
    shutil.rmtree(tmp_path / "cache")
    assert (imported(first), imported(second)) == (b"5\n", b"1\n")


def test_a_module_that_a_task_generates_is_imported_by_no_other(
    cached: dict[str, str], tmp_path: Path
) -> None:
    """Python takes modules of the same name, time and size for the same module."""
    said = []
    for word in (b"one", b"two"):
        folder = tmp_path / word.decode()
        folder.mkdir()
        assert fetch_code({**cached, "CRAWL_CODE_DIR": str(folder)}, print)
        (folder / "generated.py").write_bytes(b"print('%b')" % word)
        os.utime(folder / "generated.py", (1, 1))
        program = [sys.executable, "-c", "import generated"]
        said.append(subprocess.check_output(program, cwd=folder).strip())
    assert said == [b"one", b"two"]


def test_code_is_used_without_compiled_modules_that_cannot_be_linked(
    gateway: Any, cached: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    monkeypatch.setattr(os, "link", link)
    gateway.statuses = [500] * 99
    assert fetch_code(cached, print)
    assert (tmp_path / "code" / "crawl.py").read_text() == "print(1)"


def test_each_task_has_a_copy_and_damaged_code_is_fetched(
    gateway: Any, cached: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "code" / "crawl.py").write_text("print(2)")
    assert fetch_code(cached, print)
    assert (tmp_path / "code" / "crawl.py").read_text() == "print(1)"
    (version,) = (tmp_path / "cache").iterdir()
    for damage in ("crawl.py", "more.py"):
        (version / damage).write_text("print(3)")
        assert fetch_code(cached, print)
        assert (tmp_path / "code" / "crawl.py").read_text() == "print(1)"
        assert not (tmp_path / "code" / "more.py").exists()


def test_a_cache_that_cannot_be_written_is_left_out(
    variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert fetch_code({**variables, "CRAWL_CODE_CACHE": str(tmp_path / "file")}, print)
    assert (tmp_path / "code" / "crawl.py").read_text() == "print(1)"


def test_the_cache_keeps_the_versions_that_tasks_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_cache, "VERSIONS_MAX", 2)
    cache = tmp_path / "cache"
    digests = []
    for n in range(3):
        project = tmp_path / f"project-{n}"
        project.mkdir()
        (project / "crawl.py").write_text(f"print({n})")
        file = io.BytesIO()
        pack(project, file)
        digests.append(Package(file).digest())
        code_cache.add_to_cache(str(cache), digests[-1], str(project))
        os.utime(cache / digests[-1].replace(":", "-"), (n, n))
        if n == 1:
            (tmp_path / "copy").mkdir()
            assert code_cache.copy_cached(str(cache), digests[0], str(tmp_path / "copy"))
    assert sorted(os.listdir(cache)) == sorted(
        digest.replace(":", "-") for digest in (digests[0], digests[2])
    )


def test_large_code_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "BYTES_MAX", 3)
    (tmp_path / "crawl.py").write_text("print(1)")
    code_cache.add_to_cache(str(tmp_path / "cache"), "sha256:" + "0" * 64, str(tmp_path))
    assert not (tmp_path / "cache").exists()
