"""One stack over the real kubelet for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.real.real_harness import RealHarness, actor_image


@pytest.fixture(scope="package")
def real_stack(
    real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealHarness]:
    """The stack with the actor's image on the node; none of it outlives the tests."""
    folder = tmp_path_factory.mktemp("real")
    real_cluster.nodes[0].load(actor_image(folder))
    harness = RealHarness(folder / "state", real_cluster)
    try:
        harness.start()
        yield harness
    finally:
        harness.end()


@pytest.fixture
def harness(real_stack: RealHarness) -> RealHarness:
    """The intact stack, with no run of an earlier test open."""
    real_stack.healthy()
    return real_stack
