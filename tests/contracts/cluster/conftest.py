from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.cluster.cluster_harness import FakeHarness, Harness, LocalHarness


@pytest.fixture(params=["fake", "local"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    if request.param == "fake":
        yield FakeHarness(tmp_path)
        return
    local = LocalHarness(tmp_path)
    yield local
    local.close()
