"""Runs on a cluster whose own parts, or our rights, disappear during the run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.domain.run import RunResult
from tests.contracts.cluster.kube_harness import FINISHED, scripted
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.kube_testbed import KubeTestbed, open_kube_testbed
from tests.kubernetes.test_lifecycle_kwok import ENDLESS, request

pytestmark = pytest.mark.asyncio(loop_scope="session")

RULES = [
    {
        "apiGroups": ["batch"],
        "resources": ["jobs"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["get", "list", "watch", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods/log", "events"], "verbs": ["get", "list"]},
]


class Rights:
    """The rights of our service account, which tests grant and revoke."""

    def __init__(self, cluster: Cluster, *, without: tuple[str, ...] = ()) -> None:
        self._admin = cluster.admin
        self.namespace = cluster.namespace("rights")
        user = f"system:serviceaccount:{self.namespace}:ours"
        self.api = Api(
            kubeconfig=cluster.kubeconfig_of(user, self.namespace),
            namespace=self.namespace,
            connect_timeout_s=2,
            read_timeout_s=5,
        )
        self._path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        rules = [
            {**rule, "verbs": [verb for verb in rule["verbs"] if verb not in without]}
            for rule in RULES
        ]
        self._admin.post(f"{self._path}/roles", {"metadata": {"name": "ours"}, "rules": rules})
        self.give()

    def give(self) -> None:
        group = "rbac.authorization.k8s.io"
        self._admin.post(
            f"{self._path}/rolebindings",
            {
                "metadata": {"name": "ours"},
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "ours"},
                "subjects": [
                    {"kind": "ServiceAccount", "name": "ours", "namespace": self.namespace}
                ],
            },
        )

    def take(self) -> None:
        self._admin.delete(f"{self._path}/rolebindings/ours", {})


@pytest.mark.parametrize(
    "watched", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["observed", "unobserved"]
)
async def test_rights_removed_in_mid_run(
    server: WorkflowEnvironment, kwok_cluster: Cluster, tmp_path: Path, watched: bool
) -> None:
    """Missing rights of our own fail no run: it names what is missing, can be stopped, and
    continues with the rights.
    """
    rights = Rights(kwok_cluster)
    async with open_kube_testbed(
        server.client, tmp_path, kwok_cluster, watched=watched, api=rights.api
    ) as kube:
        kube.knows(ENDLESS)
        handle = await kube.testbed.start(request())
        await kube.until_task("RUNNING")
        rights.take()
        said = await kube.until_said("needs permission to list", 60)
        assert "(403)" in said
        assert [str(task.status) for task in kube.tasks()] == ["RUNNING"]
        late = await kube.testbed.start(request())
        await kube.until_said("needs permission to create jobs", run_id=2)
        assert [str(task.status) for task in kube.tasks(2)] == ["QUEUED"]
        await handle.signal("stop", {"request_id": "s1"})
        await kube.testbed.until(lambda: str(kube.run().status) == "STOPPING")
        await asyncio.sleep(2)
        assert str(kube.run().status) == "STOPPING", "nothing is called stopped without proof"
        rights.give()
        result = await kube.testbed.ended(handle)
        assert (result.status, result.outcome, result.tasks) == (
            "FAILED",
            "cancelled",
            {"CANCELLED": 1},
        )
        assert [task.exit_code for task in kube.tasks()] == [11]
        await kube.until_task("RUNNING", run_id=2)
        await late.signal("stop", {"request_id": "s2"})
        assert (await kube.testbed.ended(late)).tasks == {"CANCELLED": 1}
        assert kube.testbed.corrections(1) == kube.testbed.corrections(2) == []
        await kube.testbed.until(lambda: (kube.jobs(), kube.pods()) == ([], []), 150)


@pytest.mark.parametrize(
    "watched", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["observed", "unobserved"]
)
async def test_parts_of_the_control_plane_are_killed_and_hang(
    server: WorkflowEnvironment, kube_binaries: None, tmp_path: Path, watched: bool
) -> None:
    with Cluster(kwok=1) as cluster:
        async with open_kube_testbed(server.client, tmp_path, cluster, watched=watched) as kube:
            kube.knows(scripted())
            handle = await kube.testbed.start(request(tasks=[{}] * 3, max_parallel_tasks=2))
            await kube.until_task("RUNNING", 1)
            kube.knows(replace(ENDLESS, name="endless"))
            endless = await kube.testbed.start(request(crawler="endless"))
            await kube.until_task("RUNNING", run_id=2)
            await asyncio.to_thread(cluster.restart, "kube-apiserver")
            cluster.freeze("kube-apiserver")
            try:
                await kube.until_said("did not respond", 60)
                await endless.signal("stop", {"request_id": "s2", "requested_by": "ada"})
                await kube.testbed.until(lambda: str(kube.run(2).status) == "STOPPING")
                assert [str(task.status) for task in kube.tasks()][:2] == ["RUNNING"] * 2, (
                    "an error says nothing"
                )
            finally:
                cluster.thaw("kube-apiserver")
            await asyncio.to_thread(cluster.restart, "kube-controller-manager")
            result = await finished(kube, handle)
            assert (result.status, result.tasks) == ("COMPLETED", {"SUCCEEDED": 3})
            assert kube.testbed.corrections(1) == [], "at most late, as nobody could poll"
            stopped = await kube.testbed.ended(endless)
            assert (stopped.outcome, stopped.tasks) == ("cancelled", {"CANCELLED": 1})
            assert [task.exit_code for task in kube.tasks(2)] == [11]
            await kube.until_released()


async def finished(kube: KubeTestbed, handle: Any) -> RunResult:
    """Let every pod of run 1 finish normally as soon as it runs, until the run has ended."""
    ended = asyncio.create_task(kube.testbed.ended(handle, 180))
    while not ended.done():
        await asyncio.to_thread(_end_pods, kube)
        await asyncio.sleep(0.5)
    return await ended


def _end_pods(kube: KubeTestbed) -> None:
    for pod in kube.pods():
        if pod["metadata"]["labels"][labels.RUN] == "1" and pod["status"]["phase"] == "Running":
            kube.end_pod(pod["metadata"]["name"], 0, FINISHED)


async def test_a_job_suspended_under_its_end_starts_no_second_pod(
    server: WorkflowEnvironment, kwok_cluster: Cluster, tmp_path: Path
) -> None:
    """It was suspended by somebody and ended; after it is resumed, it must not crawl again.

    The rights do not permit deletions.
    """
    rights = Rights(kwok_cluster, without=("delete",))
    async with open_kube_testbed(
        server.client, tmp_path, kwok_cluster, watched=True, api=rights.api
    ) as kube:
        kube.knows(ENDLESS)
        handle = await kube.testbed.start(request())
        await kube.until_task("RUNNING")
        job = kube.path("jobs", "crawl-1-0-1", "/apis/batch/v1")
        kube.cluster.admin.patch(job, {"spec": {"suspend": True}})
        result = await kube.testbed.ended(handle)
        assert (result.status, result.outcome) == ("FAILED", "interrupted")
        await kube.testbed.until(lambda: not kube.pods())
        kube.cluster.admin.patch(job, {"spec": {"suspend": False}})
        await asyncio.sleep(3)
        assert kube.pods() == []
