"""The worker process of benchmarks: ``python -m benchmarks.worker lifecycle|executing|managers|bare ADDRESS FOLDER``.

``lifecycle`` serves the real workflow and activities over SQLite and an instant cluster; ``executing`` the same over
one whose tasks go on for an hour; ``managers`` the first over ``state.db`` in the folder; ``bare`` a workflow that only
executes as many activities, which do nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():  # the bare workflow needs none of it
    from crawler_lifecycle.cli.exits import leave
    from crawler_lifecycle.temporal.plugin import plugin

BARE_QUEUE = "benchmark-bare"


@activity.defn
def nothing(_: int) -> int:
    """An activity that does nothing."""
    return 0


@workflow.defn
class Bare:
    """A workflow that executes ``count`` activities, one after the other."""

    @workflow.run
    async def run(self, count: int) -> int:
        """Execute them."""
        for number in range(count):
            await workflow.execute_activity(nothing, number, start_to_close_timeout=timedelta(seconds=20))
        return count


async def main(kind: str, address: str, folder: str) -> None:
    """Serve until SIGTERM."""
    from crawler_lifecycle.activities.shared import utc_now
    from crawler_lifecycle.domain.task import Counters
    from crawler_lifecycle.fakes.cluster import Behaviour
    from tests.support.lab import laboratory
    from tests.support.managing import manager_lab

    logging.disable(logging.WARNING)
    client = await Client.connect(address, plugins=[plugin()])
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with AsyncExitStack() as stack:
        if kind == "bare":
            threads = stack.enter_context(ThreadPoolExecutor(8))
            worker = Worker(
                client,
                task_queue=BARE_QUEUE,
                workflows=[Bare],
                activities=[nothing],
                activity_executor=threads,
                max_concurrent_activities=8,
            )
            await stack.enter_async_context(worker)
        else:
            database = f"sqlite:///{folder}/state.db" if kind == "managers" else None
            lab = await stack.enter_async_context(laboratory(client, Path(folder), clock=utc_now, database=database))
            executes = 3600.0 if kind == "executing" else 0.0
            if kind == "managers":
                manager_lab(lab)  # a crawler whose run is looked at without waiting
            lab.cluster.behaviour = Behaviour(executes=executes, counters=Counters(1, 1, 0))
        print("ready", flush=True)
        await over.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    leave(0)
