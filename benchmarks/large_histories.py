"""The cost of resuming a manager of very many items, or a graph of very many steps, on a new
worker, compared with a bare workflow.

Their longest execution is replayed, as by a worker that does not have it in memory, and so is a
bare one with as many events. ``BENCHMARK_ITEMS`` sets the size.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer

from benchmarks.graphs import MODULE, SOURCE, _Benchmark, _wide
from benchmarks.managers import _managed, _store, _user_code
from benchmarks.sizes import size
from benchmarks.throughput import _end, _server, _worker
from benchmarks.worker import BARE_QUEUE, Bare
from crawler_lifecycle.compose import WORKFLOWS
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.names import manager_workflow_id
from crawler_lifecycle.graphs import Workflow
from crawler_lifecycle.temporal.plugin import plugin

ITEMS = size(1000, 20, "BENCHMARK_ITEMS")
#: The number of replays of a history, and the events of one activity of a bare workflow.
REPLAYS, EVENTS = 10, 6


async def main() -> None:
    """Print all three."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / f"{MODULE}.py").write_text(SOURCE)
        sys.path.insert(0, name)
        users = importlib.import_module(MODULE)
        address = await asyncio.to_thread(_server, stack, folder)
        client = await Client.connect(address, plugins=[plugin()])
        worker = _worker(stack, "managers", address, folder)
        settings = {
            "LIFECYCLE_USER_CODE__MODULES": f'["{MODULE}"]',
            "LIFECYCLE_USER_CODE__FOLDER": name,
        }
        _user_code(stack, address, folder, **settings)
        benchmark = _Benchmark(
            client,
            stack.enter_context(_store(f"sqlite:///{folder / 'state.db'}")),
            users,
            worker.pid,
        )
        chain = Workflow(id="chain")
        for n in range(ITEMS):
            chain.add_cascade(f"s{n}", users.link, deps=f"s{n - 1}" if n else [])
        await benchmark._graph(_wide("fan", users, ITEMS).spec(), "fan")
        await benchmark._graph(chain.spec(), "chain")
        await _managed(client, benchmark.store, 0, ITEMS)
        _end(worker)
        _worker(stack, "bare", address, folder)
        await _show(
            client, f"a manager of {ITEMS} items", manager_workflow_id("benchmark", "stream-0"), 50
        )
        await _show(
            client, f"a graph of {ITEMS} steps side by side", names.graph_workflow_id("fan"), 100
        )
        await _show(
            client,
            f"a graph of {ITEMS} steps one after the other",
            names.graph_workflow_id("chain"),
            100,
        )


async def _show(client: Client, what: str, workflow_id: str, target_ms: int) -> None:
    await asyncio.sleep(2)  # visibility lags a little
    found = [one async for one in client.list_workflows(f"WorkflowId = '{workflow_id}'")]
    longest = max(found, key=lambda one: one.history_length or 0)
    ours = await client.get_workflow_handle(workflow_id, run_id=longest.run_id).fetch_history()
    events, bare = len(ours.events), client.get_workflow_handle(f"beside/{workflow_id}")
    await client.execute_workflow("Bare", events // EVENTS, id=bare.id, task_queue=BARE_QUEUE)
    theirs = await bare.fetch_history()
    cpu = await _replayed(Replayer(workflows=WORKFLOWS, plugins=[plugin()]), ours)
    plain = await _replayed(Replayer(workflows=[Bare]), theirs)
    print(
        f"{what}, {len(found)} executions, the longest of {events} events: taken up in "
        f"{cpu * 1000:.0f} ms of ",
        end="",
    )
    print(
        f"processor (target: <= {target_ms}); bare workflow of as many events {plain * 1000:.0f} ms",
        flush=True,
    )


async def _replayed(replayer: Replayer, history: WorkflowHistory) -> float:
    """Return the processor seconds of one replay, without those of the replayer itself."""

    async def times(count: int) -> float:
        async def each() -> AsyncIterator[WorkflowHistory]:
            for _ in range(count):
                yield history

        began = time.process_time()
        await replayer.replay_workflows(each())
        return time.process_time() - began

    await times(1)  # what is imported and built once
    first = await times(1)
    return (await times(REPLAYS + 1) - first) / REPLAYS
