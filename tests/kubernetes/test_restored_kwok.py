"""The database was restored while a run executed: it continues from its Job, on a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.contracts.cluster.kube_harness import FINISHED, scripted
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.kube_testbed import QUICK, open_kube_testbed
from tests.support.auditing import AT_ONCE, audit
from tests.workflows.audit.test_audit_testbed import ended, forget_run

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("workflow", ["waits for its row", "is gone too"])
async def test_it_is_taken_up_again_from_its_job_and_no_other_run_takes_it(
    server: WorkflowEnvironment, kwok_cluster: Cluster, tmp_path: Path, workflow: str
) -> None:
    async with open_kube_testbed(
        server.client, tmp_path, kwok_cluster, watched=True, audit=AT_ONCE
    ) as kube:
        kube.knows(scripted())
        handle = await kube.testbed.start({"crawler": "books", **QUICK})
        before, run = await kube.until_task("RUNNING"), kube.run()
        if workflow == "is gone too":
            await handle.terminate("the whole server was put back")
        forget_run(kube.testbed, 1)
        other = await kube.testbed.start({"crawler": "books", **QUICK}, id="since-then")
        since = await kube.until_task("RUNNING", run_id=2)
        report = await audit(kube.testbed)
        assert {f.run_id for f in report.findings if f.kind == "orphan"} == {1}
        assert report.repaired == {}, "nobody said so"
        assert {job["metadata"]["uid"] for job in kube.jobs()} == {
            before.cluster_uid,
            since.cluster_uid,
        }
        report = await audit(kube.testbed, repair=False, unknown="adopt")
        assert report.left == 0, report.findings
        again = await kube.until_task("RUNNING")
        assert (kube.run().run_uid, again.task_id, again.cluster_uid) == (
            run.run_uid,
            before.task_id,
            before.cluster_uid,
        )
        for pod in kube.pods():
            kube.end_pod(pod["metadata"]["name"], 0, FINISHED)
        for run_id in (1, 2):
            await ended(kube.testbed, run_id, "COMPLETED")
        assert [t.cluster_uid for t in kube.tasks(run_id=2)] == [since.cluster_uid]
        assert len(kube.jobs()) <= 2, "each was executed once"
        await kube.testbed.ended(other)
