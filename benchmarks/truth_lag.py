"""How late a status is: from the start or end of a process, by its own clock, to the commit of the
row that says so.

On the real stack with real processes. The crawler writes down the time as the first and the last
thing it does, and waits for a word in a pipe, so that a hundred of them cost nothing while they
wait and end exactly when they are told. With ``BENCHMARK_BEFORE``, a commit, everything is measured
twice: first of that build, then of this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from benchmarks.sizes import size
from benchmarks.stack import running_stack
from benchmarks.truth_faults import Benchmark
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.domain import names
from examples.story_checks import run_folder
from tests.support.builds import checked_out

RUNS = size(100, 5)
IDLE = size(50, 2)
SECONDS = size(60.0, 5.0)
TASKS = size(100, 4)
POLL_S = 5.0
UNWATCHED = size(20, 2)
#: The number of processes that only keep the processors busy.
BUSY = 4
#: The number of tasks of a wide run, how many of them execute at a time, and changes a second, of
#: which each task has two.
WIDE, AT_ONCE, CHANGES = size(2000, 6, "BENCHMARK_WIDE"), size(200, 3), size(20.0, 3.0)
BEFORE = os.environ.get("BENCHMARK_BEFORE", "")
#: So long that the polling schedule finds nothing here.
NEVER: dict[str, Any] = {"poll_minutes": [600]}

_CRAWLER = """
date +%s.%N > "$CRAWL_FILES_DIR/began"
if [ "$1" = for ]; then
    sleep "$2"
else
    pipe="$1/$CRAWL_RUN_ID-$CRAWL_TASK_INDEX"
    mkfifo "$pipe"
    read -r word < "$pipe"
fi
date +%s.%N > "$CRAWL_FILES_DIR/ended"
"""
_CATALOGUE = """
- {{name: held, kind: command, command: [sh, {script}, {pipes}]}}
- {{name: brief, kind: command, command: [sh, {script}, for, "{seconds}"]}}
- {{name: instant, kind: command, command: [sh, {script}, for, "0.1"]}}
"""

Task = tuple[int, int]


@dataclass
class Steps:
    """Where the time was spent, in seconds from the process's own end."""

    written: list[float] = field(default_factory=list)
    signalled: list[float] = field(default_factory=list)
    polled: list[float] = field(default_factory=list)
    committed: list[float] = field(default_factory=list)

    def show(self) -> None:
        """Print one line of medians."""
        parts = (
            ("end on file", self.written),
            ("signal", self.signalled),
            ("poll begins", self.polled),
        )
        text = ", ".join(
            f"{name} {statistics.median(values):.3f}" for name, values in parts if values
        )
        print(f"    where it goes, medians from the end of the process: {text}, commit", end=" ")
        print(
            f"{statistics.median(self.committed):.3f} s; load average {os.getloadavg()[0]:.1f}",
            flush=True,
        )


class Harness(Benchmark):
    """A stack with crawlers that end when they are told to."""

    def __init__(self, stack: Stack, pipes: Path) -> None:
        super().__init__(stack)
        self._pipes = pipes

    def ready(self, tasks: Sequence[Task]) -> None:
        """Wait until every crawler waits for its signal, and its run is recorded as executing."""
        self.until(lambda: len(list(self._pipes.iterdir())) >= len(tasks))
        run_ids = sorted({run_id for run_id, _ in tasks})
        # A wide run is verified by its first poll, which never happens here.
        self.until(lambda: self._count(run_ids, "status = 'PROCESSING'") == len(run_ids))
        self.until(
            lambda: (
                not self.query(
                    "SELECT 1 FROM task_history WHERE status IN ('QUEUED', 'PENDING') LIMIT 1"
                )
            )
        )
        time.sleep(2.0)

    def end(self, task: Task) -> None:
        """Tell one crawler to end."""
        pipe = os.open(self._pipes / f"{task[0]}-{task[1]}", os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b"end\n")
        os.close(pipe)

    def end_all(self, tasks: Sequence[Task], seconds: float) -> None:
        """End these crawlers at random moments within this number of seconds."""
        chosen = random.Random(7)
        moments = sorted((chosen.uniform(0, seconds), task) for task in tasks)
        began = time.monotonic()
        for moment, task in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            self.end(task)

    def ended(self, task: Task) -> float:
        """Return the process's own time of its end (epoch seconds)."""
        return self._wrote(task, "ended")

    def began(self, task: Task) -> float:
        """Return the process's own time of its first command (epoch seconds)."""
        return self._wrote(task, "began")

    def _wrote(self, task: Task, what: str) -> float:
        folder = run_folder(self.stack.state_dir, task[0]) / str(task[1]) / "1"
        return float((folder / "files" / what).read_text())

    def start_all(self, count: int, seconds: float) -> list[Task]:
        """Start this number of runs of one held process at random moments within this number of
        seconds.
        """
        chosen, began = random.Random(8), time.monotonic()
        run_ids = []
        for moment in sorted(chosen.uniform(0, seconds) for _ in range(count)):
            time.sleep(max(0.0, began + moment - time.monotonic()))
            run_ids += self.start(1, "held", **NEVER)
        return [(run_id, 0) for run_id in run_ids]

    def starts(self, tasks: Sequence[Task]) -> list[float]:
        """Return the seconds from the first command of each process to the commit of RUNNING, or of
        a later status.
        """
        rows: dict[Task, float] = {}
        for run, index, committed in self.query(
            "SELECT t.run_id, h.task_index, MIN(t.committed_at) FROM status_transition t "
            "JOIN task_history h ON h.task_id = t.task_id WHERE t.to_status NOT IN ('QUEUED', "
            "'PENDING') "
            "GROUP BY t.run_id, h.task_index"
        ):
            rows[run, index] = _epoch(committed)
        return [rows[task] - self.began(task) for task in tasks]

    def steps(self, tasks: Sequence[Task]) -> Steps:
        """Wait until the database has everything about these ends, and return it."""
        steps, rows = Steps(), dict[Task, tuple[float, float]]()

        def known() -> bool:
            for run, index, at, committed in self.query(
                "SELECT t.run_id, h.task_index, t.cluster_time, t.committed_at FROM "
                "status_transition t "
                "JOIN task_history h ON h.task_id = t.task_id WHERE t.to_status = 'SUCCEEDED'"
            ):
                rows[run, index] = (_epoch(at), _epoch(committed))
            return set(tasks) <= set(rows)

        self.until(known, 120)
        for task in tasks:
            own = self.ended(task)
            steps.written.append(rows[task][0] - own)
            steps.committed.append(rows[task][1] - own)
        return steps

    async def trace(self, tasks: Sequence[Task], steps: Steps) -> None:
        """Add what Temporal's histories contain: the first signal after the end, and the poll that
        followed.
        """
        client = await Client.connect(str(self.stack.addresses["temporal"]))
        for task in tasks[:30]:
            own = self.ended(task)
            ((workflow_id,),) = self.query(
                "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", task[0]
            )
            history = await client.get_workflow_handle(str(workflow_id)).fetch_history()
            signals, polls = [], []
            for event in history.events:
                at = event.event_time.ToMicroseconds() / 1e6 - own
                if at > 0 and event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                    signals.append(at)
                if at > 0 and event.HasField("activity_task_scheduled_event_attributes"):
                    name = event.activity_task_scheduled_event_attributes.activity_type.name
                    polls += [at] if name == "get_history_statuses_to_sync" else []
            steps.signalled += signals[:1]
            steps.polled += polls[:1]


def _epoch(text: object) -> float:
    return datetime.fromisoformat(str(text)).replace(tzinfo=UTC).timestamp()


@contextlib.contextmanager
def harness(build: str = "", *, wake_ups: bool) -> Iterator[Harness]:
    """A stack of real processes; with ``build``, they are of that commit."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        if build:
            other = checked_out(build, folder / "build", "crawler_lifecycle", "workers")
            patch.setenv("PYTHONPATH", str(other))
            patch.setenv("PYTHONSAFEPATH", "1")  # otherwise the working folder comes first
        pipes = folder / "pipes"
        pipes.mkdir()
        script = folder / "held.sh"
        script.write_text(_CRAWLER)
        seconds = 2 * AT_ONCE / CHANGES
        (folder / "crawlers.yaml").write_text(
            _CATALOGUE.format(script=script, pipes=pipes, seconds=seconds)
        )
        env = {"LIFECYCLE_CLUSTER__SLOTS": "256"}
        env["LIFECYCLE_WORKER__WAKE_UPS"] = str(wake_ups).lower()
        with running_stack(folder, env) as stack:
            yield Harness(stack, pipes)


def _line(what: str, values: Sequence[float], target: str) -> None:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    print(
        f"{what}: p50 {statistics.median(ordered):.2f} s, p99 {p99:.2f} s, worst "
        f"{ordered[-1]:.2f} s "
        f"of {len(ordered)} (target: {target})",
        flush=True,
    )


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep the processors busy with this number of processes."""
    spinning = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def single_runs(build: str = "") -> None:
    """Measure runs of one process that start and end at random moments, alone and in parallel with
    others that continue.
    """
    with harness(build, wake_ups=True) as benchmark:
        benchmark.ready([(run_id, 0) for run_id in benchmark.start(IDLE, "held", **NEVER)])
        for beside, target in ((0, "p50 0.15, p99 0.5 s"), (BUSY, "p99 2 s")):
            with busy(beside):
                tasks = benchmark.start_all(RUNS, SECONDS)
                benchmark.ready(tasks)
                what = f"{RUNS} runs beside {IDLE}" + (
                    f" and {beside} busy processes" if beside else ""
                )
                _line(f"start of a process -> row RUNNING, {what}", benchmark.starts(tasks), target)
                benchmark.end_all(tasks, SECONDS)
                steps = benchmark.steps(tasks)
                asyncio.run(benchmark.trace(tasks, steps))
                _line(f"end of a process -> row and event, {what}", steps.committed, target)
                steps.show()
                _line("the same -> verdict of the run", _verdicts(benchmark, tasks), "row + 1 s")


def _verdicts(benchmark: Harness, tasks: Sequence[Task]) -> list[float]:
    found = dict[int, float]()

    def known() -> bool:
        sql = (
            "SELECT run_id, committed_at FROM status_transition WHERE task_id IS NULL AND "
            "to_status = 'COMPLETED'"
        )
        found.update((int(run_id), _epoch(at)) for run_id, at in benchmark.query(sql))
        return {run_id for run_id, _ in tasks} <= set(found)

    benchmark.until(known, 120)
    return [found[task[0]] - benchmark.ended(task) for task in tasks]


def one_run(build: str = "", count: int = TASKS, seconds: float = SECONDS) -> None:
    """Let the tasks of one run end at random moments."""
    with harness(build, wake_ups=True) as benchmark:
        (run_id,) = benchmark.start(1, "held", tasks=[{"args": {}}] * count, **NEVER)
        tasks = [(run_id, index) for index in range(count)]
        benchmark.ready(tasks)
        benchmark.end_all(tasks, seconds)
        steps = benchmark.steps(tasks)
        _line(f"the same within one run of {count} tasks", steps.committed, "p99 3 s")
        ((workflow_id,),) = benchmark.query(
            "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run_id
        )
        asyncio.run(_signals(str(benchmark.stack.addresses["temporal"]), str(workflow_id)))


async def _signals(address: str, workflow_id: str) -> None:
    history = await (await Client.connect(address)).get_workflow_handle(workflow_id).fetch_history()
    woken = sum(
        event.workflow_execution_signaled_event_attributes.signal_name == names.SIGNAL_POLL_NOW
        for event in history.events
        if event.HasField("workflow_execution_signaled_event_attributes")
    )
    print(f"    {woken} signals; load average {os.getloadavg()[0]:.1f}", flush=True)


def wide(build: str = "") -> None:
    """Measure one run of very many tasks, of which some execute at a time, with constant starts and
    ends.
    """
    with harness(build, wake_ups=True) as benchmark:
        (run_id,) = benchmark.start(
            1, "brief", tasks=[{"args": {}}] * WIDE, max_parallel_tasks=AT_ONCE, **NEVER
        )
        began = time.monotonic()
        while benchmark.query("SELECT 1 FROM run_history WHERE ended_at IS NULL LIMIT 1"):
            if time.monotonic() - began > 120 + 20 * WIDE / CHANGES:
                raise RuntimeError("the wide run did not end")
            time.sleep(1.0)
        tasks = [(run_id, index) for index in range(WIDE)]
        moments = [*map(benchmark.began, tasks), *map(benchmark.ended, tasks)]
        what = (
            f"one run of {WIDE} tasks, {len(moments) / (max(moments) - min(moments)):.1f} "
            "changes a second"
        )
        _line(
            f"start of a process -> row RUNNING, {what} ({CHANGES:g} wanted)",
            benchmark.starts(tasks),
            "p99 2 s",
        )
        steps = benchmark.steps(tasks)
        _line("the same, end of a process -> row and event", steps.committed, "p99 2 s")
        steps.show()


def unwatched(build: str = "", count: int = UNWATCHED, seconds: float = 4 * POLL_S) -> None:
    """Measure without an observer, with polls every ``POLL_S``."""
    with harness(build, wake_ups=False) as benchmark:
        held = [
            (run_id, 0) for run_id in benchmark.start(count, "held", poll_minutes=[POLL_S / 60])
        ]
        benchmark.ready(held)
        benchmark.end_all(held, seconds)
        steps = benchmark.steps(held)
        _line(
            f"observer off, a poll every {POLL_S:g} s",
            steps.committed,
            f"never later than {POLL_S + 2:g} s",
        )


async def in_turns(*measures: Callable[[str], None]) -> None:
    """Measure each of these with the build of ``BENCHMARK_BEFORE``, if there is one, and then with
    this one.
    """
    for measure in measures:
        for build in [BEFORE, ""] if BEFORE else [""]:
            if BEFORE:
                print(f"  {f'before ({build[:12]})' if build else 'now'}:", flush=True)
            await asyncio.to_thread(measure, build)


async def main() -> None:
    """All four."""
    await in_turns(single_runs, one_run, wide, unwatched)
