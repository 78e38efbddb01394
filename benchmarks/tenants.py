"""Two tenants of one gateway, one of whom attacks: the other one's waiting times.

The attacker has a token of the role operate and 40 connections, and sends valid and absurd
requests: bodies and forms that are refused, and large ones that are accepted. The other tenant
starts and reads runs, one request after the other. ``BENCHMARK_ATTACK_S`` is the length of the
attack in seconds (default: 600).
"""

from __future__ import annotations

import asyncio
import collections
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import httpx

from benchmarks.gateway import quantile, running_gateway
from benchmarks.sizes import size
from benchmarks.throughput import _cpu, _end, _server
from crawler_lifecycle.gateway.access.tokens import new_token
from crawler_lifecycle.store.migrations.schema_version import upgrade
from tests.support.absurd import ATTACKS, FORMS

ATTACK_S = size(600.0, 3.0, "BENCHMARK_ATTACK_S")
QUIET_S = size(20.0, 2.0)
PAUSE_S, LANES = 0.02, 40
TARGET_S = 1.0
JSON = {"Content-Type": "application/json"}


async def main() -> None:
    """Print the times of the other tenant, before the attack and during it."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        tokens, lines = {}, ""
        for tenant in ("attacker", "other"):
            tokens[tenant], more = new_token(tenant, "operate", tenant)
            lines += more
        (folder / "tokens.toml").write_text(lines)
        (folder / "tokens.toml").chmod(0o600)
        address = await asyncio.to_thread(_server, stack, folder)
        url = f"sqlite:///{folder / 'testbed.db'}"
        upgrade(url)
        access = {"LIFECYCLE_GATEWAY__CALLERS_FILE": str(folder / "tokens.toml")}
        with running_gateway(folder, url, address, access) as gateway:
            headers = {"Authorization": f"Bearer {tokens['other']}"}
            async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=60) as http:
                await _measured("no attack", http, QUIET_S, "quiet")
                attacker = _attacker(gateway.url, tokens["attacker"])
                stack.callback(_end, attacker)
                began = _cpu(gateway.process.pid)
                await _measured(f"attack of {ATTACK_S:g} s", http, ATTACK_S, "attacked")
                print(
                    "  cores of the gateway: "
                    f"{(_cpu(gateway.process.pid) - began) / ATTACK_S:.2f}; ",
                    end="",
                )
                print(f"most memory {_peak_mib(gateway.process.pid):.0f} MiB")
                await asyncio.to_thread(attacker.wait, 120)


def _attacker(url: str, token: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.tenants", url, token, str(ATTACK_S)])


def _peak_mib(pid: int) -> float:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(status["VmHWM"].split()[0]) / 1024


async def _measured(label: str, http: httpx.AsyncClient, seconds: float, prefix: str) -> None:
    times: dict[str, list[float]] = collections.defaultdict(list)
    run_id, count, until = 0, 0, time.monotonic() + seconds

    async def timed(name: str, call: Awaitable[httpx.Response], *good: int) -> httpx.Response:
        began = time.perf_counter()
        answer = await call
        times[name].append(time.perf_counter() - began)
        if answer.status_code not in good:
            raise RuntimeError(f"{name}: {answer.status_code} {answer.text[:300]}")
        return answer

    while time.monotonic() < until:
        count += 1
        body = {
            "crawler": "books",
            "args": {"shelf": str(count)},
            "request_id": f"{prefix}-{count}",
        }
        started = await timed("start", http.post("/v1/runs", json=body), 202)
        run_id = started.json()["run_id"]
        for name, path in (
            ("probe", "/healthz"),
            ("list", "/v1/runs"),
            ("read", f"/v1/runs/{run_id}"),
            ("probe", "/healthz"),
        ):
            await timed(name, http.get(path), 200)
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(PAUSE_S)
    print(f"{label}: the other tenant's (target: p99 <= {TARGET_S:g} s)")
    for name, taken in sorted(times.items()):
        p50, p99 = quantile(taken, 0.5), quantile(taken, 0.99)
        print(
            f"  {name}: {len(taken)}, p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, most "
            f"{max(taken) * 1000:.0f} ms"
        )


# --- the attacker ---------------------------------------------------------------------------------


def _attacks(url: str) -> Iterator[tuple[str, str, str, bytes, dict[str, str]]]:
    """Yield name, method, path, body and headers, again and again."""
    found = [(name, *attack, JSON) for name, attack in ATTACKS.items()]
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": url}
    found += [(name, "POST", path, body, form) for name, (path, body) in FORMS.items()]
    tasks = [{"args": {"shelf": str(n)}} for n in range(10_000)]
    steps = [{"path": f"s{n}", "kind": "crawl", "job": {"crawler": "books"}} for n in range(10_000)]
    deep = {"path": "a", "kind": "crawl", "job": {"crawler": "books", "tasks": [1] * 25_000}}
    for name, path, body in (
        ("10,000 tasks", "/v1/runs", {"crawler": "books", "tasks": tasks}),
        ("10,000 steps", "/v1/graphs", {"steps": steps}),
        ("wrong tasks in a step", "/v1/graphs", {"steps": [deep]}),
    ):
        found.append((name, "POST", path, json.dumps(body).encode(), JSON))
    for path in (
        "/v1/runs?search=zz&page_size=200",
        "/v1/graphs?search=zz&sort=-took",
        "/v1/runs?sort=-items",
    ):
        found.append((path, "GET", path, b"", {}))
    yield from cycle(found)


async def attack(url: str, token: str, seconds: float) -> None:
    """Send everything in turn on many connections for some seconds, and print how often each status
    was returned.
    """
    answers: collections.Counter[object] = collections.Counter()
    until, turn = time.monotonic() + seconds, _attacks(url)
    limits = httpx.Limits(max_connections=LANES)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120, limits=limits) as http:

        async def lane() -> None:
            while time.monotonic() < until:
                _, method, path, body, more = next(turn)
                try:
                    answer = await http.request(method, path, content=body, headers=more)
                except httpx.HTTPError as error:
                    answers[type(error).__name__] += 1
                    continue
                answers[answer.status_code] += 1
                if answer.status_code in (429, 503):
                    await asyncio.sleep(0.05)

        await asyncio.gather(*(lane() for _ in range(LANES)))
    print(
        "  answers to the attacker:",
        ", ".join(f"{status}: {count}" for status, count in answers.most_common()),
    )


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1], sys.argv[2], float(sys.argv[3])))
