from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.cluster.cluster_harness import FakeHarness, Harness, LocalHarness, SpoolHarness
from tests.contracts.cluster.kube_fake_harness import FakeKubernetesHarness


#: The example of a custom kind has processes like ``local``, and runs with the tests that start
#: those.
@pytest.fixture(
    params=["fake", "local", "kubernetes", pytest.param("spool", marks=pytest.mark.processes)]
)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    if request.param == "fake":
        yield FakeHarness(tmp_path)
        return
    if request.param == "kubernetes":
        kubernetes = FakeKubernetesHarness(tmp_path)
        yield kubernetes
        kubernetes.close()
        return
    local = SpoolHarness(tmp_path) if request.param == "spool" else LocalHarness(tmp_path)
    yield local
    local.close()
