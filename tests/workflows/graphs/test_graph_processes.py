"""Graphs to their end with nothing left out: Temporal, workflow, activities, store, and processes of users' code."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.worker import Worker

from crawler_lifecycle.activities.graph_batches import GraphBatchActivities
from crawler_lifecycle.domain.graph.spec import StepKind, StepSpec
from crawler_lifecycle.domain.names import QUEUE_FUNCTIONS
from crawler_lifecycle.domain.values import decode, unpacked
from crawler_lifecycle.plans.functions import Functions
from crawler_lifecycle.plans.process import Rules
from crawler_lifecycle.temporal.heartbeats import HeartbeatInterceptor
from tests.contracts.store.graphing import group
from tests.plans.plans_support import module
from tests.support.graphing import GraphLab, graph_lab
from tests.support.lab import Lab

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY = """
from crawler_lifecycle.graphs.asking import current
from crawler_lifecycle.graphs.job import current_job
from crawler_lifecycle.domain.graph.spec import GraphSpec, StepKind, StepSpec

def note():
    with open("ledger", "a") as ledger: ledger.write(f"{current_job().path} {os.getpid()}\\n")
def first(start):
    note()
    return {"n": start}
def add(context):
    note()
    return {"n": sum(value["n"] for value in context.values() if "n" in value) + 1}
def hangs():
    note()
    time.sleep(3600)
def dies_once():
    note()
    if current_job().attempt == 1: os.kill(os.getpid(), signal.SIGKILL)
def grafts():
    job, here = current_job(), note.__module__
    steps = [StepSpec(str(n), StepKind.FUNCTION, {"call": f"{here}:note"}) for n in range(3)]
    current().graft(job.graph, job.path, job.attempt, GraphSpec(steps))
"""


class Code:
    """A user's module, and the workers that call its functions."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder, self.name = lab, folder, module(folder, BODY)

    def step(self, path: str, call: str, *deps: str, style: str = "plain", **fields: Any) -> StepSpec:
        job = {"call": f"{self.name}:{call}", "style": style, "args": fields.pop("args", {})}
        return StepSpec(path, StepKind.FUNCTION, job, deps, **fields)

    def ledger(self) -> list[list[str]]:
        """Path and process of every execution, as the functions themselves say."""
        file = self.folder / "ledger"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def result(self, g: GraphLab, path: str) -> Any:
        parts = self.lab.store.graphs.result(1, g.steps()[path].number)
        return decode(b"".join(unpacked(parts)))

    @contextmanager
    def _functions(self) -> Iterator[Functions]:
        functions = Functions([self.name], Rules(folder=self.folder), 2**26)
        try:
            yield functions
        finally:
            functions.close()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        store = self.lab.store
        with self._functions() as functions, ThreadPoolExecutor(2) as threads:
            calls = GraphBatchActivities(store.graphs, store.plans, functions, self.lab.parts.directory, grace_s=0.2)
            worker = Worker(
                self.lab.client,
                task_queue=QUEUE_FUNCTIONS,
                activities=[calls.run_graph_batch],
                activity_executor=threads,
                max_concurrent_activities=2,
                interceptors=[HeartbeatInterceptor(["run_graph_batch"])],
                max_heartbeat_throttle_interval=timedelta(seconds=0.3),
            )
            async with worker:
                yield


async def test_a_chain_of_cascades_hands_results_on(real_lab: Lab, tmp_path: Path) -> None:
    g, code = graph_lab(real_lab), Code(real_lab, tmp_path)
    steps = [code.step("a", "first", args={"start": 5}), *(
        code.step(path, "add", dep, style="cascade") for dep, path in (("a", "b"), ("b", "c"))
    )]  # fmt: skip
    async with code.working():
        assert (await g.ended(await g.start(steps))).state == "completed"
    assert [path for path, _ in code.ledger()] == ["a", "b", "c"]
    assert code.result(g, "c") == {"n": 7}
    assert len({pid for _, pid in code.ledger()}) == 1


async def test_a_graft_a_death_and_what_follows(real_lab: Lab, tmp_path: Path) -> None:
    g, code = graph_lab(real_lab), Code(real_lab, tmp_path)
    steps = [
        code.step("dies", "dies_once", max_attempts=2, backoff_s=0.1),
        code.step("grafter", "grafts", "dies", graft=True),
        group("all", "grafter"),
        code.step("all/last", "note"),
    ]
    async with code.working():
        assert (await g.ended(await g.start(steps))).state == "completed"
    paths = [path for path, _ in code.ledger()]
    assert paths[:2] == ["dies", "dies"]
    assert sorted(paths[2:]) == ["all/last", "grafter/0", "grafter/1", "grafter/2"]
    assert paths[-1] == "all/last"


@pytest.mark.parametrize("how", ["stop", "force_stop"])
async def test_a_stop_ends_functions_short_and_long(real_lab: Lab, tmp_path: Path, how: str) -> None:
    g, code = graph_lab(real_lab), Code(real_lab, tmp_path)
    async with code.working():
        handle = await g.start([code.step("short", "hangs"), code.step("long", "hangs", timeout_s=3600)])
        await real_lab.until(lambda: len(code.ledger()) == 2)
        await handle.signal(how, {"requested_by": "ada"})
        result = await g.ended(handle)
        assert (result.state, result.cause) == ("cancelled", "Stopped by ada")
        for _, pid in code.ledger():
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid), signal.SIG_DFL)
    assert g.states() == {"short": "cancelled", "long": "cancelled"}
