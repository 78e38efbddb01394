"""Runs from start to end on a real API server with its controllers; kwok simulates the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.domain.resources import Resources
from tests.contracts.cluster.kube_harness import FINISHED, SHUTDOWN, scripted
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.kube_testbed import QUICK, KubeTestbed, open_kube_testbed

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUICKLY = scripted(run_for="1s", message=FINISHED)
#: What ``real/test_ends_on_real_kubelet.py`` proves with a container.
ON_A_REAL_NODE = pytest.mark.slow
#: Runs until it is stopped, and then reports what our runner would report.
ENDLESS = scripted(stop_code="11", message=SHUTDOWN)


@pytest_asyncio.fixture(
    loop_scope="session",
    params=[True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["observed", "unobserved"],
)
async def kube(
    request: pytest.FixtureRequest,
    server: WorkflowEnvironment,
    kwok_cluster: Cluster,
    tmp_path: Path,
) -> AsyncIterator[KubeTestbed]:
    async with open_kube_testbed(
        server.client, tmp_path, kwok_cluster, watched=request.param
    ) as kube:
        yield kube


def request(**more: Any) -> dict[str, Any]:
    return {"crawler": "books", **QUICK, **more}


async def test_a_run_of_several_tasks_in_waves(kube: KubeTestbed) -> None:
    kube.knows(QUICKLY)
    handle = await kube.testbed.start(request(tasks=[{}] * 5, max_parallel_tasks=2))
    result = await kube.testbed.ended(handle, 180)
    assert (result.status, result.outcome, result.tasks) == (
        "COMPLETED",
        "finished",
        {"SUCCEEDED": 5},
    )
    rows = kube.tasks()
    assert [(t.exit_code, t.pages, t.node is not None) for t in rows] == [(0, 3, True)] * 5
    assert {t.cluster_uid for t in rows} == {job["metadata"]["uid"] for job in kube.jobs()}
    assert kube.testbed.corrections(1) == []
    await kube.testbed.until(
        lambda: all(labels.SETTLED in job["metadata"]["labels"] for job in kube.jobs())
    )
    await kube.testbed.until(
        lambda: (
            not any(labels.FINALIZER in p["metadata"].get("finalizers", []) for p in kube.pods())
        )
    )
    assert all(labels.SETTLED in pod["metadata"]["labels"] for pod in kube.pods())


@ON_A_REAL_NODE
async def test_a_failure_with_its_cause(kube: KubeTestbed) -> None:
    kube.knows(scripted(run_for="500ms", exit_code="137", reason="OOMKilled"))
    result = await kube.testbed.ended(await kube.testbed.start(request()))
    assert (result.status, result.outcome) == ("FAILED", "killed by oom")
    [task] = kube.tasks()
    assert (task.exit_code, task.outcome) == (137, "killed by oom")
    assert "Out of memory" in (task.cause or "")


@ON_A_REAL_NODE
async def test_a_stop_keeps_exit_code_and_summary(kube: KubeTestbed) -> None:
    kube.knows(ENDLESS)
    handle = await kube.testbed.start(request(tasks=[{}] * 2))
    await kube.until_task("RUNNING", 1)
    await handle.signal("stop", {"request_id": "s1", "requested_by": "ada"})
    result = await kube.testbed.ended(handle)
    assert (result.status, result.outcome, result.tasks) == (
        "FAILED",
        "cancelled",
        {"CANCELLED": 2},
    )
    assert [(t.exit_code, t.pages, t.outcome) for t in kube.tasks()] == [(11, 3, "cancelled")] * 2
    assert kube.testbed.corrections(1) == []
    (
        await kube.testbed.until(lambda: (kube.jobs(), kube.pods()) == ([], [])),
        "let go of, they are gone",
    )


@ON_A_REAL_NODE
async def test_a_forced_stop(kube: KubeTestbed) -> None:
    kube.knows(scripted(stop_after="200ms", stop_code="137"))
    handle = await kube.testbed.start(request())
    await kube.until_task("RUNNING")
    await handle.signal("force_stop", {"request_id": "s1", "requested_by": "ada"})
    result = await kube.testbed.ended(handle)
    assert (result.status, result.outcome, result.tasks) == (
        "FAILED",
        "cancelled",
        {"CANCELLED": 1},
    )
    [task] = kube.tasks()
    assert (task.exit_code, task.exit_signal) == (137, 9)


async def test_a_stop_before_anything_could_run(kube: KubeTestbed) -> None:
    kube.knows(scripted(resources=Resources(cpu="9000")))
    handle = await kube.testbed.start(request())
    assert "nsufficient cpu" in await kube.until_said("No node has capacity for it")
    await handle.signal("stop", {"request_id": "s1"})
    result = await kube.testbed.ended(handle)
    assert (result.status, result.tasks) == ("FAILED", {"CANCELLED": 1})
    await kube.testbed.until(lambda: (kube.jobs(), kube.pods()) == ([], []))


async def test_a_run_is_resumed(kube: KubeTestbed) -> None:
    kube.knows(ENDLESS)
    handle = await kube.testbed.start(request(tasks=[{}] * 2))
    await kube.until_task("RUNNING", 1)
    await handle.signal("stop", {"request_id": "s1"})
    await kube.testbed.ended(handle)
    kube.knows(QUICKLY)
    again = await kube.testbed.start({"run_id": 1, **QUICK}, id="again")
    result = await kube.testbed.ended(again)
    assert (result.status, result.attempt, result.tasks) == ("COMPLETED", 2, {"SUCCEEDED": 2})
    assert sorted((t.task_index, t.attempt) for t in kube.tasks(superseded=True)) == [
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 2),
    ]


async def test_a_running_task_is_adopted(kube: KubeTestbed) -> None:
    kube.knows(scripted())
    handle = await kube.testbed.start(request())
    before = await kube.until_task("RUNNING")
    await handle.terminate("its workflow is lost")
    again = await kube.testbed.start({"run_id": 1, **QUICK}, id="again")
    await kube.testbed.snapshot_where(again, lambda s: s.polls >= 1)
    kube.end_pod(kube.pods()[0]["metadata"]["name"], 0, FINISHED)
    result = await kube.testbed.ended(again)
    assert (result.status, result.attempt) == ("COMPLETED", 2)
    assert [(t.task_id, t.cluster_uid) for t in kube.tasks()] == [
        (before.task_id, before.cluster_uid)
    ]
    assert len(kube.jobs()) == 1


@ON_A_REAL_NODE
async def test_a_pod_deleted_behind_our_back(kube: KubeTestbed) -> None:
    kube.knows(scripted())
    handle = await kube.testbed.start(request())
    await kube.until_task("RUNNING")
    kube.delete_pod(kube.pods()[0]["metadata"]["name"])
    result = await kube.testbed.ended(handle)
    assert (result.status, result.outcome) == ("FAILED", "interrupted")
    [found] = kube.testbed.corrections(1)
    assert (found.kind, found.believed, found.truth) == ("killed", "RUNNING", "FAILED")
    assert "deleted by somebody else" in (kube.tasks()[0].cause or "")


async def test_a_quota_of_zero_and_then_room(kube: KubeTestbed) -> None:
    kube.knows(QUICKLY)
    quotas = kube.path("resourcequotas")
    await asyncio.to_thread(kube.cluster.quota, kube.namespace, "none", {"count/jobs.batch": "0"})
    handle = await kube.testbed.start(request())
    assert "exceeded quota: none" in await kube.until_said("quota is used up")
    assert [t.status for t in kube.tasks()] == ["QUEUED"]
    kube.cluster.admin.patch(f"{quotas}/none", {"spec": {"hard": {"count/jobs.batch": "5"}}})
    result = await kube.testbed.ended(handle)
    assert (result.status, result.tasks) == ("COMPLETED", {"SUCCEEDED": 1})


async def test_no_pod_may_be_made_and_then_it_may(kube: KubeTestbed) -> None:
    kube.knows(QUICKLY)
    quotas = kube.path("resourcequotas")
    await asyncio.to_thread(kube.cluster.quota, kube.namespace, "no-pods", {"pods": "0"})
    handle = await kube.testbed.start(request())
    assert "exceeded quota: no-pods" in await kube.until_said("quota is used up")
    kube.cluster.admin.delete(f"{quotas}/no-pods", {})
    result = await kube.testbed.ended(handle)
    assert (result.status, result.tasks) == ("COMPLETED", {"SUCCEEDED": 1})


async def test_a_lost_node_is_told_and_a_stop_waits_for_it(kube: KubeTestbed) -> None:
    """Nothing proves that its containers have ended, so the run is not reported as stopped."""
    kube.knows(scripted(stop_after="600s"))
    handle = await kube.testbed.start(request(limits={**QUICK["limits"], "force_stop_after_s": 2}))
    task = await kube.until_task("RUNNING")
    [pod] = kube.pods()
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-20T20:00:00Z"}
    status = {"status": {"conditions": [ready]}}
    kube.cluster.admin.patch(
        kube.path("pods", f"{pod['metadata']['name']}/status"), status, "strategic-merge"
    )
    assert task.node is not None
    await kube.until_said(f"Node {task.node} has not responded")
    await handle.signal("stop", {"request_id": "s1"})
    await kube.until_said("shutting down")
    await kube.testbed.until(lambda: _grace(kube) == 1)
    assert str(kube.run().status) == "STOPPING"
    assert [str(t.status) for t in kube.tasks()] == ["STOPPING"]
    ended = {
        "state": {
            "terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2031-01-01T00:00:00Z"}
        }
    }
    container = {**pod["status"]["containerStatuses"][0], "ready": False, **ended}
    back = {"status": {"phase": "Failed", "containerStatuses": [container]}}
    kube.cluster.admin.patch(
        kube.path("pods", f"{pod['metadata']['name']}/status"), back, "strategic-merge"
    )
    result = await kube.testbed.ended(handle)
    assert (result.status, result.outcome, result.tasks) == (
        "FAILED",
        "cancelled",
        {"CANCELLED": 1},
    )
    assert [t.outcome for t in kube.tasks()] == ["cancel_timeout"]


def _grace(kube: KubeTestbed) -> int | None:
    grace: int | None = kube.pods()[0]["metadata"].get("deletionGracePeriodSeconds")
    return grace


async def test_a_namespace_deleted_under_a_run(kube: KubeTestbed) -> None:
    """Its pods are held until their ends are on record; then it disappears, and nothing was lost."""
    kube.knows(ENDLESS)
    handle = await kube.testbed.start(request())
    await kube.until_task("RUNNING")
    kube.cluster.admin.delete(f"/api/v1/namespaces/{kube.namespace}", {})
    result = await kube.testbed.ended(handle)
    assert (result.status, result.outcome) == ("FAILED", "interrupted")
    assert [t.exit_code for t in kube.tasks()] == [11]
    path = f"/api/v1/namespaces/{kube.namespace}"
    await kube.testbed.until(lambda: kube.cluster.admin.find(path) is None, 150)
