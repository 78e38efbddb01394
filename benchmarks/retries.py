"""What the cluster ended and goes on by itself: how soon the next try is there, and whether there
is one for each end.

``soon`` evicts pods at random moments, one after the other, with a wait of 0: from the moment at
which the API server showed the end to a watch of our own, to that at which it showed the Job of the
next try. ``drained`` takes a third of the nodes out of use under a run of many tasks, each at a
random moment of the run (``BENCHMARK_SEED``): while its tasks begin, and while they end. It holds
what the cluster showed to our own watches against what is on record.
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

from benchmarks.kubernetes_harness import BenchmarkHarness, harness
from benchmarks.sizes import size
from benchmarks.truth_lag import _line
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, Pod, decode
from crawler_lifecycle.clusters.kubernetes.polls.predicates import ended, executing
from tests.e2e.harness import until

EVICTIONS = size(60, 2, "BENCHMARK_EVICTIONS")
NODES = 9
TASKS = size(10_000, 30, "BENCHMARK_TASKS")
SEED = size(1, 1, "BENCHMARK_SEED")
#: The maximum number of tries of one task and of all together, by the usual policy.
TRIES_MAX, BUDGET = 3, max(10, 2 * TASKS)
REPAIR = {"key": "example.com/repair", "effect": "NoExecute", "value": "today"}
AT_ONCE = 16
#: Run, index and attempt.
Key = tuple[str, str, str]


class Watches:
    """When the API server showed the end of each pod and Job, which pods execute, and how they
    ended.
    """

    def __init__(self, made: BenchmarkHarness) -> None:
        self._api = made.api
        self.over: dict[Key, float] = {}
        self.there: dict[Key, float] = {}
        self.executing: dict[str, str | None] = {}
        """Node by name."""
        self.begun, self.succeeded, self.interrupted = set[Key](), set[Key](), set[Key]()
        self.doubtful = set[Key]()
        """Who ended well and was told to leave within seconds: without a runner nobody can say
        which came first, and it is tried again (docs/kubernetes-outcomes.md, "Exit 0 without a
        runner")."""
        self._alive: dict[str, Pod] = {}
        """The pods that have not ended, as they were seen last."""
        for of, path, see in (
            (Pod, made.api.pods_path(), self._pod),
            (Job, made.api.jobs_path(), self._job),
        ):
            threading.Thread(target=self._watch, args=(of, path, see), daemon=True).start()

    def _watch(self, of: Any, path: str, see: Any) -> None:
        while True:
            try:
                found = self._api.listing(path, of)
                for one in found.items:
                    see(one, False)
                # The server ends a watch that is slower than its events: nobody knows what
                # disappeared meanwhile.
                if of is Pod:
                    there = {one.metadata.name for one in found.items}
                    for name in self._alive.keys() - there:
                        see(self._alive[name], True)
                for event in self._api.watch(
                    path, resource_version=found.resource_version, timeout_s=3600
                ):
                    if event.type != "BOOKMARK":
                        see(decode(of, event.object), event.type == "DELETED")
            # A watch without events is cut; at the end, the cluster ends first.
            except ApiError as error:
                print(f"    watch of {path} again: {error}", flush=True)
                time.sleep(1)

    def _pod(self, pod: Pod, gone: bool) -> None:
        key, told_to_leave = (
            _key(pod.metadata.labels),
            pod.condition("DisruptionTarget") is not None,
        )
        if (ended(pod) or gone) and key not in self.succeeded and key not in self.interrupted:
            # Its first end counts. A pod that was told to exit did not finish, whatever its exit
            # code.
            well = pod.status.phase == "Succeeded" and not told_to_leave
            (self.succeeded if well else self.interrupted).add(key)
        if told_to_leave and key in self.succeeded:
            self.doubtful.add(key)
        if ended(pod):
            self.over.setdefault(key, time.time())
        if ended(pod) or gone:
            self._alive.pop(pod.metadata.name, None)
        else:
            self._alive[pod.metadata.name] = pod
        if executing(pod) and pod.metadata.deletion_timestamp is None and not gone:
            self.begun.add(key)
            self.executing[pod.metadata.name] = pod.spec.node_name
        else:
            self.executing.pop(pod.metadata.name, None)

    def _job(self, job: Job, gone: bool) -> None:
        self.there.setdefault(_key(job.metadata.labels), time.time())


def _key(known: Any) -> Key:
    return known[labels.RUN], known[labels.TASK], known[labels.ATTEMPT]


def _begin(made: BenchmarkHarness, seen: Watches, runs: int, tasks: int) -> list[int]:
    """Start this number of runs with this number of tasks, which execute until they are told to
    finish.
    """
    request = {"crawler": "leaves", "tasks": [{"args": {}}] * tasks, "poll_minutes": [1]}
    run_ids = [int(made.gateway.start(request, uuid.uuid4().hex)["run_id"]) for _ in range(runs)]
    until(lambda: len(seen.executing) == runs * tasks, f"{runs * tasks} pods that execute", 3000)
    return run_ids


def _finish(
    made: BenchmarkHarness, seen: Watches, run_ids: list[int], at_once: int | None = None
) -> None:
    """Let every executing pod finish, a limited number in each fifth of a second, until the runs
    have ended.
    """
    told = {"metadata": {"annotations": {"crawl.test/run-for": "1ms"}}}

    def tell(name: str) -> None:
        made.cluster.admin.patch(f"{made.api.pods_path(name)}", told)

    done = set[str]()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        while not all(made.status(run_id) in ("COMPLETED", "FAILED") for run_id in run_ids):
            new = [name for name in list(seen.executing) if name not in done][:at_once]
            list(threads.map(tell, new))
            done.update(new)
            time.sleep(0.2)


def soon(made: BenchmarkHarness, seen: Watches) -> None:
    """Evict pods one after the other, each in its own run, because polls of one run keep a
    distance.
    """
    chosen, run_ids = random.Random(7), _begin(made, seen, EVICTIONS, 1)
    for name in list(seen.executing):
        meta = {"name": name, "namespace": made.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        made.cluster.admin.post(f"{made.api.pods_path(name)}/eviction", body)
        time.sleep(chosen.uniform(0, 2))
    until(lambda: len(seen.there) == 2 * EVICTIONS, "the next tries", 120)
    waits = [
        seen.there[run, index, "2"] - at
        for (run, index, attempt), at in seen.over.items()
        if attempt == "1"
    ]
    _line(
        "from the API server showing an evicted pod's end -> the Job of the next try",
        waits,
        "p99 2 s",
    )
    rows = made.committed(run_ids, "FAILED")
    added = [seen.there[str(run_id), "0", "2"] - at for run_id, at in rows.items()]
    _line("  of it, from the end on record -> the Job of the next try", added, "p99 1 s")
    _finish(made, seen, run_ids)


def drained(made: BenchmarkHarness, seen: Watches) -> None:
    """Let a third of the nodes leave, each at its own time, and come back when their pods have
    gone.
    """
    assert made.cluster.kwok is not None
    dice = random.Random(SEED)
    nodes = dice.sample(made.cluster.kwok.nodes, NODES // 3)
    # Below 1: when this share of the tasks has begun; above 1: when this share of them has also
    # ended.
    moments = sorted(dice.uniform(0, 2) for _ in nodes)
    began = time.monotonic()
    request = {"crawler": "leaves", "tasks": [{"args": {}}] * TASKS, "poll_minutes": [1]}
    run_id, pid = (
        int(made.gateway.start(request, uuid.uuid4().hex)["run_id"]),
        made.stack.supervisor.pids()["worker"],
    )

    def of_run(keys: set[Key]) -> set[str]:
        return {index for run, index, _ in list(keys) if run == str(run_id)}

    def take_out(node: str, moment: float) -> None:
        keys, part = (seen.begun, moment) if moment < 1 else (seen.succeeded, moment - 1)
        until(lambda: len(of_run(keys)) >= part * TASKS, f"moment {moment:.2f}", 3000)
        at, on = (
            time.monotonic() - began,
            len([name for name in seen.executing.values() if name == node]),
        )
        with _out_of_use(made, node):
            until(lambda: node not in seen.executing.values(), "a drained node", 600)
        print(
            f"    {node} left at {moment:.2f} of the run, after {at:.0f} s, under {on} tasks",
            flush=True,
        )

    with ThreadPoolExecutor(len(nodes)) as threads:
        drains = [threads.submit(take_out, *one) for one in zip(nodes, moments, strict=True)]
        until(lambda: len(of_run(seen.begun)) == TASKS, "all tasks", 3000)
        _finish(made, seen, [run_id], at_once=max(1, TASKS // 100))
        for one in drains:
            one.result()
    with open(f"/proc/{pid}/status") as status:
        peak = int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) / 1024  # type: ignore[index]
    wrong, interrupted = (
        _judged(made, seen, run_id),
        [key for key in seen.interrupted if key[0] == str(run_id)],
    )
    print(
        f"{TASKS} tasks, seed {SEED}, {len(nodes)} of {NODES} nodes drained: {len(interrupted)} "
        "interrupted, "
        f"{made.tasks(run_id)}; {time.monotonic() - began:.0f} s; worker {peak:.0f} MiB; "
        f"{len(wrong)} wrong; "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    assert interrupted, "nothing was interrupted"
    assert not wrong, "\n".join(wrong[:20])


def _judged(made: BenchmarkHarness, seen: Watches, run_id: int) -> list[str]:
    """Return records that differ from what our watches have seen."""
    mine = [key for key in seen.interrupted if key[0] == str(run_id)]
    doubts = Counter(index for run, index, _ in seen.doubtful if run == str(run_id))
    ends, jobs = (
        Counter(index for _, index, _ in mine),
        Counter(key[1] for key in seen.there if key[0] == str(run_id)),
    )
    columns = "task_index, attempt, retry, status, superseded_by, cause"
    rows = made.query(f"SELECT {columns} FROM task_history WHERE run_id = ?", run_id)
    tries, last = Counter(str(row[0]) for row in rows), [row for row in rows if row[4] is None]
    wrong = [
        f"task {row[0]} is {row[3]} in its last try {row[1]}"
        for row in last
        if row[3] != "SUCCEEDED"
    ]
    if sorted(row[0] for row in last) != list(range(TASKS)):
        wrong.append(f"{len(last)} last tries of {TASKS} tasks")
    for index in map(str, range(TASKS)):
        least = ends[index] + 1
        if not least <= tries[index] == jobs[index] <= least + doubts[index]:
            causes = [row[5] for row in rows if str(row[0]) == index]
            counted = f"{tries[index]} tries, {jobs[index]} Jobs, {ends[index]} interruptions"
            well = sum(key[:2] == (str(run_id), index) for key in seen.succeeded)
            wrong.append(f"task {index}: {counted}, {well} good ends; on record: {causes}")
    retries = [row[2] for row in rows]
    if max(retries) > TRIES_MAX or sum(retry > 0 for retry in retries) > BUDGET:
        wrong.append(
            f"{sum(retry > 0 for retry in retries)} further tries, up to {max(retries)} of one task"
        )
    sql = (
        "SELECT task_id, COUNT(*) FROM status_transition WHERE run_id = ? AND task_id IS NOT NULL "
    )
    sql += "AND to_status IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'LOST') GROUP BY task_id"
    times = Counter(count for _, count in made.query(sql, run_id))
    if times != {1: len(rows)}:
        wrong.append(f"{len(rows)} tries ended so often on record: {dict(times)}")
    return wrong


@contextlib.contextmanager
def _out_of_use(made: BenchmarkHarness, node: str) -> Iterator[None]:
    made.cluster.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [REPAIR]}})
    yield
    made.cluster.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": []}})


def on_kwok() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFECYCLE_RETRIES", '{"backoff_s": 0}')
        with harness(real=False, kwok=NODES) as made:
            seen = Watches(made)
            soon(made, seen)
            drained(made, seen)


async def main() -> None:
    """Run ``python -m benchmarks retries``."""
    await asyncio.to_thread(on_kwok)
