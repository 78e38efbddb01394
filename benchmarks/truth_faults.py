"""How long the truth waits when something is in the way: stops, killed workers, a dead database, a
thousand open runs.

All but the last on the real stack with real processes. The crawler here does nothing but wait, and
writes down the moment at which its stop signal reached it, so that what is measured is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio.client import Client

from benchmarks.sizes import size
from benchmarks.stack import running_stack
from benchmarks.throughput import _cpu, _server, _worker
from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.problems import CommandFailed
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.domain import names
from crawler_lifecycle.temporal.plugin import plugin
from examples.story_checks import Slots, query, run_folder
from tests.support.mariadb import running_mariadb

STOPS = size(60, 3)
KILLS = size(30, 2)
STUCK_STOPS = size(20, 2)
#: The first is more than two cores can do: polls come as fast as the machine permits.
POLLS_EVERY_S = (1.2, 5.0)
#: A fifth of them in each phase.
RUNS_OF_AN_OUTAGE = size(50, 5)
OUTAGE_S = size(60.0, 5.0)
OPEN_RUNS = size(1000, 20)
#: Polls are about a second apart, instead of minutes as in production.
QUICK: dict[str, Any] = {"poll_minutes": [0.02], "limits": {"start_check_s": 0.3}}

_CRAWLER = """
import os, pathlib, signal, sys, time
files = pathlib.Path(os.environ["CRAWL_FILES_DIR"])
def told(number, frame):
    (files / "term").write_text(repr(time.time()))
    sys.exit(0)
signal.signal(signal.SIGTERM, told)
(files / "ready").touch()
end = time.time() + float(sys.argv[1])
while (left := end - time.time()) > 0 and not (files / "end").exists():
    time.sleep(min(left, 0.2))
(files / "ended").write_text(repr(time.time()))
"""
_CATALOGUE = """
- {name: idle, kind: command, project: ".", command: ["python", "-S", "-E", "idle.py", "3600"]}
- {name: moment, kind: command, project: ".", command: ["python", "-S", "-E", "idle.py", "0"], args: {n: {default: ""}}}
- name: brief
  kind: command
  project: "."
  command: ["python", "-S", "-E", "idle.py", "20"]
  args: {n: {default: ""}}
"""


class Benchmark:
    """One stack, its gateway, and its database, read without the services."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.places = Slots(stack.state_dir, stack.addresses)
        self.gateway = Gateway(str(stack.addresses["gateway"]), timeout_s=60)

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return rows of the database."""
        return query(self.places, sql, *values)

    def start(self, count: int, crawler: str = "idle", **request: Any) -> list[int]:
        """Start this number of runs, and wait until they are accepted."""
        wanted = {"crawler": crawler, **QUICK, **request}
        stamp = time.time_ns()
        return [
            int(str(self.gateway.start(wanted, f"{stamp}-{n}")["run_id"])) for n in range(count)
        ]

    def executing(self, run_ids: Sequence[int]) -> None:
        """Wait until all these runs execute and were polled."""
        self.until(
            lambda: (
                self._count(run_ids, "status = 'PROCESSING' AND verified_at IS NOT NULL")
                == len(run_ids)
            )
        )

    def ready(self, run_ids: Sequence[int]) -> None:
        """Wait until the crawlers of these runs handle signals. A status may be true before that."""
        self.until(lambda: all(self._files(run_id, "ready") for run_id in run_ids))

    def _files(self, run_id: int, name: str) -> list[Path]:
        """Return the file of this name of the run's only task, if it exists."""
        return list(
            (self.stack.state_dir / "cluster" / "tasks").glob(f"{run_id}-*/0/1/files/{name}")
        )

    def _count(self, run_ids: Sequence[int], what: str) -> int:
        marks = ", ".join("?" * len(run_ids))
        return int(
            self.query(
                f"SELECT COUNT(*) FROM run_history WHERE {what} AND run_id IN ({marks})", *run_ids
            )[0][0]
        )

    def verified_since(self, run_ids: Sequence[int], moment: datetime) -> bool:
        """Return whether every one of these runs has ended, or was verified after this moment."""
        text = moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
        marks = ", ".join("?" * len(run_ids))
        sql = (
            f"SELECT COUNT(*) FROM run_history WHERE run_id IN ({marks}) AND (ended_at IS NOT "
            "NULL OR verified_at > ?)"
        )
        return bool(self.query(sql, *run_ids, text)[0][0] == len(run_ids))

    def until(self, condition: Callable[[], bool], seconds: float = 300.0) -> float:
        """Return the seconds until this holds; a condition that raises an error does not hold."""
        began = time.monotonic()
        while True:
            try:
                if condition():
                    return time.monotonic() - began
                error = None
            except Exception as failed:  # the database may be down
                error = failed
            if time.monotonic() - began > seconds:
                raise RuntimeError(f"did not come within {seconds:g} s") from error
            time.sleep(0.05)

    def told(self, run_id: int) -> float:
        """Return when the stop signal reached the run's crawler (epoch seconds)."""
        self.until(lambda: any(file.read_text() for file in self._files(run_id, "term")))
        return float((run_folder(self.stack.state_dir, run_id) / "0/1/files/term").read_text())

    def end(self, run_id: int) -> None:
        """Let the run's crawler end by itself."""
        (run_folder(self.stack.state_dir, run_id) / "0/1/files/end").touch()

    def ended(self, run_id: int) -> float:
        """Return when it ended (epoch seconds), by its own clock."""
        file = run_folder(self.stack.state_dir, run_id) / "0/1/files/ended"
        self.until(lambda: bool(file.read_text()))
        return float(file.read_text())

    def clear(self) -> None:
        """End every open run and wait for it, including runs that are recorded only meanwhile."""
        self._force_stop("STOPPING")

        def none_is_open() -> bool:
            self._force_stop("INITIALIZING", "PROCESSING")
            return not self.query("SELECT 1 FROM run_history WHERE ended_at IS NULL LIMIT 1")

        self.until(none_is_open)

    def _force_stop(self, *statuses: str) -> None:
        for run in self.gateway.runs(status=statuses):
            with contextlib.suppress(CommandFailed):
                self.gateway.stop(
                    int(str(run["run_id"])), force=True, reason="end of a measurement"
                )


@contextlib.contextmanager
def benchmark(database: str | None = None, *, threads: int = 16) -> Iterator[Benchmark]:
    """A stack of real processes with the waiting crawler in its catalogue."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "idle.py").write_text(_CRAWLER)
        (folder / "crawlers.yaml").write_text(_CATALOGUE)
        env = {"LIFECYCLE_CLUSTER__SLOTS": "256", "LIFECYCLE_WORKER__THREADS": str(threads)}
        with running_stack(folder, env, database=database) as stack:
            yield Benchmark(stack)


def _p(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _line(what: str, values: Sequence[float], target: str) -> None:
    print(
        f"{what}: p50 {statistics.median(values):.2f} s, p99 {_p(values, 0.99):.2f} s, "
        f"worst {max(values):.2f} s of {len(values)} (target: {target})",
        flush=True,
    )


def stops() -> None:
    """Measure from HTTP 202 of a stop to the signal in the crawler: without faults, and with the
    other queues stuck.
    """
    with benchmark(threads=4) as harness:
        for every_s in POLLS_EVERY_S:
            run_ids = harness.start(STOPS, poll_minutes=[every_s / 60])
            harness.executing(run_ids)
            what = f"stop, 202 to SIGTERM, beside {STOPS} runs with a poll every {every_s:g} s"
            _line(what, [_stop(harness, run_id) for run_id in run_ids], "p99 <= 1 s")
        victims = harness.start(STUCK_STOPS)
        harness.executing(victims)
        # A scheduler service that accepts calls and never responds: its callers hold every slot of
        # the cluster queue.
        harness.stack.supervisor.kill("scheduler", signal.SIGSTOP)
        try:
            asyncio.run(_start_past_the_gateway(str(harness.stack.addresses["temporal"]), 40))
            time.sleep(5)
            delays = [_stop(harness, run_id) for run_id in victims]
        finally:
            harness.stack.supervisor.kill("scheduler", signal.SIGCONT)
        _line("stop, cluster queue stuck (4 places, 40 hanging deployments)", delays, "<= 30 s")
        harness.clear()


async def _start_past_the_gateway(address: str, count: int) -> None:
    """Start runs without the gateway, which first asks the scheduler service about a crawler and
    therefore accepts no start while that is frozen.
    """
    client = await Client.connect(address, plugins=[plugin()])
    request = {"crawler": "idle", **QUICK}
    for number in range(count):
        await client.start_workflow(
            names.LIFECYCLE_WORKFLOW, request, id=f"hanging/{number}", task_queue=names.QUEUE_MAIN
        )


def _stop(harness: Benchmark, run_id: int) -> float:
    harness.ready([run_id])
    harness.gateway.stop(run_id, reason="benchmark")
    accepted = time.time()
    return max(0.0, harness.told(run_id) - accepted)


def kills(seed: int = 5) -> None:
    """Kill a worker at random moments. Measure how long until every run was verified again."""
    moments = random.Random(seed)
    with benchmark() as harness:
        run_ids = harness.start(6)
        harness.executing(run_ids)
        delays, back, first = [], [], []
        for _ in range(KILLS):
            time.sleep(moments.uniform(0.0, 3.0))
            # Each kill counts as a first one, because the supervisor's pauses after repeated deaths
            # are not measured.
            harness.stack.supervisor._kept["worker"].delay = 0.0
            harness.stack.supervisor.kill("worker")
            killed, began = datetime.now(UTC), time.monotonic()
            # Before it is healthy, which also needs the processes with user code: runs do not.
            harness.until(lambda: any(harness.verified_since([one], killed) for one in run_ids))  # noqa: B023
            first.append(time.monotonic() - began)
            harness.until(lambda: harness.verified_since(run_ids, killed))  # noqa: B023
            delays.append(time.monotonic() - began)
            harness.stack.supervisor.wait_healthy(["worker"])
            back.append(time.monotonic() - began)
        _line("worker killed, until it is healthy again", back, "-")
        _line("worker killed, until its work goes on: a run was verified", first, "<= 2.5 s")
        _line("worker killed, until all 6 runs were verified again", delays, "<= 15 s")
        harness.clear()


def outage() -> None:
    """Stop the database for a minute while runs are in every phase. Measure how long until all have
    caught up.
    """
    # Committed data survives a killed server, as in production.
    durable = "--innodb-flush-log-at-trx-commit=2"
    with running_mariadb(durable) as mariadb, mariadb.database() as url, benchmark(url) as harness:
        run_ids = _in_all_phases(harness)
        mariadb.kill()
        time.sleep(OUTAGE_S)
        mariadb.restart()
        back, began = datetime.now(UTC), time.monotonic()
        harness.until(lambda: harness.verified_since(run_ids, back))
        took = time.monotonic() - began
        print(
            f"database down {OUTAGE_S:g} s with {len(run_ids)} runs in all phases: all caught up "
            f"{took:.1f} s after it "
            "was back (target: <= 30 s)",
            flush=True,
        )
        _blame(harness, run_ids)
        harness.clear()


def _in_all_phases(harness: Benchmark) -> list[int]:
    """Return runs that execute, end meanwhile, are being stopped, and have just been accepted."""
    part = RUNS_OF_AN_OUTAGE // 5
    executing = harness.start(2 * part)
    several = {"crawler": "idle", "tasks": [{}] * 4, "max_parallel_tasks": 2, **QUICK}
    multi = [
        int(str(harness.gateway.start(several, f"several-{n}")["run_id"])) for n in range(part)
    ]
    ending = harness.start(part, "brief")
    harness.executing(executing)
    stopped = executing[:part]
    for run_id in stopped:
        harness.gateway.stop(run_id, reason="just before the outage")
    return [*executing, *multi, *ending, *harness.start(RUNS_OF_AN_OUTAGE - 4 * part)]


def _blame(harness: Benchmark, run_ids: Sequence[int]) -> None:
    """Print how many runs failed for another reason than a stop."""
    marks = ", ".join("?" * len(run_ids))
    rows = harness.query(
        f"SELECT status, outcome, COUNT(*) FROM run_history WHERE run_id IN ({marks}) GROUP BY "
        "status, outcome",
        *run_ids,
    )
    failed = sum(
        count for status, outcome, count in rows if status == "FAILED" and outcome != "cancelled"
    )
    print(f"failed because of it: {failed} (target: 0); {rows}", flush=True)


async def rest() -> None:
    """Measure a worker with a thousand open runs on the last step of the polling schedule:
    processor and memory.
    """
    minutes = size(30.0, 0.1, "BENCHMARK_REST_MINUTES")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        client = await Client.connect(address, plugins=[plugin()])
        worker = _worker(stack, "executing", address, folder)
        for first in range(0, OPEN_RUNS, 20):
            await asyncio.gather(*(_open(client, n) for n in range(first, first + 20)))
        await _all_executing(client)
        await asyncio.sleep(60)
        sizes, began, before = [_memory(worker)], time.monotonic(), _cpu(worker.pid)
        while time.monotonic() - began < minutes * 60:
            await asyncio.sleep(60)
            sizes.append(_memory(worker))
        cores = (_cpu(worker.pid) - before) / (time.monotonic() - began)
        print(f"{OPEN_RUNS} open runs for {minutes:g} min: {cores:.3f} core (target: <= 0.1)")
        series = " ".join(f"{size:.0f}" for size in sizes[::5])
        print(
            f"memory: {sizes[0]:.0f} MiB at first, {sizes[-1]:.0f} at the end (target: flat); every "
            f"5 min: {series}"
        )


async def _open(client: Client, number: int) -> None:
    request = {"crawler": "books", "poll_minutes": [15], "limits": {"start_check_s": 0}}
    await client.start_workflow(
        names.LIFECYCLE_WORKFLOW, request, id=f"rest/{number}", task_queue=names.QUEUE_MAIN
    )


async def _all_executing(client: Client) -> None:
    """Wait until the wave of starts is over."""
    wanted = f"WorkflowType='{names.LIFECYCLE_WORKFLOW}' AND CrawlStatus='PROCESSING'"
    for _ in range(900):
        if (await client.count_workflows(wanted)).count >= OPEN_RUNS:
            return
        await asyncio.sleep(1)
    raise RuntimeError("the runs did not start within 15 minutes")


def _memory(process: subprocess.Popen[str]) -> float:
    """Return the resident memory in MiB."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def main() -> None:
    """Print every figure except the half hour at rest, which has its own name (``rest``)."""
    for measure in (stops, kills, outage):
        await asyncio.to_thread(measure)
