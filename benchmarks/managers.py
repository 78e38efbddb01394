"""Crawl managers: instant jobs (many, and one by one), managers at rest, and a million known
identities.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from benchmarks.sizes import size
from benchmarks.throughput import _cpu, _end, _server, _worker
from crawler_lifecycle.activities.run_files import FileReading, RunFiles
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.bounds import MOST
from crawler_lifecycle.domain.names import manager_workflow_id
from crawler_lifecycle.features.managers.activities.cycles import CycleOrder, ManagerActivities
from crawler_lifecycle.features.managers.domain.manager import (
    BUILT_IN,
    PAGE_ITEMS,
    Job,
    JobState,
    ManagerResult,
)
from crawler_lifecycle.features.managers.ports import ManagerRow, NewManager
from crawler_lifecycle.features.managers.store.tables import manager_item
from crawler_lifecycle.features.user_code.pool import Hosts, Limits
from crawler_lifecycle.features.user_code.process import Rules
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.store import Store, open_store
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.fakes.services import FakeCatalogue
from tests.support.filling import patient_engine
from tests.support.managing import QUICK
from tests.support.mariadb import running_mariadb

JOBS = size(500, 5)
WINDOW = 100
ROUNDS = size(3, 1)
SINGLE = size(100, 4)
KILLED_AT = size(60, 2)
RESTING = size(100, 2)
REST_S = size(60, 3)
KNOWN = size(1_000_000, 10_000)
NEW = size(1000, 50)
ASKED = size(300, 10)
SOURCE = f"""
from crawler_lifecycle.managers import GeneratorCrawlManager

class Many(GeneratorCrawlManager):
    name, spider, loop_mode, default_max_jobs = "many", "quick", 60, 0

    def set_parameters_gen(self):
        for n in range({KNOWN + NEW}):
            yield {{"n": n}}
"""


async def main() -> None:
    """Print every figure."""
    _known()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        client = await Client.connect(address, plugins=[plugin()])
        worker = _worker(stack, "managers", address, folder)
        user_code = _user_code(stack, address, folder)
        store = stack.enter_context(_store(f"sqlite:///{folder / 'state.db'}"))
        await _stream(client, store)
        await _rest(client, store, [worker.pid, user_code.pid])
        other = _user_code(stack, address, folder)
        await _one_by_one(client, store, {process.pid: process for process in (user_code, other)})


def _user_code(
    stack: ExitStack, address: str, folder: Path, **more: str
) -> subprocess.Popen[bytes]:
    """Start a worker with the ``user-code`` role, as in production."""
    settings = {"DATABASE__URL": f"sqlite:///{folder / 'state.db'}", "WORKER__HEALTH_PORT": "0"}
    env = (
        os.environ
        | {"TEMPORAL_ADDRESS": address}
        | {f"LIFECYCLE_{name}": text for name, text in settings.items()}
        | more
    )
    command = [sys.executable, "-m", "crawler_lifecycle.cli", "worker", "user-code"]
    process = subprocess.Popen(
        command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(_end, process)
    return process


# --- a stream -------------------------------------------------------------------------------------


async def _stream(client: Client, store: Store) -> None:
    ratios, rates, events = [], [], []
    for number in range(ROUNDS + 1):
        loop = await _plain_loop(client, number)
        rate, each = await _managed(client, store, number)
        if number:  # the first round is a warm-up
            ratios.append(rate / loop)
            rates.append(rate)
            events.append(each)
    print(
        f"{JOBS} instant jobs, window {WINDOW}, SQLite: {statistics.median(rates):.2f} jobs/s; ",
        end="",
    )
    spread = f"[{min(ratios):.2f}..{max(ratios):.2f}]"
    print(
        f"{statistics.median(ratios):.2f} {spread} of a plain loop's rate (target: >= 0.8); ",
        end="",
    )
    print(f"{statistics.median(events):.1f} events a job (target: <= 10)")


async def _plain_loop(client: Client, number: int) -> float:
    """Execute this number of lifecycles at once. Return lifecycles per second."""
    left = iter(range(JOBS))

    async def lane() -> None:
        for n in left:
            request = {"crawler": "quick", "args": {"n": str(n)}}
            await client.execute_workflow(
                names.LIFECYCLE_WORKFLOW,
                request,
                id=f"loop/{number}/{n}",
                task_queue=names.QUEUE_MAIN,
            )

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(WINDOW)))
    return JOBS / (time.perf_counter() - began)


async def _managed(
    client: Client, store: Store, number: int, count: int = JOBS
) -> tuple[float, float]:
    """Do the same with a manager. Return jobs per second, and events of its workflow for each."""
    manager_id, workflow_id = _reserved(store, f"stream-{number}")
    for first in range(0, count, PAGE_ITEMS):
        jobs = [Job("quick", {"n": str(n)}) for n in range(first, min(first + PAGE_ITEMS, count))]
        store.managers.add_jobs(manager_id, jobs, f"page-{first}", seal=first + PAGE_ITEMS >= count)
    began = time.perf_counter()
    result = await client.execute_workflow(
        names.MANAGER_WORKFLOW,
        {"manager_id": manager_id},
        id=workflow_id,
        task_queue=names.QUEUE_MAIN,
    )
    rate = count / (time.perf_counter() - began)
    row = store.managers.get_manager(manager_id)
    if row is None or row.counts.good != count:
        raise RuntimeError(f"it was no good run: {result}, {row}")
    return rate, await _events(client, workflow_id) / count


async def _until(fact: Callable[[], bool], every_s: float = 0.1) -> None:
    for _ in range(int(600 / every_s)):
        if fact():
            return
        await asyncio.sleep(every_s)
    raise RuntimeError("it never came true")


async def _events(client: Client, workflow_id: str) -> int:
    """Return the events of all executions of this workflow, which continue as new."""
    await asyncio.sleep(2)  # visibility lags a little
    found = [one async for one in client.list_workflows(f"WorkflowId = '{workflow_id}'")]
    return sum([one.history_length for one in found])


# --- one after the other --------------------------------------------------------------------------


async def _one_by_one(
    client: Client, store: Store, user_code: dict[int, subprocess.Popen[bytes]]
) -> None:
    """Measure a window of one: how soon each job follows the previous one, also after a kill of the
    worker with the object.
    """
    manager_id, workflow_id = _reserved(store, "single", window=1)
    jobs = [Job("quick", {"n": str(n)}) for n in range(SINGLE)]
    store.managers.add_jobs(manager_id, jobs, "page", seal=True)
    start = {"manager_id": manager_id}
    handle = await client.start_workflow(
        names.MANAGER_WORKFLOW,
        start,
        id=workflow_id,
        task_queue=names.QUEUE_MAIN,
        result_type=ManagerResult,
    )
    await _until(lambda: len(store.runs.list_runs(parent=workflow_id, limit=500)) >= KILLED_AT)
    holder = next(pid for pid in user_code if _children([pid]))
    user_code[holder].kill()
    user_code[holder].wait()
    await handle.result()
    begun: dict[str | None, datetime] = {}
    await asyncio.sleep(2)  # visibility lags a little
    async for execution in client.list_workflows(
        f"WorkflowId STARTS_WITH 'crawl/quick/manager/{manager_id}/'"
    ):
        begun[execution.id] = execution.start_time
    runs = sorted(store.runs.list_runs(parent=workflow_id, limit=500), key=lambda run: run.run_id)
    ends = [run.ended_at for run in runs if run.ended_at is not None]
    begins = [begun[run.owner_workflow_id] for run in runs]
    gaps = sorted(
        (begin - end).total_seconds() for end, begin in zip(ends, begins[1:], strict=False)
    )
    *usual, takeover = gaps
    print(
        f"{SINGLE} jobs one after the other: end -> next begun p50 "
        f"{statistics.median(usual):.2f} s ",
        end="",
    )
    print(f"(target: <= 0.5), p99 {usual[int(len(usual) * 0.99)]:.2f} s (<= 2); ", end="")
    print(f"{await _events(client, workflow_id) / SINGLE:.1f} events a job (<= 20); ", end="")
    print(f"after its worker was killed {takeover:.1f} s (<= 15)")


# --- at rest --------------------------------------------------------------------------------------


async def _rest(client: Client, store: Store, pids: list[int]) -> None:
    """Measure the cost of managers that have nothing to do."""
    handles = []
    for number in range(RESTING):
        manager_id, workflow_id = _reserved(store, f"rest-{number}")
        start = {"manager_id": manager_id}
        handles.append(
            await client.start_workflow(
                names.MANAGER_WORKFLOW, start, id=workflow_id, task_queue=names.QUEUE_MAIN
            )
        )
    await _until(lambda: all(row.generation for row in store.managers.newest(limit=RESTING)))
    await asyncio.sleep(10)
    everything = [*pids, *_children(pids)]
    before, events = sum(map(_cpu, everything)), await _lengths(handles)
    await asyncio.sleep(REST_S)
    used = (sum(map(_cpu, everything)) - before) / REST_S
    grown = (await _lengths(handles) - events) / RESTING * 3600 / REST_S
    memory = sum(_memory(pid) for pid in everything) / 1024
    print(
        f"{RESTING} managers at rest, loop_mode 60 s: {used:.3f} cores (target: <= 0.1), "
        f"{memory:.2f} GiB (<= 1.5) ",
        end="",
    )
    print(
        f"over two workers and {len(everything) - len(pids)} processes; {grown:.0f} events an "
        "hour each"
    )
    for handle in handles:
        await handle.terminate()


def _children(pids: list[int]) -> list[int]:
    files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(pid) for file in files for pid in file.read_text().split()]


def _memory(pid: int) -> float:
    """Return MiB of memory, with each shared page in proportion."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


async def _lengths(handles: list[Any]) -> int:
    return sum([(await handle.describe()).history_length for handle in handles])


# --- identities -----------------------------------------------------------------------------------


def _known() -> None:
    """Measure a million known identities: one against them, and a source that yields them all
    again.
    """
    with tempfile.TemporaryDirectory() as folder:
        _identity("SQLite", f"sqlite:///{Path(folder) / 'state.db'}", Path(folder))
    try:
        with running_mariadb() as running, running.database() as url:
            _identity("MariaDB", url)
    except pytest.skip.Exception as missing:
        print(missing)


def _identity(name: str, url: str, folder: Path | None = None) -> None:
    upgrade(url)
    with _store(url) as store:
        row, _ = store.managers.reserve_manager(NewManager("many", "f1", "many:Many"))
        filler = patient_engine(store.database.engine.url)
        now = datetime.now(UTC)
        for first in range(0, KNOWN, 10_000):
            rows = [
                {
                    "manager_id": row.manager_id, "identity": Job("quick", {"n": str(n)}).identity, "position": n + 1,
                    "state": JobState.ENDED.value, "retry": 0, "handled_attempt": 1, "hook_tries": 0, "created_at": now,
                    "updated_at": now,
                }
                for n in range(first, first + 10_000)
            ]  # fmt: skip
            with filler.begin() as connection:
                connection.execute(sa.insert(manager_item), rows)
        filler.dispose()
        times = []
        for n in range(ASKED):
            wanted = Job("quick", {"n": str(n * 3001)}).identity
            began = time.perf_counter()
            found = store.managers.known_identities(row.manager_id, [wanted])
            times.append(time.perf_counter() - began)
            if bool(found) != (n * 3001 < KNOWN):
                raise RuntimeError(f"{wanted} is known: {found}")
        print(
            f"{name}: one identity among {KNOWN:,}: {statistics.median(times) * 1000:.2f} ms "
            "(target: <= 1)"
        )
        if folder is not None:
            _source(store, row, folder)


def _source(store: Store, row: ManagerRow, folder: Path) -> None:
    """Read the source of this manager to its end, in consecutive cycles."""
    (folder / "many.py").write_text(SOURCE)
    owner = Owner(manager_workflow_id(row.name, row.flow_id), "benchmark")
    store.managers.claim_manager(row.manager_id, owner)
    hosts = Hosts("benchmark", ["many"], Rules(folder=folder), Limits())
    reading = partial(
        FileReading, store.runs, RunFiles(store.tasks, store.exports, None, None, "nowhere")
    )
    activities = ManagerActivities(
        store.managers, store.user_code, hosts, FakeCatalogue([QUICK]), reading
    )
    order, position, cycles = CycleOrder(row.manager_id, row.attempt, owner.first_run_id), -1, 0
    rest: dict[int, float] = {}
    began = time.perf_counter()
    try:
        while position < KNOWN:
            ActivityEnvironment().run(activities.run_manager_cycle, order)
            at = store.managers.get_manager(row.manager_id)
            position, cycles = at.position if at is not None else 0, cycles + 1
            rest = rest or {pid: _memory(pid) for pid in (os.getpid(), *_children([os.getpid()]))}
        seconds = time.perf_counter() - began
        more = max(_memory(pid) - before for pid, before in rest.items())
    finally:
        hosts.close()
    print(f"{KNOWN:,} known yields: {seconds:.0f} s (target: <= 300) in {cycles} cycles; ", end="")
    print(f"the memory of a process grew by {more:.0f} MiB (<= 64)")


# --- rows -----------------------------------------------------------------------------------------


@contextmanager
def _store(url: str) -> Iterator[Store]:
    store = open_store(url, most=dict.fromkeys(MOST, 1_000_000))
    try:
        yield store
    finally:
        store.close()


def _reserved(store: Store, flow_id: str, window: int = WINDOW) -> tuple[int, str]:
    """Reserve a manager of the built-in class. Return it with its workflow id."""
    options = {"argv": ["quick", "--max-running-jobs", str(window)]}
    row, _ = store.managers.reserve_manager(NewManager("benchmark", flow_id, BUILT_IN, options))
    return row.manager_id, manager_workflow_id(row.name, row.flow_id)
