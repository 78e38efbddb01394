"""Random graphs in memory and live: the same results in the same order, wherever they are read.

A live graph uses the store, function calls in separate processes, and a gateway over HTTP, but no
Temporal.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from crawler_lifecycle.features.graphs.activities import batches as graph_batches
from crawler_lifecycle.graphs import Workflow, asking, chancy
from crawler_lifecycle.graphs.client import Gateway
from crawler_lifecycle.graphs.testing import in_memory
from crawler_lifecycle.store.store import open_store
from tests.activities.test_graph_batches import Fixture
from tests.contracts.store.graphing import Graphed
from tests.contracts.store.harness import Harness as StoreHarness
from tests.gateway.gateway_harness import Clock, Harness
from tests.gateway.graphs.test_graphs import claimed
from tests.gateway.served import served
from tests.support.databases import make_tables
from tests.support.examples import examples
from tests.user_code.user_code_support import module

pytestmark = pytest.mark.troubles

BODY = """
from crawler_lifecycle.graphs import Cancel, Record, Workflow, current_job, worker

def in_order(value):
    return [[key, in_order(one)] for key, one in value.items()] if isinstance(value, dict) else value
def plain(value=None): return value
def cascade(context): return in_order(context)
def each(item, context):
    if item == "cancels": return Cancel(item)
    return None if item == "nothing" else [item, in_order(context)]
def grafts(context):
    inner = Workflow().add_cascade("each", (["nothing", 1], each))
    return Workflow().add("nothing", plain).add_workflow("inner", inner).add_cascade("seen", cascade, ["inner"])
def grafts_nothing(context): ...
def asks():
    job = current_job()
    graph = Workflow.for_job(job)
    pictures = [graph.sub(name).to_mermaid() for name in graph.get_job(job.name).deps]
    return [in_order(graph.all_recorded(deps_of=job)), [one.path for one in graph.all_jobs(deps_of=job)], pictures]
@worker()
class Quiet:
    def process(self, job): return Record(job.args["n"]) if job.args["n"] % 2 else None
"""


def in_order(value: Any) -> Any:
    return (
        [[key, in_order(one)] for key, one in value.items()] if isinstance(value, dict) else value
    )


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Any]:
    """A user's module, which this process and those of the worker import."""
    folder = tmp_path / "users"
    folder.mkdir()
    name = module(folder, BODY)
    sys.path.insert(0, str(folder))
    yield importlib.import_module(name)
    sys.path.remove(str(folder))
    del sys.modules[name]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    clock = Clock()
    store = open_store(make_tables(f"sqlite:///{tmp_path}/runs.db"), pool_size=30, clock=clock)
    yield Harness(store, clock)
    store.close()


@pytest.fixture
def caller() -> Iterator[ThreadPoolExecutor]:
    """The thread that calls functions in all examples.

    The kernel kills the process of a function when the thread that started it ends.
    """
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture
def fixture(
    harness: Harness,
    users: Any,
    caller: ThreadPoolExecutor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Fixture]:
    monkeypatch.setattr(graph_batches, "BEGIN_S", 600.0)
    monkeypatch.setattr(Gateway._pages, "__defaults__", (3,))
    found = Fixture(
        StoreHarness(harness.store, cast(Any, harness.clock)), tmp_path / "users", [users.__name__]
    )
    yield found
    found.functions.close()


@st.composite
def shapes(draw: st.DrawFn, depth: int = 2) -> list[tuple[str, list[Any], list[int]]]:
    """Return steps: their kind, their contents, and the earlier steps of their level on which they
    depend.
    """
    kinds = [
        "plain",
        "nothing",
        "cascade",
        "quiet",
        "each",
        "each by key",
        "grafts",
        "grafts nothing",
        "asks",
    ]
    items = st.lists(st.sampled_from(["nothing", "cancels", 1, "ü"]), max_size=4)
    found = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from([*kinds, "graph", "graph"] if depth else kinds))
        inside = draw(shapes(depth - 1)) if kind == "graph" else draw(items)
        found.append((kind, inside, draw(st.lists(st.integers(0, max(0, number - 1)), max_size=3))))
    return found


def built(users: Any, shape: list[Any], workflow: Workflow) -> Workflow:
    for number, (kind, inside, before) in enumerate(shape):
        name = f"{'zyxw'[number]} {kind}"
        deps = [f"{'zyxw'[one]} {shape[one][0]}" for one in reversed(before) if one < number]
        ignored: dict[str, Any] = {"ignore_cancelled": True}
        if kind == "graph":
            workflow.add_workflow(
                name,
                built(users, inside, Workflow().add_context({"inner": number})),
                deps,
                **ignored,
            )
        elif kind == "each":
            workflow.add_cascade(name, (inside, users.each), deps, **ignored)
        elif kind == "each by key":
            keyed = {f"https://a.com/{n}?q={item}": item for n, item in enumerate(inside)}
            workflow.add_cascade(name, (keyed, users.each), deps, **ignored)
        elif kind == "quiet":
            workflow.add_many(
                name, [users.Quiet.new({"n": n}) for n in range(len(inside))], deps, **ignored
            )
        elif kind.startswith("grafts"):
            workflow.add_graft(name, getattr(users, kind.replace(" ", "_")), deps, **ignored)
        elif kind == "cascade":
            workflow.add_cascade(name, users.cascade, deps, **ignored)
        elif kind == "asks":
            workflow.add(name, users.asks, deps, **ignored)
        else:
            value = {"value": {"b": number, "a": [None]}} if kind == "plain" else {}
            workflow.add(name, users.plain, deps, args=value, **ignored)
    return workflow


def facts(key: str) -> list[Any]:
    """Return everything that people can read about a graph, in order."""
    graph = Workflow(id=key)
    whole = graph.all_recorded()
    view = chancy.WorkflowPlugin.fetch_workflow(chancy.Chancy(), key)
    view.validate()
    return [
        in_order(whole),
        [in_order(graph.get_recorded(name)) for name in whole],
        [(job.path, job.state, list(job.deps)) for job in graph.all_jobs()],
        graph.to_mermaid(),
        graph.to_dot(),
        graph.to_graph(),
        [(name, step.state, step.dependencies) for name, step in view],
    ]


numbers = itertools.count()


@settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
@given(shape=shapes())
@example(
    shape=[("each", ["nothing", 1, "nothing", 1], []), ("cascade", [], [0]), ("asks", [], [0])]
)
@example(
    shape=[
        ("graph", [("each by key", ["ü", "nothing"], []), ("grafts", [], [0])], []),
        ("cascade", [], [0]),
    ]
)
@example(
    shape=[("grafts", [], []), ("each", [], [0]), ("asks", [], [0, 1]), ("cascade", [], [0, 1])]
)
def test_live_is_as_in_memory(
    harness: Harness,
    fixture: Fixture,
    users: Any,
    caller: ThreadPoolExecutor,
    shape: list[Any],
) -> None:
    key = f"g{next(numbers)}"

    def begun() -> Workflow:
        return built(
            users, shape, Workflow("n", id=key, ignore_cancelled=True).add_context({"outer": 1})
        ).start()

    with in_memory():
        workflow = begun()
        assert workflow.wait().state != "executing"
        expected = facts(key)

    async def live() -> list[Any]:
        async with served(harness.app) as server:
            former = asking.use(Gateway(server.url))
            try:
                await asyncio.to_thread(begun)
                graphed = claimed(harness, key)
                await asyncio.get_running_loop().run_in_executor(caller, run, fixture, graphed)
                return await asyncio.to_thread(facts, key)
            finally:
                asking.use(former)

    assert asyncio.run(live()) == expected


def run(fixture: Fixture, graphed: Graphed) -> None:
    fixture.run(graphed)
    steps = graphed.harness.store.graphs.list_steps(graphed.id)
    assert all(step.state.final for step in steps), [one.errors for one in steps if one.errors]
