"""Work next to runs: hooks of many simultaneous ends, floods of signals, and lost workflows.

Everything runs on the real stack with real processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from benchmarks.sizes import SMALL, size
from benchmarks.truth_faults import Benchmark, benchmark
from crawler_lifecycle.cli.stack.layout import MODULES

JOBS = size(100, 4)
HOOK_TIMEOUT_S = 0.7
SIGNALS = size(10_000, 200)
LANES = 50
_CLASS = f"""
import os, time
from crawler_lifecycle.managers import GeneratorCrawlManager

class Slow(GeneratorCrawlManager):
    name, spider, loop_mode, default_max_jobs = "slow", "brief", 60, {JOBS}

    def set_parameters_gen(self):
        for n in range({JOBS}):
            yield {{"n": n}}

    def finished_metadata_hook(self, jobkey, metadata):
        time.sleep({HOOK_TIMEOUT_S})
        with open(os.environ["CALLS"], "a") as file:
            print(self.hook_key, file=file)
"""


async def main() -> None:
    """Print every figure."""
    with _stack() as (harness, calls):
        client = await Client.connect(str(harness.stack.addresses["temporal"]))
        await _flooded(harness, client)
        await _lost(harness, client)
        await asyncio.to_thread(_hooks, harness, calls)
        await asyncio.to_thread(harness.clear)


@contextlib.contextmanager
def _stack() -> Iterator[tuple[Benchmark, Path]]:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        (folder / "slow.py").write_text(_CLASS)
        patch.setenv("CALLS", str(folder / "calls"))
        patch.setenv(MODULES, json.dumps(["slow"]))
        patch.setenv("LIFECYCLE_USER_CODE__FOLDER", name)
        patch.setenv("LIFECYCLE_USER_CODE__ENVIRONMENT", json.dumps(["CALLS"]))
        with benchmark() as harness:
            yield harness, folder / "calls"


async def _flooded(harness: Benchmark, client: Client) -> None:
    """Send unknown signals to an executing run, and then a stop."""
    (run_id,) = harness.start(1)
    await asyncio.to_thread(harness.executing, [run_id])
    handle = client.get_workflow_handle(str(harness.gateway.run(run_id)["workflow_id"]))
    left = iter(range(SIGNALS))

    async def lane() -> None:
        for n in left:
            # The server refuses some signals while the workflow continues as new.
            with contextlib.suppress(RPCError):
                await handle.signal(f"noise-{n}", n)

    await asyncio.gather(*(lane() for _ in range(LANES)))
    began = time.monotonic()
    await asyncio.to_thread(harness.gateway.stop, run_id, reason="benchmark")
    await asyncio.to_thread(
        harness.until, lambda: harness.gateway.run(run_id)["ended_at"] is not None
    )
    print(
        f"{SIGNALS:,} unknown signals, then a stop: proved after {time.monotonic() - began:.1f} s "
        "(target: <= 30)"
    )


async def _lost(harness: Benchmark, client: Client) -> None:
    """Terminate workflows while the worker is idle. Measure the time until this is reported, and
    until another workflow is open.
    """
    manager = harness.gateway.post(
        "/v1/managers", {"crawler": "idle", "name": "lost", "flow_id": "f"}
    )
    path = f"/v1/managers/{manager['manager_id']}"
    harness.gateway.post(f"{path}/jobs", {"jobs": [{}]})
    job = {"crawler": "idle"}
    graph = harness.gateway.post(
        "/v1/graphs", {"id": "lost", "steps": [{"path": "a", "kind": "crawl", "job": job}]}
    )
    lost = [("manager", manager, path), ("graph", graph, "/v1/graphs/lost")]
    # Each waits up to a minute for the next audit.
    for what, subject, where in lost[: 1 if SMALL else 2]:
        await asyncio.to_thread(_seconds_until, partial(_has_run, harness, subject))
        handle = client.get_workflow_handle(str(subject["workflow_id"]))
        await handle.terminate("benchmark")
        reported = await asyncio.to_thread(_seconds_until, partial(_is_reported, harness, where))
        healed = reported + await asyncio.to_thread(
            _seconds_until, lambda where=where: not _is_reported(harness, where)
        )
        if (await handle.describe()).status is not WorkflowExecutionStatus.RUNNING:
            raise RuntimeError(f"{what}: no workflow is open")
        print(
            f"{what}, its workflow terminated: reported {reported:.0f} s later (target: <= 30), ",
            end="",
        )
        print(f"healed after {healed:.0f} s (<= 60)", flush=True)


def _has_run(harness: Benchmark, subject: Mapping[str, Any]) -> bool:
    return bool(harness.gateway.runs(parent=str(subject["workflow_id"]), status="PROCESSING"))


def _is_reported(harness: Benchmark, where: str) -> bool:
    return "workflow" in str(harness.gateway.get(where)["waiting"])


def _seconds_until(fact: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not fact():
        time.sleep(0.2)
    return time.monotonic() - began


def _hooks(harness: Benchmark, calls: Path) -> None:
    """Let many runs end at once. Measure the time from the last end of a run to the manager's own."""
    manager = harness.gateway.post("/v1/managers", {"plan": "slow:Slow", "flow_id": "f"})
    path = f"/v1/managers/{manager['manager_id']}"
    harness.until(lambda: harness.gateway.get(path)["ended_at"] is not None, 900)
    ends = sorted(
        str(run["ended_at"])
        for run in harness.gateway.runs(parent=str(manager["workflow_id"]), limit=500)
    )
    first, last, settled = (
        datetime.fromisoformat(text) for text in (ends[0], ends[-1], _ended(harness, path))
    )
    told = calls.read_text().split()
    print(
        f"{len(ends)} jobs end within {(last - first).total_seconds():.0f} s, hook of {HOOK_TIMEOUT_S} s: "
        "all settled ",
        end="",
    )
    print(
        f"{(settled - first).total_seconds():.1f} s after the first (target: <= 80), "
        f"{len(told)} calls ",
        end="",
    )
    print(f"for {len(set(told))} ends (target: {JOBS} for {JOBS})")


def _ended(harness: Benchmark, path: str) -> str:
    return str(harness.gateway.get(path)["ended_at"])
