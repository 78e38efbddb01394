"""The graphs of ``benchmarks.graphs`` in Chancy, for a Python that has Chancy: ``chancy_beside``
calls it.

It is copied to a folder and imported under its own name, because Chancy's processes import its
jobs.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from chancy import Chancy, Queue, Worker, job
from chancy.plugins.leadership import Leadership
from chancy.plugins.workflow import Workflow, WorkflowPlugin

#: Seconds that one workflow may take.
ENDS_S = 300.0
#: The executors, and the number of parallel jobs: as many processes as our workers have by default.
EXECUTORS = {"process": (Chancy.Executor.Process, 4), "async": (Chancy.Executor.Async, 100)}


@job()
def link_process() -> int:
    return 1


@job()
async def link_async() -> int:
    return 1


def main(dsn: str, chain: int, fan: int) -> None:
    """Print one JSON object: seconds by executor and workflow."""
    print(json.dumps(asyncio.run(_measured(dsn, chain, fan))))


async def _measured(dsn: str, chain: int, fan: int) -> dict[str, dict[str, float]]:
    plugins = [Leadership(poll_interval=1, timeout=10), WorkflowPlugin(polling_interval=1)]
    found: dict[str, dict[str, float]] = {}
    async with Chancy(dsn, plugins=plugins, no_default_plugins=True) as chancy:
        await chancy.migrate()
        for name, (executor, at_once) in EXECUTORS.items():
            queue = Queue(
                name, concurrency=at_once, executor=executor, polling_interval=1, eager_polling=True
            )
            await chancy.declare(queue)
        worker = Worker(chancy, register_signal_handlers=False)
        worker.send_outgoing_interval = 0.01
        async with worker:
            for name in EXECUTORS:
                await _seconds(chancy, _chain(name, 3))
                chained = await _seconds(chancy, _chain(name, chain))
                found[name] = {"chain": chained, "fan": await _seconds(chancy, _fan(name, fan))}
    return found


def _link(name: str) -> Any:
    return {"process": link_process, "async": link_async}[name].job.with_queue(name)


def _chain(name: str, length: int) -> Workflow:
    workflow = Workflow(f"chain-{name}-{length}")
    for n in range(length):
        workflow.add(f"s{n}", _link(name), [f"s{n - 1}"] if n else [])
    return workflow


def _fan(name: str, size: int) -> Workflow:
    workflow = Workflow(f"fan-{name}-{size}")
    workflow.add_group([(f"s{n}", _link(name)) for n in range(size)])
    return workflow.add("total", _link(name), [f"s{n}" for n in range(size)])


async def _seconds(chancy: Chancy, workflow: Workflow) -> float:
    """Return the seconds from the push of a workflow to its end."""
    began = time.perf_counter()
    await WorkflowPlugin.push(chancy, workflow)
    query = f"SELECT state FROM {chancy.prefix}workflows WHERE id = %s"
    while time.perf_counter() - began < ENDS_S:
        async with chancy.pool.connection() as connection, connection.cursor() as cursor:
            await cursor.execute(query, (workflow.id,))
            [state] = await cursor.fetchone()
        if state != "running" and state != "pending":
            if state != "completed":
                raise RuntimeError(f"{workflow.name} is {state}")
            return time.perf_counter() - began
        await asyncio.sleep(0.01)
    raise TimeoutError(f"{workflow.name} has not ended within {ENDS_S:g} s")
