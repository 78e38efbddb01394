"""Graphs as users write them, with the functions of a module in separate processes."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.domain.values import decode, unpacked
from crawler_lifecycle.features.graphs.activities.batches import GraphBatchActivities
from crawler_lifecycle.features.user_code.functions import Functions
from crawler_lifecycle.features.user_code.process import Rules
from crawler_lifecycle.graphs import Workflow
from tests.support.graphing import GraphTestbed, graph_testbed
from tests.support.testbed import WorkflowHarness
from tests.user_code.user_code_support import module

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY = """
import asyncio
from datetime import datetime, timezone
from crawler_lifecycle.graphs import Record, Workflow, worker

async def extract(context):
    return {"records": [context["source"], 2, 3], "at": datetime(2026, 11, 22, tzinfo=timezone.utc)}
async def square(number, context):
    return {"square": number * number, "source": context["source"]}
def merge(context):
    return {"at": context["extract"]["at"], "sum": sum(one["square"] for one in context["squares"].values())}

@worker()
class Notify:
    async def process(self, job):
        workflow = Workflow.for_job(job)
        merged = await workflow.get_recorded("merge")
        status = await workflow.status()
        inner = Workflow()
        for user in job.args["users"]:
            inner.add(str(user), Tell.new({"user": user, "sum": merged["sum"]}))
        await Workflow.apply_graft(job, inner)
        return Record({"seen": status.counts["completed"]})

@worker()
class Tell:
    def process(self, job): return Record(f"{job.args['user']}: {job.args['sum']}")

def summary(context): return context["notify"]
def only_even(number, context): return None if number % 2 else number
def in_order(context): return list(context["even"].items())

def patient():
    from crawler_lifecycle.graphs import current_job
    with open("ledger", "a") as ledger: ledger.write("begun\\n")
    while not current_job().cancelled(): time.sleep(0.02)
    with open("ledger", "a") as ledger: ledger.write("told\\n")
def hangs():
    with open("pids", "a") as ledger: ledger.write(f"{os.getpid()}\\n")
    time.sleep(3600)
def dies_once():
    with open("ledger", "a") as ledger: ledger.write(f"{os.getpid()}\\n")
    while len(open("ledger").readlines()) < 2: time.sleep(0.02)
    return "again"
"""


@asynccontextmanager
async def functions_of(
    testbed: WorkflowHarness, folder: Path, name: str
) -> AsyncIterator[tuple[GraphTestbed, Functions]]:
    """Workers that call the functions of this module."""
    functions, g = Functions([name], Rules(folder=folder), 64 * 1024 * 1024), graph_testbed(testbed)
    s, p = testbed.store, testbed.parts
    real: Any = GraphBatchActivities(
        s.graphs, s.user_code, functions, p.directory, p.reading, grace_s=60.0
    )
    g.functions = real
    try:
        async with g.working(threads=2):
            yield g, functions
    finally:
        functions.close()


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, as its author has it."""
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(module(tmp_path, BODY))


def value(g: GraphTestbed, path: str) -> Any:
    return decode(b"".join(unpacked(g.testbed.store.graphs.result(1, g.steps()[path].number))))


async def test_cascades_fan_outs_workers_and_a_graft(
    real_testbed: WorkflowHarness, users: Any, tmp_path: Path
) -> None:
    workflow = (
        Workflow(id="nightly")
        .add_context({"source": 1})
        .add_cascade("extract", users.extract)
        .add_cascade("squares", ([1, 2, 3], users.square), deps="extract")
        .add_cascade("merge", users.merge, deps=["extract", "squares"])
        .add_graft("notify", users.Notify.new({"users": ["ada", "bob"]}), deps="merge")
        .add_cascade("summary", users.summary, deps="notify")
        .add_cascade(
            "even", ({f"http://a/{n}": n for n in (1, 2, 3, 4)}, users.only_even), deps="summary"
        )
        .add_cascade("order", users.in_order, deps="even")
    )
    spec = workflow.spec()
    async with functions_of(real_testbed, tmp_path, users.__name__) as (g, _):
        result = await g.ended(await g.start(spec.steps, context=spec.context))
    assert (result.state, result.cause) == ("completed", None)
    assert value(g, "merge") == {"at": datetime(2026, 11, 22, tzinfo=UTC), "sum": 14}
    assert value(g, "squares/1") == {"square": 4, "source": 1}
    assert value(g, "notify") == {"seen": 5}
    assert value(g, "summary") == {"ada": "ada: 14", "bob": "bob: 14"}
    pairs = [["http:__a_1", None], ["http:__a_2", 2], ["http:__a_3", None], ["http:__a_4", 4]]
    assert value(g, "order") == pairs, "each value at its item's place, whether it is None or not"


@pytest.mark.troubles
async def test_a_long_function_is_told_that_it_was_cancelled(
    real_testbed: WorkflowHarness, users: Any, tmp_path: Path
) -> None:
    spec = (
        Workflow(id="nightly")
        .add("patient", users.patient, timeout_s=3600)
        .add("after", users.patient, "patient")
        .spec()
    )
    ledger = tmp_path / "ledger"
    async with functions_of(real_testbed, tmp_path, users.__name__) as (g, _):
        handle = await g.start(spec.steps)
        await real_testbed.until(ledger.exists)
        assert await handle.execute_update(
            "cancel_steps", {"names": ["patient"], "reason": "enough"}
        )
        result = await g.ended(handle)
    assert (result.state, g.states()) == (
        "cancelled",
        {"patient": "cancelled", "after": "cancelled"},
    )
    assert ledger.read_text().split() == ["begun", "told"]


@pytest.mark.troubles
async def test_a_function_whose_process_was_killed_is_called_again(
    real_testbed: WorkflowHarness, users: Any, tmp_path: Path
) -> None:
    spec = Workflow(id="nightly").add("dies", users.dies_once, backoff_s=0.1).spec()
    async with functions_of(real_testbed, tmp_path, users.__name__) as (g, functions):
        handle = await g.start(spec.steps)
        await real_testbed.until((tmp_path / "ledger").exists)
        for host in functions._pool.processes():
            host.process.strike(signal.SIGKILL)
        assert (await g.ended(handle)).state == "completed"
    step = g.steps()["dies"]
    assert (value(g, "dies"), step.attempt) == ("again", 2)
    assert "its process was ended by SIGKILL" in step.errors[0]["error"]


@pytest.mark.troubles
@pytest.mark.parametrize("how", ["stop", "force_stop"])
async def test_a_stop_ends_functions_short_and_long(
    real_testbed: WorkflowHarness, users: Any, tmp_path: Path, how: str
) -> None:
    spec = (
        Workflow(id="nightly")
        .add("short", users.hangs)
        .add("long", users.hangs, timeout_s=3600)
        .spec()
    )
    pids = tmp_path / "pids"
    async with functions_of(real_testbed, tmp_path, users.__name__) as (g, _):
        g.functions.grace_s = 0.2  # type: ignore[attr-defined]
        handle = await g.start(spec.steps)
        await real_testbed.until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        await handle.signal(how, {"requested_by": "ada"})
        result = await g.ended(handle)
        assert (result.state, result.cause) == ("cancelled", "Stopped by ada")
        for pid in map(int, pids.read_text().split()):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    assert g.states() == {"short": "cancelled", "long": "cancelled"}
