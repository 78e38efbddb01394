"""Sites with several hosts, slow answers, odd statuses and redirects between hosts.

The journal of the site is the judge. Without attention to these, a fleet keeps the limits of one
host with quick answers, and exceeds those of others.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.polite_fleets import (
    CONNECTIONS,
    DOMAIN,
    RATE,
    Ours,
    Target,
    ours,
    target,
    wait,
    write_project,
)
from benchmarks.polite_load import MOST, Load, row
from benchmarks.sizes import SMALL, size

HOSTS = [f"{name}.{DOMAIN}" for name in "abc"]
#: Two sites, and their requests per second: crawls begin at the first one, and most requests to the
#: second one are redirects. Crawlee finds its hosts by itself, so these are addresses.
SITES = {"127.0.0.1": RATE, "127.0.0.2": 1.0}
RUNS = size(12, 3)
SECONDS = size(20.0, 5.0)
#: Longer than an unused lane is kept, so that an answer comes when its lane is gone.
LATE_S = 3.0
CLOSED_S = size(10.0, 5.0)
#: Longer than a lane that others want may stay with its task.
LONG_S = size(9.0, 2.0)


def main() -> None:
    """Print a row for each kind of site."""
    for measure in (_hosts, _contention) if SMALL else (_hosts, _contention, _redirects):
        with tempfile.TemporaryDirectory() as path:
            folder = Path(path)
            write_project(folder)
            with target(folder) as site, ours(folder, site, {}) as fleet:
                measure(site, fleet)


def _load(site: Target, fleet: Ours, hosts: list[str], kind: str) -> Load:
    """Let crawls of one kind begin at the first of these hosts."""
    site.ask(f"/hosts?name={'&name='.join(hosts)}")
    fleet.kinds = [kind]
    fleet.url = f"http://{hosts[0]}:{site.port}"
    return Load(fleet, RUNS)


def _hosts(site: Target, fleet: Ours) -> None:
    """Three hosts share a rate. Then each answer comes late, and the site closes."""
    fleet.limit(DOMAIN, {"requests_per_s": RATE})
    load = _load(site, fleet, HOSTS, "scrapy")
    load.fill()
    wait(lambda: site.ask("/")["requests"] > 0, 180)
    load.run(SECONDS)
    seen = site.journal()
    what = f"{len(HOSTS)} hosts of a site that limits only its rate, with status 999 and redirects"
    cell = f"{seen.most_a_second}; use {seen.rate / RATE:.2f}"
    row(f"{what}: most requests in any second", f"<= {MOST:g}", cell, "-", "-")
    site.ask(f"/slow?by={LATE_S}")
    load.run(2 * LATE_S)
    site.journal()
    site.ask(f"/close?for={LATE_S + CLOSED_S}")
    load.run(LATE_S + CLOSED_S)
    refusals = site.journal().refusals()
    row(
        f"the same, each answer after {LATE_S:g} s: requests in flight at a 429, and later",
        f"<= {RATE * LATE_S:g} in flight, 0 later",
        f"{refusals.in_flight} and {len(refusals.arrived)}",
        "-",
        "-",
    )
    fleet.stop()


def _contention(site: Target, fleet: Ours) -> None:
    """One crawl uses all connections with long requests, when others begin."""
    fleet.limit(DOMAIN, {"connections": CONNECTIONS})
    load = _load(site, fleet, HOSTS, "scrapy")
    site.ask(f"/slow?by={LONG_S}")
    fleet.start(-1, SECONDS * 10)
    wait(lambda: site.ask("/")["requests"] >= CONNECTIONS, 180)
    load.run(max(SECONDS, 3 * LONG_S))
    seen = site.journal()
    cell = f"{seen.most_requests}, {seen.most_connections}"
    target = f"<= {CONNECTIONS}, <= {CONNECTIONS}"
    what = f"others begin during answers of {LONG_S:g} s: most requests and connections at once"
    row(what, target, cell, "-", "-")
    site.ask("/slow?by=0")
    fleet.stop()


def _redirects(site: Target, fleet: Ours) -> None:
    """Crawlee follows redirects from one site to another."""
    for name, rate in SITES.items():
        fleet.limit(name, {"requests_per_s": rate, "connections": CONNECTIONS})
    load = _load(site, fleet, list(SITES), "crawlee")
    load.fill()
    wait(lambda: site.ask("/")["requests"] > 0, 180)
    load.run(SECONDS)
    seen = site.journal()
    most = [seen.of(name).most_a_second for name in SITES]
    what = "Crawlee, with redirects between two sites: most requests in any second"
    row(what, f"<= {MOST:g} and 2", " and ".join(map(str, most)), "-", "-")
    fleet.stop()
