"""Hundreds of readers of the event stream, one of which never reads: delays, memory, and
disconnected readers.
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import time
from pathlib import Path

import httpx

from benchmarks import gateway as figures
from benchmarks.sizes import size
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.store import Store, open_store

READERS = size(500, 20)
ALONE_S, MEASURED_S = size(4.0, 1.0), size(15.0, 3.0)
WATCHED_S = 45.0
RATE, BODY = 20, 2000
_SENT = re.compile(rb'"sent":([0-9.]+)')


class Readers:
    """Connections that read, and the delay of every event that arrived."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []
        self.delays: list[float] = []
        self.arrived = 0

    async def add(self, count: int) -> None:
        """Open this number of connections, and wait until each has its ``hello``."""
        ready = [asyncio.Event() for _ in range(count)]
        self._tasks += [asyncio.create_task(self._read(event)) for event in ready]
        for event in ready:
            await asyncio.wait_for(event.wait(), 30)

    async def _read(self, ready: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        rest = b""
        try:
            while data := await reader.read(65536):
                now = time.time()
                if b"event: hello" in data:
                    ready.set()
                text = rest + data
                last = 0
                for found in _SENT.finditer(text):
                    self.delays.append(now - float(found[1]))
                    self.arrived += 1
                    last = found.end()
                rest = text[max(last, len(text) - 40) :]  # a number may be split
        finally:
            writer.close()

    async def close(self) -> None:
        """Hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Writer:
    """Appends events to the outbox as a worker would: committed one by one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        owner = Owner("benchmark", "benchmark")
        run = store.initiation.create_run(
            RunRequest(crawler="books"), f"streams-{time.time_ns()}", owner
        )
        self._fence = Fence(run.run_id, run.attempt, owner.first_run_id, run.run_uid)
        self.written = 0

    async def write(self, seconds: float) -> None:
        """Write this number of events a second, for this time."""
        began = time.perf_counter()
        for n in range(int(seconds * RATE)):
            await asyncio.sleep(max(0.0, began + n / RATE - time.perf_counter()))
            await asyncio.to_thread(self._append)

    def _append(self) -> None:
        self.written += 1
        body = {"sent": time.time(), "pad": "x" * BODY}
        self._store.events.append_event(
            self._fence, "benchmark.told", f"told-{time.time_ns()}", body
        )


async def measure(url: str, pid: int, database: str) -> None:
    """Print the figures."""
    _allow_files(READERS + 500)
    port = int(url.rpartition(":")[2])
    store = open_store(database)
    try:
        writer = Writer(store)
        alone = Readers(port)
        await alone.add(1)
        await writer.write(ALONE_S)
        await alone.close()
        before = _memory(pid)["VmRSS"]
        crowd, written = Readers(port), writer.written
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", port))
            deaf.sendall(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await crowd.add(READERS - 1)
            writing = asyncio.create_task(writer.write(WATCHED_S))
            dropped_after, _ = await asyncio.gather(
                _dropped(url, writing), asyncio.sleep(MEASURED_S)
            )
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await asyncio.sleep(1.5)
        memory = _memory(pid)
        await crowd.close()
        due = (writer.written - written) * (READERS - 1)
        print(
            f"{READERS} readers of the event stream, one never reads, {RATE} events of {BODY} "
            "bytes a second: ",
            end="",
        )
        print(
            f"delay {figures.shown(crowd.delays)} (target: p95 <= 1 s); baseline, one reader "
            "alone: ",
            end="",
        )
        print(f"{figures.shown(alone.delays)}; {crowd.arrived} of {due} events arrived")
        told = (
            "was not dropped"
            if dropped_after is None
            else f"was dropped after {dropped_after:.0f} s of events"
        )
        print(
            f"  the one that never reads {told}; gateway memory {memory['VmRSS']:.0f} MB, ", end=""
        )
        print(
            f"at most {memory['VmHWM']:.0f} MB (target: < 200 MB); before the readers came "
            f"{before:.0f} MB"
        )
    finally:
        store.close()


async def _dropped(url: str, writing: asyncio.Task[None]) -> float | None:
    """Return the seconds from the first event until the gateway reports that it dropped a reader."""
    began = time.perf_counter()
    async with httpx.AsyncClient() as http:
        while not writing.done():
            text = (await http.get(f"{url}/metrics")).text
            if re.search(r'stream_dropped_total\{stream="events"\} [1-9]', text):
                return time.perf_counter() - began
            await asyncio.sleep(0.5)
    return None


def _memory(pid: int) -> dict[str, float]:
    """Return the present and the maximum resident memory, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")}


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard)
        )
