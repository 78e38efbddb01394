"""Two clusters for all tests below: one that simulates pods, one that runs them.

Each starts on first use.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from tests.kubernetes.cluster import binaries, node
from tests.kubernetes.cluster.cluster import Cluster
from tests.support.go_programs import FRUGAL
from tests.support.temporal import temporal_server

HERE = Path(__file__).parent
# For each call of helm and kubectl, and the Temporal server of a stack.
os.environ.update(FRUGAL)


def _unable(reason: str) -> None:
    """Skip what cannot run here, with a warning; on the machine that judges a change, nothing may
    be missing.
    """
    if os.environ.get("CI"):
        pytest.fail(f"the test cluster cannot run, and CI allows no skip: {reason}")
    pytest.skip(f"THE TEST CLUSTER CANNOT RUN HERE: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow time for the start of a cluster, and a minute or two for each wait of a test.

    Mark tests that need a real kubelet with ``kubelet``, because they can run in parallel with the
    rest.
    """
    for item in items:
        if "real_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kubelet)
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def kube_binaries() -> None:
    """Skip the test unless the programs exist: a build takes minutes, and is `make kube-binaries`."""
    try:
        binaries.available()
    except binaries.NoBinaries as error:
        _unable(str(error))


@pytest.fixture(scope="session")
def kwok_cluster(kube_binaries: None) -> Iterator[Cluster]:
    """A control plane and three kwok nodes, without containers or root."""
    with Cluster(kwok=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_cluster(kube_binaries: None) -> Iterator[Cluster]:
    """A control plane and one real kubelet with containerd and runc, as root."""
    if reason := node.unable():
        _unable(reason)
    with Cluster(nodes=1) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    """A Temporal server with real time; each module has its own."""
    async with temporal_server(skipping=False) as env:
        yield env
