"""The worker process of ``crowd``: ``python -m benchmarks.crowd_worker ADDRESS FOLDER RUNS CACHE``.

Workers of production over SQLite and an instant cluster. Before they take anything, this many runs
are in the database and on the cluster as one is that was started and executes: copies of one that
did. ``seeded.json`` says which; ``told.log`` says when a run was polled, deployed, or asked to
end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from temporalio.client import Client

from benchmarks.worker import production_workers
from crawler_lifecycle.cli.exits import leave
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.run import RunSnapshot, Stage
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.settings import WorkerSettings
from crawler_lifecycle.store.runs.tables import run_history, task_history
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.fakes.cluster import Behaviour
from tests.support.filling import patient_engine
from tests.support.testbed import WorkflowHarness, open_testbed

ROLES = ("workflows", "cluster", "control", "export")
REQUEST: dict[str, Any] = {"crawler": "books", "poll_minutes": [15], "limits": {"start_check_s": 0}}


async def main(address: str, folder: str, runs: str, cache: str) -> None:
    """Serve until SIGTERM."""
    logging.disable(logging.WARNING)
    client = await Client.connect(address, plugins=[plugin()])
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    place, settings = Path(folder), WorkerSettings(cache=cache, grace_s=1)
    url = f"sqlite:///{folder}/state.db"
    async with AsyncExitStack() as stack:
        testbed = await stack.enter_async_context(
            open_testbed(client, place, clock=utc_now, workers=False, database=url)
        )
        testbed.cluster.behaviour = Behaviour(executes=36000.0, counters=Counters(1, 1, 0))
        _telling(testbed, place)
        await production_workers(stack, testbed, ROLES, settings)
        seeded = _copies(testbed, url, await _one(client), int(runs))
        (place / "seeded.json").write_text(json.dumps(seeded))
        print("ready", flush=True)
        await over.wait()
        os._exit(0)  # thousands of runs are open


def _telling(testbed: WorkflowHarness, folder: Path) -> None:
    """Record when a run is polled, deployed, and asked to end, by the clock and by our processor
    time.
    """
    log = os.open(folder / "told.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    cluster: Any = testbed.cluster

    def telling(
        what: str, method: Callable[..., Any], run_id: Callable[[Any], int]
    ) -> Callable[..., Any]:
        def told(first: Any, *more: Any) -> Any:
            os.write(log, f"{what} {run_id(first)} {time.time()} {time.process_time()}\n".encode())
            return method(first, *more)

        return told

    cluster.poll = telling("poll", cluster.poll, lambda run: int(run.run_id))
    cluster.stop = telling("stop", cluster.stop, lambda run: int(run.run_id))
    cluster.deploy = telling("deploy", cluster.deploy, lambda deployment: int(deployment.run_id))


async def _one(client: Client) -> int:
    """Create an executing run that was polled. Return its number."""
    handle = await client.start_workflow(
        names.LIFECYCLE_WORKFLOW, REQUEST, id="crowd/first", task_queue=names.QUEUE_MAIN
    )
    while True:
        status = await handle.query(names.QUERY_STATUS, result_type=RunSnapshot)
        if (
            status.stage is Stage.RECONCILIATION
            and status.run_id is not None
            and status.next_look_at is not None
        ):
            return status.run_id
        await asyncio.sleep(0.1)


def _copies(testbed: WorkflowHarness, url: str, first: int, count: int) -> list[tuple[int, str]]:
    """Copy this run. Return number and uid of each copy. Run N is owned by the workflow ``open/N``."""
    engine, seeded = patient_engine(url), []
    runs, tasks = [], []
    with engine.connect() as connection:
        run = dict(
            connection.execute(sa.select(run_history).where(run_history.c.run_id == first))
            .mappings()
            .one()
        )
        task = dict(
            connection.execute(sa.select(task_history).where(task_history.c.run_id == first))
            .mappings()
            .one()
        )
    like = testbed.cluster._tasks[first, 0, 1]
    task.pop("task_id")
    later = utc_now() + timedelta(minutes=15)
    for number in range(1000, 1000 + count):
        uid, cluster_uid, owner = uuid.uuid4().hex, str(uuid.uuid4()), f"open/{number}"
        mine = {"run_id": number, "run_uid": uid, "request_id": owner, "owner_workflow_id": owner}
        runs.append(run | mine | {"owner_run_id": owner, "next_look_at": later})
        tasks.append(task | {"run_id": number, "cluster_uid": cluster_uid})
        testbed.cluster._tasks[number, 0, 1] = dataclasses.replace(
            like, run=RunRef(number, uid), uid=cluster_uid
        )
        seeded.append((number, uid))
    with engine.begin() as connection:
        connection.execute(sa.insert(run_history), runs)
        connection.execute(sa.insert(task_history), tasks)
    engine.dispose()
    return seeded


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    leave(0)
