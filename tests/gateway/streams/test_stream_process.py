"""A gateway process that is asked to leave while people watch."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from crawler_lifecycle.store import upgrade
from tests.gateway.gateway_process import environment, gateway

pytestmark = pytest.mark.processes


def test_readers_do_not_keep_the_gateway_from_leaving(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    upgrade(url)
    with (
        gateway(environment(tmp_path, LIFECYCLE_DATABASE__URL=url), tmp_path) as running,
        httpx.stream("GET", f"{running.url}/v1/events", timeout=60) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == "event: hello"
        running.process.send_signal(signal.SIGTERM)
        # The answer is complete. One that was cut, because the gateway had waited for its readers in vain, would raise.
        assert all(not line.startswith("event:") for line in lines)
        assert running.process.wait(60) == 0
        assert "Traceback" not in running.log.read_text()
