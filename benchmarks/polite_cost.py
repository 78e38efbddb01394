"""The cost of the limits of sites: of a request in the crawler, and of a lease at the gateway."""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

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
#: The parts of this time that are measured separately.
ROUNDS = 5
#: The crawls without leases, of which one closes each connection.
UNLEASED = "unleased"
CLOSING = "unleased, closing"
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
    """Compare crawls with leases with the same crawls without them, all at the same time."""
    limits = {host: given for host, given in CRAWL_LIMITS.items() if given}
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_project(folder)
        with target(folder) as site, ours(folder, site, limits) as fleet:
            _compare(site, fleet)


def _compare(site: Target, fleet: Ours) -> None:
    gateway = fleet.stack.supervisor.pids()["gateway"]
    before = _cpu(gateway)
    time.sleep(REST_S)
    at_rest = (_cpu(gateway) - before) / REST_S * CRAWL_S
    pids = _start_crawls(site, fleet)
    before = _cpu(gateway)
    rounds = [_milliseconds(site, pids) for _ in range(ROUNDS)]
    at_gateway = _cpu(gateway) - before
    fleet.stop()
    for host, limit, base in (
        ("127.0.0.3", "no limits", UNLEASED),
        ("127.0.0.2", "limited rate", UNLEASED),
        (HOST, "limited connections; the other closes each", CLOSING),
    ):
        times = sorted(part.ms[host] / part.ms[base] for part in rounds)
        plain_ms = statistics.median(part.ms[base] for part in rounds)
        row(
            f"processor time of a request in the crawler, {limit}",
            "<= 1.03 x without leases",
            f"{statistics.median(times):.3f} x ({times[0]:.3f} to {times[-1]:.3f})",
            "-",
            f"{plain_ms:.2f} ms",
        )
    leased = sum(part.counts[host] for part in rounds for host in (HOST, "127.0.0.2"))
    row(
        "processor time of a request at the gateway, and of its work at rest",
        "<= 0.1 ms",
        f"{1000 * (at_gateway - at_rest) / leased:.2f} ms, and {1000 * at_rest / leased:.2f} ms",
        "-",
        "-",
    )


def _start_crawls(site: Target, fleet: Ours) -> dict[str, int]:
    """Start a crawl for each limit, and two without leases. Return their process ids by name, when
    all visit the site.
    """
    runs = {}
    for number, name in enumerate([*CRAWL_LIMITS, UNLEASED, CLOSING]):
        host = name if name in CRAWL_LIMITS else HOST
        url = f"http://{host}:{site.port}"
        runs[name] = fleet.crawl("scrapy", url, number, USER_AGENT=name, **_SETTINGS)
    seen: set[str] = set()

    def all_visit() -> bool:
        seen.update(request.agent for request in site.journal().requests)
        return seen >= runs.keys()

    wait(all_visit, 120)
    time.sleep(5)
    pids = fleet.crawlers()
    return {name: pids[run_id] for name, run_id in runs.items()}


class Round(NamedTuple):
    """The requests of each crawl in a part of the time, and the milliseconds of each."""

    counts: dict[str, int]
    ms: dict[str, float]


def _milliseconds(site: Target, pids: dict[str, int]) -> Round:
    """Measure all crawls for a while."""
    site.journal()
    before = {name: _cpu(pid) for name, pid in pids.items()}
    time.sleep(CRAWL_S / ROUNDS)
    used = {name: _cpu(pid) - before[name] for name, pid in pids.items()}
    counts = Counter(request.agent for request in site.journal().requests)
    return Round(dict(counts), {name: 1000 * used[name] / counts[name] for name in pids})


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
