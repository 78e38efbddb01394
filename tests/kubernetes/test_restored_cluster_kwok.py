"""A cluster whose etcd is restored from an older snapshot under runs that execute: resource versions go back.

What was made since the snapshot is not there any more, what had ended since executes again. One cluster and one restore
for two worlds, one with an observer and one without: the proof that a task is gone takes half a minute.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audit import AuditReport, AuditRules
from crawler_lifecycle.domain.run import RunResult
from crawler_lifecycle.ports import TaskRow
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.kube_lab import KubeLab, kube_laboratory
from tests.kubernetes.test_lifecycle_kwok import ENDLESS, FINISHED, QUICKLY, request
from tests.support.temporal import temporal_server

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Graces that have passed as soon as something is seen.
AT_ONCE = AuditRules(grace_s=0, orphan_grace_s=0, start_grace_s=0, resend_s=0)
#: The runs of a world in the order in which they begin; the first three do so before the snapshot.
GOES_ON, ENDS, IS_STOPPED, IS_MISSED, IS_MISSED_AND_STOPPED, BEGINS_AFTERWARDS = range(1, 7)

Handle = WorkflowHandle[Any, RunResult]


@pytest_asyncio.fixture(loop_scope="session")
async def servers() -> AsyncIterator[list[WorkflowEnvironment]]:
    """One for each world: workers of two laboratories on one would take each other's tasks."""
    async with temporal_server(skipping=False) as one, temporal_server(skipping=False) as two:
        yield [one, two]


class World:
    """A laboratory, and what happens in it before and after the restore."""

    def __init__(self, kube: KubeLab) -> None:
        self.kube = kube
        self.handles: dict[int, Handle] = {}

    async def begin(self, run_id: int) -> None:
        """Start the next run; return when its task executes, on record."""
        self.kube.knows(ENDLESS)
        self.handles[run_id] = await self.kube.lab.start(request())
        await self.kube.lab.until(lambda: self.statuses(run_id) == ["RUNNING"], 40)

    async def stop(self, run_id: int) -> RunResult:
        await self.handles[run_id].signal("stop", {"request_id": f"s{run_id}", "requested_by": "ada"})
        return await self.kube.lab.ended(self.handles[run_id])

    def task(self, run_id: int) -> TaskRow:
        [task] = self.kube.tasks(run_id)
        return task

    def statuses(self, run_id: int) -> list[str]:
        if self.kube.lab.store.get_run(run_id) is None:
            return []
        return [str(task.status) for task in self.kube.tasks(run_id)]

    def phase(self, run_id: int) -> str | None:
        """That of the run's pod as the API server shows it."""
        pods = [pod for pod in self.kube.pods() if pod["metadata"]["name"].startswith(f"crawl-{run_id}-")]
        return pods[0]["status"]["phase"] if pods else None

    def kinds(self, run_id: int) -> list[str]:
        return [str(found.kind) for found in self.kube.lab.store.corrections(run_id)]

    def versions(self) -> int:
        """Where the API server is."""
        return int(self.kube.cluster.admin.get(self.kube.path("pods"))["metadata"]["resourceVersion"])

    # --- the story

    async def before(self) -> None:
        for run_id in (GOES_ON, ENDS, IS_STOPPED):
            await self.begin(run_id)

    async def since(self) -> None:
        """What the snapshot does not know: two more runs, and two ends on record and let go of."""
        for run_id in (IS_MISSED, IS_MISSED_AND_STOPPED):
            await self.begin(run_id)
        name = next(p["metadata"]["name"] for p in self.kube.pods() if f"crawl-{ENDS}-" in p["metadata"]["name"])
        self.kube.end_pod(name, 0, FINISHED)
        result = await self.kube.lab.ended(self.handles[ENDS])
        assert (result.status, result.tasks) == ("COMPLETED", {"SUCCEEDED": 1})
        stopped = await self.stop(IS_STOPPED)
        assert (stopped.outcome, stopped.tasks) == ("cancelled", {"CANCELLED": 1})
        await self.kube.lab.until(lambda: self.phase(IS_STOPPED) is None and not self.kube.api_kept(ENDS))

    async def afterwards(self) -> None:
        recorded = {run_id: self.task(run_id) for run_id in (ENDS, IS_STOPPED)}
        assert [self.phase(run_id) for run_id in (ENDS, IS_STOPPED)] == ["Running", "Running"], "they are back"
        await self.those_that_are_missed()
        assert [self.phase(run_id) for run_id in (ENDS, IS_STOPPED)] == ["Running", "Running"]
        assert {run_id: self.task(run_id) for run_id in recorded} == recorded, "an end on record stays"
        assert [self.kinds(run_id) for run_id in recorded] == [[], []]
        await self.those_that_came_back(recorded)
        await self.life_goes_on()

    async def those_that_are_missed(self) -> None:
        """Not called lost by one look, stoppable meanwhile, and then the truth."""
        stopping = asyncio.create_task(self.stop(IS_MISSED_AND_STOPPED))
        await self.kube.lab.until(lambda: "not on the cluster any more" in (self.task(IS_MISSED).reason or ""), 60)
        assert (self.statuses(IS_MISSED), self.kinds(IS_MISSED)) == (["RUNNING"], [])
        stopped = await stopping
        assert (stopped.status, stopped.outcome, stopped.tasks) == ("FAILED", "cancelled", {"CANCELLED": 1})
        assert (self.statuses(IS_MISSED), self.kinds(IS_MISSED)) == (["RUNNING"], [])
        result = await self.kube.lab.ended(self.handles[IS_MISSED], 80)
        assert (result.status, result.outcome, result.tasks) == ("FAILED", "lost", {"LOST": 1})
        assert self.kinds(IS_MISSED) == ["vanished"]

    async def those_that_came_back(self, recorded: dict[int, TaskRow]) -> None:
        """Found by an audit and ended, with a correction and without a change of what was recorded."""
        told = await self.audit(repair=False)
        assert told.found == {"still_alive": 2}, told.findings
        done = await self.audit(repair=True)
        assert done.repaired == {"still_alive": 2}, done.findings
        assert [self.kinds(run_id) for run_id in recorded] == [["still_alive"], ["still_alive"]]
        await self.kube.lab.until(lambda: self.phase(ENDS) is None and self.phase(IS_STOPPED) is None)
        again = await self.audit(repair=True)
        assert again.found == {}, again.findings
        assert {run_id: self.task(run_id) for run_id in recorded} == recorded

    async def audit(self, *, repair: bool) -> AuditReport:
        client = self.kube.lab.client
        handle: WorkflowHandle[Any, AuditReport] = await client.start_workflow(
            names.AUDIT_WORKFLOW,
            {"repair": repair},
            id=f"audit/{uuid.uuid4()}",
            task_queue=names.QUEUE_AUDIT,
            result_type=AuditReport,
        )
        self.kube.lab.handles.append(handle)
        report = await handle.result()
        assert report.troubles == []
        return report

    async def life_goes_on(self) -> None:
        """What executed all the time was never doubted, and a new run takes its usual course."""
        assert (self.statuses(GOES_ON), self.kinds(GOES_ON)) == (["RUNNING"], [])
        stopped = await self.stop(GOES_ON)
        assert (stopped.outcome, stopped.tasks) == ("cancelled", {"CANCELLED": 1})
        assert (self.task(GOES_ON).exit_code, self.kinds(GOES_ON)) == (11, [])
        self.kube.knows(QUICKLY)
        # Where somebody watches, nothing but a wake-up finds its end in time.
        more = {"poll_minutes": [10]} if self.kube.observer is not None else {}
        result = await self.kube.lab.ended(await self.kube.lab.start(request(**more)))
        assert (result.status, result.tasks) == ("COMPLETED", {"SUCCEEDED": 1})
        assert self.statuses(BEGINS_AFTERWARDS) == ["SUCCEEDED"]
        assert self.kube.observer is None or self.kube.observer.health().up


async def test_etcd_is_restored_from_an_older_snapshot(
    servers: list[WorkflowEnvironment], kube_binaries: None, tmp_path: Path
) -> None:
    with Cluster(kwok=1) as cluster:
        async with AsyncExitStack() as stack:
            worlds = []
            for number, server in enumerate(servers):
                folder = tmp_path / str(number)
                folder.mkdir()
                kube = kube_laboratory(server.client, folder, cluster, watched=number == 0, audit=AT_ONCE)
                worlds.append(World(await stack.enter_async_context(kube)))
            await asyncio.gather(*(world.before() for world in worlds))
            snapshot = await asyncio.to_thread(cluster.snapshot)
            await asyncio.gather(*(world.since() for world in worlds))
            newest = worlds[0].versions()
            await asyncio.to_thread(cluster.restore, snapshot)
            assert worlds[0].versions() < newest
            await asyncio.gather(*(world.afterwards() for world in worlds))
