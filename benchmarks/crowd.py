"""Very many runs on one worker: their cost at rest, and the time to carry out a stop, at rest and
in a burst of starts.

The resting runs are put into the database and onto the cluster as if they had been started, and
their workflows begin with the state after a continue-as-new, so that ten thousand of them take
minutes and not hours. The baseline is bare workflows that execute as many activities as often.

These variables set the sizes: ``BENCHMARK_OPEN_RUNS``, ``BENCHMARK_REST_S``, ``BENCHMARK_CACHE``,
``BENCHMARK_BURST``, ``BENCHMARK_STOPS``, ``BENCHMARK_RUNG_S``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from temporalio.client import Client

from benchmarks.crowd_worker import REQUEST
from benchmarks.sizes import size
from benchmarks.throughput import _cpu, _end, _server, _started, _worker
from benchmarks.truth_faults import _line, _memory
from benchmarks.worker import BARE_QUEUE
from crawler_lifecycle.activities.shared import Counts
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.run import RunRequest, RunStatus, Stage
from crawler_lifecycle.temporal.operator.task_queues import describe_queues
from crawler_lifecycle.temporal.plugin import plugin
from crawler_lifecycle.workflows.state import RunState

OPEN_RUNS = size(1000, 10, "BENCHMARK_OPEN_RUNS")
REST_S = size(120.0, 5.0, "BENCHMARK_REST_S")
CACHE = os.environ.get("BENCHMARK_CACHE", "256Mi")
BURST = size(1000, 20, "BENCHMARK_BURST")
STOPS = size(60, 3, "BENCHMARK_STOPS")
POLL_S = size(900.0, 900.0, "BENCHMARK_RUNG_S")
#: Seconds between stops, and the number of callers that start runs at once.
EVERY_S, AT_ONCE = 1.0, 30
#: Bare workflows replace the runs: fewer of them, each used correspondingly more often.
BARE = size(500, 10)
GIVEN_UP_S = 120.0


class Moment(NamedTuple):
    """A moment by the clock, and by the worker's processor time."""

    at: float
    cpu: float


async def open_runs() -> None:
    """Measure this number of runs on the last step of the polling schedule: processor, memory and
    stops, compared with bare workflows.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        client = await Client.connect(address, plugins=[plugin()])
        worker = _crowd(stack, address, folder, OPEN_RUNS, CACHE)
        empty, idle = _memory(worker), await _over(worker, 10)
        seeded = _seeded(folder)
        began = time.monotonic()
        await _each(
            len(seeded), lambda n: _take_up(client, seeded[n], POLL_S * (n + 1) / len(seeded))
        )
        print(
            f"{OPEN_RUNS} open runs, begun in {time.monotonic() - began:.0f} s, cache {CACHE}",
            flush=True,
        )
        await _begun(client)
        print(f"all are taken up after {time.monotonic() - began:.0f} s", flush=True)
        polls = len(_told(folder))
        used = await _over(worker, REST_S)
        polls = len(_told(folder)) - polls
        print(
            f"at rest, a poll every {POLL_S:g} s: {used:.3f} core (target for 10,000 and 900 s: "
            "<= 0.3), ",
            end="",
        )
        print(
            f"{idle:.3f} without them; {polls} polls, "
            f"{(used - idle) * REST_S / max(1, polls) * 1000:.1f} ms each"
        )
        memory = _memory(worker)
        print(
            f"memory: {memory:.0f} MiB (target for 10,000: <= 1536), {empty:.0f} without them; ",
            end="",
        )
        print(f"{(memory - empty) / OPEN_RUNS * 1024:.0f} KiB each", flush=True)
        delays = await _stops(
            client,
            folder,
            worker,
            [number for number, _ in seeded[:: max(1, len(seeded) // STOPS)][:STOPS]],
        )
        _line("stop, signal to the crawler's signal, at rest", delays[0], "p99 <= 2 s")
        _end(worker)
        plain = _worker(stack, "bare", address, folder)
        every = POLL_S * BARE / OPEN_RUNS
        before = _memory(plain)
        await _each(BARE, lambda n: _beat(client, n, every))
        await asyncio.sleep(5)
        used = await _over(plain, min(REST_S, 60))
        print(f"{BARE} bare workflows, 2 activities every {every:.0f} s: {used:.3f} core, ", end="")
        print(f"{(_memory(plain) - before) / BARE * 1024:.0f} KiB each", flush=True)


async def burst() -> None:
    """Measure very many starts at once, and stops of runs that execute meanwhile, compared with
    bare workflows.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        client = await Client.connect(address, plugins=[plugin()])
        worker = _crowd(stack, address, folder, STOPS, CACHE)
        seeded = _seeded(folder)
        await _each(len(seeded), lambda n: _take_up(client, seeded[n], POLL_S))
        await asyncio.sleep(2)

        async def start(number: int) -> None:
            await client.start_workflow(
                names.LIFECYCLE_WORKFLOW, REQUEST, id=f"new/{number}", task_queue=names.QUEUE_MAIN
            )

        at, accepted, delays = await _under(
            client, folder, worker, start, [number for number, _ in seeded]
        )
        _show(f"stop while {BURST} starts wait", delays, "p99 <= 2 s")
        begun = [
            moment.at - at
            for what, _, moment in _told(folder)
            if what == "deploy" and moment.at > at
        ]
        print(
            f"first executes {min(begun, default=-1):.1f} s after the first start, the last is "
            "accepted ",
            end="",
        )
        print(
            f"after {accepted:.1f} s; {len(begun)} of {BURST} were deployed when the last stop "
            "was done",
            flush=True,
        )
        _end(worker)
        (folder / "told.log").unlink()
        await _terminated(client)
        plain = _worker(stack, "bare", address, folder)
        await _each(STOPS, lambda n: _beat(client, n, POLL_S))

        async def bare(number: int) -> None:
            await client.start_workflow("Bare", 15, id=f"bare/{number}", task_queue=BARE_QUEUE)

        *_, delays = await _under(client, folder, plain, bare, list(range(STOPS)))
        _show("bare workflows beside it, third activity after a signal", delays, "-")


def _crowd(
    stack: ExitStack, address: str, folder: Path, runs: int, cache: str
) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.crowd_worker",
        address,
        str(folder),
        str(runs),
        cache,
    ]
    return _started(stack, command, folder, "crowd")


def _seeded(folder: Path) -> list[tuple[int, str]]:
    return [(number, uid) for number, uid in json.loads((folder / "seeded.json").read_text())]


async def _each(count: int, one: Callable[[int], Awaitable[object]]) -> None:
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(lane() for _ in range(AT_ONCE)))


async def _take_up(client: Client, run: tuple[int, str], poll_in_s: float) -> None:
    """Begin the workflow of an executing run, as after continue-as-new."""
    number, uid = run
    now, owner = datetime.now(UTC), f"open/{number}"
    request = RunRequest(crawler="books", poll_minutes=[POLL_S / 60])
    state = RunState(
        stage=Stage.RECONCILIATION,
        run_id=number,
        run_uid=uid,
        attempt=1,
        owner_run_id=owner,
        crawler="books",
        request=request,
        poll_minutes=[POLL_S / 60],
        status=RunStatus.PROCESSING,
        counts=Counts({"RUNNING": 1}, active=1),
        polls=1,
        last_poll_at=now,
        next_look_at=now + timedelta(seconds=poll_in_s),
        since=now,
        started_at=now,
        deployed=True,
    )
    await client.start_workflow(
        names.LIFECYCLE_WORKFLOW, args=[request, state], id=owner, task_queue=names.QUEUE_MAIN
    )


async def _beat(client: Client, number: int, every_s: float) -> None:
    await client.start_workflow("Beating", every_s, id=f"open/{number}", task_queue=BARE_QUEUE)


async def _begun(client: Client) -> None:
    """Wait until no workflow waits for a worker: Temporal delivers the last of them long after it
    has accepted them.
    """
    while True:
        [queue] = await describe_queues(client, [names.QUEUE_MAIN], [], 10)
        if not queue.backlog:
            return
        await asyncio.sleep(2)


async def _over(worker: subprocess.Popen[str], seconds: float) -> float:
    """Return the processor cores in use."""
    began, before = time.monotonic(), _cpu(worker.pid)
    await asyncio.sleep(seconds)
    return (_cpu(worker.pid) - before) / (time.monotonic() - began)


def _told(folder: Path) -> list[tuple[str, int, Moment]]:
    file = folder / "told.log"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(what, int(number), Moment(float(at), float(cpu))) for what, number, at, cpu in lines]


async def _stops(
    client: Client, folder: Path, worker: subprocess.Popen[str], numbers: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Stop these runs one after the other, until each crawler was told.

    Return seconds by the clock, and seconds of processor time of the worker. In a burst, which
    keeps the worker busy, the two are about the same on a machine with one core.
    """
    asked = {}
    for number in numbers:
        await asyncio.sleep(EVERY_S)
        asked[number] = Moment(time.time(), _cpu(worker.pid))
        await client.get_workflow_handle(f"open/{number}").signal(names.SIGNAL_STOP)
    given_up = time.monotonic() + GIVEN_UP_S
    while time.monotonic() < given_up:
        told = {number: moment for what, number, moment in _told(folder) if what == "stop"}
        if asked.keys() <= told.keys():
            break
        await asyncio.sleep(0.2)
    never = Moment(float("inf"), float("inf"))
    ends = [(told.get(number, never), moment) for number, moment in asked.items()]
    return [end.at - begin.at for end, begin in ends], [
        max(0.0, end.cpu - begin.cpu) for end, begin in ends
    ]


async def _under(
    client: Client,
    folder: Path,
    worker: subprocess.Popen[str],
    start: Callable[[int], Awaitable[None]],
    numbers: Sequence[int],
) -> tuple[float, float, tuple[list[float], list[float]]]:
    """Measure stops during a burst: its start, the seconds until the last start was accepted, and
    those of each stop.
    """
    began = time.time()

    async def starting() -> float:
        await _each(BURST, start)
        return time.time() - began

    starts = asyncio.create_task(starting())
    delays = await _stops(client, folder, worker, numbers)
    return began, await starts, delays


def _show(what: str, delays: tuple[list[float], list[float]], target: str) -> None:
    _line(what, delays[0], target)
    never = delays[0].count(float("inf"))
    print(
        f"    {never} of {len(delays[0])} had not come {GIVEN_UP_S:g} s after the last was "
        "asked for",
        flush=True,
    )
    _line("    by the processor that the worker used meanwhile", delays[1], target)


async def _terminated(client: Client) -> None:
    """Terminate everything that is open, so that it does not affect the comparison."""
    await asyncio.sleep(2)
    found = [one.id async for one in client.list_workflows("ExecutionStatus = 'Running'")]
    await _each(len(found), lambda n: client.get_workflow_handle(found[n]).terminate())
