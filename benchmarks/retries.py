"""What the cluster ended and goes on by itself: how soon the next try is there, and whether there is one for each end.

``soon`` evicts pods at random moments, one after the other, with a wait of 0: from the moment at which the API server
showed the end to a watch of our own, to that at which it showed the Job of the next try. ``drained`` takes a third
of the nodes out of use under a run of many tasks, and counts what the cluster has against what is on record.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from benchmarks.kubernetes_world import BenchWorld, world
from benchmarks.truth_lag import _line
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, Pod, decode
from crawler_lifecycle.clusters.kubernetes.looks.predicates import ended, executing
from tests.e2e.world import until

EVICTIONS, NODES = int(os.environ.get("BENCHMARK_EVICTIONS", "60")), 9
TASKS = int(os.environ.get("BENCHMARK_TASKS", "10000"))
REPAIR = {"key": "example.com/repair", "effect": "NoExecute", "value": "today"}
AT_ONCE = 16
#: Run, index and attempt.
Key = tuple[str, str, str]


class Watches:
    """When the API server showed the end of each pod, and each Job; and which pods execute."""

    def __init__(self, made: BenchWorld) -> None:
        self._api = made.api
        self.over: dict[Key, float] = {}
        self.there: dict[Key, float] = {}
        self.executing: dict[str, str | None] = {}
        """Node by name."""
        for of, path, see in ((Pod, made.api.pods_path(), self._pod), (Job, made.api.jobs_path(), self._job)):
            threading.Thread(target=self._watch, args=(of, path, see), daemon=True).start()

    def _watch(self, of: Any, path: str, see: Any) -> None:
        while True:
            try:
                found = self._api.listing(path, of)
                for one in found.items:
                    see(one, False)
                for event in self._api.watch(path, resource_version=found.resource_version, timeout_s=3600):
                    if event.type != "BOOKMARK":
                        see(decode(of, event.object), event.type == "DELETED")
            except ApiError as error:  # a watch in which nothing comes is cut; at the end the cluster ends before us
                print(f"    watch of {path} again: {error}", flush=True)
                time.sleep(1)

    def _pod(self, pod: Pod, gone: bool) -> None:
        if ended(pod):
            self.over.setdefault(_key(pod.metadata.labels), time.time())
        if executing(pod) and pod.metadata.deletion_timestamp is None and not gone:
            self.executing[pod.metadata.name] = pod.spec.node_name
        else:
            self.executing.pop(pod.metadata.name, None)

    def _job(self, job: Job, gone: bool) -> None:
        self.there.setdefault(_key(job.metadata.labels), time.time())


def _key(known: Any) -> Key:
    return known[labels.RUN], known[labels.TASK], known[labels.ATTEMPT]


def _begin(made: BenchWorld, seen: Watches, runs: int, tasks: int) -> list[int]:
    """So many runs of so many tasks that execute until they are told to finish."""
    request = {"crawler": "leaves", "tasks": [{"args": {}}] * tasks, "poll_minutes": [1]}
    run_ids = [int(made.gateway.start(request, uuid.uuid4().hex)["run_id"]) for _ in range(runs)]
    until(lambda: len(seen.executing) == runs * tasks, f"{runs * tasks} pods that execute", 3000)
    return run_ids


def _finish(made: BenchWorld, seen: Watches, run_ids: list[int]) -> None:
    """Let every pod finish that executes, until the runs have ended."""
    told = {"metadata": {"annotations": {"crawl.test/run-for": "1ms"}}}

    def tell(name: str) -> None:
        made.cluster.admin.patch(f"{made.api.pods_path(name)}", told)

    done = set[str]()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        while not all(made.status(run_id) in ("COMPLETED", "FAILED") for run_id in run_ids):
            new = [name for name in list(seen.executing) if name not in done]
            list(threads.map(tell, new))
            done.update(new)
            time.sleep(0.2)


def soon(made: BenchWorld, seen: Watches) -> None:
    """Evictions one after the other, each in a run of its own: looks of one run keep a distance."""
    chosen, run_ids = random.Random(7), _begin(made, seen, EVICTIONS, 1)
    for name in list(seen.executing):
        meta = {"name": name, "namespace": made.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        made.cluster.admin.post(f"{made.api.pods_path(name)}/eviction", body)
        time.sleep(chosen.uniform(0, 2))
    until(lambda: len(seen.there) == 2 * EVICTIONS, "the next tries", 120)
    waits = [seen.there[run, index, "2"] - at for (run, index, attempt), at in seen.over.items() if attempt == "1"]
    _line("from the API server showing an evicted pod's end -> the Job of the next try", waits, "p99 2 s")
    rows = made.committed(run_ids, "FAILED")
    added = [seen.there[str(run_id), "0", "2"] - at for run_id, at in rows.items()]
    _line("  of it, from the end on record -> the Job of the next try", added, "p99 1 s")
    _finish(made, seen, run_ids)


def drained(made: BenchWorld, seen: Watches) -> None:
    """A third of the nodes leave, and come back when their pods have gone."""
    assert made.cluster.kwok is not None
    [run_id], nodes = _begin(made, seen, 1, TASKS), made.cluster.kwok.nodes[: NODES // 3]
    pid, began = made.stack.pids["worker"], time.monotonic()
    with _out_of_use(made, nodes):
        until(lambda: not set(nodes) & set(seen.executing.values()), "drained nodes", 600)
        until(lambda: len(seen.executing) == TASKS, "all tasks again", 3000)
    took = time.monotonic() - began
    _finish(made, seen, [run_id])
    rows = made.query("SELECT COUNT(*), SUM(retry > 0) FROM task_history WHERE run_id = ?", run_id)
    jobs = [key for key in seen.there if key[0] == str(run_id)]
    tries = Counter(attempt for _, _, attempt in jobs)
    with open(f"/proc/{pid}/status") as status:
        peak = int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) / 1024  # type: ignore[index]
    print(
        f"{TASKS} tasks, {len(nodes)} of {NODES} nodes drained: {len(jobs) - TASKS} interrupted, rows and later tries "
        f"on record {rows[0]}, Jobs {len(jobs)} ({dict(tries)}), {made.tasks(run_id)}; all execute again after "
        f"{took:.0f} s; worker {peak:.0f} MiB; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    assert rows[0] == (len(jobs), len(jobs) - TASKS), "one try for each interruption"


@contextlib.contextmanager
def _out_of_use(made: BenchWorld, nodes: list[str]) -> Iterator[None]:
    for node in nodes:
        made.cluster.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [REPAIR]}})
    yield
    for node in nodes:
        made.cluster.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": []}})


def on_kwok() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFECYCLE_RETRIES", '{"backoff_s": 0}')
        with world(real=False, kwok=NODES) as made:
            seen = Watches(made)
            soon(made, seen)
            drained(made, seen)


async def main() -> None:
    """For ``python -m benchmarks retries``."""
    await asyncio.to_thread(on_kwok)
