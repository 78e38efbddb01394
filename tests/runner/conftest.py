from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.runner.runner_fixture import RunnerFixture
from tests.runner.scrapy_project import ScrapyFixture, Site, write_project


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[RunnerFixture]:
    made = RunnerFixture(tmp_path)
    yield made
    made.close()


class _Page(BaseHTTPRequestHandler):
    """Serves a small page for any path; paths are recorded, and answered in order."""

    site: Site

    def do_GET(self) -> None:
        self.site.come(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "11")
        self.end_headers()
        self.wfile.write(b"<p>page</p>")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def scrapy_fixture(tmp_path: Path) -> Iterator[ScrapyFixture]:
    site = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Page", (_Page,), {"site": site}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    project = write_project(tmp_path / "project")
    made = ScrapyFixture(tmp_path, project, server.server_address[1], site)
    yield made
    made.close()
    site.answer_all()
    server.shutdown()
    thread.join()
    server.server_close()
