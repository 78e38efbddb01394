"""Tries after interruptions on a real API server: evictions, preemptions, a tainted node; kwok
simulates the nodes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.worker import finalizer_release
from tests.contracts.cluster.kube_harness import FINISHED, scripted
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.harnesses import until
from tests.kubernetes.kube_testbed import QUICK, Json, KubeTestbed, open_kube_testbed
from tests.support.auditing import AT_ONCE

pytestmark = pytest.mark.asyncio(loop_scope="session")

TASKS, SEED = 30, 7
REPAIR = {"key": "example.com/repair", "effect": "NoExecute", "value": "today"}


@pytest_asyncio.fixture(loop_scope="session")
async def kube(
    server: WorkflowEnvironment,
    kwok_cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[KubeTestbed]:
    # A taint may end a pod before kwok reports an exit code. Such an end is recorded, but held for
    # an hour.
    monkeypatch.setattr(finalizer_release, "UNPROVED_FOR", timedelta(seconds=10))
    rules: dict[str, Any] = {"retries": Retries(backoff_s=0), "audit": AT_ONCE}
    async with open_kube_testbed(
        server.client, tmp_path, kwok_cluster, watched=True, **rules
    ) as kube:
        yield kube


def ends(kube: KubeTestbed) -> Counter[str]:
    """Return how the Jobs have ended, as the cluster reports it; ``None`` if not yet."""
    return Counter(_end(job) for job in kube.jobs())


def _end(job: Json) -> str:
    told = [c["type"] for c in job.get("status", {}).get("conditions", []) if c["status"] == "True"]
    return next((kind for kind in told if kind in ("Failed", "Complete")), "open")


@dataclass
class Trouble:
    """Interrupts tries of a run, chosen by a seed."""

    kube: KubeTestbed
    chosen: random.Random = field(default_factory=lambda: random.Random(SEED))
    done: Counter[str] = field(default_factory=Counter)
    touched: set[str] = field(default_factory=set)

    def play(self) -> None:
        """Evict and preempt pods while others start, and take one of the three nodes out of use;
        then let them finish.

        A kwok pod that is stopped and ends by itself at the same moment ends twice, so none does
        before.
        """
        kwok = self.kube.cluster.kwok
        assert kwok is not None
        node, end = self.chosen.choice(kwok.nodes), time.monotonic() + 150
        with self._out_of_use(node):
            while sum(self.done.values()) < TASKS // 6:
                assert time.monotonic() < end, f"too few tries run: {self.done}"
                running = self._running()
                for pod in self.chosen.sample(running, len(running) // 5):
                    self._interrupt(pod)
            until(lambda: not [pod for pod in self._running() if pod["spec"]["nodeName"] == node])
            self._finish()

    @contextmanager
    def _out_of_use(self, node: str) -> Iterator[None]:
        """Allow no pods there; the taint manager removes existing ones."""
        admin, path = self.kube.cluster.admin, f"/api/v1/nodes/{node}"
        until(
            lambda: (
                len([pod for pod in self._running() if pod["spec"]["nodeName"] == node])
                > TASKS // 10
            )
        )
        admin.patch(path, {"spec": {"taints": [REPAIR]}})
        try:
            yield
        finally:
            admin.patch(path, {"spec": {"taints": []}})

    def _finish(self) -> None:
        """Let every existing and new pod finish, until the run has ended."""
        told = {"metadata": {"annotations": {"crawl.test/run-for": "1ms"}}}
        while not self.kube.run().status.terminal:
            for pod in self._running():
                self.touched.add(pod["metadata"]["name"])
                self.kube.cluster.admin.patch(self.kube.path("pods", pod["metadata"]["name"]), told)

    def _running(self) -> list[Json]:
        """Return the running pods that were not disturbed yet."""
        return [p for p in self.kube.pods() if p["status"]["phase"] == "Running" and self._new(p)]

    def _new(self, pod: Json) -> bool:
        return (
            pod["metadata"]["name"] not in self.touched
            and "deletionTimestamp" not in pod["metadata"]
        )

    def _interrupt(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        self.touched.add(name)
        kind = self.chosen.choice((self._evict, self._displace))
        kind(self.kube.path("pods", name), name)
        self.done[kind.__name__] += 1

    def _evict(self, path: str, name: str) -> None:
        meta = {"name": name, "namespace": self.kube.namespace}
        self.kube.cluster.admin.post(
            f"{path}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        )

    def _displace(self, path: str, name: str) -> None:
        """Do what the scheduler does for a pod of higher priority."""
        mark = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        self.kube.cluster.admin.patch(
            f"{path}/status", {"status": {"conditions": [mark]}}, "strategic-merge"
        )
        self.kube.cluster.admin.delete(path)


async def test_what_was_interrupted_is_tried_again_once_for_each_interruption(
    kube: KubeTestbed,
) -> None:
    kube.knows(scripted(message=FINISHED))
    handle = await kube.testbed.start({"crawler": "books", **QUICK, "tasks": [{}] * TASKS})
    trouble = Trouble(kube)
    await kube.testbed.until(lambda: kube.testbed.store.runs.get_run(1))
    await asyncio.to_thread(trouble.play)
    result = await kube.testbed.ended(handle, 300)
    assert (result.status, result.tasks) == ("COMPLETED", {"SUCCEEDED": TASKS})

    found = await asyncio.to_thread(until, lambda: not (told := ends(kube))["open"] and told)
    rows, jobs = kube.tasks(superseded=True), kube.jobs()
    assert found["Complete"] == TASKS, "each has finished once"
    assert len(rows) == len(jobs) == TASKS + found["Failed"], (
        "one try more for each interruption, and no other"
    )
    assert {row.cluster_uid for row in rows} == {job["metadata"]["uid"] for job in jobs}
    assert found["Failed"] > sum(trouble.done.values()), "and those of the node"
    assert [job["status"].get("failed", 0) + job["status"].get("succeeded", 0) for job in jobs] == [
        1
    ] * len(jobs)

    by_index: dict[int, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row.attempt):
        by_index.setdefault(row.task_index, []).append(row)
    assert sorted(by_index) == list(range(TASKS))
    for tries in by_index.values():
        assert [row.attempt for row in tries] == list(range(1, len(tries) + 1))
        assert [row.superseded_by for row in tries] == [*(row.task_id for row in tries[1:]), None]
        assert {str(row.outcome) for row in tries[:-1]} <= {"evicted", "interrupted"}
        assert all(one.node != other.node for one, other in pairwise(tries)), "another node fits"
    assert len(rows) - TASKS <= 2 * TASKS, "the budget of the run"
    await kube.until_released(audited=True)


async def test_what_the_provider_of_a_virtual_node_lost_is_tried_again(kube: KubeTestbed) -> None:
    """It invents a code and a reason, as virtual kubelets do for a container that they no longer
    find.
    """
    kube.knows(scripted(run_for="200ms", exit_code="-137", reason="NotFound"))
    handle = await kube.testbed.start({"crawler": "books", **QUICK})
    await kube.testbed.until(lambda: len(kube.tasks(superseded=True)) > 1)
    kube.knows(scripted(run_for="200ms", message=FINISHED))
    result = await kube.testbed.ended(handle, 300)
    assert (result.status, result.outcome) == ("COMPLETED", "finished")
    *lost, good = sorted(kube.tasks(superseded=True), key=lambda row: row.attempt)
    assert {(str(row.status), str(row.outcome), row.exit_code) for row in lost} == {
        ("LOST", "lost", None)
    }
    assert all("the provider of its node reports" in (row.cause or "") for row in lost)
    assert str(good.status) == "SUCCEEDED"
