"""Graphs: chains and fans compared with Chancy's, crawls compared with plain lifecycles, a retry, a
killed worker, graphs at rest.

``BENCHMARK_PARTS`` is a list of the parts: ``chains,fans,crawls,fair,gateway,chancy,killed,rest``.
``BENCHMARK_FAN`` and ``BENCHMARK_FAN_IN`` set the sizes of both fans.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client, WorkflowHandle

from benchmarks.chancy_beside import Missing, chancy_seconds
from benchmarks.gateway import running_gateway
from benchmarks.managers import _children, _events, _memory, _plain_loop, _store, _until, _user_code
from benchmarks.sizes import size
from benchmarks.throughput import _TICK, _cpu, _end, _server, _worker
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.graphs.domain.commands import GraphResult, RetrySteps
from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, StepState
from crawler_lifecycle.features.graphs.ports import NewGraph
from crawler_lifecycle.graphs import Workflow, crawl
from crawler_lifecycle.graphs.client import Gateway
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.filling import patient_engine

CHAIN = size(200, 40)
APART = size(30, 2)
CRAWLS = size(500, 4)
RESTING = size(200, 3)
REST_S = size(60, 3)
FAN = size(1000, 20, "BENCHMARK_FAN")
FAN_IN = size(10_000, 50, "BENCHMARK_FAN_IN")
#: The number of half-second functions in one graph, and of graphs with one function of 10 ms in
#: parallel, with the seconds between them.
SLOW = size(1500, 200)
QUICK = size(20, 2)
APART_S = 1.0
PARTS = ("chains", "fans", "crawls", "fair", "gateway", "chancy", "killed", "rest")
#: Without this, a server gives functions to workers in the order in which graphs submitted them. A
#: queue has four partitions by default, and is fair within each. `crawlctl dev` writes into one of
#: them.
FAIR = ("matching.enableFairness=true", "matching.numTaskqueueWritePartitions=1")
#: The number of graphs when a worker is killed; the seconds within which they must continue, and
#: after which nobody waits any longer.
KILLED = size(8, 2)
GOES_ON_S = 15.0
GIVEN_UP_S = 120.0
MODULE = "steps_of_benchmark"
SOURCE = """
import time
def link(context):
    return 1
def item(number, context):
    return number
def slow(context):
    time.sleep(0.5)
def slow_item(number, context):
    time.sleep(0.5)
def quick(context):
    time.sleep(0.01)
def total(context):
    return sum(context["wide"].values())
"""


async def main() -> None:
    """Print every figure."""
    parts = os.environ.get("BENCHMARK_PARTS", ",".join(PARTS)).split(",")
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(
            f"BENCHMARK_PARTS: {', '.join(sorted(unknown))}: not known; there are "
            f"{', '.join(PARTS)}"
        )
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / f"{MODULE}.py").write_text(SOURCE)
        sys.path.insert(0, name)
        users = importlib.import_module(MODULE)
        address = await asyncio.to_thread(
            _server,
            stack,
            folder,
            *(word for one in FAIR for word in ("--dynamic-config-value", one)),
        )
        client = await Client.connect(address, plugins=[plugin()])
        workflows = partial(_worker, stack, "managers", address, folder)
        settings = {
            "LIFECYCLE_USER_CODE__MODULES": f'["{MODULE}"]',
            "LIFECYCLE_USER_CODE__FOLDER": name,
        }
        user_code = partial(_user_code, stack, address, folder, **settings)
        worker, functions = workflows(), user_code()
        store = stack.enter_context(_store(f"sqlite:///{folder / 'state.db'}"))
        benchmark = _Benchmark(client, store, users, [worker.pid, functions.pid])
        await benchmark.run(parts)
        if "gateway" in parts:
            await asyncio.to_thread(benchmark.taken, folder, address)
        if "chancy" in parts:
            await asyncio.to_thread(benchmark.beside, folder)
        if "killed" in parts:
            other = workflows()
            await benchmark.killed("workflows", worker)
            user_code()
            await benchmark.killed("functions", functions)
            _end(other)
        if "rest" in parts:
            _end(worker)
            resting = _worker(stack, "resting", address, folder)
            await benchmark.rest(resting.pid)


def _built(users: Any) -> None:
    began = time.perf_counter()
    spec = _wide("built", users, FAN_IN).spec()
    encode_pages(spec)
    print(
        f"{FAN_IN:,} steps built, checked and paged: {time.perf_counter() - began:.2f} s "
        "(target: <= 1)"
    )


def _wide(key: str, users: Any, size: int, **options: Any) -> Workflow:
    fan = Workflow(id=key or None).add_cascade("wide", (list(range(size)), users.item), **options)
    return fan.add_cascade("total", users.total, deps="wide")


class _Benchmark:
    """Graphs with one store and one worker of each kind."""

    def __init__(self, client: Client, store: Store, users: Any, workers: list[int]) -> None:
        self.client, self.store, self.users, self.workers = client, store, users, workers
        self.seconds: dict[str, float] = {}

    async def run(self, parts: list[str]) -> None:
        await self._graph(_wide("warm", self.users, 20).spec(), "warm")
        if "chains" in parts:
            await self._chain()
            await self._apart("resources", resources={"place": 1})
            await self._apart("timeout_s", timeout_s=61)
        if "fans" in parts:
            await self._fans()
        if "crawls" in parts:
            await self._crawls()
        if "fair" in parts:
            await self._fair()

    async def _fans(self) -> None:
        _built(self.users)
        await self._fan("fan", FAN, 3.0, 2.0)
        rest = _memory(self.workers[0])
        large = await self._fan("fan-in", FAN_IN, 15.0, 15.0)
        grown = _memory(self.workers[0]) - rest
        events = await _events(self.client, names.graph_workflow_id("fan-in"))
        print(
            f"  worker with workflows: {grown:.0f} MiB above its rest (target: <= 150); {events} "
            "events in all"
        )
        await self._retry(large)

    def _used(self) -> float:
        """Return the seconds of processor time of both workers and all processes that they have
        started.
        """
        ended = 0
        for pid in self.workers:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ended += int(fields[13]) + int(fields[14])
        return sum(map(_cpu, [*self.workers, *_children(self.workers)])) + ended / _TICK

    async def _start(self, spec: GraphSpec, key: str) -> tuple[int, WorkflowHandle[Any, Any]]:
        graphs, pages = self.store.graphs, encode_pages(spec)
        row, _ = graphs.reserve_graph(
            NewGraph(key, fingerprint(spec), len(pages), options=spec.options)
        )
        for page, data in enumerate(pages):
            graphs.add_graph_page(row.graph_id, page, data)
        graphs.make_graph(row.graph_id)
        return row.graph_id, await self._begin(row.graph_id, key)

    async def _begin(self, graph_id: int, key: str) -> WorkflowHandle[Any, Any]:
        handle: WorkflowHandle[Any, Any] = await self.client.start_workflow(
            names.GRAPH_WORKFLOW,
            {"graph_id": graph_id},
            id=names.graph_workflow_id(key),
            task_queue=names.QUEUE_MAIN,
            result_type=GraphResult,
        )
        return handle

    async def _graph(self, spec: GraphSpec, key: str) -> tuple[int, float]:
        """Execute a graph to its end. Return its number, and the seconds from the start of its
        workflow.
        """
        graph_id, handle = await self._start(spec, key)
        began = time.perf_counter()
        result = await handle.result()
        self.seconds[key] = seconds = time.perf_counter() - began
        if result.state != "completed":
            raise RuntimeError(f"graph {key} is {result.state}: {result.cause}")
        return graph_id, seconds

    async def _chain(self) -> None:
        chain = Workflow(id="chain")
        for n in range(CHAIN):
            chain.add_cascade(f"s{n}", self.users.link, deps=f"s{n - 1}" if n else [])
        _, seconds = await self._graph(chain.spec(), "chain")
        commit = self._commit()
        each = seconds / CHAIN * 1000
        print(f"a chain of {CHAIN}: {each:.1f} ms a step, a commit takes {commit:.1f} ms; ", end="")
        print(f"{each - commit:.1f} ms above it (target: <= 10)")

    async def _apart(self, what: str, **options: Any) -> None:
        """Execute a chain whose steps each have their own call."""
        chain = Workflow(id=f"apart-{what}")
        for n in range(APART):
            chain.add_cascade(f"s{n}", self.users.link, deps=f"s{n - 1}" if n else [], **options)
        before = self._used()
        _, seconds = await self._graph(chain.spec(), f"apart-{what}")
        used = (self._used() - before) / APART * 1000
        print(
            f"a chain of {APART} with {what}: {seconds / APART * 1000:.0f} ms a step (target: <= "
            f"100), {used:.0f} ms CPU"
        )

    async def _fair(self) -> None:
        """Execute functions of 10 ms in parallel with a graph of very many slower ones. Measure the
        time from the start to their beginning.
        """
        slow = Workflow(id="slow").add_cascade("wide", (list(range(SLOW)), self.users.slow_item))
        _, handle = await self._start(slow.spec(), "slow")
        await asyncio.sleep(size(5.0, 2.0))
        waits, before = list[float](), self._used()
        for n in range(QUICK):
            at = datetime.now(UTC)
            graph_id, _ = await self._graph(
                Workflow(id=f"quick-{n}").add_cascade("q", self.users.quick).spec(), f"quick-{n}"
            )
            started = self.store.graphs.list_steps(graph_id)[0].started_at
            assert started is not None
            waits.append((started - at).total_seconds())
            await asyncio.sleep(APART_S)
        seen = (await handle.describe()).raw_description
        given = len(seen.pending_activities) + len(seen.pending_children)
        await handle.terminate()
        print(
            f"a function of 10 ms beside {SLOW:,} of .5 s of another graph begins after "
            f"{waits[0]:.2f} s, ",
            end="",
        )
        print(
            f"later ones p50 {statistics.median(waits):.2f}, most {max(waits):.2f} s (target: "
            "<= 1); ",
            end="",
        )
        print(f"{given} calls under way, {(self._used() - before):.1f} s CPU for {QUICK} of them")

    def _commit(self) -> float:
        """Return the milliseconds of one commit of this database."""
        engine = patient_engine(self.store.database.engine.url)
        times = []
        with engine.connect() as connection:
            connection.exec_driver_sql("CREATE TABLE benchmark (n INTEGER)")
            connection.commit()
            for n in range(CHAIN):
                began = time.perf_counter()
                connection.exec_driver_sql("INSERT INTO benchmark VALUES (?)", (n,))
                connection.commit()
                times.append(time.perf_counter() - began)
        engine.dispose()
        return statistics.median(times) * 1000

    async def _fan(self, key: str, size: int, target_s: float, target_cpu_s: float) -> int:
        spec, before = _wide(key, self.users, size).spec(), self._used()
        graph_id, seconds = await self._graph(spec, key)
        print(f"a fan-out of {size:,} and in: {seconds:.1f} s (target: <= {target_s:g}), ", end="")
        print(f"{self._used() - before:.1f} s CPU (target: <= {target_cpu_s:g})")
        return graph_id

    async def _retry(self, graph_id: int) -> None:
        """Retry one named step in a large graph that has ended."""
        graphs = self.store.graphs
        attempt = graphs.list_steps(graph_id, paths=["total"])[0].attempt
        began = time.perf_counter()
        graphs.command(graph_id, "again", RetrySteps(names=["total"]).apply)
        handle = await self._begin(graph_id, "fan-in")
        await _until(lambda: graphs.list_steps(graph_id, paths=["total"])[0].attempt > attempt)
        seconds = time.perf_counter() - began
        await handle.result()
        print(f"retry of one step in it: executes after {seconds:.2f} s (target: <= 3)")
        began = time.perf_counter()
        graphs.load(graph_id)
        loaded = time.perf_counter() - began
        began = time.perf_counter()
        completed = graphs.get_graph(graph_id).counts[StepState.COMPLETED]
        counted = time.perf_counter() - began
        print(
            f"  loaded for the engine: {loaded * 1000:.0f} ms; {completed:,} steps counted: "
            f"{counted * 1000:.0f} ms"
        )

    async def _crawls(self) -> None:
        """Execute instant crawls and a step that waits for all, compared with plain lifecycles."""
        loop = await _plain_loop(self.client, 0)
        many = [crawl("quick", args={"n": str(n)}) for n in range(CRAWLS)]
        graph = (
            Workflow(id="crawls")
            .add_many("wide", many)
            .add_cascade("done", self.users.link, deps="wide")
        )
        _, seconds = await self._graph(graph.spec(), "crawls")
        rate = CRAWLS / seconds
        print(
            f"{CRAWLS} instant crawls and in: {rate:.2f}/s; {rate / loop:.2f} of plain lifecycles "
            "(target: >= 0.8)"
        )

    def taken(self, folder: Path, address: str) -> None:
        """Send large graphs to a gateway. Measure how long it takes to accept one, and how soon it
        describes it while it is alive.
        """
        with running_gateway(folder, f"sqlite:///{folder / 'state.db'}", address) as gateway:
            client = Gateway(gateway.url)
            for size, target_ms in ((FAN, 100), (FAN_IN, 300)):
                spec = _wide(
                    "", self.users, size, not_before=datetime(2100, 1, 1, tzinfo=UTC)
                ).spec()
                began = time.perf_counter()
                client.send(f"taken-{size}", spec, name=None, tags=[])
                took, times = time.perf_counter() - began, dict[str, float]()
                for what in ("", "/status"):
                    url = f"{gateway.url}/v1/graphs/taken-{size}{what}"
                    times[what] = (
                        statistics.median(httpx.get(url).elapsed.total_seconds() for _ in range(20))
                        * 1000
                    )
                print(
                    f"{size:,} steps taken by the gateway: {took:.1f} s (target of 10,000: <= 10); "
                    "described in ",
                    end="",
                )
                print(
                    f"{times['']:.0f} ms (target: <= {target_ms}), its status in "
                    f"{times['/status']:.0f} ms"
                )
                client.cancel(f"taken-{size}", None, "measured")

    def beside(self, folder: Path) -> None:
        """Execute the chain and the fan-out in Chancy, whose functions pass no results to each
        other.
        """
        try:
            versions, found = chancy_seconds(folder, CHAIN, FAN)
        except Missing as missing:
            print(f"Chancy beside it: skipped. {missing}")
            return
        print(f"{versions}, from the push to the end, in its processes and in its own event loop:")
        for executor, seconds in found.items():
            for key, steps, target in (("chain", CHAIN, " (target: > 1)"), ("fan", FAN, "")):
                times = seconds[key] / self.seconds[key]
                print(
                    f"  {key} of {steps:,}, {executor}: {seconds[key]:.1f} s, {times:.1f} times "
                    f"ours{target}"
                )

    async def killed(self, what: str, process: subprocess.Popen[Any]) -> None:
        """Kill this worker, one of two of its kind, during graphs. Measure when the last of them
        continues.
        """
        handles: dict[int, WorkflowHandle[Any, Any]] = {}
        for number in range(KILLED):
            chain = Workflow(id=f"{what}-{number}")
            for n in range(CHAIN):
                # A separate call for each, so that workflow and functions alternate.
                chain.add_cascade(
                    f"s{n}", self.users.slow, deps=f"s{n - 1}" if n else [], resources={"place": 1}
                )
            graph_id, handle = await self._start(chain.spec(), f"{what}-{number}")
            handles[graph_id] = handle
        await asyncio.sleep(size(10.0, 3.0))
        process.kill()
        process.wait()
        at, waits = datetime.now(UTC), dict.fromkeys(handles, GIVEN_UP_S)
        while (took := (datetime.now(UTC) - at).total_seconds()) < GIVEN_UP_S and max(
            waits.values()
        ) == GIVEN_UP_S:
            for graph_id in [one for one, wait in waits.items() if wait == GIVEN_UP_S]:
                steps = self.store.graphs.list_steps(graph_id, limit=CHAIN)
                if any(step.started_at is not None and step.started_at > at for step in steps):
                    waits[graph_id] = took
            await asyncio.sleep(0.1)
        print(
            f"a worker with {what} is killed: {KILLED} graphs go on after "
            f"{min(waits.values()):.1f} to ",
            end="",
        )
        print(f"{max(waits.values()):.1f} s (target: <= {GOES_ON_S:g})")
        for handle in handles.values():
            await handle.terminate()

    async def rest(self, worker: int) -> None:
        """Measure graphs that wait for crawls, while nobody queries them."""
        handles = []
        for number in range(RESTING):
            key = f"rest-{number}"
            patient = Workflow(id=key).add("long", crawl("quick", poll_minutes=[60.0]))
            handles.append(
                (
                    await self._start(
                        patient.add_cascade("then", self.users.link, "long").spec(), key
                    )
                )[1]
            )
        runs = self.store.runs
        await _until(
            lambda: len(runs.list_runs(status=[RunStatus.PROCESSING], limit=RESTING)) == RESTING
        )
        await asyncio.sleep(size(20.0, 2.0))
        before = _cpu(worker)
        await asyncio.sleep(REST_S)
        used = (_cpu(worker) - before) / REST_S
        print(f"{RESTING} graphs at rest on long crawls: {used:.3f} cores (target: <= 0.1)")
        for handle in handles:
            await handle.terminate()
