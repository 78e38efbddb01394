"""The story of ``make run`` in other settings: on database servers, and without wake-ups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import SERVERS, empty_database

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "wake_ups"), [*((kind, "true") for kind in SERVERS), ("sqlite", "false")]
)
def test_the_story(kind: str, wake_ups: str, tmp_path: Path) -> None:
    with empty_database(kind, tmp_path / "story.db") as url:
        words = ["--state-dir", str(tmp_path / "state"), "--free-ports", "--database", url]
        told = subprocess.run(
            [sys.executable, "-m", "examples.story", *words],
            cwd=ROOT,
            env={**os.environ, "TERM": "dumb", "LIFECYCLE_WORKER__WAKE_UPS": wake_ups},
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert told.returncode == 0, (told.stdout + told.stderr)[-3000:]
    assert "every check held" in told.stdout
    assert not list((tmp_path / "state").rglob("lifecycle.db")), (
        "nothing was kept beside that database"
    )
