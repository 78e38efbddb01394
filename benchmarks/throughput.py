"""Lifecycles a second on one machine, against a bare workflow with the same number of activities
that do nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from temporalio.client import Client

from benchmarks import production
from benchmarks.sizes import size
from benchmarks.worker import BARE_QUEUE
from crawler_lifecycle.cli.stack import processes, temporal_server
from crawler_lifecycle.domain import names
from crawler_lifecycle.temporal.plugin import plugin

RUNS = size(60, 4)
AT_ONCE = 20
REPETITIONS = size(5, 1)
_TICK = os.sysconf("SC_CLK_TCK")


def _cpu(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


async def _batch(one: Callable[[int], Awaitable[object]], first: int) -> float:
    """Execute a batch, ``AT_ONCE`` at a time. Return runs per second."""
    numbers = iter(range(first, first + RUNS))

    async def lane() -> None:
        for number in numbers:
            await one(number)

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(AT_ONCE)))
    return RUNS / (time.perf_counter() - began)


async def main() -> None:
    """Start server and workers, execute both kinds in turn, and print medians and their ratio."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        client = await Client.connect(address, plugins=[plugin()])
        lifecycle = _worker(stack, "lifecycle", address, folder)
        plain = _worker(stack, "bare", address, folder)
        count = await _activities(client)

        async def run(number: int) -> None:
            request = {"crawler": "books", "limits": {"start_check_s": 0}}
            await client.execute_workflow(
                names.LIFECYCLE_WORKFLOW, request, id=f"run/{number}", task_queue=names.QUEUE_MAIN
            )

        async def bare(number: int) -> None:
            await client.execute_workflow("Bare", count, id=f"bare/{number}", task_queue=BARE_QUEUE)

        rates: dict[str, list[float]] = {"lifecycle": [], "bare": []}
        cpu: dict[str, list[float]] = {"lifecycle": [], "bare": []}
        for repetition in range(REPETITIONS + 1):
            for kind, one, process in (("lifecycle", run, lifecycle), ("bare", bare, plain)):
                before = _cpu(process.pid)
                rate = await _batch(one, 1000 * (repetition + 1))
                if repetition:  # the first round is a warm-up
                    rates[kind].append(rate)
                    cpu[kind].append((_cpu(process.pid) - before) / RUNS)
        ours, theirs = statistics.median(rates["lifecycle"]), statistics.median(rates["bare"])
        ratio = statistics.median(
            a / b for a, b in zip(rates["lifecycle"], rates["bare"], strict=True)
        )
        print(
            f"{AT_ONCE} at once, SQLite, instant cluster, one poll each, {count} activities a run"
        )
        print(
            f"lifecycle {ours:.2f} runs/s "
            f"[{min(rates['lifecycle']):.2f}..{max(rates['lifecycle']):.2f}]; ",
            end="",
        )
        print(
            f"bare workflow {theirs:.2f} runs/s "
            f"[{min(rates['bare']):.2f}..{max(rates['bare']):.2f}]; ",
            end="",
        )
        print(f"ratio {ratio:.2f} (target: >= 0.9)")
        ours, theirs = statistics.median(cpu["lifecycle"]), statistics.median(cpu["bare"])
        print(
            f"worker CPU {ours:.3f} s a run; bare workflow {theirs:.3f} s; ratio "
            f"{ours / theirs:.2f} (target: <= 1.6)"
        )


async def _activities(client: Client) -> int:
    """Return how many activities one lifecycle with one poll executes."""
    handle = await client.start_workflow(
        names.LIFECYCLE_WORKFLOW,
        {"crawler": "books", "limits": {"start_check_s": 0}},
        id="run/first",
        task_queue=names.QUEUE_MAIN,
    )
    await handle.result()
    events = (await handle.fetch_history()).events
    return sum(e.HasField("activity_task_scheduled_event_attributes") for e in events)


def _server(stack: ExitStack, folder: Path, *more: str) -> str:
    """Start a Temporal dev server like ``crawlctl dev``, with further options, or production's.
    Yields its address.
    """
    if os.environ.get("BENCHMARK_TEMPORAL") == "production":
        return production.server(stack, folder)
    port = processes.free_port()
    command = [*temporal_server.command(folder / "temporal.db", port, None), *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(_end, process)
    address = f"127.0.0.1:{port}"
    for _ in range(200):
        time.sleep(0.05)
        probe = subprocess.run(
            [
                temporal_server.executable(),
                "operator",
                "namespace",
                "describe",
                "-n",
                "default",
                "--address",
                address,
            ],
            capture_output=True,
            check=False,
        )
        if probe.returncode == 0:
            time.sleep(1)  # search attributes are registered just after the server responds
            return address
    raise RuntimeError("the Temporal dev server did not come up")


def _worker(stack: ExitStack, kind: str, address: str, folder: Path) -> subprocess.Popen[str]:
    return _started(
        stack, [sys.executable, "-m", "benchmarks.worker", kind, address, str(folder)], folder, kind
    )


def _started(
    stack: ExitStack, command: list[str], folder: Path, kind: str
) -> subprocess.Popen[str]:
    """Start a worker, and wait until it reports that it is ready."""
    # To a file: 64 KiB of the SDK's warnings in a pipe that nobody reads would block the worker for
    # good.
    with tempfile.NamedTemporaryFile(
        "w", dir=folder, prefix=kind, suffix=".log", delete=False
    ) as log:
        process = subprocess.Popen(command, stdout=log, text=True)
    stack.callback(_end, process)
    while "ready\n" not in Path(log.name).read_text():
        if process.poll() is not None:
            raise RuntimeError(f"the {kind} worker did not start")
        time.sleep(0.05)
    return process


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
