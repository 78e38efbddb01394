"""A command line with a mock gateway and a stopped clock."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import respx

from crawler_lifecycle.cli import main, output
from crawler_lifecycle.cli.client import polling
from tests.cli.cli_harness import Served, serve
from tests.cli.cli_support import GATEWAY, NOW, Crawlctl, Result
from tests.support.s3 import S3Server, rclone_s3, use_aws
from tests.support.s3_faults import FaultProxy, fault_proxy


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """Object storage."""
    with rclone_s3() as running:
        yield running


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The only route to the gateway, and the one that the AWS settings name."""
    with fault_proxy(server.url) as between:
        use_aws(monkeypatch, between.url)
        yield between


@pytest.fixture
def gateway() -> Iterator[respx.MockRouter]:
    """The gateway, which fails the test for an unexpected request."""
    with respx.mock(base_url=GATEWAY, assert_all_called=True) as router:
        yield router


@pytest.fixture
def served() -> Iterator[Served]:
    """The gateway on a socket, in a thread, for programs and for chunked data."""
    with serve() as running:
        yield running


@pytest.fixture
def closed_port() -> Iterator[Callable[[], int]]:
    """Ports on which nobody listens, and which nobody else gets during the test."""
    with ExitStack() as held:

        def take() -> int:
            probe = held.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

        yield take


class Waiting:
    """Time that advances only while somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def crawlctl(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Crawlctl:
    """Call ``crawlctl`` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIFECYCLE_GATEWAY__URL", GATEWAY)
    for name in ("LIFECYCLE_GATEWAY__TOKEN", "LIFECYCLE_CONFIG", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USER", "tester")
    monkeypatch.setenv("LOGNAME", "tester")
    monkeypatch.setattr(output, "now", lambda: NOW)
    monkeypatch.setattr(polling, "time", Waiting())
    monkeypatch.setattr(polling, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(polling, "LONGEST_PAUSE_S", 0.002)

    def call(*words: str) -> Result:
        code = main.run(words)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call
