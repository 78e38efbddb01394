"""How politely forty crawls of one site behave: by this service, by scrapyd, and as forty processes.

The site is the judge: every figure comes from its journal (``polite_journal``).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import polite_cost, polite_faults, polite_hosts
from benchmarks.polite_fleets import (
    CONNECTIONS,
    RATE,
    Fleet,
    Target,
    ours,
    plain,
    scrapyd,
    target,
    wait,
    write_project,
)
from benchmarks.polite_journal import Refusals
from benchmarks.polite_load import MOST, RUNS, SECONDS, Load, row
from benchmarks.sizes import SMALL, size

#: Seconds for which the site is closed, and after which it must have been probed.
CLOSED_S = size(20.0, 4.0)
AFTER_S = size(10.0, 5.0)
WAYS: dict[str, Callable[[Path, Target], AbstractContextManager[Fleet]]] = {
    "ours": ours,
    "scrapyd": scrapyd,
    "plain": plain,
}


@dataclass(frozen=True)
class Figures:
    """What the site saw of one fleet."""

    most_a_second: int
    most_connections: int
    most_requests: int
    use: float
    refusals: Refusals
    crawls: int
    failed: int | None


def measure(fleet: Fleet, site: Target) -> Figures:
    """Crawl, close the site while all crawls visit it, and wait until they have returned."""
    load = Load(fleet, RUNS)
    load.fill()
    wait(lambda: site.ask("/")["requests"] > 0, 180)
    load.run(5.0)
    begin = time.monotonic()
    load.run(SECONDS)
    end = time.monotonic()
    site.ask(f"/close?for={CLOSED_S}")
    load.run(CLOSED_S + AFTER_S)
    everything = site.journal()
    failed = fleet.failed()
    fleet.stop()
    requests = everything.between(begin, end).requests
    return Figures(
        everything.most_a_second,
        everything.most_connections,
        everything.most_requests,
        len(requests) / (RATE * (end - begin)),
        everything.refusals(),
        load.started,
        failed,
    )


def _ways() -> None:
    """Compare the three ways."""
    found = {name: _way(name) for name in os.environ.get("BENCHMARK_WAYS", _USUAL).split(",")}
    for what, goal, cell in ROWS:
        row(what, goal, *(cell(figures) for figures in found.values()))


def _way(name: str) -> Figures:
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_project(folder)
        with target(folder) as site, WAYS[name](folder, site) as fleet:
            figures = measure(fleet, site)
    return figures


def _arrived(refusals: Refusals) -> str:
    """Return how many requests came after the first 429, and when the last of them did."""
    last = f" (the last after {refusals.arrived[-1]:.1f} s)" if refusals.arrived else ""
    return f"{refusals.in_flight} and {len(refusals.arrived)}{last}"


ROWS: list[tuple[str, str, Callable[[Figures], str]]] = [
    ("most requests in any second", f"<= {MOST:g}", lambda of: str(of.most_a_second)),
    ("most connections at once", f"<= {CONNECTIONS}", lambda of: str(of.most_connections)),
    ("most requests in progress", f"<= {CONNECTIONS}", lambda of: str(of.most_requests)),
    ("use of the limit", ">= 0.9", lambda of: f"{of.use:.2f}"),
    (
        f"requests in flight at the first 429, and in {CLOSED_S:g} s after it",
        f"<= {CONNECTIONS} in all",
        lambda of: _arrived(of.refusals),
    ),
    ("probes", "1", lambda of: str(of.refusals.probes)),
    ("from the opening to the probe", "-", lambda of: f"{of.refusals.silent_s:.1f} s"),
    ("crawls", "-", lambda of: str(of.crawls)),
    ("crawls that failed", "0", lambda of: "unknown" if of.failed is None else str(of.failed)),
]
#: A smoke test has no environment for scrapyd.
_USUAL = "ours,plain" if SMALL else ",".join(WAYS)
PARTS = {
    "ways": _ways,
    "hosts": polite_hosts.main,
    "faults": polite_faults.main,
    "crawler": polite_cost.crawler,
    "renewals": polite_cost.renewals,
}


async def main() -> None:
    """Execute the parts of ``BENCHMARK_PARTS``, by default all."""
    row("what", "target", *WAYS)
    for part in os.environ.get("BENCHMARK_PARTS", ",".join(PARTS)).split(","):
        await asyncio.to_thread(PARTS[part])
