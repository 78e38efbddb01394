"""A worker process that executes functions of graphs is killed, and another one continues."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.values import decode, unpacked
from crawler_lifecycle.features.graphs.domain.commands import GraphResult
from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, StepKind, StepSpec
from crawler_lifecycle.features.graphs.ports import NewGraph
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.store import open_store
from tests.support.temporal import temporal_server
from tests.user_code.user_code_support import module
from tests.worker.test_worker_process import WorkerProcess

BODY = """
def work(context):
    with open("ledger", "a") as ledger: ledger.write(f"{sorted(context)}\\n")
    while "s1" in context and len(open("ledger").readlines()) < 4: time.sleep(0.05)
    return len(context)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    async with temporal_server(skipping=False) as env:
        yield env


@pytest.mark.processes
@pytest.mark.asyncio(loop_scope="session")
async def test_a_worker_that_is_killed_loses_one_execution_and_nothing_that_is_on_record(
    server: WorkflowEnvironment, tmp_path: Path
) -> None:
    client, url = server.client, f"sqlite:///{tmp_path / 'runs.db'}"
    upgrade(url)
    name = module(tmp_path, BODY)
    settings = {
        "TEMPORAL_ADDRESS": client.service_client.config.target_host,
        "TEMPORAL_NAMESPACE": client.namespace,
        "LIFECYCLE_USER_CODE__MODULES": json.dumps([name]),
        "LIFECYCLE_USER_CODE__FOLDER": str(tmp_path),
        "LIFECYCLE_USER_CODE__QUEUE": "gpu",
    }
    store = open_store(url)
    job = {"call": f"{name}:work", "style": "cascade"}
    steps = [
        StepSpec(f"s{n}", StepKind.FUNCTION, job, (f"s{n - 1}",) if n else (), queue="gpu")
        for n in range(4)
    ]
    spec = GraphSpec(steps)
    row, _ = store.graphs.reserve_graph(NewGraph("night", fingerprint(spec), 1))
    store.graphs.add_graph_page(row.graph_id, 0, encode_pages(spec)[0])
    store.graphs.make_graph(row.graph_id)

    first = WorkerProcess(tmp_path, **settings)
    try:
        first.until(lambda status, body: status == 200)
        handle: WorkflowHandle[object, GraphResult] = await client.start_workflow(
            names.GRAPH_WORKFLOW,
            {"graph_id": row.graph_id},
            id=names.graph_workflow_id("night"),
            task_queue=names.QUEUE_MAIN,
            result_type=GraphResult,
        )
        await _until(lambda: len(_ledger(tmp_path)) == 3)  # s2 waits there
    finally:
        first.end(signal.SIGKILL)
    second = WorkerProcess(tmp_path, **settings)
    try:
        result = await asyncio.wait_for(handle.result(), 120)
    finally:
        code, said = second.end()
    assert (result.state, result.cause) == ("completed", None)
    assert _ledger(tmp_path) == ["[]", "['s0']", "['s1']", "['s1']", "['s2']"]
    rows = {one.path: one for one in store.graphs.list_steps(row.graph_id)}
    assert [one.attempt for one in rows.values()] == [1, 1, 2, 1]
    assert decode(b"".join(unpacked(store.graphs.result(row.graph_id, rows["s3"].number)))) == 1
    plan = store.user_code.get_user_code(name, "gpu")
    assert plan is not None
    assert (plan.kind, plan.error) == ("module", None)
    assert (code, "Traceback" in said) == (0, False), said
    store.close()


def _ledger(folder: Path) -> list[str]:
    file = folder / "ledger"
    return file.read_text().splitlines() if file.exists() else []


async def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.05)
