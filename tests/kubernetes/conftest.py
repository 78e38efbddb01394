"""Two clusters for all tests below: one that pretends to run pods, one that runs them.

Each starts when asked for.
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
    """Skip what cannot run here, loudly; on the machine that judges a change nothing may be
    missing.
    """
    if os.environ.get("CI"):
        pytest.fail(f"the test cluster cannot run, and CI allows no skip: {reason}")
    pytest.skip(f"THE TEST CLUSTER CANNOT RUN HERE: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster may have to start, and each thing that a test waits for has a minute or two.

    What asks for a real kubelet has the marker ``kubelet``, as it may be played beside the rest.
    """
    for item in items:
        if "real_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kubelet)
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def kube_binaries() -> None:
    """The programs are there, or the test is skipped: building them takes minutes and is `make
    kube-binaries`.
    """
    try:
        binaries.available()
    except binaries.NoBinaries as error:
        _unable(str(error))


@pytest.fixture(scope="session")
def kwok_cluster(kube_binaries: None) -> Iterator[Cluster]:
    """Control plane and three kwok nodes; no containers, no root."""
    with Cluster(kwok=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_cluster(kube_binaries: None) -> Iterator[Cluster]:
    """Control plane and one real kubelet with containerd and runc; root."""
    if reason := node.unable():
        _unable(reason)
    with Cluster(nodes=1) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    """A Temporal server on which time passes as it does; each module has its own, and leaves it
    behind as it is.
    """
    async with temporal_server(skipping=False) as env:
        yield env
