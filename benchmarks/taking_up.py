"""The cost to a worker of resuming a run that it does not have in memory, and of keeping it in
memory, compared with a bare workflow.

There are open runs on the last step of the polling schedule, and bare workflows with as many
activities behind them. Their worker ends, and a new one replays each of them because of a query:
the figures are its processor time and memory for each run.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from benchmarks.sizes import size
from benchmarks.throughput import _cpu, _end, _server, _worker
from benchmarks.truth_faults import _memory
from benchmarks.worker import BARE_QUEUE
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.run import RunSnapshot, Stage
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.testbed import NO_ANSWER

RUNS = size(300, 10)
AT_ONCE = 10
_REQUEST = {"crawler": "books", "poll_minutes": [15], "limits": {"start_check_s": 0}}


async def main() -> None:
    """Print both, and their difference."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        client = await Client.connect(address, plugins=[plugin()])
        worker = _worker(stack, "resting", address, folder)
        await _each(lambda n: _open(client, n))
        count = await _activities(client)
        _end(worker)
        ours = await _taken_up(client, _worker(stack, "resting", address, folder), "run")
        worker = _worker(stack, "bare", address, folder)
        await _each(lambda n: _open_bare(client, n, count))
        _end(worker)
        theirs = await _taken_up(client, _worker(stack, "bare", address, folder), "bare")
        print(f"{RUNS} open runs, {count} activities each; what a new worker uses for each of them")
        print(
            f"taking up: {ours[0] * 1000:.1f} ms of processor (target: <= 20); bare workflow "
            f"{theirs[0] * 1000:.1f} ms"
        )
        print(f"memory: {ours[1]:.0f} KiB (target: <= 190); bare workflow {theirs[1]:.0f} KiB")


async def _each(one: Callable[[int], Awaitable[object]], first: int = 0) -> None:
    numbers = iter(range(first, RUNS))

    async def lane() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(lane() for _ in range(AT_ONCE)))


async def _asked(handle: WorkflowHandle[Any, Any], **more: Any) -> Any:
    """Return the response to the query.

    A worker on a busy machine may exceed the server's timeout, so the query is repeated.
    """
    while True:
        try:
            return await handle.query("status", **more)
        except RPCError as error:
            if error.status not in NO_ANSWER:
                raise


async def _open(client: Client, number: int) -> None:
    """Start a run, and wait until it executes and waits for its next poll."""
    handle = await client.start_workflow(
        names.LIFECYCLE_WORKFLOW, _REQUEST, id=f"run/{number}", task_queue=names.QUEUE_MAIN
    )
    while True:
        status = await _asked(handle, result_type=RunSnapshot)
        if status.stage is Stage.RECONCILIATION and status.next_look_at is not None:
            return
        await asyncio.sleep(0.2)


async def _open_bare(client: Client, number: int, count: int) -> None:
    handle = await client.start_workflow(
        "Bare", args=[count, True], id=f"bare/{number}", task_queue=BARE_QUEUE
    )
    while True:
        if await _asked(handle) == count:
            return
        await asyncio.sleep(0.1)


async def _taken_up(
    client: Client, worker: subprocess.Popen[str], kind: str
) -> tuple[float, float]:
    """Return processor seconds and KiB of memory for each of them. The first tenth is a warm-up."""

    async def ask(number: int) -> None:
        await _asked(client.get_workflow_handle(f"{kind}/{number}"))

    warm = RUNS // 10
    for number in range(warm):
        await ask(number)
    cpu, memory = _cpu(worker.pid), _memory(worker)
    await _each(ask, warm)
    count = RUNS - warm
    return (_cpu(worker.pid) - cpu) / count, (_memory(worker) - memory) * 1024 / count


async def _activities(client: Client) -> int:
    events = (await client.get_workflow_handle("run/0").fetch_history()).events
    return sum(e.HasField("activity_task_completed_event_attributes") for e in events)
