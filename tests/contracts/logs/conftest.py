from __future__ import annotations

from pathlib import Path

import pytest
from logs_harness import FakeHarness, Harness, LocalHarness


@pytest.fixture(params=["fake", "local"])
def printing(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    return FakeHarness() if request.param == "fake" else LocalHarness(tmp_path / "state")
