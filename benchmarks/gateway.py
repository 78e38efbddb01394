"""The gateway as a process: starts while runs execute and under pressure, a page among very many
runs, and readers.

A real gateway, scheduler service and Temporal dev server run as separate processes; the worker is
that of the throughput benchmark (the real workflow over a cluster in memory). Every figure is
compared with a round trip that does nothing, through the same connection in the same minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from temporalio.client import Client

from benchmarks import gateway_streams
from benchmarks.sizes import size
from benchmarks.throughput import _end, _server, _worker
from benchmarks.worker import BARE_QUEUE
from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.store import open_store
from crawler_lifecycle.store.tables import metadata
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.filling import analyze, fill_runs, patient_engine
from tests.support.mariadb import running_mariadb

RATE = 5.0
SECONDS = size(12.0, 2.0)
CALLERS = 20
PRESSED_SECONDS = size(6.0, 1.0)
RUNS = size(100_000, 1_000)
PAGE = 50
READINGS = size(60, 3)
#: Seconds that a service may need on a busy machine until it responds.
START_S = 120.0
OPEN = {"LIFECYCLE_GATEWAY__AUTH_DISABLED": "true"}
CATALOGUE = "- name: books\n  kind: command\n  command: ['true']\n  args: {shelf: {default: a}}\n"


async def main() -> None:
    """Print the figures of starts and lists."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        url = f"sqlite:///{folder / 'testbed.db'}"
        upgrade(url)
        worker = _worker(stack, "executing", address, folder)
        with running_gateway(folder, url, address) as gateway:
            client = await Client.connect(address, plugins=[plugin()])
            async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
                await _steady(http, client)
                _end(worker)
                await _pressed(http, client)
    await _page()


async def streams() -> None:
    """Print the figures of the event stream."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        address = await asyncio.to_thread(_server, stack, folder)
        url = f"sqlite:///{folder / 'testbed.db'}"
        upgrade(url)
        with running_gateway(folder, url, address) as gateway:
            await gateway_streams.measure(gateway.url, gateway.process.pid, url)


class Gateway:
    """A gateway process and its address."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url, self.process = url, process


@contextmanager
def running_gateway(
    folder: Path, database: str, temporal: str, access: Mapping[str, str] = OPEN
) -> Iterator[Gateway]:
    """Start a gateway and its scheduler service, by default without authentication on this machine."""
    catalogue = folder / "crawlers.yaml"
    catalogue.write_text(CATALOGUE)
    ports = processes.free_port(), processes.free_port()
    environment = {
        **os.environ,
        "TEMPORAL_ADDRESS": temporal,
        "LIFECYCLE_DATABASE__URL": database,
        "LIFECYCLE_CATALOGUE": str(catalogue),
        "LIFECYCLE_CLUSTER__STATE_DIR": str(folder / "cluster"),
        "LIFECYCLE_SCHEDULER__PORT": str(ports[0]),
        "LIFECYCLE_SCHEDULER__URL": f"http://127.0.0.1:{ports[0]}",
        "LIFECYCLE_GATEWAY__PORT": str(ports[1]),
        **access,
    }
    with ExitStack() as stack:
        for role, port in (("scheduler", ports[0]), ("gateway", ports[1])):
            command = [sys.executable, "-m", "crawler_lifecycle.cli", role]
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(_end, process)
            _await_answer(
                process, f"http://127.0.0.1:{port}/{'readyz' if role == 'gateway' else 'healthz'}"
            )
        yield Gateway(f"http://127.0.0.1:{ports[1]}", process)


def _await_answer(process: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url).status_code == 200:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{url} never answered with 200")


# --- starts ---------------------------------------------------------------------------------------


def shown(times: list[float]) -> str:
    """Return median and 95th percentile in milliseconds."""
    return (
        f"p50 {statistics.median(times) * 1000:.1f} ms, p95 {quantile(times, 0.95) * 1000:.1f} ms"
    )


def quantile(times: list[float], share: float) -> float:
    """Return the time that this share of all does not exceed."""
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


async def _timed(call: Callable[[], Awaitable[object]], times: list[float]) -> None:
    began = time.perf_counter()
    await call()
    times.append(time.perf_counter() - began)


class Calls:
    """The three calls that are timed, each with a new name."""

    def __init__(self, http: httpx.AsyncClient, client: Client, prefix: str) -> None:
        self._http, self._client, self._prefix = http, client, prefix
        self._count = 0

    async def start(self) -> None:
        self._count += 1
        # The wait for two polls is not measured here; the run itself is real.
        body = {"crawler": "books", "limits": {"start_check_s": 0}}
        key = f"{self._prefix}-{self._count}"
        answer = await self._http.post("/v1/runs", json=body, headers={"Idempotency-Key": key})
        assert answer.status_code == 202, answer.text

    async def health(self) -> None:
        assert (await self._http.get("/healthz")).status_code == 200

    async def bare(self) -> None:
        self._count += 1
        await self._client.start_workflow(
            "Bare", 1, id=f"{self._prefix}/{self._count}", task_queue=BARE_QUEUE
        )


async def _steady(http: httpx.AsyncClient, client: Client) -> None:
    """Start runs at an even rate, whatever the responses, while a worker deploys and polls them."""
    calls = Calls(http, client, "steady")
    for call in (calls.start, calls.health, calls.bare):
        await call()
    times: dict[str, list[float]] = {"start": [], "health": [], "bare": []}
    pending: list[asyncio.Task[None]] = []
    began = time.perf_counter()
    for n in range(int(RATE * SECONDS)):
        await asyncio.sleep(max(0.0, began + n / RATE - time.perf_counter()))
        pending.append(asyncio.create_task(_timed(calls.start, times["start"])))
        # The baselines are measured between two starts, so that they meet the same machine.
        await asyncio.sleep(0.5 / RATE)
        pending.append(asyncio.create_task(_timed(calls.health, times["health"])))
        if n % 2:
            pending.append(asyncio.create_task(_timed(calls.bare, times["bare"])))
    await asyncio.gather(*pending)
    print(f"start of a run, {RATE:g} a second for {SECONDS:g} s, all of them executing: ", end="")
    print(f"{shown(times['start'])} (target: p95 <= 150 ms)")
    print(
        f"  baselines in between: GET /healthz {shown(times['health'])}; bare workflow start "
        f"{shown(times['bare'])}; ",
        end="",
    )
    print(
        "p95 over the bare start's: "
        f"{quantile(times['start'], 0.95) / quantile(times['bare'], 0.95):.2f}"
    )


async def _pressed(http: httpx.AsyncClient, client: Client) -> None:
    """Let each caller start the next run as soon as the last was accepted, without a worker."""
    calls = Calls(http, client, "pressed")
    found = {}
    for name, call, seconds in (
        ("start", calls.start, PRESSED_SECONDS),
        ("health", calls.health, PRESSED_SECONDS / 4),
        ("bare", calls.bare, PRESSED_SECONDS / 4),
    ):
        times: list[float] = []
        until = time.perf_counter() + seconds

        async def caller(
            call: Callable[[], Awaitable[None]] = call,
            times: list[float] = times,
            until: float = until,
        ) -> None:
            while time.perf_counter() < until:
                await _timed(call, times)

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        found[name] = f"{shown(times)}, {len(times) / seconds:.0f} a second"
    print(
        f"start of a run, {CALLERS} callers in a closed loop, no worker: {found['start']} (target: "
        "p95 <= 500 ms)"
    )
    print(
        f"  baselines in the same way: GET /healthz {found['health']}; bare workflow start "
        f"{found['bare']}"
    )


# --- a page among very many runs ------------------------------------------------------------------


async def _page() -> None:
    """Measure ``GET /v1/runs`` on MariaDB, compared with ``/healthz`` over the same connection."""
    try:
        with (
            running_mariadb() as server,
            server.database() as url,
            tempfile.TemporaryDirectory() as name,
        ):
            upgrade(url)
            store = open_store(url)
            filler = patient_engine(store.database.engine.url)
            with filler.begin() as connection:
                fill_runs(connection, RUNS)
            with filler.begin() as connection:
                analyze(connection, list(metadata.tables))
            filler.dispose()
            store.close()
            await _read_pages(Path(name), url)
    except pytest.skip.Exception as missing:
        print(missing)


async def _read_pages(folder: Path, url: str) -> None:
    with ExitStack() as stack:
        address = await asyncio.to_thread(_server, stack, folder)
        gateway = stack.enter_context(running_gateway(folder, url, address))
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
            known = (await http.get("/v1/runs", params={"page_size": PAGE})).headers["etag"]
            times: dict[str, list[float]] = {}
            for _ in range(READINGS):
                for name, path, headers in (
                    ("newest", f"/v1/runs?page_size={PAGE}", {}),
                    ("failed ones", f"/v1/runs?page_size={PAGE}&status=FAILED", {}),
                    ("304", f"/v1/runs?page_size={PAGE}", {"If-None-Match": known}),
                    ("GET /healthz", "/healthz", {}),
                ):
                    began = time.perf_counter()
                    answer = await http.get(path, headers=headers)
                    times.setdefault(name, []).append(time.perf_counter() - began)
                    assert answer.status_code == (304 if name == "304" else 200), answer.text
    print(f"list of {PAGE} among {RUNS:,} runs over HTTP, MariaDB (target: <= 50 ms): ", end="")
    print("; ".join(f"{name} {shown(taken)}" for name, taken in times.items()))
