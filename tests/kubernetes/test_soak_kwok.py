"""Does the status match the pod, always? A seeded soak: runs, everything that befalls them, and the record of etcd.

One short soak of a fixed seed belongs to every run of the tests. For longer ones with other seeds:
``python -m tests.kubernetes.soak``, or ``SOAK_SEED``, ``SOAK_RUNS`` and ``SOAK_SECONDS`` here.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.soak.plan import make_plan
from tests.kubernetes.soak.record import flags
from tests.kubernetes.soak.soaking import PATIENCE_S, soak

SEED, RUNS = int(os.environ.get("SOAK_SEED", "3")), int(os.environ.get("SOAK_RUNS", "14"))
SECONDS = float(os.environ.get("SOAK_SECONDS", "40"))


@pytest.mark.timeout(SECONDS * 4 + PATIENCE_S * 2)
@pytest.mark.asyncio(loop_scope="session")
async def test_the_status_matches_the_pod(server: WorkflowEnvironment, kube_binaries: None, tmp_path: Path) -> None:
    plan = make_plan(SEED, runs=RUNS, seconds=SECONDS)
    with Cluster(kwok=4, extra=flags(tmp_path)) as cluster:
        verdict = await soak(server.client, tmp_path, cluster, plan)
    assert verdict.violations == [], f"{verdict}\n\n" + "\n\n".join(verdict.violations)
    assert verdict.counts["runs"] > RUNS / 2
    assert verdict.counts["pods"] > 0
