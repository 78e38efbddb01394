"""Many simultaneous schedules compared with bare Temporal Schedules, and many schedules of which
nothing is due.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleCalendarSpec,
    ScheduleHandle,
    ScheduleRange,
    ScheduleSpec,
)

from benchmarks.managers import _store, _until
from benchmarks.sizes import size
from benchmarks.throughput import _cpu, _end, _server, _worker
from benchmarks.worker import BARE_QUEUE
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec as Definition
from crawler_lifecycle.features.schedules.temporal import PAGE, TURN_S, ScheduleKeeper
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.plugin import plugin

#: The number of schedules that are due at once, and that rest.
DUE = size(500, 5, "SCHEDULES_DUE")
RESTING = size(1000, 5, "SCHEDULES_RESTING")
#: Seconds between two checks whether all runs are recorded, because each takes as long as some due
#: times.
ASK_S = 5.0
#: Seconds that a creation may take, and in which the worker compares each schedule once.
MAKING_S, ALONE_S = 0.1, size(60.0, 3.0)
ROUND_S = size(TURN_S * (RESTING // PAGE + 1), 5.0)


async def main() -> None:
    """Print every figure."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        client = await Client.connect(address, plugins=[plugin()])
        _worker(stack, "managers", address, folder)
        _worker(stack, "bare", address, folder)
        store = stack.enter_context(_store(f"sqlite:///{folder / 'state.db'}"))
        keeper = ScheduleKeeper(store.schedules, Workflows(client))
        bare = await _bare(client)
        _show(f"{DUE} bare Temporal Schedules due at once: due to the end of the workflow", bare)
        late, begun = await _due(store, keeper)
        _show(
            f"{DUE} schedules due at once: due to the run on record (target: p50 <= 1 s, p99 "
            "<= 10 s)",
            late,
        )
        _show(
            f"{len(begun)} of {DUE} schedules due at once: due to a task that executes (target: "
            "<= 60 s)",
            begun,
        )
        ratios = [f"{ours / theirs:.2f}" for ours, theirs in zip(_at(late), _at(bare), strict=True)]
        print(
            f"that is {ratios[0]} of the bare ones' p50, {ratios[1]} of their p99 (target: <= 1.5)",
            flush=True,
        )
        await _rest(stack, store, keeper, address, folder)


def _show(what: str, seconds: Sequence[float]) -> None:
    at = _at(seconds)
    print(f"{what}: p50 {at[0]:.2f} s, p99 {at[1]:.2f} s, last {max(seconds):.2f} s", flush=True)


def _at(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the 99th percentile."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def _soon() -> datetime:
    """Return the next full minute by which all of them can have been created."""
    now = datetime.now(UTC) + timedelta(seconds=10 + DUE * MAKING_S)
    return now.replace(second=0, microsecond=0) + timedelta(minutes=1)


async def _bare(client: Client) -> list[float]:
    """Measure Temporal alone: workflows of one activity each."""
    at, handles = _soon(), []
    spec = ScheduleSpec(
        calendars=[
            ScheduleCalendarSpec(minute=[ScheduleRange(at.minute)], hour=[ScheduleRange(at.hour)])
        ]
    )
    for number in range(DUE):
        action = ScheduleActionStartWorkflow("Bare", 1, id=f"bare-{number}", task_queue=BARE_QUEUE)
        handles.append(
            await client.create_schedule(f"bare-{number}", Schedule(action=action, spec=spec))
        )
    if datetime.now(UTC) > at:
        raise RuntimeError("making them took too long")
    ends = []
    for handle in handles:
        started = client.get_workflow_handle(await _started(handle))
        await started.result()
        closed = (await started.describe()).close_time
        ends.append((closed - at).total_seconds() if closed is not None else 0.0)
        await handle.delete()
    return ends


async def _started(handle: ScheduleHandle) -> str:
    """Return the workflow that a Temporal Schedule started."""
    while True:
        actions = (await handle.describe()).info.recent_actions
        if actions:
            action = actions[0].action
            assert isinstance(action, ScheduleActionExecutionStartWorkflow)
            return action.workflow_id
        await asyncio.sleep(0.2)


async def _due(store: Store, keeper: ScheduleKeeper) -> tuple[list[float], list[float]]:
    """Measure from the due time to the row of the run, and to its first task."""
    at = _soon()
    run = {"crawler": "quick", "limits": {"start_check_s": 0}}
    for number in range(DUE):
        definition = Definition(run=run, cron=f"{at.minute} {at.hour} * * *")
        store.schedules.put(f"due-{number}", definition.document(), None)
        await keeper.keep(f"due-{number}")
    if datetime.now(UTC) > at:
        raise RuntimeError("making them took too long")
    await asyncio.sleep((at - datetime.now(UTC)).total_seconds())
    await _until(lambda: len(store.runs.list_runs(limit=DUE)) == DUE, every_s=ASK_S)
    late = [(run.created_at - at).total_seconds() for run in store.runs.list_runs(limit=DUE)]
    await _until(
        lambda: all(run.status.terminal for run in store.runs.list_runs(limit=DUE)), every_s=ASK_S
    )
    runs = store.runs.list_runs(limit=DUE)
    begun = [(run.started_at - at).total_seconds() for run in runs if run.started_at is not None]
    for number in range(DUE):
        store.schedules.delete(f"due-{number}")
        await keeper.keep(f"due-{number}")
    return late, begun


async def _rest(
    stack: ExitStack, store: Store, keeper: ScheduleKeeper, address: str, folder: Path
) -> None:
    """Measure a worker with the ``audit`` role for schedules that are due once a year."""
    audit = _audit(stack, address, folder)
    await asyncio.sleep(size(60.0, 5.0))  # its start does not count as rest
    alone = await _used(audit, ALONE_S)
    day = datetime.now(UTC) - timedelta(days=2)
    cron = f"0 2 {min(day.day, 28)} {day.month} *"
    for number in range(RESTING):
        spec = Definition(run={"crawler": "quick"}, cron=cron, time_zone="Europe/Berlin")
        store.schedules.put(f"rest-{number}", spec.document(), None)
        await keeper.keep(f"rest-{number}")
    used = await _used(audit, ROUND_S)
    print(
        f"{RESTING} schedules at rest: {used - alone:.3f} cores of the worker of the role audit "
        "(target: <= 0.05), "
        f"which takes {alone:.3f} without them"
    )


def _audit(stack: ExitStack, address: str, folder: Path) -> int:
    settings = {
        "DATABASE__URL": f"sqlite:///{folder / 'state.db'}",
        "WORKER__HEALTH_PORT": "0",
        "AUDIT__INTERVAL_S": "0",
    }
    env = (
        os.environ
        | {"TEMPORAL_ADDRESS": address}
        | {f"LIFECYCLE_{name}": text for name, text in settings.items()}
    )
    command = [sys.executable, "-m", "crawler_lifecycle.cli", "worker", "audit"]
    process = subprocess.Popen(
        command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(_end, process)
    return process.pid


async def _used(pid: int, seconds: float) -> float:
    """Return the cores that a process uses over this time."""
    before, began = _cpu(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (_cpu(pid) - before) / (time.monotonic() - began)
