"""The web UI in a real Chromium: the first visit among a great many runs, pages that update
themselves, large pages, and pages that stay open.

A real gateway, scheduler service, Temporal dev server and MariaDB run as separate processes.
``BENCHMARK_RUNS`` is the number of runs in the database (default: a million, which take minutes to
create), and ``BENCHMARK_PARTS`` a list of the parts to measure
(``first,press,live,many,run,graph,log,open``; default: all).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from playwright.async_api import Browser

from benchmarks import ui_large, ui_live, ui_open
from benchmarks.gateway import Gateway, running_gateway
from benchmarks.sizes import size
from benchmarks.throughput import _server
from benchmarks.ui_browser import Visit, chromium, middle, visiting
from benchmarks.ui_harness import UiHarness
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.runs.tables import run_history
from crawler_lifecycle.store.store import open_store
from crawler_lifecycle.store.tables import metadata
from tests.support.filling import analyze, fill_runs, patient_engine
from tests.support.mariadb import MariaDb, running_mariadb

RUNS = size(1_000_000, 2_000, "BENCHMARK_RUNS")
ROWS = 50
READINGS = size(40, 3)
VISITS = size(7, 2)
#: After this pause in seconds, a visit finds nothing cached for others.
REST_S = 4.0
FIRST_BYTES, LIST_BYTES, FIRST_S, PAINT_S, BESIDE_MS, LIST_MS = (
    60 * 1024,
    12 * 1024,
    1.0,
    0.3,
    60.0,
    100.0,
)
PARTS = ("first", "press", "live", "many", "run", "graph", "log", "open")


async def main() -> None:
    """Print every figure."""
    wanted = os.environ.get("BENCHMARK_PARTS", ",".join(PARTS)).split(",")
    if unknown := set(wanted) - set(PARTS):
        raise SystemExit(
            f"BENCHMARK_PARTS: {', '.join(sorted(unknown))}: not known; there are "
            f"{', '.join(PARTS)}"
        )
    try:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            server = stack.enter_context(running_mariadb())
            url = stack.enter_context(server.database())
            await _measure(Path(name), stack, server, url, wanted)
    except pytest.skip.Exception as missing:
        print(missing)


async def _measure(
    folder: Path, stack: ExitStack, server: MariaDb, url: str, wanted: list[str]
) -> None:
    began = time.monotonic()
    await asyncio.to_thread(_fill, url)
    print(f"MariaDB: filled with {RUNS:,} runs in {time.monotonic() - began:.0f} s", flush=True)
    address = await asyncio.to_thread(_server, stack, folder)
    starting = partial(running_gateway, folder, url, address)
    store = open_store(url)
    stack.callback(store.close)
    async with chromium() as browser:
        with starting() as gateway:
            harness = UiHarness(folder, store, server, gateway, browser)
            if "first" in wanted:
                await _server_time(gateway)
                await _first_visit(browser, gateway)
            if "press" in wanted:
                await ui_live.presses(harness)
            if "live" in wanted:
                await ui_live.measure(harness)
            if "many" in wanted:
                await ui_live.many(harness)
            if "run" in wanted:
                await ui_large.run(harness)
            if "graph" in wanted:
                await ui_large.graphs(harness)
            if "log" in wanted:
                await ui_open.log(harness)
            if "open" in wanted:
                await ui_open.half_a_day(harness)


def _fill(url: str) -> None:
    upgrade(url)
    store = open_store(url)
    # With a separate engine, because filling a database takes longer than any statement of the
    # service may.
    filler = patient_engine(store.database.engine.url)
    h, yesterday = run_history.c, datetime.now(UTC) - timedelta(days=1)
    with filler.begin() as connection:
        fill_runs(connection, RUNS)
        # A million minutes reach into the future, from which nobody has runs.
        connection.execute(
            sa.update(run_history).where(h.created_at > yesterday).values(created_at=yesterday)
        )
    with filler.begin() as connection:
        analyze(connection, list(metadata.tables))
    filler.dispose()
    store.close()


# --- the first visit ------------------------------------------------------------------------------


async def _server_time(gateway: Gateway) -> None:
    """Measure the list as HTML and as JSON, in turn over one connection."""
    times: dict[str, list[float]] = {}
    cases = {
        "page": ("/runs", {}),
        "json": (f"/v1/runs?page_size={ROWS}", {}),
        "alive": ("/healthz", {}),
    }
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:

        async def ask(name: str, kept: str) -> None:
            began = time.perf_counter()
            answer = await http.get(
                cases[name][0], headers={"Accept": "text/html", "Accept-Encoding": "gzip"}
            )
            times.setdefault(kept, []).append((time.perf_counter() - began) * 1000)
            answer.raise_for_status()

        await ask("page", "warm")
        for _ in range(READINGS):
            for name in cases:
                await ask(name, name)
        for _ in range(VISITS):
            await asyncio.sleep(REST_S)
            await ask("json", "rested json")
            await ask("page", "rested page")
    page, json, alive, rested = (
        middle(times[name]) for name in ("page", "json", "alive", "rested page")
    )
    print(
        f"/ with {ROWS} of {RUNS:,} runs: {page:.1f} ms (target: <= {LIST_MS:g} among 100,000), ",
        end="",
    )
    print(f"GET /v1/runs {json:.1f} ms, GET /healthz {alive:.1f} ms: ")
    print(f"  {page - json:.1f} ms more (target: <= {BESIDE_MS:g}); ", end="")
    print(
        f"after {REST_S:g} s without a visit {rested:.1f} ms, "
        f"{rested - middle(times['rested json']):.1f} ms more"
    )


async def _first_visit(browser: Browser, gateway: Gateway) -> None:
    """Measure visitors with an empty cache: what they load, and when they can use it."""
    found: list[Visit] = []
    work: list[dict[str, float]] = []
    empty = await _empty(browser)
    for _ in range(VISITS):
        async with visiting(browser, gateway.url + "/runs", until="tr[id^=run-]") as visit:
            work.append(await visit.worked())
            await asyncio.sleep(3)  # the first data of the stream belongs to the visit
            found.append(visit)
    usable, answered = (
        middle(one.usable_ms for one in found),
        middle(one.answered_ms for one in found),
    )
    painted, loaded = middle(one.painted_ms for one in found), found[-1].loaded
    without = sum(size for path, size in loaded.items() if path != "/page/events")
    print(f"first visit of / in Chromium: can be used after {usable:.0f} ms, ", end="")
    print(
        f"{usable / 1000 / FIRST_S:.2f} of the target ({FIRST_S:g} s); first byte after "
        f"{answered:.0f} ms, ",
        end="",
    )
    print(
        f"first paint after {painted:.0f} ms (target: <= {PAINT_S * 1000:g}; an empty page "
        f"{empty:.0f})"
    )
    steps = {name: middle(one.steps[name] for one in found) for name in found[0].steps}
    print("  until " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in steps.items()), end="; ")
    print(
        "main thread: "
        + ", ".join(f"{name} {middle(one[name] for one in work):.0f} ms" for name in work[0])
    )
    print(f"  the list itself: {loaded['/'] / 1024:.1f} KB (target: <= {LIST_BYTES / 1024:g})")
    print(
        f"  bytes over the wire: {without / 1024:.1f} KB (target: <= {FIRST_BYTES / 1024:g}), and "
        "of the stream ",
        end="",
    )
    print(f"{loaded['/page/events'] / 1024:.1f} KB: ", end="")
    print(
        ", ".join(
            f"{path} {size / 1024:.1f}"
            for path, size in sorted(loaded.items(), key=lambda one: -one[1])
        )
    )


async def _empty(browser: Browser) -> float:
    """Return the milliseconds until the first paint of a page with one word, from a server that
    does nothing else.
    """
    body = b"<!doctype html><title>empty</title><p>empty"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: "
            f"{len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port, painted = server.sockets[0].getsockname()[1], list[float]()
        for _ in range(VISITS):
            async with visiting(browser, f"http://127.0.0.1:{port}/", until="p") as visit:
                painted.append(visit.painted_ms)
        return middle(painted)
