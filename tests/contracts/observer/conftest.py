from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.observer.observer_harness import FakeHarness, Harness, LocalHarness


@pytest.fixture(params=["fake", "local"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made: Harness = FakeHarness() if request.param == "fake" else LocalHarness(tmp_path)
    yield made
    made.close()
