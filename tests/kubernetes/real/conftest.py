"""One stack over the real kubelet for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.real.real_world import RealWorld, actor_image


@pytest.fixture(scope="package")
def real_stack(
    real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealWorld]:
    """Up with the actor's image on the node; nothing of it outlives the tests."""
    folder = tmp_path_factory.mktemp("real")
    real_cluster.nodes[0].load(actor_image(folder))
    world = RealWorld(folder / "state", real_cluster)
    try:
        world.start()
        yield world
    finally:
        world.end()


@pytest.fixture
def world(real_stack: RealWorld) -> RealWorld:
    """The stack, whole, with no run of an earlier test open."""
    real_stack.healthy()
    return real_stack
