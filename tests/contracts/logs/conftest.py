from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.logs.logs_harness import FakeHarness, Harness, LocalHarness, PodHarness


@pytest.fixture(params=["fake", "local", "kubernetes"])
def printing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    if request.param == "kubernetes":
        harness: Harness = PodHarness(tmp_path)
    else:
        harness = FakeHarness() if request.param == "fake" else LocalHarness(tmp_path / "state")
    yield harness
    harness.close()
