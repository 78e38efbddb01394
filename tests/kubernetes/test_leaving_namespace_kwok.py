"""The namespace of the crawls is deleted under runs, and our rights in it go before its pods do.

From 1.33 on the namespace controller deletes pods first and waits for them, and roles afterwards
(``OrderedNamespaceDeletion``), so that our own release ends it; before that it deleted all in one
turn. That is played here: the role binding goes as soon as the pods are being deleted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from tests.contracts.cluster.kube_harness import SHUTDOWN, scripted
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.kube_testbed import KubeTestbed, open_kube_testbed
from tests.kubernetes.test_deploy import crawlctl
from tests.kubernetes.test_lifecycle_kwok import request

pytestmark = pytest.mark.asyncio(loop_scope="session")

RBAC = "/apis/rbac.authorization.k8s.io/v1"
READ = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": [""],
        "resources": ["pods/log", "events", "namespaces"],
        "verbs": ["get", "list"],
    },
]
WRITE = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch", "delete"]},
]
#: Does not exit until it is made to (``leave``), so that there are polls in between.
DEAF = scripted(stop_after="3600s")


class Place:
    """A namespace of crawls, and an account of ours outside of it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.admin = cluster, cluster.admin
        self.namespace, services = cluster.namespace("leaving"), cluster.namespace("services")
        self._user = {"kind": "ServiceAccount", "name": "ours", "namespace": services}
        kubeconfig = cluster.kubeconfig_of(f"system:serviceaccount:{services}:ours", self.namespace)
        self.api = Api(
            kubeconfig=kubeconfig, namespace=self.namespace, connect_timeout_s=2, read_timeout_s=5
        )
        self.path = f"/api/v1/namespaces/{self.namespace}"

    def grant(self, rules: Sequence[dict[str, Any]], *, everywhere: bool = False) -> None:
        """Grant our account a right, only in the namespace, where it disappears with it, or
        everywhere.
        """
        kind, within = (
            ("ClusterRole", "") if everywhere else ("Role", f"/namespaces/{self.namespace}")
        )
        role = {"metadata": {"name": self.namespace}, "rules": rules}
        self.admin.post(f"{RBAC}{within}/{kind.lower()}s", role)
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": self.namespace}
        binding = {
            "metadata": {"name": self.namespace},
            "roleRef": reference,
            "subjects": [self._user],
        }
        self.admin.post(f"{RBAC}{within}/{kind.lower()}bindings", binding)

    def delete(self) -> None:
        """Delete as a cluster before 1.33 does: pods keep their grace period, rights in the
        namespace disappear at once.
        """
        self.admin.delete(self.path, {})
        self.admin.delete(f"{RBAC}/namespaces/{self.namespace}/rolebindings/{self.namespace}", {})

    def is_there(self) -> bool:
        return self.admin.find(self.path) is not None

    async def release(self) -> int:
        """Release pods as an administrator. Returns their number."""
        words = ("cluster", "release", "--namespace", self.namespace, "--yes", "-o", "json")
        done = await asyncio.to_thread(crawlctl, self.cluster, *words)
        return int(json.loads(done.stdout)["released"])


async def two_runs(kube: KubeTestbed) -> tuple[Any, Any]:
    """Two runs that are recorded as executing."""
    kube.knows(DEAF)
    runs = []
    for run_id in (1, 2):
        runs.append(await kube.testbed.start(request()))
        await kube.until_task("RUNNING", run_id=run_id)
    return runs[0], runs[1]


async def leave(kube: KubeTestbed) -> None:
    """Every pod is being deleted; let it end with our runner's report."""
    await kube.testbed.until(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in kube.pods())
    )
    for pod in await asyncio.to_thread(kube.pods):
        await asyncio.to_thread(kube.end_pod, pod["metadata"]["name"], 11, SHUTDOWN)


async def test_the_right_to_patch_goes_first(
    server: WorkflowEnvironment, kwok_cluster: Cluster, tmp_path: Path
) -> None:
    """Ends can be read and are recorded; the run names what keeps the namespace, and an
    administrator releases it.
    """
    place = Place(kwok_cluster)
    place.grant(READ, everywhere=True)
    place.grant(WRITE)
    async with open_kube_testbed(
        server.client, tmp_path, kwok_cluster, watched=True, api=place.api
    ) as kube:
        left, stopped = await two_runs(kube)
        place.delete()
        for run_id in (1, 2):
            said = await kube.until_said("keeps its pods", run_id=run_id)
            assert f"The namespace {place.namespace} is being deleted" in said
            assert "an administrator removes it with: crawlctl cluster release" in said
            assert [str(task.status) for task in kube.tasks(run_id)] == ["RUNNING"]
        await stopped.signal("stop", {"request_id": "s2"})
        await kube.testbed.until(lambda: str(kube.run(2).status) == "STOPPING")
        await leave(kube)
        result = await kube.testbed.ended(left)
        assert (result.status, result.outcome, result.tasks) == (
            "FAILED",
            "interrupted",
            {"FAILED": 1},
        )
        result = await kube.testbed.ended(stopped)
        assert (result.status, result.outcome, result.tasks) == (
            "FAILED",
            "cancelled",
            {"CANCELLED": 1},
        )
        assert [task.exit_code for run_id in (1, 2) for task in kube.tasks(run_id)] == [11, 11]
        await kube.testbed.until(lambda: "patch" in str(kube.releaser.state()["problem"]))
        assert len(kube.api_kept()) == 2
        assert place.is_there()
        assert await place.release() == 2
        await kube.testbed.until(lambda: not place.is_there(), 150)


async def test_all_rights_go_first(
    server: WorkflowEnvironment, kwok_cluster: Cluster, tmp_path: Path
) -> None:
    """Nobody can poll, so nothing is reported as ended; the truth returns with the rights.

    The namespace is then created again. Because our account may read the cluster's identity, the
    former one is certainly gone.
    """
    place = Place(kwok_cluster)
    place.grant(
        [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}], everywhere=True
    )
    place.grant([*READ, *WRITE])
    async with open_kube_testbed(
        server.client, tmp_path, kwok_cluster, watched=True, api=place.api
    ) as kube:
        left, stopped = await two_runs(kube)
        place.delete()
        for run_id in (1, 2):
            await kube.until_said("needs permission to", run_id=run_id)
        await stopped.signal("stop", {"request_id": "s2"})
        await kube.testbed.until(lambda: str(kube.run(2).status) == "STOPPING")
        await leave(kube)
        assert [str(task.status) for run_id in (1, 2) for task in kube.tasks(run_id)] == [
            "RUNNING",
            "RUNNING",
        ]
        assert await place.release() == 2
        await kube.testbed.until(lambda: not place.is_there(), 150)
        place.admin.post("/api/v1/namespaces", {"metadata": {"name": place.namespace}})
        place.grant([*READ, *WRITE])
        result = await kube.testbed.ended(stopped)
        assert (result.status, result.outcome, result.tasks) == (
            "FAILED",
            "cancelled",
            {"CANCELLED": 1},
        )
        result = await kube.testbed.ended(left)
        assert (result.status, result.outcome, result.tasks) == ("FAILED", "lost", {"LOST": 1})
        assert [str(found.kind) for found in kube.testbed.corrections(1)] == ["vanished"]
