"""Whatever a task leaves on the cluster after its end is ended as well, by a real node and the real
Job controller.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.jobs.finalizers import Finalizers
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import TaskRef
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.provoking import NAME, SAYS_SHUTDOWN, Scene
from tests.kubernetes.scenes import SCENES
from tests.support.run_refs import run_ref

RUN = run_ref(1)


def later() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=2)


class Left:
    """A scene on the real cluster, and our adapter, whose clock is advanced by two minutes."""

    def __init__(self, cluster: Cluster) -> None:
        self.scene = Scene(cluster, cluster.namespace("left"))
        self.api = Api(kubeconfig=cluster.kubeconfig, namespace=self.scene.namespace)
        self.cluster = KubernetesCluster(self.api, clock=later)
        self.finalizers = Finalizers(self.api, later)

    def close(self) -> None:
        self.scene.finish()
        self.api.close()

    def task(self) -> TaskRef:
        return TaskRef(1, 0, 1, self.scene.job()["metadata"]["uid"])

    def phase(self) -> Phase:
        return self.cluster.poll(RUN, [self.task()]).observations[0].phase


@pytest.fixture
def left(real_cluster: Cluster) -> Iterator[Left]:
    found = Left(real_cluster)
    try:
        yield found
    finally:
        found.close()


def test_a_container_that_outlives_the_crawler_is_ended_and_its_job_with_it(left: Left) -> None:
    SCENES["outlived"](left.scene)
    assert left.phase() is Phase.ENDED
    assert [end.key for end in left.finalizers.kept()] == [(1, 0, 1)]
    left.finalizers.release(RUN, [left.task()])
    left.scene.until(lambda o: o["pods"][0]["status"]["phase"] == "Failed", "the end of the pod")
    left.scene.until(
        lambda o: [c for c in o["job"]["status"]["conditions"] if c["type"] == "Failed"],
        "the Job's end",
    )
    [pod] = left.scene.objects()["pods"]
    states = {status["name"]: status["state"] for status in pod["status"]["containerStatuses"]}
    assert states[labels.CONTAINER]["terminated"]["exitCode"] == 0, "the evidence stays"
    assert "terminated" in states["mesh-proxy"]
    assert "deletionTimestamp" not in pod["metadata"]
    assert left.finalizers.kept() == []


def test_a_queue_that_takes_a_job_back_before_it_ran_gets_a_second_pod_later(left: Left) -> None:
    SCENES["suspended-before-node"](left.scene)
    assert left.phase() is Phase.WAITING
    assert left.finalizers.kept() == []
    left.scene.until(lambda o: not o["pods"], "no pod")
    left.scene.cluster.admin.patch(f"{left.scene.jobs}/{NAME}", {"spec": {"suspend": False}})
    left.scene.until(
        lambda o: o["pods"] and "deletionTimestamp" not in o["pods"][0]["metadata"], "another pod"
    )
    assert left.phase() is Phase.WAITING


def test_a_job_that_was_suspended_under_its_pod_ends_with_that_and_makes_no_other(
    left: Left,
) -> None:
    left.scene.start(SAYS_SHUTDOWN.format(code=11))
    left.scene.ready()
    left.scene.cluster.admin.patch(f"{left.scene.jobs}/{NAME}", {"spec": {"suspend": True}})
    left.scene.ended()
    assert left.phase() is Phase.ENDED
    left.finalizers.release(RUN, [left.task()])
    left.scene.until(
        lambda o: [c for c in o["job"]["status"]["conditions"] if c["type"] == "Failed"],
        "the Job's end",
    )
    left.scene.until(lambda o: not o["pods"], "no pod")
    assert left.scene.objects()["job"]["spec"]["parallelism"] == 0
