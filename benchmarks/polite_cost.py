"""The cost of the limits of sites: of a request in the crawler, and of a lease at the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import sqlalchemy as sa

from benchmarks.polite_fleets import HOST, Ours, Target, ours, target, wait, write_project
from benchmarks.polite_load import row
from benchmarks.sizes import size
from benchmarks.throughput import _cpu
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.features.sites.domain.lanes import LONG_RENEW_S
from crawler_lifecycle.task_tokens import Purpose, TaskClaim, sign_task
from tests.support.filling import fill_runs, fill_tasks, patient_engine

#: Requests a second of each crawl whose processor time is compared.
CRAWL_RATE = 30
CRAWL_S = size(45.0, 5.0)
#: Seconds for which the gateway is measured before any crawl.
REST_S = size(15.0, 2.0)
#: The limits of this service's crawls, by host. If connections are limited, each request has its
#: own connection.
CRAWL_LIMITS = {
    HOST: {"requests_per_s": CRAWL_RATE * 1.5, "connections": 16},
    "127.0.0.2": {"requests_per_s": CRAWL_RATE * 1.5},
    "127.0.0.3": {},
}
_SETTINGS = {"DOWNLOAD_DELAY": f"{1 / CRAWL_RATE:.3f}", "CONCURRENT_REQUESTS_PER_DOMAIN": "8"}
TASKS = size(500, 20)
RUNS = size(50, 2)
SITES = size(1000, 40)
RENEWALS_S = size(20.0, 5.0)
#: Seconds over which the tasks begin, and until their leases have become long, at least.
SPREAD_S = 3.0
WARM_S = size(30.0, 3.0)
#: ``crawl_runner_leases`` asks in one call about all hosts that are due within this number of
#: seconds.
TOGETHER_S = 3.0


def crawler() -> None:
    """Compare crawls by this service with crawls by Scrapy alone, all at the same time."""
    limits = {host: given for host, given in CRAWL_LIMITS.items() if given}
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_project(folder)
        with target(folder) as site, ours(folder, site, limits) as fleet:
            _compare(folder, site, fleet)


def _compare(folder: Path, site: Target, fleet: Ours) -> None:
    gateway = fleet.stack.supervisor.pids()["gateway"]
    before_all = _cpu(gateway)
    time.sleep(REST_S)
    at_rest = (_cpu(gateway) - before_all) / REST_S * CRAWL_S
    runs = {
        host: fleet.crawl("scrapy", f"http://{host}:{site.port}", n, USER_AGENT=host, **_SETTINGS)
        for n, host in enumerate(CRAWL_LIMITS)
    }
    url = f"http://{HOST}:{site.port}"
    closing = {"DEFAULT_REQUEST_HEADERS": '{"Connection": "close"}'}
    with (
        _plain_crawl(folder, url, "alone", {}) as alone,
        _plain_crawl(folder, url, "closing", closing) as closes,
    ):
        known = {"alone": alone.pid, "closing": closes.pid}
        seen: set[str] = set()

        def all_visit() -> bool:
            seen.update(one.agent for one in site.journal().requests)
            return len(seen) == len(known) + len(runs)

        wait(all_visit, 120)
        time.sleep(5)
        pids = fleet.crawlers()
        known |= {name: pids[run_id] for name, run_id in runs.items()}
        site.journal()
        before = {name: _cpu(pid) for name, pid in known.items()}
        at_gateway = _cpu(gateway)
        time.sleep(CRAWL_S)
        used = {name: _cpu(pid) - before[name] for name, pid in known.items()}
        at_gateway = _cpu(gateway) - at_gateway
        requests = site.journal().requests
    fleet.stop()
    counts = {name: sum(one.agent == name for one in requests) for name in known}
    ms = {name: 1000 * used[name] / counts[name] for name in known}
    limited, rated, free = (ms[host] for host in CRAWL_LIMITS)
    what = "processor time of a request in the crawler"
    alone_ms = f"{ms['alone']:.2f} ms"
    reach = "<= 1.03 x plain"
    row(f"{what}, no limits", reach, _times(free, ms["alone"]), "-", alone_ms)
    row(f"{what}, limited rate", reach, _times(rated, ms["alone"]), "-", alone_ms)
    closing_ms = f"{ms['closing']:.2f} ms"
    cell = _times(limited, ms["closing"])
    row(f"{what}, limited connections; plain closes each", reach, cell, "-", closing_ms)
    leased = counts[HOST] + counts["127.0.0.2"]
    cell = f"{1000 * (at_gateway - at_rest) / leased:.2f} ms, and {1000 * at_rest / leased:.2f} ms"
    row(
        "processor time of a request at the gateway, and of its work at rest",
        "<= 0.1 ms",
        cell,
        "-",
        "-",
    )


def _times(value: float, plain: float) -> str:
    return f"{value / plain:.3f} x ({value:.2f} ms)"


@contextlib.contextmanager
def _plain_crawl(
    folder: Path, url: str, name: str, settings: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "scrapy", "crawl", "polite", "-a", f"site={url}"]
    words += ["-a", f"number={name}"]
    for key, value in {**_SETTINGS, **settings, "USER_AGENT": name}.items():
        words += ["-s", f"{key}={value}"]
    with (folder / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(words, cwd=folder / "project", stdout=log, stderr=log)
    try:
        yield running
    finally:
        running.terminate()
        running.wait()


def renewals() -> None:
    """Let very many tasks renew their leases, and measure the gateway."""
    limits = {f"site-{n}.example": {"requests_per_s": 10, "connections": 4} for n in range(SITES)}
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_project(folder)
        with target(folder) as site, ours(folder, site, limits) as fleet:
            runs = _fill(fleet)
            gateway = fleet.stack.supervisor.pids()["gateway"]
            before = _cpu(gateway)
            time.sleep(10)
            idle = (_cpu(gateway) - before) / 10
            key = (fleet.stack.state_dir / "task.key").read_text().encode()
            calls, errors, cores = asyncio.run(_renew(fleet, runs, key, gateway))
    row(
        f"{TASKS} tasks of {RUNS} runs renew leases at {SITES} sites",
        "<= 0.1 core",
        f"{cores - idle:.3f} core and {idle:.3f} at rest; {calls / RENEWALS_S:.0f} calls a second, "
        f"{1000 * (cores - idle) * RENEWALS_S / calls:.2f} ms each, {errors} errors",
        "-",
        "-",
    )


def _fill(fleet: Ours) -> list[RunRef]:
    """Insert runs whose tasks execute, for the gateway only."""
    url = str(fleet.stack.addresses["database"])
    engine = patient_engine(url)
    chance = random.Random(65)
    with engine.begin() as connection:
        first = fill_runs(connection, RUNS)
        fill_tasks(connection, first, RUNS, TASKS // RUNS, "RUNNING")
        runs = [RunRef(first + number, f"{chance.getrandbits(128):032x}") for number in range(RUNS)]
        for run in runs:
            connection.execute(
                sa.text(
                    "UPDATE run_history SET run_uid = :uid, status = 'PROCESSING', "
                    "ended_at = NULL WHERE run_id = :run_id"
                ),
                {"uid": run.uid, "run_id": run.run_id},
            )
    engine.dispose()
    return runs


async def _renew(
    fleet: Ours, runs: list[RunRef], key: bytes, gateway: int
) -> tuple[int, int, float]:
    """Renew leases for this time. Return the calls, the failed ones, and the cores that the gateway
    used.
    """
    totals = {"calls": 0, "errors": 0}
    gate = asyncio.Event()
    end = asyncio.Event()
    chance = random.Random(65)
    pauses: dict[str, float] = {}
    # Like a crawler, it reuses no connection that the gateway may close now.
    connector = aiohttp.TCPConnector(limit=100, keepalive_timeout=4)
    async with aiohttp.ClientSession(connector=connector) as http:

        async def task(number: int) -> None:
            run = runs[number % RUNS]
            index = number // RUNS
            claim = TaskClaim(Purpose.LEASES, run, index, 1)
            headers = {"Authorization": f"Bearer {sign_task(key, claim)}"}
            base = f"{fleet.gateway.url}/v1/runs/{run.run_id}"
            url = f"{base}/tasks/{index}/attempts/1/leases"
            hosts = [f"site-{n}.example" for n in range(number, SITES, TASKS)]
            held: dict[str, list[int]] = {host: [] for host in hosts}
            ask_at = dict.fromkeys(hosts, 0.0)
            await asyncio.sleep(SPREAD_S * number / TASKS)
            while not end.is_set():
                now = time.monotonic()
                # A crawler asks about all hosts that are due soon in one call.
                due = [host for host in hosts if ask_at[host] <= now + TOGETHER_S]
                body = {
                    host: {"wanted": 1, "kept": held[host], "passed": True, "statuses": {"200": 5}}
                    for host in due
                }
                async with http.post(url, json={"sites": body}, headers=headers) as response:
                    told: Any = await response.json()
                    counted = gate.is_set() and not end.is_set()
                    totals["calls"] += counted
                    totals["errors"] += counted and response.status != 200
                for host in due:
                    answer = told.get("sites", {}).get(host, {"lanes": [], "ask_s": 1.0})
                    held[host] = [lane["lane"] for lane in answer["lanes"]]
                    pauses[host] = answer["ask_s"]
                    # A crawler spreads its calls in the same way.
                    ask_at[host] = time.monotonic() + pauses[host] * chance.uniform(0.8, 1.0)
                await asyncio.sleep(max(0.0, min(ask_at.values()) - time.monotonic()))

        tasks = [asyncio.create_task(task(number)) for number in range(TASKS)]
        await asyncio.sleep(WARM_S)
        for _ in range(int(4 * WARM_S)):
            if min(pauses.values()) >= LONG_RENEW_S:
                break
            await asyncio.sleep(1)
        before = _cpu(gateway)
        began = time.monotonic()
        gate.set()
        await asyncio.sleep(RENEWALS_S)
        cores = (_cpu(gateway) - before) / (time.monotonic() - began)
        end.set()
        await asyncio.gather(*tasks)
    return totals["calls"], totals["errors"], cores
