"""Caps and shares of pools on a real API server; who ran when is read from the pods."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime
from itertools import accumulate
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.domain.pools import Pool, Pools
from tests.contracts.cluster.kube_harness import FINISHED, scripted
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.kube_lab import QUICK, KubeLab, kube_laboratory

pytestmark = pytest.mark.asyncio(loop_scope="session")


def most_at_once(kube: KubeLab, runs: set[str]) -> int:
    """The most pods of these runs that were there at the same moment, from their creation to their end."""
    moves = []
    for pod in kube.pods():
        if pod["metadata"]["labels"][labels.RUN] in runs:
            end = pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
            moves += [
                (datetime.fromisoformat(end), -1),
                (datetime.fromisoformat(pod["metadata"]["creationTimestamp"]), 1),
            ]
    return max(accumulate(step for _, step in sorted(moves)))


async def test_caps_hold_on_kubernetes(server: WorkflowEnvironment, kwok_cluster: Cluster, tmp_path: Path) -> None:
    pools = Pools({"narrow": Pool(max=2), "wide": Pool()}, slots=5)
    async with kube_laboratory(server.client, tmp_path, kwok_cluster, watched=True, pools=pools) as kube:
        kube.knows(scripted(run_for="2s", message=FINISHED))
        names = ("narrow", "wide", "narrow", "wide")
        handles = [
            await kube.lab.start({"crawler": "books", "tasks": [{}] * 4, "pool": name, **QUICK}) for name in names
        ]
        results = [await kube.lab.ended(handle, 180) for handle in handles]
        assert [result.status for result in results] == ["COMPLETED"] * 4
        by_pool = {
            name: {str(r.run_id) for r, one in zip(results, names, strict=True) if one == name} for name in names
        }
        pods = await asyncio.to_thread(kube.pods)
        assert Counter(pod["metadata"]["labels"][labels.RUN] for pod in pods) == {str(r.run_id): 4 for r in results}
        assert most_at_once(kube, by_pool["narrow"]) <= 2
        assert most_at_once(kube, by_pool["narrow"] | by_pool["wide"]) <= 5
        assert all(row.in_use == row.waiting_tasks == 0 for row in kube.lab.store.pools.list_pools())
