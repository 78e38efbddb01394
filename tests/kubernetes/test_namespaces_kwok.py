"""Namespaces on a real API server: absence in one proves nothing for another, and what was deleted
with one is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from crawler_lifecycle.clusters.kubernetes import rbac
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.jobs import finalizers
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask, TaskRef
from crawler_lifecycle.settings import ClusterSettings
from tests.contracts.cluster.kube_harness import crawler
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import until
from tests.support.run_refs import run_ref

RUN, ENDLESS = 7, 600.0


class Installation:
    """A worker and a scheduler service with the same setting."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.namespace = namespace
        self.api = Api(kubeconfig=cluster.kubeconfig, namespace=namespace)
        settings = ClusterSettings(
            kind="kubernetes", service_account="default", namespace=namespace
        )
        self.deployer = KubernetesDeployer(self.api, settings)
        self.cluster = KubernetesCluster(self.api)

    def close(self) -> None:
        self.deployer.close()
        self.api.close()

    def deploy(self, place: str | None) -> DeployedTask:
        until_ = datetime.now(UTC) + timedelta(seconds=600)
        tasks = [QueuedTask(100, 0, {})]
        call = Deployment(
            run_ref(RUN), 1, "demo", {}, {}, tasks, Resources(), Limits(), until_, place=place
        )
        [answer] = self.deployer.deploy(call, crawler(ENDLESS))
        return answer

    def task(self) -> TaskRef:
        """A task that was created here and executes."""
        place = self.cluster.place()
        task = TaskRef(100, 0, 1, self.deploy(place).uid, place=place)
        until(lambda: self.see(task).phase is Phase.EXECUTING, "the task executes", 150)
        return task

    def see(self, task: TaskRef) -> Observation:
        return self.cluster.poll(run_ref(RUN), [task]).observations[0]


@pytest.fixture
def day(kwok_cluster: Cluster) -> Iterator[Installation]:
    found = Installation(kwok_cluster, kwok_cluster.namespace("day"))
    yield found
    found.close()


@pytest.fixture
def night(kwok_cluster: Cluster) -> Iterator[Installation]:
    found = Installation(kwok_cluster, kwok_cluster.namespace("night"))
    yield found
    found.close()


def test_a_task_lives_where_it_was_put(day: Installation, night: Installation) -> None:
    task = day.task()
    long_missed = replace(task, missed_at=datetime.now(UTC) - timedelta(seconds=60))
    for other in (task, long_missed, replace(task, stopping=True), replace(task, uid=None)):
        with pytest.raises(
            ClusterUnavailable,
            match=rf"created in namespace {day.namespace} \(uid .*this process reads night",
        ):
            night.see(other)
        for end in (night.cluster.stop, night.cluster.kill):
            with pytest.raises(ClusterUnavailable, match="may still execute there"):
                end(run_ref(RUN), other)
    with pytest.raises(ClusterUnavailable, match="this service creates them in night"):
        night.deploy(task.place)
    with pytest.raises(ClusterUnavailable):
        night.cluster.place([task.place or ""])
    night.task()  # from another database that also counts its runs from 1: the same name
    with pytest.raises(ClusterUnavailable, match="may still execute there"):
        night.see(task)
    assert day.see(task).phase is Phase.EXECUTING


def test_a_namespace_that_is_made_anew_has_none_of_its_old_tasks(
    day: Installation, kwok_cluster: Cluster
) -> None:
    task, path = day.task(), f"/api/v1/namespaces/{day.namespace}"
    kwok_cluster.admin.delete(path, {})
    until(lambda: day.see(task).phase is Phase.ENDED, "its pod has ended, and is held", 150)
    until(
        lambda: (
            [finalizers.remove_finalizer(day.api, pod) for pod in finalizers.list_held(day.api)]
            == []
        ),
        "nothing is held",
        150,
    )
    until(lambda: kwok_cluster.admin.find(path) is None, "the namespace is gone", 150)
    assert day.see(task).phase is Phase.GONE, "with its namespace, on the same cluster"
    kwok_cluster.admin.post("/api/v1/namespaces", {"metadata": {"name": day.namespace}})
    seen = day.see(task)
    assert (seen.phase, "was deleted" in (seen.reason or "")) == (Phase.GONE, True)
    assert day.cluster.place([task.place or ""]) != task.place


def test_the_right_to_tell_clusters_apart_opens_one_object(
    day: Installation, kwok_cluster: Cluster
) -> None:
    """Without any right, the name is recorded."""
    user = f"system:serviceaccount:{day.namespace}:somebody"
    api = Api(kubeconfig=kwok_cluster.kubeconfig_of(user, day.namespace), namespace=day.namespace)
    try:
        assert KubernetesCluster(api).place() == f"{day.namespace}/-/-"
        assert rbac.missing(api, [rbac.CLUSTER]) == {rbac.CLUSTER}
        assert rbac.missing(day.api, [rbac.CLUSTER]) == set()
    finally:
        api.close()
