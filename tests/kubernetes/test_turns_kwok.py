"""Runs take turns on a full cluster without pools and without Kueue: a real API server and scheduler; kwok's nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clusters.kubernetes.kind import KubernetesKind
from crawler_lifecycle.domain.pools import Pools
from crawler_lifecycle.domain.resources import Resources
from tests.contracts.cluster.kube_harness import FINISHED, scripted
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.kube_lab import QUICK, KubeLab, kube_laboratory

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Two of them fill one of the three nodes.
SLOTS, LARGE = 6, Resources(cpu="64")
WINDOW = KubernetesKind.window


@pytest_asyncio.fixture(loop_scope="session")
async def kube(server: WorkflowEnvironment, kwok_cluster: Cluster, tmp_path: Path) -> AsyncIterator[KubeLab]:
    pools = Pools(window=WINDOW)
    async with kube_laboratory(server.client, tmp_path, kwok_cluster, watched=True, pools=pools) as kube:
        yield kube


def begun(kube: KubeLab) -> list[Any]:
    """The tasks that began, in their order."""
    rows = [task for run_id in (1, 2) if kube.lab.store.runs.get_run(run_id) for task in kube.tasks(run_id)]
    return sorted((task for task in rows if task.started_at is not None), key=lambda task: task.started_at)


async def test_one_task_does_not_wait_for_the_burst_of_another_run(kube: KubeLab) -> None:
    assert WINDOW is not None
    kube.knows(scripted(resources=LARGE, run_for="3s", exit_code="0", message=FINISHED))
    burst = await kube.lab.start({"crawler": "books", **QUICK, "tasks": [{}] * 48}, id="burst")
    await kube.until_said("No node has capacity for it")
    await kube.lab.until(lambda: len(begun(kube)) >= SLOTS)
    before = len(begun(kube))
    single = await kube.lab.start({"crawler": "books", **QUICK}, id="single")
    await kube.lab.ended(single, 180)
    pending = [task for task in kube.tasks(1) if task.status == "PENDING"]
    assert len(pending) <= WINDOW + SLOTS
    result = await kube.lab.ended(burst, 300)
    assert result.tasks == {"SUCCEEDED": 48}
    place = next(n for n, task in enumerate(begun(kube)) if task.run_id == 2)
    print(f"\n{before} tasks had begun when the single one came; it began as number {place + 1} of 49")
    assert place - before <= WINDOW + SLOTS
