from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.logs.logs_harness import (
    FakeHarness,
    Harness,
    LocalHarness,
    PodHarness,
    SpoolHarness,
)


@pytest.fixture(params=["fake", "local", "kubernetes", "spool"])
def printing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    if request.param == "kubernetes":
        harness: Harness = PodHarness(tmp_path)
    elif request.param == "spool":
        harness = SpoolHarness(tmp_path / "state")
    else:
        harness = FakeHarness() if request.param == "fake" else LocalHarness(tmp_path / "state")
    yield harness
    harness.close()
