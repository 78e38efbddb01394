"""Bad input and bad neighbours on a real API server: each is explained in words, can be stopped,
and ends with the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.domain.crawlers.pod import PodOptions, Toleration
from crawler_lifecycle.domain.run import RunResult
from tests.contracts.cluster.kube_harness import SHUTDOWN, scripted
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.kube_testbed import KubeTestbed, open_kube_testbed
from tests.kubernetes.test_lifecycle_kwok import ENDLESS, QUICKLY, request

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Does not exit until it is made to, so that something can be observed meanwhile.
DEAF = scripted(stop_after="3600s")


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
        server.client, tmp_path, kwok_cluster, watched=request.param, service_account="crawl"
    ) as kube:
        kube.make_account("crawl")
        yield kube


async def stopped(
    kube: KubeTestbed, handle: object, run_id: int, meanwhile: Callable[[], None] | None = None
) -> RunResult:
    """Return the result of a stop, and check that it was on record before the end; ``meanwhile``
    happens in between.
    """
    await handle.signal("stop", {"request_id": f"s{run_id}", "requested_by": "ada"})  # type: ignore[attr-defined]
    if meanwhile is not None:
        await kube.testbed.until(lambda: str(kube.run(run_id).status) == "STOPPING")
        await asyncio.to_thread(meanwhile)
    result: RunResult = await kube.testbed.ended(handle)  # type: ignore[arg-type]
    assert (result.status, result.outcome) == ("FAILED", "cancelled")
    assert kube.testbed.corrections(run_id) == []
    return result


@pytest.mark.parametrize(
    ("hard", "status"),
    [pytest.param("count/jobs.batch", "QUEUED", marks=pytest.mark.slow), ("pods", "PENDING")],
)
async def test_a_stop_while_a_quota_is_zero(kube: KubeTestbed, hard: str, status: str) -> None:
    """There is no Job, or a Job without a pod, so there is nothing to wait for."""
    kube.knows(QUICKLY)
    await asyncio.to_thread(kube.cluster.quota, kube.namespace, "none", {hard: "0"})
    handle = await kube.testbed.start(request())
    assert "exceeded quota: none" in await kube.until_said("quota is used up")
    assert [str(task.status) for task in kube.tasks()] == [status]
    assert (await stopped(kube, handle, 1)).tasks == {"CANCELLED": 1}
    await kube.testbed.until(lambda: kube.jobs() == [])


async def test_a_service_account_that_is_missing_and_then_made(kube: KubeTestbed) -> None:
    kube.knows(QUICKLY)
    kube.cluster.admin.delete(kube.path("serviceaccounts", "crawl"))
    stays = await kube.testbed.start(request())
    await kube.testbed.until(lambda: kube.testbed.store.runs.get_run(1))
    goes = await kube.testbed.start(request())
    for run_id in (1, 2):
        said = await kube.until_said("The service account", run_id=run_id)
        assert 'serviceaccount "crawl" not found' in said
        assert [str(task.status) for task in kube.tasks(run_id)] == ["PENDING"]
    assert (await stopped(kube, goes, 2)).tasks == {"CANCELLED": 1}
    kube.make_account("crawl")
    result = await kube.testbed.ended(stays)
    assert (result.status, result.tasks) == ("COMPLETED", {"SUCCEEDED": 1})
    assert kube.testbed.corrections(1) == []


async def test_a_manifest_that_the_server_refuses(kube: KubeTestbed) -> None:
    """It will never be accepted, so nothing waits for it, and only the server could know."""
    gt = PodOptions(tolerations=[Toleration("level", "Gt", "high", "NoSchedule")])
    kube.knows(replace(QUICKLY, kubernetes=gt))
    result = await kube.testbed.ended(await kube.testbed.start(request(tasks=[{}] * 2)))
    assert (result.status, result.outcome, result.tasks) == (
        "FAILED",
        "deploy_failed",
        {"FAILED": 2},
    )
    for task in kube.tasks():
        assert (task.outcome, task.cluster_uid, task.exit_code) == ("deploy_failed", None, None)
        assert "spec.template.spec.tolerations[0]" in (task.cause or "")
    assert kube.jobs() == []
    assert kube.testbed.corrections(1) == []


async def test_a_job_recreated_by_hand_leaves_the_rest_of_its_run_alone(kube: KubeTestbed) -> None:
    """The task is recorded as lost; the other one continues and can be stopped; the foreign Job is
    not touched.
    """
    kube.knows(ENDLESS)
    handle = await kube.testbed.start(request(tasks=[{}] * 2))
    await kube.until_task("RUNNING", 0)
    await kube.until_task("RUNNING", 1)
    stranger = kube.recreate("crawl-1-0-1")
    lost = await kube.until_task("LOST", 0)
    assert stranger in (lost.cause or "")
    assert [str(task.status) for task in kube.tasks()] == ["LOST", "RUNNING"]
    [found] = kube.testbed.corrections(1)
    assert (found.kind, found.truth) == ("not_ours", "LOST")
    await handle.signal("stop", {"request_id": "s1"})
    result = await kube.testbed.ended(handle)
    assert (result.status, result.outcome, result.tasks) == (
        "FAILED",
        "cancelled",
        {"LOST": 1, "CANCELLED": 1},
    )
    [job] = [job for job in kube.jobs() if job["metadata"]["name"] == "crawl-1-0-1"]
    assert (job["metadata"]["uid"], job["metadata"].get("deletionTimestamp")) == (stranger, None)


async def test_a_stop_while_a_pod_that_somebody_deleted_takes_its_time(kube: KubeTestbed) -> None:
    kube.knows(DEAF)
    handle = await kube.testbed.start(request())
    await kube.until_task("RUNNING")
    pod = kube.pods()[0]["metadata"]["name"]
    kube.delete_pod(pod)
    assert "The pod has been shutting down" in await kube.until_said(
        "its pod was deleted by somebody else"
    )
    assert [str(task.status) for task in kube.tasks()] == ["RUNNING"]
    result = await stopped(kube, handle, 1, lambda: kube.end_pod(pod, 11, SHUTDOWN))
    assert result.tasks == {"CANCELLED": 1}
    assert kube.tasks()[0].exit_code == 11
