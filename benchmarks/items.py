"""A million items of a crawl, read by a function of a graph from live files and from an archive."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from temporalio.testing import ActivityEnvironment

from benchmarks.sizes import size
from crawler_lifecycle.activities.archived import ArchivedFiles
from crawler_lifecycle.activities.run_files import FileReading, RunFiles
from crawler_lifecycle.adapters.archive import open_archive
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.domain.names import functions_queue
from crawler_lifecycle.domain.values import decode, unpacked
from crawler_lifecycle.features.graphs.activities.batches import BatchOrder, GraphBatchActivities
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec
from crawler_lifecycle.features.user_code.functions import Functions
from crawler_lifecycle.features.user_code.process import Rules
from crawler_lifecycle.ports.files import FileSource
from tests.contracts.store.graphing import Graphed, crawl
from tests.contracts.store.harness import Clock, Harness, opened

ITEMS = size(1_000_000, 2_000, "BENCHMARK_ITEMS")
MODULE = "items_of_benchmark"
SOURCE = """
import time
from crawler_lifecycle.graphs import current_job
def count():
    items = iter(current_job().items("shop"))
    first, began, total = next(items)["price"], time.perf_counter(), 1
    rest = memory("VmRSS")
    for item in items:
        total += 1
    return [total, time.perf_counter() - began, memory("VmHWM") - rest]
def memory(what):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(what))
"""


async def main() -> None:
    """Print every figure."""
    for archived in (False, True):
        with tempfile.TemporaryDirectory() as name:
            await asyncio.to_thread(_read, Path(name), archived=archived)


def _read(folder: Path, *, archived: bool) -> None:
    (folder / f"{MODULE}.py").write_text(SOURCE)
    clock, functions = Clock(), Functions([MODULE], Rules(folder=folder), 1024 * 1024)
    with opened(f"sqlite:///{folder / 'state.db'}", clock=clock) as store, closing(functions):
        harness, archive = Harness(store, clock), open_archive((folder / "archive").as_uri())
        files = RunFiles(store.tasks, store.exports, LocalFiles(folder), ArchivedFiles(archive), "")
        if archived:
            files = replace(files, live=None)

        def reading(parent: str) -> FileReading:
            return FileReading(store.runs, files, parent, clock)

        directory: Any = None
        activities = GraphBatchActivities(
            store.graphs, store.user_code, functions, directory, reading, clock
        )
        called = {"call": f"{MODULE}:count", "style": "plain"}
        count = StepSpec("count", StepKind.FUNCTION, called, ["shop"], timeout_s=900)
        graph = Graphed.made(harness, [crawl("shop"), count])
        graph.advance()
        (run,) = graph.begin_runs().values()
        left = folder / "tasks" / f"{run.run_id}-{run.run_uid}" / "0" / "1" / "files"
        left.mkdir(parents=True)
        with (left / "items.jsonl").open("w") as out:
            for n in range(ITEMS):
                item = {
                    "url": f"https://shop.test/items/{n}",
                    "title": f"A thing of number {n}",
                    "price": n,
                }
                out.write(json.dumps(item) + "\n")
        graph.finish(run)
        if archived:
            result = archive.store("items.zip", [FileSource("task-0", left)], {}, lambda *_: None)
            store.exports.record_export(run, "exported", result, None)
        began = time.perf_counter()
        with (left / "items.jsonl").open() as lines:
            plain = (
                ITEMS
                / sum(json.loads(line)["price"] * 0 + 1 for line in lines)
                * (time.perf_counter() - began)
            )
        (batch,) = graph.advance().batches
        rest, environment = _memory("VmRSS"), ActivityEnvironment()
        environment.info = replace(environment.info, task_queue=functions_queue(None))
        Path("/proc/self/clear_refs").write_text("5")  # the peak is reset
        environment.run(activities.run_graph_batch, BatchOrder(graph.fence, batch.number))
        parts = store.graphs.result(graph.id, graph.step("count").number)
        total, seconds, grown = decode(b"".join(unpacked(parts)))
        whence = "out of an archive" if archived else "from live files"
        print(
            f"{total:,} items {whence}: {total / seconds:,.0f} a second (target: >= 20,000); ",
            end="",
        )
        print(
            f"json.loads of the same lines takes {plain / seconds:.0%} of the time; memory "
            "grew by ",
            end="",
        )
        print(
            f"{grown:.0f} MiB in the function's process, {_memory('VmHWM') - rest:.0f} in the "
            "worker (target: <= 64)"
        )


def _memory(what: str) -> float:
    """Return the present or the maximum memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))
