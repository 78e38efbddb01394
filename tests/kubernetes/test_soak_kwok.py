"""Does the status match the pod, always? A seeded soak: runs, everything that befalls them, and the
record of etcd.

A calm one, in which pods end and tasks are added, belongs to every run of the tests. Those that let
everything loose: ``python -m tools.soak.kubernetes``, or ``pytest -m soak`` with ``SOAK_SEED``,
``SOAK_RUNS``, and ``SOAK_SECONDS``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.kubernetes.cluster.cluster import Cluster
from tools.soak.kubernetes.plan import Plan, make_plan
from tools.soak.kubernetes.record import flags
from tools.soak.kubernetes.soaking import PATIENCE_S, soak

SEED, RUNS = int(os.environ.get("SOAK_SEED", "3")), int(os.environ.get("SOAK_RUNS", "14"))
SECONDS = float(os.environ.get("SOAK_SECONDS", "40"))


#: What disturbs nothing: every end has only one explanation, on any machine.
CALM = ("poll_now", "add_tasks", "audit")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.asyncio(loop_scope="session")
async def test_runs_that_nobody_disturbs_match_their_pods(
    server: WorkflowEnvironment, kube_binaries: None, tmp_path: Path
) -> None:
    await _match(server, tmp_path, make_plan(3, runs=6, seconds=8.0, only=CALM))


@pytest.mark.soak
@pytest.mark.timeout(SECONDS * 4 + PATIENCE_S * 2)
@pytest.mark.asyncio(loop_scope="session")
async def test_the_status_matches_the_pod(
    server: WorkflowEnvironment, kube_binaries: None, tmp_path: Path
) -> None:
    await _match(server, tmp_path, make_plan(SEED, runs=RUNS, seconds=SECONDS))


async def _match(server: WorkflowEnvironment, folder: Path, plan: Plan) -> None:
    with Cluster(kwok=4, extra=flags(folder)) as cluster:
        verdict = await soak(server.client, folder, cluster, plan)
    assert verdict.violations == [], f"{verdict}\n\n" + "\n\n".join(verdict.violations)
    assert verdict.counts["runs"] > len(plan.runs) / 2
    assert verdict.counts["pods"] > 0
