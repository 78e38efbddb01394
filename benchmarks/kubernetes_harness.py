"""The whole stack on a Kubernetes cluster: how late an end and a stop are, and what a run of many
tasks costs.

``lag`` on kwok and on the real kubelet: from the moment at which the API server showed the
container's end to a watch of our own, and from the container's own ``finishedAt`` (whole seconds,
and about a second before the server hears of it), to the commit of the row. ``wide`` is the same
for one run of many tasks, ``unwatched`` without an observer. ``stop`` on the real kubelet: from
HTTP 202 to the line that the container prints in its SIGTERM handler, by the stamp of the container
runtime, and to the proof that it is gone. ``many`` on kwok: a run to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from benchmarks.kubernetes_poll import requests
from benchmarks.sizes import size
from benchmarks.truth_lag import _epoch, _line
from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import NoAnswer
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod, decode
from crawler_lifecycle.clusters.kubernetes.polls.predicates import crawler_container, ended
from tests.e2e.harness import until
from tests.kubernetes.cluster import images
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.real.real_harness import RUNNER, RealHarness

IMAGE = "crawl.test/benchmark:1"
RUNS_KWOK = size(60, 4)
RUNS_REAL = size(20, 2)
WIDE, ENDS, ENDS_PER_S = size(2_000, 20, "BENCHMARK_WIDE"), size(400, 5), 20
STOPS = size(20, 2)
#: Seconds between two polls without an observer.
POLL_S = 15.0
TASKS = size(10_000, 20)
PARALLEL = size(500, 10)
#: So long that the polling schedule finds nothing here.
NEVER: dict[str, Any] = {
    "poll_minutes": [600],
    "limits": {"start_check_s": 0.5, "stop_grace_s": 10},
}

_PROGRAM = """
import json, os, signal, sys, time
def told(number, frame):
    print("told", flush=True)
    sys.exit(11)
signal.signal(signal.SIGTERM, told)
end = time.time() + float(json.loads(os.environ["CRAWL_ARGS"]).get("seconds", "3600"))
print("ready", flush=True)
while (left := end - time.time()) > 0:
    time.sleep(min(left, 0.2))
"""
_ENTRY: dict[str, Any] = {
    "kind": "command",
    "command": ["python3", "/app/benchmark.py"],
    "image": IMAGE,
    "args": {"seconds": {"required": False}},
    "resources": {"cpu": "20m", "memory": "48Mi"},
}
#: ``held`` runs in a real container; ``pretended`` on kwok until somebody ends it, ``brief`` for
#: some seconds; ``leaves`` takes some time when it is told to exit.
CATALOGUE = [
    _ENTRY | {"name": "held", "kubernetes": {"project": "/app"}},
    _ENTRY | {"name": "pretended", "kubernetes": {"runner": False}},
    _ENTRY | {"name": "leaves", "env": {"KWOK_STOP_AFTER": "2s"}, "kubernetes": {"runner": False}},
    _ENTRY | {"name": "brief", "env": {"KWOK_RUN_FOR": "5s"}, "kubernetes": {"runner": False}},
]


class BenchmarkHarness(RealHarness):
    """A stack with our crawlers, and a watch that records when the API server showed the end of
    each pod.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        catalogue = self.folder / "crawlers.yaml"
        catalogue.write_text(json.dumps(CATALOGUE))
        if not self.cluster.nodes:  # there is no bridge either; simulated pods reach nobody
            place = ClusterAccess(self.cluster.kubeconfig, None, self.namespace)
            base: dict[str, Any] = {
                "database": self.database,
                "crawlers": catalogue,
                "kubernetes": place,
            }
            self.stack = Stack(Layout(self.folder, only_free_ports=True, **base))
        #: Run and index of a task -> when it was shown.
        self.shown: dict[tuple[int, int], float] = {}
        self.finished: dict[int, float] = {}
        self.api = Api(kubeconfig=self.cluster.kubeconfig, namespace=self.namespace)

    def note_ends(self) -> None:
        """Begin to watch, until the process ends."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        version = self.api.listing(self.api.pods_path(), Pod).resource_version
        events = self.api.watch(self.api.pods_path(), resource_version=version, timeout_s=3600)
        with events, contextlib.suppress(NoAnswer):  # the cluster ends first
            for event in events:
                now = time.time()
                if event.type == "BOOKMARK" or not ended(pod := decode(Pod, event.object)):
                    continue
                run_id = int(pod.metadata.labels[labels.RUN])
                self.shown.setdefault((run_id, int(pod.metadata.labels[labels.TASK])), now)
                main = crawler_container(pod)
                over = main.state.terminated if main is not None else None
                if over is not None and over.finished_at is not None:
                    self.finished[run_id] = over.finished_at.timestamp()

    def begin_many(
        self, count: int, crawler: str, seconds: Sequence[float] = (), **more: Any
    ) -> list[int]:
        """Start this number of runs, and wait until they execute; each ends after the given
        seconds, if any.

        ``more`` is added to the requests.
        """
        found = []
        for number in range(count):
            args = {"seconds": f"{seconds[number]:.1f}"} if seconds else {}
            answer = self.gateway.start(
                {"crawler": crawler, "args": args, **NEVER, **more}, uuid.uuid4().hex
            )
            found.append(int(answer["run_id"]))
        until(lambda: self._executing(found) == count, f"{count} runs that execute", 170)
        return found

    def _executing(self, run_ids: Sequence[int]) -> int:
        rows = self.query(
            "SELECT run_id FROM task_history WHERE status IN ('RUNNING', 'SUCCEEDED')"
        )
        return len({int(run_id) for (run_id,) in rows} & set(run_ids))

    def committed(self, run_ids: Sequence[int], status: str) -> dict[int, float]:
        """Wait until the status of all the runs' tasks was committed. Return the times."""
        found = dict[int, float]()

        def known() -> bool:
            sql = (
                "SELECT run_id, committed_at FROM status_transition WHERE task_id IS NOT NULL "
                "AND to_status = ?"
            )
            found.update((int(run_id), _epoch(at)) for run_id, at in self.query(sql, status))
            return set(run_ids) <= set(found)

        until(known, f"{status} of {len(run_ids)} runs", 120)
        return found

    def end_pod(self, run_id: int) -> None:
        """Let the only pod of a run end."""
        (pod,) = self.objects(run_id, "pods")
        self.end_container(pod)

    def end_container(self, pod: dict[str, Any]) -> None:
        """Report the end of the container as a kubelet would, in place of kwok's."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        over = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
        state = {"name": labels.CONTAINER, "state": {"terminated": over, "running": None}}
        body = {"status": {"phase": "Succeeded", "containerStatuses": [state]}}
        self.cluster.admin.patch(self.path(pod) + "/status", body, kind="strategic-merge")


@contextlib.contextmanager
def harness(*, real: bool, kwok: int = 2, watched: bool = True) -> Iterator[BenchmarkHarness]:
    """A cluster of one kind of node and the stack over it."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFECYCLE_WORKER__WAKE_UPS", str(watched).lower())
        folder, archives = Path(name), []
        if real:
            (folder / "benchmark.py").write_text(_PROGRAM)
            layer = images.Layer(
                ((RUNNER, "opt/crawl-runner"), (folder / "benchmark.py", "app/benchmark.py"))
            )
            archives.append(images.with_python(folder / "benchmark.tar", IMAGE, [layer]))
        with Cluster(nodes=int(real), kwok=0 if real else kwok, images=archives) as cluster:
            made = BenchmarkHarness(folder / "state", cluster)
            try:
                made.start()
                made.note_ends()
                yield made
            finally:
                made.end()


def lag(harness: BenchmarkHarness, count: int, *, real: bool) -> None:
    """Measure ends at random moments that only the observer finds."""
    chosen = random.Random(7)
    if real:
        run_ids = harness.begin_many(count, "held", [chosen.uniform(30, 60) for _ in range(count)])
    else:
        run_ids = harness.begin_many(count, "pretended")
        for run_id in run_ids:
            time.sleep(chosen.uniform(0.0, 1.0))
            harness.end_pod(run_id)
    rows = harness.committed(run_ids, "SUCCEEDED")
    where = "real kubelet" if real else "kwok"
    shown = [rows[run_id] - harness.shown[run_id, 0] for run_id in run_ids]
    _line(
        f"lag on {where}, from the API server showing the end -> row", shown, "p50 0.5 s, p99 1 s"
    )
    _line(
        f"lag on {where}, from finishedAt -> row",
        [rows[r] - harness.finished[r] for r in run_ids],
        "p99 3 s",
    )
    asyncio.run(_steps(harness, run_ids, statistics.median(shown)))


def wide(harness: BenchmarkHarness, tasks: int, ends: int) -> None:
    """Measure ends of single tasks of one run, ``ENDS_PER_S`` a second, that the observer finds."""
    request = {
        "crawler": "pretended",
        "tasks": [{"args": {}}] * tasks,
        "max_parallel_tasks": tasks,
        **NEVER,
    }
    run_id = int(harness.gateway.start(request, uuid.uuid4().hex)["run_id"])
    count = "SELECT COUNT(*) FROM task_history WHERE run_id = ? AND status = ?"
    until(
        lambda: harness.query(count, run_id, "RUNNING") == [(tasks,)],
        f"{tasks} tasks that execute",
        1200,
    )
    pods = {
        int(pod["metadata"]["labels"][labels.TASK]): pod for pod in harness.objects(run_id, "pods")
    }
    began = time.monotonic()
    for number, index in enumerate(random.Random(7).sample(sorted(pods), ends)):
        time.sleep(max(0.0, began + number / ENDS_PER_S - time.monotonic()))
        harness.end_container(pods[index])
    until(
        lambda: harness.query(count, run_id, "SUCCEEDED") == [(ends,)],
        f"{ends} ends on record",
        120,
    )
    sql = (
        "SELECT task_index, committed_at FROM status_transition JOIN task_history USING (task_id) "
        "WHERE task_history.run_id = ? AND to_status = 'SUCCEEDED'"
    )
    lags = [
        _epoch(at) - harness.shown[run_id, int(index)] for index, at in harness.query(sql, run_id)
    ]
    what = (
        f"one run of {tasks} tasks on kwok, {ENDS_PER_S} ends a second, from the API server "
        "showing the end -> row"
    )
    _line(what, lags, "p99 2 s")


def unwatched(harness: BenchmarkHarness, count: int) -> None:
    """Measure ends at random moments that only polls find."""
    chosen = random.Random(7)
    seconds = [chosen.uniform(30, 30 + 2 * POLL_S) for _ in range(count)]
    run_ids = harness.begin_many(count, "held", seconds, poll_minutes=[POLL_S / 60])
    rows = harness.committed(run_ids, "SUCCEEDED")
    what = (
        f"observer off on the real kubelet, a poll every {POLL_S:g} s, from the API server "
        "showing the end -> row"
    )
    _line(
        what,
        [rows[run_id] - harness.shown[run_id, 0] for run_id in run_ids],
        f"never later than {POLL_S + 2:g} s",
    )


async def _steps(harness: BenchmarkHarness, run_ids: Sequence[int], committed: float) -> None:
    """Return where the time was spent: the observer's signal, and the resulting poll."""
    client = await Client.connect(str(harness.stack.addresses["temporal"]))
    signals, polls, done = list[float](), list[float](), list[float]()
    for run_id in run_ids[:20]:
        ((workflow_id,),) = harness.query(
            "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run_id
        )
        poll = None
        async for event in client.get_workflow_handle(str(workflow_id)).fetch_history_events():
            at = event.event_time.ToMicroseconds() / 1e6 - harness.shown[run_id, 0]
            if at <= 0:
                continue
            if event.HasField("workflow_execution_signaled_event_attributes") and len(
                signals
            ) <= len(polls):
                signals.append(at)
            name = event.activity_task_scheduled_event_attributes.activity_type.name
            if name == "get_history_statuses_to_sync" and poll is None:
                poll = event.event_id
                polls.append(at)
            if (
                poll is not None
                and event.activity_task_completed_event_attributes.scheduled_event_id == poll
            ):
                done.append(at)
    parts = (("signal", signals), ("poll begins", polls), ("poll done", done))
    text = ", ".join(f"{name} {statistics.median(values):.3f}" for name, values in parts if values)
    print(
        f"    medians from that moment: {text}, row {committed:.3f} s; load "
        f"{os.getloadavg()[0]:.1f}",
        flush=True,
    )


def stop(harness: BenchmarkHarness, count: int) -> None:
    """Stop runs in real containers that exit at once when they are told to."""
    run_ids = harness.begin_many(count, "held")
    told, gone = [], []
    for run_id in run_ids:
        (pod,) = harness.objects(run_id, "pods")
        log = harness.path(pod) + f"/log?timestamps=true&container={labels.CONTAINER}"
        until(lambda log=log: "ready" in harness.cluster.admin.text(log), "a crawler at work")  # type: ignore[misc]
        harness.gateway.stop(run_id, reason="benchmark")
        accepted = time.time()
        at = until(lambda log=log: _told(harness.cluster.admin.text(log)), "SIGTERM")  # type: ignore[misc]
        told.append(max(0.0, at - accepted))
        gone.append(harness.committed([run_id], "CANCELLED")[run_id] - accepted)
    _line("stop on the real kubelet, 202 -> SIGTERM in the container", told, "p99 1.5 s")
    _line(
        "stop on the real kubelet, 202 -> proved gone and on record",
        gone,
        "grace + 3 s; it leaves at once",
    )


def _told(log: str) -> float | None:
    """Return when the handler printed its line, by the runtime's timestamp (nanoseconds; Python
    reads microseconds).
    """
    found = re.search(r"(\S{26})\S*Z told", log)
    return datetime.fromisoformat(found[1] + "+00:00").timestamp() if found else None


def many(harness: BenchmarkHarness, tasks: int, parallel: int) -> None:
    """Execute one run of many tasks to its end."""
    before, began = requests(harness.cluster), time.monotonic()
    request = {
        "crawler": "brief",
        "tasks": [{"args": {}}] * tasks,
        "max_parallel_tasks": parallel,
        "poll_minutes": [1],
    }
    run_id = int(harness.gateway.start(request, uuid.uuid4().hex)["run_id"])
    peak, pid = 0.0, harness.stack.supervisor.pids()["worker"]

    def over() -> bool:
        nonlocal peak
        status = Path(f"/proc/{pid}/status").read_text()
        peak = max(peak, int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024)  # type: ignore[index]
        time.sleep(1)
        return harness.status(run_id) in ("COMPLETED", "FAILED")

    until(over, f"the end of a run of {tasks} tasks", 3600)
    took, after = time.monotonic() - began, requests(harness.cluster)
    ((workflow_id,),) = harness.query(
        "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run_id
    )
    events, payload, segments = asyncio.run(
        _history(str(harness.stack.addresses["temporal"]), str(workflow_id))
    )
    ours = _ours(before, after)
    print(
        f"a run of {tasks} tasks, {parallel} at once, {harness.tasks(run_id)}: {took:.0f} s; "
        f"{segments} segments, "
        f"at most {events} events (target 4096), largest payload {payload / 1024:.1f} KiB "
        "(target 256); "
        f"worker {peak:.0f} MiB (target 300); writes of ours a task: {ours:.2f} (target 5 a task and "
        "the polls)",
        flush=True,
    )


def _ours(before: dict[str, int], after: dict[str, int]) -> float:
    """Return the requests per task that only we send: creations of Jobs, and releases of ended ones
    (Job and pod).
    """
    changed = {key: after.get(key, 0) - before.get(key, 0) for key in after}
    jobs = changed["POST jobs"]
    for key in (
        "POST jobs",
        "PATCH jobs",
        "PATCH pods",
        "GET jobs",
        "LIST jobs",
        "LIST pods",
        "DELETE jobs",
    ):
        print(
            f"    {key}: {changed.get(key, 0)} ({changed.get(key, 0) / max(1, jobs):.2f} a task)",
            flush=True,
        )
    return (jobs + changed.get("PATCH jobs", 0) + changed.get("PATCH pods", 0)) / max(1, jobs)


async def _history(address: str, workflow_id: str) -> tuple[int, int, int]:
    """Return the longest segment of the chain, the largest payload in bytes, and the number of
    segments.
    """
    client = await Client.connect(address)
    longest = largest = segments = 0
    async for found in client.list_workflows(f"WorkflowId = '{workflow_id}'"):
        history = await client.get_workflow_handle(workflow_id, run_id=found.run_id).fetch_history()
        segments += 1
        longest = max(longest, len(history.events))
        largest = max(largest, *(event.ByteSize() for event in history.events))
    return longest, largest, segments


def on_kwok() -> None:
    """Measure lag and the long run."""
    with harness(real=False, kwok=8) as made:
        lag(made, RUNS_KWOK, real=False)
        wide(made, WIDE, ENDS)
        many(made, TASKS, PARALLEL)


def on_the_kubelet() -> None:
    """Measure lag and stops."""
    with harness(real=True) as made:
        lag(made, RUNS_REAL, real=True)
        stop(made, STOPS)
    with harness(real=True, watched=False) as made:
        unwatched(made, RUNS_REAL)


async def kwok() -> None:
    """Run ``python -m benchmarks kubernetes-kwok``."""
    await asyncio.to_thread(on_kwok)


async def kubelet() -> None:
    """Run ``python -m benchmarks kubernetes-kubelet``."""
    await asyncio.to_thread(on_the_kubelet)
