"""Pools: picking among very many waiting tasks, shares under overload, and an urgent task behind
others.

Shares and order are counted only from the journal that the crawlers write.
"""

from __future__ import annotations

import collections
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx
import sqlalchemy as sa

from benchmarks.both_databases import on_both
from benchmarks.sizes import size
from benchmarks.stack import running_stack
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.runs.tables import pool_ticket
from crawler_lifecycle.store.store import open_store
from crawler_lifecycle.store.tables import metadata
from tests.support.filling import POOLS, analyze, fill_line, fill_runs, fill_tasks, patient_engine

WAITING = size(100_000, 1_000, "BENCHMARK_WAITING")
OVERLOAD_S = size(600.0, 5.0, "BENCHMARK_OVERLOAD_S")
SLOTS = 20
TASKS = size(1000, 20)
BEHIND = size(10_000, 100)
OFFERS = size(200, 20)
#: The longest task of an overload, in seconds.
LONGEST_S = size(30, 3)
_NAP = """
import json, os, random, sys, time
begun = time.time()
args = json.loads(os.environ["CRAWL_ARGS"])
time.sleep(random.uniform(float(args["least"]), float(args["most"])))
with open(args["journal"], "a") as file:
    file.write(json.dumps([args["pool"], begun, time.time()]) + "\\n")
"""


async def main() -> None:
    """Print every figure."""
    on_both(_picking)
    _overload({f"p{n}": 1.0 for n in range(10)})
    _overload({"one": 1.0, "three": 3.0})
    _urgent()


def _picking(name: str, url: str) -> None:
    """Give slots while very many runs of 20 pools wait, each with one task."""
    upgrade(url)
    pools = Pools({f"pool-{n}": Pool(max=50, weight=1 + n % 3) for n in range(POOLS)}, slots=900)
    store = open_store(url, pools=pools)
    filler = patient_engine(store.database.engine.url)
    with filler.begin() as connection:
        first = fill_runs(connection, WAITING)
        connection.execute(
            sa.text("UPDATE run_history SET status = 'INITIALIZING', ended_at = NULL")
        )
        fill_tasks(connection, first, WAITING, 1, "QUEUED")
        fill_line(connection, WAITING)
        analyze(connection, list(metadata.tables))
    took, called, given = list[float](), list[float](), list[float]()
    for n in range(OFFERS):
        owner = Owner(f"w{n}", f"c{n}")
        row = store.initiation.create_run(
            RunRequest(crawler="x", pool=f"pool-{n % POOLS}"), f"mine-{n}", owner
        )
        fence = Fence(row.run_id, row.attempt, owner.first_run_id, row.run_uid)
        begun = time.perf_counter()
        store.deployment.offer_tasks(fence, 100, None, utc_now() + timedelta(seconds=25))
        took.append(time.perf_counter() - begun)
    for _ in range(10):
        begun = time.perf_counter()
        chosen = store.pools.call()
        called.append(time.perf_counter() - begun)
        for run_id, own in chosen.items():  # runs that arrive and get their slots
            begun = time.perf_counter()
            until = utc_now() + timedelta(seconds=600)
            store.deployment.offer_tasks(Fence(run_id, 1, own, own), 100, None, until)
            given.append(time.perf_counter() - begun)
    without = open_store(url)
    bare = list[float]()
    for n in range(OFFERS):
        owner = Owner(f"b{n}", f"d{n}")
        row = without.initiation.create_run(RunRequest(crawler="x"), f"bare-{n}", owner)
        fence = Fence(row.run_id, row.attempt, owner.first_run_id, row.run_uid)
        begun = time.perf_counter()
        without.deployment.offer_tasks(fence, 100, None, utc_now() + timedelta(seconds=25))
        bare.append(time.perf_counter() - begun)
    with filler.connect() as connection:
        waiting = connection.execute(
            sa.select(sa.func.count()).select_from(pool_ticket)
        ).scalar_one()
    middle, worst = statistics.median(took) * 1000, sorted(took)[-2] * 1000
    print(
        f"{name}: an offer beside {waiting} waiting runs of {POOLS} pools: p50 {middle:.1f}, p99 "
        f"{worst:.1f} ms "
        f"(target <= 5 beyond an offer without pools, {statistics.median(bare) * 1000:.1f} ms); "
        f"calling the next: p50 {statistics.median(called) * 1000:.1f} ms; "
        f"the offers of {len(given)} called runs: p50 {statistics.median(given) * 1000:.1f} ms"
    )
    without.close()
    store.close()


@contextlib.contextmanager
def _stack(weights: Mapping[str, float]) -> Iterator[Started]:
    """Start a stack of real processes with these pools. Tasks that still execute are killed at the
    end.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "nap.py").write_text(_NAP)
        entry = {
            "name": "nap",
            "kind": "command",
            "project": name,
            "command": ["python", "nap.py"],
            "items": False,
        }
        entry["args"] = {one: {"required": True} for one in ("least", "most", "journal", "pool")}
        (folder / "crawlers.yaml").write_text(json.dumps([entry]))
        pools = json.dumps({pool: {"weight": weight} for pool, weight in weights.items()})
        env = {"LIFECYCLE_POOLS": pools, "LIFECYCLE_CLUSTER__SLOTS": str(SLOTS)}
        with (
            running_stack(folder, env) as stack,
            httpx.Client(base_url=str(stack.addresses["gateway"]), timeout=30) as client,
        ):
            yield Started(client, folder / "journal")


@dataclass(frozen=True, slots=True)
class Started:
    """A stack, and the journal that its crawlers write."""

    client: httpx.Client
    file: Path

    def start(self, pool: str, tasks: int, span: tuple[float, float], **more: object) -> int:
        """Start a run of tasks that take from ``span[0]`` to ``span[1]`` seconds each. Return its
        number.
        """
        args = {
            "least": str(span[0]),
            "most": str(span[1]),
            "journal": str(self.file),
            "pool": pool,
        }
        body = {"crawler": "nap", "args": args, "tasks": [{}] * tasks, "pool": pool, **more}
        return int(self.client.post("/v1/runs", json=body).raise_for_status().json()["run_id"])

    def journal(self) -> list[tuple[str, float, float]]:
        """Return pool, begin and end of each task that has ended."""
        return (
            [tuple(json.loads(line)) for line in self.file.read_text().splitlines()]
            if self.file.exists()
            else []
        )


def _overload(weights: Mapping[str, float]) -> None:
    """Give all pools more work than there are slots. Print who got how many slot-seconds, by the
    journal.
    """
    with _stack(weights) as harness:
        # What the first pool takes before the others wait is part of its share, and counts.
        begun = time.time()
        for pool in weights:
            harness.start(pool, TASKS, (1, LONGEST_S))
        time.sleep(OVERLOAD_S + LONGEST_S + 1)
        # Executing tasks are not in the journal, so the time of the longest task is left out.
        end, used = time.time() - LONGEST_S - 1, collections.Counter[str]()
        for pool, first, last in harness.journal():
            used[pool] += max(0.0, min(last, end) - max(first, begun))
    total, weight = sum(used.values()), sum(weights.values())
    worst = max(abs(used[pool] / total / (one / weight) - 1) for pool, one in weights.items())
    print(
        f"{len(weights)} pools of weights {sorted(set(weights.values()))}, {OVERLOAD_S:.0f} s of "
        f"overload on {SLOTS} "
        f"slots: farthest from its share {worst:.1%} (target <= 5 %); slots in use "
        f"{total / SLOTS / (end - begun):.0%}; "
        f"slot-seconds {', '.join(f'{used[pool]:.0f}' for pool in weights)}",
        flush=True,
    )


def _urgent() -> None:
    """Measure a task of priority 1 behind very many of priority 5: how many others begin while it
    waits.
    """
    with _stack({"p": 1.0}) as harness:
        harness.start("p", BEHIND, (3, 6), priority=5)
        time.sleep(size(15.0, 5.0))
        accepted = time.time()
        harness.start("p", 1, (0, 0.1), priority=1)
        while not (mine := [first for _, first, last in harness.journal() if last - first < 1]):
            time.sleep(0.2)
        time.sleep(8)
        between = sum(
            accepted < first < mine[0] for _, first, last in harness.journal() if last - first >= 1
        )
    print(
        f"a task of priority 1 behind {BEHIND} of priority 5: began after {mine[0] - accepted:.1f} "
        f"s, {between} others "
        "began in between (target: the next free slot)"
    )
