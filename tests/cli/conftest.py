"""A command line whose gateway is a mock and whose clock stands still."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import respx

from crawler_lifecycle.cli import control, main, output

GATEWAY = "http://gateway.test:8500"
NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Result:
    """How a call of ``crawlctl`` ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as a JSON document."""
        return json.loads(self.out)


Crawlctl = Callable[..., Result]


@pytest.fixture
def gateway() -> Iterator[respx.MockRouter]:
    """The gateway; a request that a test did not expect fails it."""
    with respx.mock(base_url=GATEWAY, assert_all_called=True) as router:
        yield router


@pytest.fixture
def crawlctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Crawlctl:
    """Call ``crawlctl`` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIFECYCLE_GATEWAY__URL", GATEWAY)
    monkeypatch.setenv("USER", "tester")
    monkeypatch.setenv("LOGNAME", "tester")
    monkeypatch.setattr(output, "now", lambda: NOW)
    monkeypatch.setattr(control, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(control, "LONGEST_PAUSE_S", 0.002)

    def call(*words: str) -> Result:
        code = main.run(words)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def check_golden(name: str, text: str) -> None:
    """Compare with the file of this name; ``UPDATE_GOLDEN=1`` writes it instead."""
    file = GOLDEN / name
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), f"{name} differs; if that is right, run the test with UPDATE_GOLDEN=1"
