"""The worker process of benchmarks: ``python -m benchmarks.worker KIND ADDRESS FOLDER``.

``lifecycle`` serves the real workflow and activities over SQLite and an instant cluster;
``executing`` the same over one whose tasks go on for an hour; ``managers`` and ``resting`` are
these two over ``state.db`` in the folder; ``bare`` serves a workflow that only executes as many
activities, which do nothing, by the SDK as it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

from crawler_lifecycle.clock import utc_now

with workflow.unsafe.imports_passed_through():  # the bare workflow needs none of it
    from crawler_lifecycle.cli.exits import leave
    from crawler_lifecycle.temporal.plugin import plugin

if TYPE_CHECKING:
    from crawler_lifecycle.settings import WorkerSettings
    from tests.support.testbed import WorkflowHarness

BARE_QUEUE = "benchmark-bare"


@activity.defn
def nothing(_: int) -> int:
    """An activity that does nothing."""
    return 0


@workflow.defn
class Bare:
    """A workflow that executes ``count`` activities, one after the other, and then stays open if
    requested.
    """

    done = 0

    @workflow.run
    async def run(self, count: int, stays: bool = False) -> int:
        """Execute them."""
        for number in range(count):
            await workflow.execute_activity(
                nothing, number, start_to_close_timeout=timedelta(seconds=20)
            )
            self.done += 1
        await workflow.wait_condition(lambda: not stays)
        return count

    @workflow.query
    def status(self) -> int:
        """Return how many were executed."""
        return self.done


@workflow.defn
class Beating:
    """A workflow that executes two activities at intervals; three, the last with a signal's name,
    for a signal.
    """

    stop = False

    @workflow.run
    async def run(self, every_s: float) -> None:
        """Execute until it is stopped. The first time is random."""
        left = workflow.random().uniform(0, every_s)
        while not self.stop:
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(lambda: self.stop, timeout=timedelta(seconds=left))
            for number in range(2):
                await workflow.execute_activity(
                    nothing, number, start_to_close_timeout=timedelta(seconds=20)
                )
            left = every_s
        await workflow.execute_activity(
            "tell",
            int(workflow.info().workflow_id.rpartition("/")[2]),
            start_to_close_timeout=timedelta(seconds=20),
        )

    @workflow.signal(name="stop")
    def asked(self) -> None:
        """Stop."""
        self.stop = True


class Telling:
    """Records when it was called."""

    def __init__(self, folder: str) -> None:
        self._log = os.open(Path(folder) / "told.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @activity.defn
    def tell(self, number: int) -> None:
        """Replace the signal to a crawler."""
        os.write(self._log, f"stop {number} {time.time()} {time.process_time()}\n".encode())


async def production_workers(
    stack: AsyncExitStack, testbed: WorkflowHarness, roles: Sequence[str], settings: WorkerSettings
) -> None:
    """Poll the queues of these roles with the workers of production."""
    from crawler_lifecycle.worker.polling import worker

    for role in roles:
        threads = stack.enter_context(ThreadPoolExecutor(settings.threads))
        await stack.enter_async_context(
            worker(testbed.client, role, testbed.parts, settings, threads, None)
        )


async def main(kind: str, address: str, folder: str) -> None:
    """Serve until SIGTERM."""

    from crawler_lifecycle.compose import ROLES
    from crawler_lifecycle.domain.task import Counters
    from crawler_lifecycle.settings import WorkerSettings
    from tests.support.fakes.cluster import Behaviour
    from tests.support.managing import manager_testbed
    from tests.support.testbed import open_testbed

    logging.disable(logging.WARNING)
    client = await Client.connect(address, plugins=[] if kind == "bare" else [plugin()])
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with AsyncExitStack() as stack:
        if kind == "bare":
            threads = stack.enter_context(ThreadPoolExecutor(8))
            bare = Worker(
                client,
                task_queue=BARE_QUEUE,
                workflows=[Bare, Beating],
                activities=[nothing, Telling(folder).tell],
                activity_executor=threads,
                max_concurrent_activities=8,
            )
            await stack.enter_async_context(bare)
        else:
            database = f"sqlite:///{folder}/state.db" if kind in ("managers", "resting") else None
            opened = open_testbed(
                client, Path(folder), workers=False, clock=utc_now, database=database
            )
            testbed = await stack.enter_async_context(opened)
            await production_workers(stack, testbed, tuple(ROLES), WorkerSettings())
            executes = 3600.0 if kind in ("executing", "resting") else 0.0
            if database is not None:
                manager_testbed(testbed)  # a crawler whose runs are polled without pauses
            testbed.cluster.behaviour = Behaviour(executes=executes, counters=Counters(1, 1, 0))
        print("ready", flush=True)
        await over.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    leave(0)
