"""What takes half a minute or longer to be proved, side by side: one cluster, two harnesses, one of
them observed.

A cluster whose etcd is restored from an older snapshot under runs that execute: resource versions
go back, what was made since is not there any more, what had ended since executes again. A Job that
somebody tears away with its pod. A node that vanishes: nothing heartbeats for it, the node
controller gives it up, and at last somebody says that it is off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.crawlers.pod import PodOptions
from crawler_lifecycle.domain.run import RunResult
from crawler_lifecycle.ports.polls import CorrectionRow
from crawler_lifecycle.ports.runs import TaskRow
from tests.contracts.cluster.kube_harness import FINISHED
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.kube_testbed import KubeTestbed, open_kube_testbed
from tests.kubernetes.test_lifecycle_kwok import ENDLESS, QUICKLY, request
from tests.support.auditing import AT_ONCE, audit
from tests.support.temporal import temporal_server

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

#: What the operator of a node reports when its machine is off: its pods will never be seen again.
OUT_OF_SERVICE = {
    "key": "node.kubernetes.io/out-of-service",
    "value": "nodeshutdown",
    "effect": "NoExecute",
}


@pytest_asyncio.fixture(loop_scope="session")
async def servers() -> AsyncIterator[list[WorkflowEnvironment]]:
    """One server for each harness: workers of two testbeds on one server would take each other's
    tasks.
    """
    async with temporal_server(skipping=False) as one, temporal_server(skipping=False) as two:
        yield [one, two]


class Run:
    """A run of one task, as the database and the cluster show it."""

    def __init__(
        self, kube: KubeTestbed, run_id: int, handle: WorkflowHandle[Any, RunResult]
    ) -> None:
        self.kube, self.id, self.handle = kube, run_id, handle

    @property
    def task(self) -> TaskRow:
        [task] = self.kube.tasks(self.id)
        return task

    @property
    def status(self) -> str:
        """Return the recorded status of its task."""
        return str(self.task.status)

    def says(self, words: str) -> bool:
        return words in (self.task.reason or "")

    @property
    def corrections(self) -> list[CorrectionRow]:
        return self.kube.testbed.corrections(self.id)

    @property
    def kinds(self) -> list[str]:
        return [str(found.kind) for found in self.corrections]

    @property
    def pod(self) -> dict[str, Any] | None:
        """Return the pod as the API server shows it."""
        pods = [
            pod
            for pod in self.kube.pods()
            if pod["metadata"]["name"].startswith(f"crawl-{self.id}-")
        ]
        return pods[0] if pods else None

    @property
    def phase(self) -> str | None:
        pod = self.pod
        return pod["status"]["phase"] if pod else None

    async def stop(self) -> None:
        await self.handle.signal("stop", {"request_id": f"s{self.id}", "requested_by": "ada"})

    async def ended(self, seconds: float = 120) -> tuple[str, str | None, dict[str, int]]:
        result = await self.kube.testbed.ended(self.handle, seconds)
        return result.status, result.outcome, result.tasks


class Harness:
    """A testbed, and what happens in it."""

    def __init__(self, kube: KubeTestbed, node: str) -> None:
        self.kube, self.node = kube, node
        self._count = 0
        self._starting = asyncio.Lock()
        kube.knows(ENDLESS)
        kube.knows(replace(QUICKLY, name="quick"))
        bound = PodOptions(node_selector={"kubernetes.io/hostname": node})
        kube.knows(replace(ENDLESS, name="bound", kubernetes=bound))

    async def start(self, **more: Any) -> Run:
        async with self._starting:
            handle = await self.kube.testbed.start(request(**more))
            self._count += 1
            run = Run(self.kube, self._count, handle)
            await self.kube.testbed.until(
                lambda: self.kube.testbed.store.runs.get_run(run.id) and run.kube.tasks(run.id)
            )
        return run

    async def executing(self) -> Run:
        """Return a new run whose task is recorded as executing."""
        run = await self.start()
        await self.kube.testbed.until(lambda: run.status == "RUNNING")
        return run

    # --- the restored cluster

    async def before_the_snapshot(self) -> None:
        self.goes_on, self.ends, self.is_stopped = [await self.executing() for _ in range(3)]

    async def since_the_snapshot(self) -> None:
        """Create what the snapshot does not contain: two more runs, and two ends that are recorded
        and released.
        """
        self.is_missed, self.is_missed_and_stopped = await self.executing(), await self.executing()
        assert self.ends.pod is not None
        self.kube.end_pod(self.ends.pod["metadata"]["name"], 0, FINISHED)
        assert await self.ends.ended() == ("COMPLETED", "finished", {"SUCCEEDED": 1})
        await self.is_stopped.stop()
        assert await self.is_stopped.ended() == ("FAILED", "cancelled", {"CANCELLED": 1})
        await self.kube.testbed.until(
            lambda: self.is_stopped.pod is None and not self.kube.api_kept(self.ends.id)
        )

    async def after_the_restore(self) -> None:
        back = (self.ends, self.is_stopped)
        recorded = [run.task for run in back]
        assert [run.phase for run in back] == ["Running", "Running"], "they are back"
        await asyncio.gather(
            self.those_that_are_missed(), self.one_that_is_torn_away(), self.a_node_vanishes()
        )
        assert [run.phase for run in back] == ["Running", "Running"]
        assert [run.task for run in back] == recorded, "an end on record stays"
        assert [run.kinds for run in back] == [[], []]
        await self.those_that_came_back()
        assert [run.task for run in back] == recorded
        await self.life_goes_on()

    async def those_that_are_missed(self) -> None:
        """They are not called lost after one poll, can be stopped meanwhile, and then have a true
        record.
        """
        missed, stopped = self.is_missed, self.is_missed_and_stopped
        await stopped.stop()
        await self.kube.testbed.until(lambda: missed.says("not on the cluster any more"), 150)
        assert (missed.status, missed.kinds) == ("RUNNING", [])
        assert await stopped.ended() == ("FAILED", "cancelled", {"CANCELLED": 1})
        assert await missed.ended() == ("FAILED", "lost", {"LOST": 1})
        assert missed.kinds == ["vanished"]
        assert missed.corrections[0].truth == "LOST"

    async def those_that_came_back(self) -> None:
        """An audit finds and ends them, with a correction and without changing what was recorded."""
        told = await audit(self.kube.testbed, repair=False)
        assert told.found == {"still_alive": 2}, told.findings
        done = await audit(self.kube.testbed, repair=True)
        assert done.repaired == {"still_alive": 2}, done.findings
        assert (self.ends.kinds, self.is_stopped.kinds) == (["still_alive"], ["still_alive"])
        await self.kube.testbed.until(
            lambda: self.is_stopped.pod is None and not self.kube.api_kept(self.ends.id)
        )
        again = await audit(self.kube.testbed, repair=True)
        assert again.found == {}, again.findings

    async def life_goes_on(self) -> None:
        """Tasks that executed all the time were never doubted, and a new run proceeds normally."""
        assert (self.goes_on.status, self.goes_on.kinds) == ("RUNNING", [])
        await self.goes_on.stop()
        assert await self.goes_on.ended() == ("FAILED", "cancelled", {"CANCELLED": 1})
        assert (self.goes_on.task.exit_code, self.goes_on.kinds) == (11, [])
        # With an observer, only a wake-up finds its end in time.
        more = {"poll_minutes": [10]} if self.kube.observer is not None else {}
        new = await self.start(crawler="quick", **more)
        assert await new.ended() == ("COMPLETED", "finished", {"SUCCEEDED": 1})
        assert self.kube.observer is None or self.kube.observer.health().up

    # --- the Job that is torn away

    async def one_that_is_torn_away(self) -> None:
        run = await self.executing()
        pod, admin = run.pod, self.kube.cluster.admin
        assert pod is not None
        admin.patch(
            self.kube.path("pods", pod["metadata"]["name"]), {"metadata": {"finalizers": None}}
        )
        job = self.kube.path("jobs", f"crawl-{run.id}-0-1", "/apis/batch/v1")
        admin.delete(job, {"propagationPolicy": "Background"})
        self.kube.delete_pod(pod["metadata"]["name"], gracePeriodSeconds=0)
        await self.kube.testbed.until(lambda: run.says("not on the cluster any more"))
        assert (run.status, run.kinds) == ("RUNNING", [])
        assert await run.ended() == ("FAILED", "lost", {"LOST": 1})
        assert run.kinds == ["vanished"]

    # --- the node that vanishes

    async def heartbeats(self, node: str, ready: dict[str, str]) -> None:
        """Keep the node alive until its pods execute, however long that takes."""
        while True:
            beat = {**ready, "lastHeartbeatTime": utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")}
            status = {"status": {"conditions": [beat]}}
            await asyncio.to_thread(
                self.kube.cluster.admin.patch, f"{node}/status", status, "strategic-merge"
            )
            await asyncio.sleep(2)

    async def a_node_vanishes(self) -> None:
        """This is reported, and nothing counts as ended before it is certain: neither by itself nor
        after a stop.
        """
        admin, path = self.kube.cluster.admin, f"/api/v1/nodes/{self.node}"
        room = {"cpu": "8", "memory": "8Gi", "pods": "10", "ephemeral-storage": "100Gi"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        meta = {"name": self.node, "labels": {"kubernetes.io/hostname": self.node}}
        admin.post("/api/v1/nodes", {"metadata": meta, "status": status})
        beating = asyncio.create_task(self.heartbeats(path, ready))
        try:
            left, stopped = await self.start(crawler="bound"), await self.start(crawler="bound")
            for run in (left, stopped):
                await self.kube.testbed.until(
                    lambda run=run: run.pod is not None and run.pod["spec"].get("nodeName")
                )
                assert run.pod is not None
                self.kube.start_pod(run.pod["metadata"]["name"])
                await self.kube.testbed.until(lambda run=run: run.status == "RUNNING")
        finally:
            beating.cancel()
        words = f"Node {self.node} has not responded since"
        await self.kube.testbed.until(lambda: left.says(words) and stopped.says(words), 150)
        assert (left.status, left.kinds) == ("RUNNING", [])
        await stopped.stop()
        await self.kube.testbed.until(
            lambda: stopped.says("The pod has been shutting down") and stopped.says(words)
        )
        assert stopped.status == "STOPPING"
        admin.patch(path, {"spec": {"taints": [OUT_OF_SERVICE]}})
        assert await left.ended() == ("FAILED", "interrupted", {"FAILED": 1})
        assert (left.task.exit_code, left.kinds) == (None, ["killed"])
        assert await stopped.ended() == ("FAILED", "cancelled", {"CANCELLED": 1})
        assert stopped.kinds == []
        for run in (left, stopped):
            assert f"it is unknown whether it is still running on {self.node}" in (
                run.task.cause or ""
            ), run.task.cause


async def test_etcd_is_restored_a_job_is_torn_away_and_a_node_vanishes(
    servers: list[WorkflowEnvironment], kube_binaries: None, tmp_path: Path
) -> None:
    with Cluster(kwok=3) as cluster:
        async with AsyncExitStack() as stack:
            harnesses = []
            for number, server in enumerate(servers):
                folder = tmp_path / str(number)
                folder.mkdir()
                kube = open_kube_testbed(
                    server.client, folder, cluster, watched=number == 0, audit=AT_ONCE
                )
                harnesses.append(
                    Harness(await stack.enter_async_context(kube), f"vanishing-{number}")
                )
            await asyncio.gather(*(harness.before_the_snapshot() for harness in harnesses))
            snapshot = await asyncio.to_thread(cluster.snapshot)
            await asyncio.gather(*(harness.since_the_snapshot() for harness in harnesses))
            newest = _version(cluster)
            await asyncio.to_thread(cluster.restore, snapshot)
            assert _version(cluster) < newest
            await asyncio.gather(*(harness.after_the_restore() for harness in harnesses))


def _version(cluster: Cluster) -> int:
    """Return the API server's resource version."""
    return int(cluster.admin.get("/api/v1/pods")["metadata"]["resourceVersion"])
