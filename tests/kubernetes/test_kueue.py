"""Runs in the queues of a real Kueue: what it holds, takes back and starts, and what the database
says meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.crawlers.pod import PodOptions
from crawler_lifecycle.domain.resources import Resources
from tests.contracts.cluster.kube_harness import FINISHED, SHUTDOWN, scripted
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.kueue import QUEUES, Kueue
from tests.kubernetes.kube_testbed import QUICK, KubeTestbed, open_kube_testbed

pytestmark = [pytest.mark.kueue, pytest.mark.asyncio(loop_scope="session")]

#: Capacity for one crawl without a processor request, and memory for all.
ONE = {"cpu": "50m", "memory": "100Gi"}
FULL = "insufficient unused quota for cpu in flavor any, 50m more needed"
URGENT, PATIENT = 1, 5
#: A crawler with a node for whose pod Kueue would otherwise wait in vain.
ABSURD = Resources(cpu="4000")


@pytest.fixture(scope="module")
def kueue(kube_binaries: None) -> Iterator[Kueue]:
    """A separate cluster with Kueue, which would also hold the Jobs of other tests."""
    with Cluster(kwok=2) as cluster:
        kueue = Kueue(
            cluster,
            waitForPodsReady={"timeout": "4s", "requeuingStrategy": {"backoffBaseSeconds": 60}},
        )
        try:
            kueue.start()
            kueue.make("ResourceFlavor", "any", spec={})
            for priority, value in ((URGENT, 1000), (PATIENT, 1)):
                kueue.make("WorkloadPriorityClass", f"priority-{priority}", value=value)
            yield kueue
        finally:
            kueue.part.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def kube(
    server: WorkflowEnvironment, kueue: Kueue, tmp_path: Path
) -> AsyncIterator[KubeTestbed]:
    classes = {number: f"priority-{number}" for number in (URGENT, PATIENT)}
    async with open_kube_testbed(
        server.client, tmp_path, kueue.cluster, watched=True, queue_priority_classes=classes
    ) as kube:
        open_queue(kueue, kube, ONE)
        yield kube


def open_queue(kueue: Kueue, kube: KubeTestbed, room: dict[str, str]) -> None:
    """The queue ``night`` of the namespace, with this capacity."""
    resources = [{"name": name, "nominalQuota": quota} for name, quota in room.items()]
    group = {"coveredResources": list(room), "flavors": [{"name": "any", "resources": resources}]}
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    kueue.make("ClusterQueue", kube.namespace, spec=spec)
    kueue.make("LocalQueue", "night", kube.namespace, spec={"clusterQueue": kube.namespace})


def held(name: str, queue: str = "night", **script: str) -> CrawlerDefinition:
    """A crawler whose Jobs wait in a queue."""
    return replace(
        scripted(name, **{"stop_code": "11", "message": SHUTDOWN} | script),
        kubernetes=PodOptions(queue=queue),
    )


def workload(kube: KubeTestbed, run_id: int) -> dict[str, Any]:
    """Return the Workload of the run's first attempt, or nothing while Kueue creates it again."""
    found = kube.cluster.admin.get(kube.path("workloads", group=QUEUES))["items"]
    return next(
        (one for one in found if one["metadata"]["name"].startswith(f"job-crawl-{run_id}-0-1-")), {}
    )


def finished(kube: KubeTestbed, run_id: int) -> str | None:
    """Return how Kueue saw the first attempt end, so that it reserves no capacity or position for
    it.
    """
    conditions = workload(kube, run_id).get("status", {}).get("conditions", [])
    return next(
        (c["reason"] for c in conditions if c["type"] == "Finished" and c["status"] == "True"), None
    )


def change(kube: KubeTestbed, resource: str, name: str, **spec: Any) -> None:
    path = (
        kube.path(resource, name, QUEUES)
        if resource != "clusterqueues"
        else f"{QUEUES}/{resource}/{name}"
    )
    kube.cluster.admin.patch(path, {"spec": spec})


async def start(kube: KubeTestbed, crawler: str, **more: Any) -> Any:
    return await kube.testbed.start({"crawler": crawler, "priority": PATIENT, **QUICK, **more})


async def test_a_quota_that_is_used_up_is_told_with_the_place_and_the_next_goes_on(
    kube: KubeTestbed,
) -> None:
    kube.knows(held("books"))
    first = await start(kube, "books")
    await kube.until_task("RUNNING")
    second = await start(kube, "books")
    await kube.until_said(
        f"Waiting in queue night, position 1: couldn't assign flavors to pod set main: {FULL}",
        run_id=2,
    )
    third = await start(kube, "books")
    await kube.until_said("Waiting in queue night, position 2", run_id=3)
    assert [kube.tasks(run)[0].status for run in (1, 2, 3)] == ["RUNNING", "PENDING", "PENDING"]
    await third.signal("stop", {"request_id": "s3"})
    assert (await kube.testbed.ended(third)).tasks == {"CANCELLED": 1}, (
        "stopped while it is suspended"
    )
    await first.signal("stop", {"request_id": "s1"})
    await kube.until_task("RUNNING", run_id=2)
    await second.signal("stop", {"request_id": "s2"})
    await kube.testbed.ended(second)
    assert [kube.testbed.corrections(run) for run in (1, 2, 3)] == [[], [], []]
    await kube.testbed.until(lambda: (kube.jobs(), kube.pods()) == ([], []))


async def test_a_crawl_that_is_preempted_has_ended_and_its_next_attempt_goes_on(
    kube: KubeTestbed,
) -> None:
    kube.knows(held("books"))
    first = await start(kube, "books")
    await kube.until_task("RUNNING")
    urgent = await start(kube, "books", priority=URGENT)
    result = await kube.testbed.ended(first)
    assert (result.status, result.outcome, result.tasks) == ("FAILED", "evicted", {"FAILED": 1})
    [task] = kube.tasks()
    cause = "Ended from outside: taken back by its queue night (Preempted: Preempted to accommodate a workload"
    assert (task.exit_code, (task.cause or "").startswith(cause)) == (11, True), task.cause
    assert [found.kind for found in kube.testbed.corrections(1)] == ["killed"]
    assert await kube.testbed.until(lambda: finished(kube, 1)) == "Failed"
    again = await kube.testbed.start({"run_id": 1, **QUICK}, id="again")
    await kube.until_said("Waiting in queue night, position 1: ")
    await urgent.signal("stop", {"request_id": "s2"})
    await kube.until_task("RUNNING")
    await again.signal("stop", {"request_id": "s1"})
    assert (await kube.testbed.ended(again)).tasks == {"CANCELLED": 1}
    assert [(t.attempt, t.status) for t in kube.tasks(superseded=True)] == [
        (1, "FAILED"),
        (2, "CANCELLED"),
    ]


async def test_a_crawl_that_is_preempted_waits_in_its_queue_as_another_try(
    kube: KubeTestbed,
) -> None:
    kube.knows(held("books"))
    first = await start(kube, "books", retries={"max": 2, "backoff_s": 0})
    await kube.until_task("RUNNING")
    urgent = await start(kube, "books", priority=URGENT)
    await kube.until_task("RUNNING", run_id=2)
    await kube.testbed.until(lambda: [t.attempt for t in kube.tasks()] == [2])
    await kube.until_said("Waiting in queue night, position 1: ")
    await urgent.signal("stop", {"request_id": "s2"})
    await kube.until_task("RUNNING")
    names = [
        pod["metadata"]["labels"]["job-name"]
        for pod in kube.pods()
        if pod["status"]["phase"] == "Running"
    ]
    assert (names, finished(kube, 1)) == (["crawl-1-0-2"], "Failed")
    await first.signal("stop", {"request_id": "s1"})
    assert (await kube.testbed.ended(first)).tasks == {"CANCELLED": 1}
    assert [(t.attempt, t.retry, t.outcome) for t in kube.tasks(superseded=True)] == [
        (1, 0, "evicted"),
        (2, 1, "cancelled"),
    ]


async def test_a_crawl_that_is_admitted_again_before_its_pod_has_ended_goes_on_in_another_pod(
    kube: KubeTestbed,
) -> None:
    kube.knows(held("slow", stop_after="300s"))
    kube.knows(held("short", message=FINISHED, run_for="100ms"))
    first = await start(kube, "slow")
    await kube.until_task("RUNNING")
    [before] = [pod["metadata"]["name"] for pod in kube.pods()]
    urgent = await start(kube, "short", priority=URGENT)
    assert (await kube.testbed.ended(urgent)).status == "COMPLETED"
    await kube.testbed.until(lambda: not any(job["spec"]["suspend"] for job in kube.jobs()))
    assert kube.tasks()[0].status == "RUNNING", "its pod takes its time"
    kube.end_pod(before, 11, SHUTDOWN)
    await kube.until_said("Another pod of its Job has ended (exit 11)")
    [after] = [
        pod["metadata"]["name"] for pod in kube.pods() if pod["status"]["phase"] == "Running"
    ]
    kube.end_pod(after, 0, FINISHED)
    result = await kube.testbed.ended(first)
    assert (result.status, result.tasks) == ("COMPLETED", {"SUCCEEDED": 1})
    assert ([t.attempt for t in kube.tasks(superseded=True)], kube.testbed.corrections(1)) == (
        [1],
        [],
    )
    assert await kube.testbed.until(lambda: finished(kube, 1)) == "Succeeded"
    await kube.until_released()


async def test_what_a_queue_does_not_start_says_why_and_can_be_stopped(kube: KubeTestbed) -> None:
    kube.knows(held("lost", queue="nowhere"))
    kube.knows(held("books"))
    lost = await start(kube, "lost")
    await kube.until_said("Waiting in queue nowhere: LocalQueue nowhere doesn't exist")
    await asyncio.to_thread(change, kube, "localqueues", "night", stopPolicy="Hold")
    await start(kube, "books")
    await kube.until_said("Waiting in queue night: LocalQueue night is inactive", run_id=2)
    name = workload(kube, 2)["metadata"]["name"]
    await asyncio.to_thread(change, kube, "workloads", name, active=False)
    await kube.until_said(f"its Workload {name} is deactivated", run_id=2)
    await asyncio.to_thread(change, kube, "localqueues", "night", stopPolicy="None")
    await asyncio.to_thread(change, kube, "workloads", name, active=True)
    await kube.until_task("RUNNING", run_id=2)
    await lost.signal("stop", {"request_id": "s1"})
    assert (await kube.testbed.ended(lost)).tasks == {"CANCELLED": 1}


@pytest.mark.parametrize(
    ("what", "outcome", "words"),
    [
        (("localqueues", {"stopPolicy": "HoldAndDrain"}), "evicted", "LocalQueueStopped"),
        (("workloads", {"active": False}), "interrupted", "Deactivated"),
    ],
    ids=["drained", "deactivated"],
)
async def test_what_is_taken_back_while_it_crawls_has_ended(
    kube: KubeTestbed, what: tuple[str, dict[str, Any]], outcome: str, words: str
) -> None:
    kube.knows(held("books"))
    handle = await start(kube, "books")
    await kube.until_task("RUNNING")
    [one] = await asyncio.to_thread(
        lambda: kube.cluster.admin.get(kube.path(what[0], group=QUEUES))["items"]
    )
    await asyncio.to_thread(change, kube, what[0], one["metadata"]["name"], **what[1])
    result = await kube.testbed.ended(handle)
    assert (result.status, result.outcome) == ("FAILED", outcome)
    assert f"taken back by its queue night ({words}: " in (kube.tasks()[0].cause or "")
    await asyncio.to_thread(change, kube, "localqueues", "night", stopPolicy="None")
    await start(kube, "books")
    await kube.until_task("RUNNING", run_id=2), "the first one keeps no room"
    assert kube.tasks()[0].status == "FAILED"


async def test_what_no_node_takes_is_taken_back_and_waits(kueue: Kueue, kube: KubeTestbed) -> None:
    kube.knows(replace(held("huge"), resources=ABSURD))
    await asyncio.to_thread(change, kube, "localqueues", "night", stopPolicy="Hold")
    await asyncio.to_thread(
        kube.cluster.admin.patch,
        f"{QUEUES}/clusterqueues/{kube.namespace}",
        [
            {
                "op": "replace",
                "path": "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota",
                "value": "9000",
            }
        ],
        "json",
    )
    await asyncio.to_thread(change, kube, "localqueues", "night", stopPolicy="None")
    handle = await start(kube, "huge")
    await kube.until_said("No node has capacity for it")
    said = await kube.until_said("it is queued again at ")
    assert said.startswith("Waiting in queue night: Exceeded the PodsReady timeout"), said
    assert kube.tasks()[0].status == "PENDING"
    await handle.signal("stop", {"request_id": "s1"})
    assert (await kube.testbed.ended(handle)).tasks == {"CANCELLED": 1}, kube.tasks()[0]


async def test_the_objects_of_the_documentation_are_taken(kueue: Kueue) -> None:
    section = (Path(__file__).parents[2] / "docs" / "kubernetes-queues.md").read_text()
    kueue.cluster.admin.ensure("/api/v1/namespaces", {"metadata": {"name": "crawls"}})
    made = list(yaml.safe_load_all(section.partition("```yaml\n")[2].partition("```")[0]))
    for one in made:
        meta = one.pop("metadata")
        kueue.make(
            one.pop("kind"),
            meta["name"],
            meta.get("namespace"),
            **{k: one[k] for k in one if k != "apiVersion"},
        )
    assert len(made) == 4


async def test_kueue_dies_while_jobs_are_held(kueue: Kueue, kube: KubeTestbed) -> None:
    kube.knows(held("books"))
    first = await start(kube, "books")
    await kube.until_task("RUNNING")
    second = await start(kube, "books")
    await kube.until_said("Waiting in queue night, position 1", run_id=2)
    await asyncio.to_thread(kueue.part.kill)
    try:
        await kube.until_said(
            f"Waiting in queue night: couldn't assign flavors to pod set main: {FULL}", run_id=2
        )
        await start(kube, "books")
        await kube.until_said("failed calling webhook", run_id=3)
        await first.signal("stop", {"request_id": "s1"})
        assert (await kube.testbed.ended(first)).tasks == {"CANCELLED": 1}
        assert kube.tasks(2)[0].status == "PENDING", "its room is free, and nobody gives it"
    finally:
        await asyncio.to_thread(kueue.start_again)
    await kube.until_task("RUNNING", run_id=2)
    await second.signal("stop", {"request_id": "s2"})
    await kube.until_task("RUNNING", run_id=3)
    assert [kube.testbed.corrections(run) for run in (1, 2, 3)] == [[], [], []]
