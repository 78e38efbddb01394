"""The lateness of statuses while Temporal is unavailable, and its cost for a run.

A signal stops Temporal's process while crawls end. The figures are the lateness of their rows, of
their verdicts after Temporal's return, and of the last poll of a run if nobody observes the
cluster. Then runs of one task follow one after the other: Temporal's actions, and processor
seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from temporalio.client import Client

from benchmarks.history import actions, retries
from benchmarks.sizes import size
from benchmarks.throughput import _cpu
from benchmarks.truth_lag import NEVER, POLL_S, Harness, _epoch, _line, _verdicts, harness, in_turns

ENDS = 3
FROZEN_S = size(50.0, 4.0, "BENCHMARK_AWAY_S")
RUNS = size(30, 2)
IDLE_S = size(20.0, 1.0)
PARTS = ("worker", "temporal", "gateway", "scheduler")


@contextlib.contextmanager
def frozen(benchmark: Harness) -> Iterator[None]:
    """Freeze Temporal, and let it continue afterwards."""
    benchmark.stack.supervisor.kill("temporal", signal.SIGSTOP)
    try:
        yield
    finally:
        benchmark.stack.supervisor.kill("temporal", signal.SIGCONT)


def ends(build: str = "") -> None:
    """Let crawls end while Temporal is unavailable."""
    with harness(build, wake_ups=True) as benchmark:
        tasks = [(run_id, 0) for run_id in benchmark.start(ENDS, "held", **NEVER)]
        benchmark.ready(tasks)
        with frozen(benchmark):
            until = time.monotonic() + FROZEN_S
            for task in tasks:
                benchmark.end(task)
                time.sleep(FROZEN_S / 4 / ENDS)
            time.sleep(max(0.0, until - time.monotonic()))
        back = time.time()
        late = benchmark.steps(tasks).committed
        _line(f"Temporal frozen for {FROZEN_S:g} s, end of a process -> row", late, "2 s")
        last = max(
            after + benchmark.ended(task)
            for after, task in zip(_verdicts(benchmark, tasks), tasks, strict=True)
        )
        print(
            f"    all verdicts {last - back:.2f} s after its return (target: <= 10 s)", flush=True
        )


def unobserved(build: str = "") -> None:
    """Measure the age of the last poll of an executing run while nobody observes the cluster and
    Temporal is unavailable.
    """
    with harness(build, wake_ups=False) as benchmark:
        tasks = [
            (run_id, 0) for run_id in benchmark.start(ENDS, "held", poll_minutes=[POLL_S / 60])
        ]
        benchmark.ready(tasks)
        oldest = 0.0
        with frozen(benchmark):
            until = time.monotonic() + FROZEN_S
            while time.monotonic() < until:
                ((verified,),) = benchmark.query("SELECT MIN(verified_at) FROM run_history")
                oldest = max(oldest, datetime.now(UTC).timestamp() - _epoch(verified))
                time.sleep(0.5)
        print(
            f"Temporal frozen for {FROZEN_S:g} s, no observer, a poll every {POLL_S:g} s: the "
            "last poll was at most "
            f"{oldest:.1f} s old (target: <= {POLL_S + 15:g} s)",
            flush=True,
        )


def cost(build: str = "") -> None:
    """Execute runs of one task, one after the other."""
    with harness(build, wake_ups=True) as benchmark:
        _one_after_the_other(
            benchmark, 3
        )  # what is imported and compiled once is not part of the cost of a run
        pids = {part: benchmark.stack.supervisor.pids()[part] for part in PARTS}
        before, began = {part: _cpu(pid) for part, pid in pids.items()}, time.monotonic()
        time.sleep(IDLE_S)
        idle = {
            part: (_cpu(pid) - before[part]) / (time.monotonic() - began)
            for part, pid in pids.items()
        }
        before, began = {part: _cpu(pid) for part, pid in pids.items()}, time.monotonic()
        runs = _one_after_the_other(benchmark, RUNS)
        took = time.monotonic() - began
        used = {
            part: (_cpu(pid) - before[part] - idle[part] * took) / RUNS
            for part, pid in pids.items()
        }
        counted = asyncio.run(_actions(benchmark, runs))
        acts, again = (statistics.median(values) for values in zip(*counted, strict=True))
        print(
            f"a run of one task: {acts:g} Temporal actions (target: <= 22), and {again:g} retries",
            flush=True,
        )
        seconds = ", ".join(f"{part} {used[part]:.3f}" for part in PARTS)
        both = used["worker"] + used["temporal"]
        print(
            f"    seconds of processor beyond those at rest: {seconds}; worker and Temporal "
            f"{both:.3f} "
            f"(target: <= 0.8 x before); {took / RUNS:.2f} s a run; load average "
            f"{os.getloadavg()[0]:.1f}",
            flush=True,
        )


def _one_after_the_other(benchmark: Harness, count: int) -> list[int]:
    run_ids = []
    for _ in range(count):
        run_ids += benchmark.start(1, "instant", **NEVER)
        sql = (
            "SELECT 1 FROM run_history r JOIN export_record x ON x.run_id = r.run_id WHERE "
            "r.run_id = ?"
        )
        benchmark.until(lambda: bool(benchmark.query(sql, run_ids[-1])))  # noqa: B023
    return run_ids


async def _actions(benchmark: Harness, runs: list[int]) -> list[tuple[int, int]]:
    """Return actions and retries of each run."""
    client, found = await Client.connect(str(benchmark.stack.addresses["temporal"])), []
    for run_id in runs:
        ((workflow_id,),) = benchmark.query(
            "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run_id
        )
        events = (await client.get_workflow_handle(str(workflow_id)).fetch_history()).events
        found.append((actions(events), retries(events)))
    return found


async def main() -> None:
    """All three."""
    await in_turns(ends, unobserved, cost)
