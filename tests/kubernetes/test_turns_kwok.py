"""Runs take turns on a full cluster without pools or Kueue: a real API server and scheduler, with
kwok's nodes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clusters.kubernetes.kind import KubernetesKind
from crawler_lifecycle.clusters.kubernetes.labels import RUN
from crawler_lifecycle.domain.pools import Pools
from crawler_lifecycle.domain.resources import Resources
from tests.contracts.cluster.kube_harness import FINISHED, scripted
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.kube_testbed import QUICK, KubeTestbed, open_kube_testbed

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Two of them fill one of the three nodes.
SLOTS, LARGE = 6, Resources(cpu="64")
WINDOW = KubernetesKind.window


@pytest_asyncio.fixture(loop_scope="session")
async def kube(
    server: WorkflowEnvironment, kwok_cluster: Cluster, tmp_path: Path
) -> AsyncIterator[KubeTestbed]:
    pools = Pools(window=WINDOW)
    async with open_kube_testbed(
        server.client, tmp_path, kwok_cluster, watched=True, pools=pools
    ) as kube:
        yield kube


def pods(kube: KubeTestbed, phase: str, *runs: int) -> list[Any]:
    """Return the pods of these runs in this phase, the oldest first."""
    names = [str(run_id) for run_id in runs]
    found = [
        pod
        for pod in kube.pods()
        if pod["status"].get("phase") == phase and pod["metadata"]["labels"][RUN] in names
    ]
    return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])


async def test_one_task_does_not_wait_for_the_burst_of_another_run(kube: KubeTestbed) -> None:
    """Pods are ended by hand, so nothing depends on the speed of this machine."""
    assert WINDOW is not None
    kube.knows(scripted(resources=LARGE))
    await kube.testbed.start({"crawler": "books", **QUICK, "tasks": [{}] * 48}, id="burst")
    await kube.until_said("No node has capacity for it")  # pods of other tests may have some of it
    await kube.testbed.start({"crawler": "books", **QUICK}, id="single")
    await kube.testbed.until(lambda: pods(kube, "Pending", 2))
    before = len(pods(kube, "Pending", 1))
    assert before <= WINDOW + SLOTS, "so many pods of the burst may begin before the single one"
    waiting = [task for task in kube.tasks(1) if task.status == "QUEUED"]
    assert waiting, "others of the burst are not on the cluster yet"
    begun = set[str]()

    def one_more() -> bool:
        known = len(begun)
        begun.update(
            pod["metadata"]["uid"]
            for pod in (*pods(kube, "Running", 1, 2), *pods(kube, "Succeeded", 1, 2))
        )
        return len(begun) > known

    while not pods(kube, "Running", 2):
        await kube.testbed.until(one_more)
        if running := pods(kube, "Running", 1):
            kube.end_pod(running[0]["metadata"]["name"], 0, FINISHED)
    # The scheduler chooses which of the waiting pods is next, and its back-off can prefer new pods
    # while others end quickly.
    print(f"\nthe single one began as number {len(begun)} of 49; {before} pods had been before it")
