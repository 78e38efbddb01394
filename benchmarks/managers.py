"""Crawl managers: a stream of instant jobs beside a plain loop, managers at rest, and one identity among a million."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from temporalio.client import Client

from benchmarks.throughput import _cpu, _server, _worker
from crawler_lifecycle.adapters.database import SqlStore, open_store, upgrade
from crawler_lifecycle.adapters.database.schema.tables import manager_item
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.manager import BUILT_IN, PAGE_ITEMS, Job, JobState, manager_workflow_id
from crawler_lifecycle.ports.store.managers import NewManager
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.mariadb import running_mariadb

JOBS, WINDOW, ROUNDS = 500, 100, 3
RESTING, REST_S = 20, 60
KNOWN, ASKED = 1_000_000, 300


async def main() -> None:
    """Print every figure."""
    _identities()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        client = await Client.connect(address, plugins=[plugin()])
        process = _worker(stack, "managers", address, folder)
        store = stack.enter_context(_store(f"sqlite:///{folder / 'state.db'}"))
        await _stream(client, store)
        await _rest(client, store, process.pid)


# --- a stream ---------------------------------------------------------------------------------------------------------


async def _stream(client: Client, store: SqlStore) -> None:
    ratios, rates, events = [], [], []
    for number in range(ROUNDS + 1):
        loop = await _plain_loop(client, number)
        rate, each = await _managed(client, store, number)
        if number:  # the first round warms up
            ratios.append(rate / loop)
            rates.append(rate)
            events.append(each)
    print(f"{JOBS} instant jobs, window {WINDOW}, SQLite: {statistics.median(rates):.2f} jobs/s; ", end="")
    spread = f"[{min(ratios):.2f}..{max(ratios):.2f}]"
    print(f"{statistics.median(ratios):.2f} {spread} of a plain loop's rate (reach: >= 0.8); ", end="")
    print(f"{statistics.median(events):.1f} events a job (reach: <= 10)")


async def _plain_loop(client: Client, number: int) -> float:
    """So many lifecycles at once; lifecycles a second."""
    left = iter(range(JOBS))

    async def lane() -> None:
        for n in left:
            request = {"crawler": "quick", "args": {"n": str(n)}}
            await client.execute_workflow(
                names.LIFECYCLE_WORKFLOW, request, id=f"loop/{number}/{n}", task_queue=names.QUEUE_MAIN
            )

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(WINDOW)))
    return JOBS / (time.perf_counter() - began)


async def _managed(client: Client, store: SqlStore, number: int) -> tuple[float, float]:
    """The same by a manager; jobs a second, and events of its workflow for each."""
    manager_id, workflow_id = _reserved(store, f"stream-{number}")
    for first in range(0, JOBS, PAGE_ITEMS):
        jobs = [Job("quick", {"n": str(n)}) for n in range(first, min(first + PAGE_ITEMS, JOBS))]
        store.managers.add_jobs(manager_id, jobs, f"page-{first}", seal=first + PAGE_ITEMS >= JOBS)
    began = time.perf_counter()
    result = await client.execute_workflow(
        names.MANAGER_WORKFLOW, {"manager_id": manager_id}, id=workflow_id, task_queue=names.QUEUE_MAIN
    )
    rate = JOBS / (time.perf_counter() - began)
    row = store.managers.get_manager(manager_id)
    if row is None or row.counts.good != JOBS:
        raise RuntimeError(f"it was no good run: {result}, {row}")
    return rate, await _events(client, workflow_id) / JOBS


async def _events(client: Client, workflow_id: str) -> int:
    """Events of all executions of this workflow, which continue as new."""
    await asyncio.sleep(2)  # visibility comes a little later
    found = [one async for one in client.list_workflows(f"WorkflowId = '{workflow_id}'")]
    return sum([one.history_length for one in found])


# --- at rest ----------------------------------------------------------------------------------------------------------


async def _rest(client: Client, store: SqlStore, pid: int) -> None:
    """Managers of which nothing is wanted: what they cost."""
    handles = []
    for number in range(RESTING):
        manager_id, workflow_id = _reserved(store, f"rest-{number}")
        start = {"manager_id": manager_id}
        handles.append(
            await client.start_workflow(names.MANAGER_WORKFLOW, start, id=workflow_id, task_queue=names.QUEUE_MAIN)
        )
    for _ in range(300):
        if all(row.generation for row in store.managers.list_managers(limit=RESTING)):
            break
        await asyncio.sleep(1)
    await asyncio.sleep(5)
    before, events = _cpu(pid), await _lengths(handles)
    await asyncio.sleep(REST_S)
    used = (_cpu(pid) - before) / REST_S
    grown = (await _lengths(handles) - events) / RESTING * 3600 / REST_S
    hundred = used * 100 / RESTING
    print(f"{RESTING} managers at rest, loop_mode 60 s: the worker uses {used:.3f} cores, ", end="")
    print(f"100 would use {hundred:.2f} (reach: <= 0.1); {grown:.0f} events an hour each")
    for handle in handles:
        await handle.terminate()


async def _lengths(handles: list[Any]) -> int:
    return sum([(await handle.describe()).history_length for handle in handles])


# --- identities -------------------------------------------------------------------------------------------------------


def _identities() -> None:
    """One identity against a million known ones."""
    with tempfile.TemporaryDirectory() as folder:
        _identity("SQLite", f"sqlite:///{Path(folder) / 'state.db'}")
    try:
        with running_mariadb() as running, running.database() as url:
            _identity("MariaDB", url)
    except pytest.skip.Exception as missing:
        print(missing)


def _identity(name: str, url: str) -> None:
    upgrade(url)
    with _store(url) as store:
        manager_id, _ = _reserved(store, "known")
        filler = sa.create_engine(store.database.engine.url)
        now = datetime.now(UTC)
        for first in range(0, KNOWN, 10_000):
            rows = [
                {
                    "manager_id": manager_id, "identity": Job("quick", {"n": str(n)}).identity, "position": n + 1,
                    "state": JobState.ENDED.value, "retry": 0, "handled_attempt": 1, "created_at": now,
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
            found = store.managers.known_identities(manager_id, [wanted])
            times.append(time.perf_counter() - began)
            if bool(found) != (n * 3001 < KNOWN):
                raise RuntimeError(f"{wanted} is known: {found}")
        print(f"{name}: one identity among {KNOWN:,}: {statistics.median(times) * 1000:.2f} ms (reach: <= 1)")


# --- rows -------------------------------------------------------------------------------------------------------------


@contextmanager
def _store(url: str) -> Iterator[SqlStore]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def _reserved(store: SqlStore, flow_id: str) -> tuple[int, str]:
    """A manager of the built-in class, and its workflow id."""
    options = {"argv": ["quick", "--max-running-jobs", str(WINDOW)]}
    row, _ = store.managers.reserve_manager(NewManager("benchmark", flow_id, BUILT_IN, options))
    return row.manager_id, manager_workflow_id(row.name, row.flow_id)
