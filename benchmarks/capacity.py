"""The cost of a task to each component, and the needs of 1,000, 10,000 and 100,000 tasks a day
(task ``capacity``).

The whole stack runs on MariaDB and on a real API server whose nodes pretend to run pods that end at
once. Runs of one task, or of ``BENCHMARK_EACH`` tasks, begin at the rate of a peak hour, 12,000 of
100,000 tasks a day. The processor seconds of each component, the bytes in the database, the API
server's own count of requests, and the actions in the histories of some runs are divided by the
number of tasks. The results are printed as a table; ``docs/capacity.md`` has one, and the formula.
With ``BENCHMARK_STANDING=2000``, a run of this many tasks executes in parallel, and its own cost is
printed.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from temporalio.client import Client

from benchmarks.gateway_streams import _memory
from benchmarks.history import actions
from benchmarks.kubernetes_harness import BenchmarkHarness
from benchmarks.kubernetes_poll import requests
from benchmarks.sizes import size
from benchmarks.throughput import _cpu
from tests.e2e.harness import until
from tests.kubernetes.cluster.cluster import Cluster
from tests.support.filling import patient_engine
from tests.support.mariadb import running_mariadb

TASKS = size(600, 6, "BENCHMARK_TASKS")
#: Tasks a second: the peak hour of a day of 100,000.
PEAK_SHARE, DAYS = 0.12, (1_000, 10_000, 100_000)
RATE = float(os.environ.get("BENCHMARK_RATE", str(PEAK_SHARE * 100_000 / 3600)))
#: Tasks of each run.
EACH = int(os.environ.get("BENCHMARK_EACH", "1"))
SAMPLE, NODES, STARTERS = 20, 4, 8
#: The number of tasks of a run that executes all the time, and the seconds for which its own cost
#: is measured.
STANDING, STANDING_S = int(os.environ.get("BENCHMARK_STANDING", "0")), 60
#: The share of a core that a part may use in the peak hour, so that a slow minute causes no queue.
BUSY = 0.6
#: The days for which production keeps details and logs (deploy/components/prune).
DETAILS_D, LOGS_D = 90, 30
#: The list price of a million actions at Temporal Cloud, in US dollars.
MILLION = 50.0
#: Our requests. The server does not count by client, so the lists and reads of its controllers are
#: included.
OURS = (
    "POST jobs",
    "PATCH jobs",
    "PATCH pods",
    "GET jobs",
    "LIST jobs",
    "LIST pods",
    "CONNECT pods/log",
    "LIST events",
)
PARTS = ("gateway", "scheduler", "worker", "temporal")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one task."""

    cpu: Mapping[str, float]
    """Seconds of a core, by part."""
    bytes: Mapping[str, float]
    """Bytes of the database that stay forever, with the details, and with the logs."""
    actions: float
    calls: Mapping[str, float]
    """Requests to the API server by verb and resource."""
    resident: Mapping[str, float]
    """MiB of each part at the end."""


class Measured(BenchmarkHarness):
    """The stack of the benchmark on a database server."""

    def __init__(self, folder: Path, cluster: Cluster, url: str) -> None:
        self.url = url
        super().__init__(folder, cluster)

    def __post_init__(self) -> None:
        self.database, self._engine = self.url, patient_engine(self.url)
        super().__post_init__()

    def size(self) -> dict[str, int]:
        """Return the bytes of each table with its indexes, as the server counts them after an
        analysis.
        """
        with self._engine.connect() as conn:
            names = [row[0] for row in conn.execute(text("SHOW TABLES"))]
            conn.execute(text("ANALYZE TABLE " + ", ".join(names)))
            found = conn.execute(
                text(
                    "SELECT table_name, data_length + index_length FROM information_schema.tables "
                    "WHERE table_schema = DATABASE()"
                )
            )
            return {str(name): int(size) for name, size in found}


def begin(harness: BenchmarkHarness, tasks: int, rate: float) -> list[int]:
    """Start runs at a steady rate of tasks. Return their numbers."""
    began, runs = time.monotonic(), -(-tasks // EACH)
    request = {"crawler": "brief", "poll_minutes": [1, 2, 3, 5, 8, 15], "tasks": [{}] * EACH}

    def start(number: int) -> int:
        time.sleep(max(0.0, began + number * EACH / rate - time.monotonic()))
        return int(harness.gateway.start(request, uuid.uuid4().hex)["run_id"])

    with ThreadPoolExecutor(STARTERS) as threads:
        found = list(threads.map(start, range(runs)))
    took = time.monotonic() - began
    print(
        f"{runs} runs of {EACH} tasks begun in {took:.0f} s, {rate:.2f} tasks a second asked",
        flush=True,
    )
    return found


def measure(harness: Measured, tasks: int, rate: float) -> Cost:
    """Execute the load once, after a few runs for warm-up, and divide by its tasks."""
    _end_of(harness, begin(harness, 10 * EACH, rate))
    pids = {part: harness.stack.supervisor.pids()[part] for part in PARTS}
    cpu = {part: _cpu(pid) for part, pid in pids.items()}
    calls, size, began = requests(harness.cluster), harness.size(), time.monotonic()
    runs = begin(harness, tasks, rate)
    waited = _end_of(harness, runs)
    took = time.monotonic() - began
    used = {part: (_cpu(pid) - cpu[part]) / tasks for part, pid in pids.items()}
    asked = {key: (n - calls.get(key, 0)) / tasks for key, n in requests(harness.cluster).items()}
    grown = {name: (n - size.get(name, 0)) / tasks for name, n in harness.size().items()}
    logs = grown.get("task_log", 0.0) + grown.get("task_stats", 0.0)
    details = sum(grown.get(name, 0.0) for name in ("outbox_event", "outbox_delivery"))
    print(
        f"the last had ended {waited:.0f} s after the last start, {took:.0f} s in all; load "
        f"{os.getloadavg()[0]:.1f}",
        flush=True,
    )
    resident = {part: _memory(pid)["VmRSS"] for part, pid in pids.items()}
    acts = asyncio.run(_actions(harness, runs)) / EACH
    stays = sum(grown.values()) - logs - details
    ours = {key: asked.get(key, 0.0) for key in OURS}
    return Cost(used, {"forever": stays, "details": details, "logs": logs}, acts, ours, resident)


@contextmanager
def standing(harness: Measured, tasks: int) -> Iterator[None]:
    """Keep this number of tasks of one run executing, and print their cost while nothing else
    happens.
    """
    if not tasks:
        yield
        return
    began = time.monotonic()
    run = {"crawler": "pretended", "tasks": [{}] * tasks, "limits": {"stop_grace_s": 60}}
    run_id = int(harness.gateway.start(run, uuid.uuid4().hex)["run_id"])
    until(
        lambda: harness.tasks(run_id).get("RUNNING", 0) == tasks,
        f"{tasks} tasks that execute",
        1800,
    )
    print(f"{tasks} tasks of a run execute after {time.monotonic() - began:.0f} s", flush=True)
    before = {part: _cpu(harness.stack.supervisor.pids()[part]) for part in PARTS}
    time.sleep(STANDING_S)
    used = {
        part: (_cpu(harness.stack.supervisor.pids()[part]) - cpu) / STANDING_S
        for part, cpu in before.items()
    }
    memory = {part: _memory(harness.stack.supervisor.pids()[part])["VmRSS"] for part in PARTS}
    parts = ", ".join(f"{part} {used[part]:.3f} core, {memory[part]:.0f} MiB" for part in PARTS)
    print(f"    while nothing else happens, {STANDING_S} s: {parts}", flush=True)
    yield
    began = time.monotonic()
    harness.gateway.stop(run_id)
    until(
        lambda: harness.status(run_id) not in ("PROCESSING", "STOPPING"),
        "the end of that run",
        1800,
    )
    counts = harness.tasks(run_id)
    print(
        f"{tasks} tasks stopped, {counts} on record after {time.monotonic() - began:.0f} s",
        flush=True,
    )


def _end_of(harness: BenchmarkHarness, runs: list[int]) -> float:
    began, last = time.monotonic(), max(runs)
    sql = (
        "SELECT COUNT(*) FROM run_history WHERE run_id >= ? AND run_id <= ? AND status IN "
        "('COMPLETED', 'FAILED')"
    )
    until(
        lambda: harness.query(sql, min(runs), last)[0][0] >= len(runs), "the end of all runs", 1800
    )
    return time.monotonic() - began


async def _actions(harness: BenchmarkHarness, runs: list[int]) -> float:
    """Return the billable actions of a run by its history, the median of some, without heartbeats
    and retries.
    """
    client, counts = await Client.connect(str(harness.stack.addresses["temporal"])), []
    for run_id in runs[:: max(1, len(runs) // SAMPLE)]:
        ((workflow_id,),) = harness.query(
            "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run_id
        )
        counts.append(
            actions((await client.get_workflow_handle(str(workflow_id)).fetch_history()).events)
        )
    return statistics.median(counts)


def table(cost: Cost) -> list[str]:
    """Print the needs of days of several sizes, by the formula of docs/capacity.md."""
    rows = [
        "| tasks a day | " + " | ".join(f"{n:,}" for n in DAYS) + " |",
        "|---|" + "---|" * len(DAYS),
    ]

    def row(name: str, of: Any) -> None:
        rows.append(f"| {name} | " + " | ".join(of(n) for n in DAYS) + " |")

    for part in PARTS:
        row(
            f"cores of {part} in the peak hour",
            lambda n, p=part: f"{n * PEAK_SHARE / 3600 * cost.cpu[p] / BUSY:.2f}",
        )
    a_day = sum(cost.bytes.values())
    row("database a day, MB", lambda n: f"{n * a_day / 1e6:,.1f}")
    pruned = (
        DETAILS_D * (cost.bytes["forever"] + cost.bytes["details"]) + LOGS_D * cost.bytes["logs"]
    )
    row(f"database after {DETAILS_D} days, GB", lambda n: f"{n * pruned / 1e9:,.2f}")
    row("Temporal actions a day", lambda n: f"{n * cost.actions:,.0f}")
    row(
        f"their price at {MILLION:g} USD a million, a month",
        lambda n: f"{n * cost.actions * 30 / 1e6 * MILLION:,.0f}",
    )
    row(
        "API server calls a second in the peak hour",
        lambda n: f"{n * PEAK_SHARE / 3600 * sum(cost.calls.values()):.1f}",
    )
    return rows


def told(cost: Cost) -> None:
    for part in PARTS:
        print(
            f"    {part}: {cost.cpu[part] * 1000:.0f} ms of a core a task, "
            f"{cost.resident[part]:.0f} MiB",
            flush=True,
        )
    kinds = ", ".join(f"{name} {n:,.0f}" for name, n in cost.bytes.items())
    print(
        f"    database bytes a task: {kinds}; Temporal actions a task: {cost.actions:.1f}",
        flush=True,
    )
    print(
        "    API server: " + ", ".join(f"{key} {n:.2f}" for key, n in sorted(cost.calls.items())),
        flush=True,
    )
    print("\n".join(table(cost)), flush=True)


def on_kwok() -> None:
    with (
        ExitStack() as stack,
        tempfile.TemporaryDirectory() as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("LIFECYCLE_CLUSTER__JOB_TTL_S", "60")
        url = stack.enter_context(stack.enter_context(running_mariadb()).database())
        cluster = stack.enter_context(Cluster(kwok=NODES))
        made = Measured(Path(name) / "state", cluster, url)
        stack.callback(made.end)
        made.start()
        with standing(made, STANDING):
            told(measure(made, TASKS, RATE))


async def main() -> None:
    """Run ``python -m benchmarks capacity``."""
    await asyncio.to_thread(on_kwok)
