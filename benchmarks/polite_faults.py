"""The limits of a site while something fails: never exceeded, and no crawl fails.

Each fault strikes the same stack while crawls come and go. The journal of the site is the judge.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.polite_fleets import (
    CONNECTIONS,
    HOST,
    RATE,
    Ours,
    Target,
    ours,
    target,
    wait,
    write_project,
)
from benchmarks.polite_journal import Journal
from benchmarks.polite_load import MOST, Load, row
from benchmarks.sizes import size

#: The number of parallel crawls; few, so that most of them hold a lease.
RUNS = size(12, 3)
AWAY_S = size(30.0, 6.0)
#: Longer than a lease.
FROZEN_S = size(10.0, 8.0)
#: Seconds for which the site is watched after a fault.
AFTER_S = size(10.0, 5.0)
WRONG_S = 600
#: Requests per second after the limit was lowered, and the seconds until all tasks follow it.
LOWERED_RATE = 5.0
LOWERED_S = 10.0
SLOW_S = 1.0
CLOCK = Path(__file__).parents[1] / "tools" / "faults" / "clock.c"


class Clocks:
    """Wrong wall clocks: one for the gateway, one for all crawlers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library = folder / "clock.so"
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", str(self.library), str(CLOCK)], check=True
        )
        for whose in ("gateway", "crawlers"):
            self.set(whose, 0)

    def _file(self, whose: str) -> Path:
        return self.folder / f"clock-{whose}"

    def set(self, whose: str, seconds: int) -> None:
        """From now on, set a clock wrong by this time."""
        file = self._file(whose)
        with file.open("r+b" if file.exists() else "wb") as open_file:
            open_file.write(seconds.to_bytes(8, "little", signed=True))

    def environment(self, whose: str) -> Mapping[str, str]:
        """Return the variables with which a process loads this clock."""
        library = "LD_PRELOAD" if whose == "gateway" else "CLOCK_LIBRARY"
        return {library: str(self.library), "WRONG_CLOCK": str(self._file(whose))}


@dataclass
class Strikes:
    """The faults. Each returns when the site has been watched for long enough."""

    fleet: Ours
    load: Load
    clocks: Clocks

    def no_fault(self) -> None:
        """For comparison."""
        self.load.run(AFTER_S)

    def slow_site(self) -> None:
        """The limit of connections applies, and not the rate."""
        for seconds in (SLOW_S, 0.0):
            self.fleet.site.ask(f"/slow?by={seconds}")
            self.load.run(AFTER_S)

    def worker_killed(self) -> None:
        """The supervisor starts it again."""
        self.fleet.stack.supervisor.kill("worker")
        self.load.run(AFTER_S)

    def gateway_away(self) -> None:
        """The crawls first have their leases, and then none."""
        self._without_gateway(lambda: self.load.run(AWAY_S))

    def gateway_killed(self) -> None:
        """Leases survive in the database."""
        self.fleet.stack.supervisor.kill("gateway")
        self.load.run(AFTER_S)
        self.fleet.stack.supervisor.wait_healthy(["gateway"])

    def gateway_clock_jumps(self) -> None:
        """Forwards and back again."""
        for seconds in (WRONG_S, 0):
            self.clocks.set("gateway", seconds)
            self.load.run(AFTER_S)

    def gateway_starts_with_wrong_clock(self) -> None:
        """The leases in the database appear to have ended long ago."""
        self._without_gateway(lambda: self.clocks.set("gateway", WRONG_S))
        self._without_gateway(lambda: self.clocks.set("gateway", 0))

    def crawlers_clock_jumps(self) -> None:
        """In all crawlers, for good, because Scrapy's delays get longer when its clock is set back."""
        self.clocks.set("crawlers", WRONG_S)
        self.load.run(AFTER_S)

    def crawlers_frozen(self) -> None:
        """Half of them, until others have their leases; then they continue."""
        pids = list(self.fleet.crawlers().values())[::2]
        for number, seconds in ((signal.SIGSTOP, FROZEN_S), (signal.SIGCONT, AFTER_S)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            self.load.run(seconds)

    def _without_gateway(self, meanwhile: Callable[[], None]) -> None:
        supervisor = self.fleet.stack.supervisor
        part = supervisor._kept["gateway"].part
        supervisor.stop(["gateway"])
        meanwhile()
        env = {**part.env, **self.clocks.environment("gateway")}
        supervisor.start([replace(part, env=env)])
        supervisor.wait_healthy(["gateway"])
        self.load.run(AFTER_S)


#: The first start of the gateway with another clock is part of ``gateway_away``, which comes first.
FAULTS: list[tuple[str, Callable[[Strikes], None]]] = [
    ("no fault", Strikes.no_fault),
    (f"answers take {SLOW_S:g} s longer", Strikes.slow_site),
    (f"gateway away for {AWAY_S:g} s", Strikes.gateway_away),
    ("gateway killed", Strikes.gateway_killed),
    ("worker killed", Strikes.worker_killed),
    ("gateway's clock off by 10 min", Strikes.gateway_clock_jumps),
    ("gateway starts with a wrong clock", Strikes.gateway_starts_with_wrong_clock),
    ("crawlers' clocks off by 10 min", Strikes.crawlers_clock_jumps),
    (f"half of the crawlers frozen for {FROZEN_S:g} s", Strikes.crawlers_frozen),
]


def main() -> None:
    """Print a row for each fault."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_project(folder)
        clocks = Clocks(folder)
        env = clocks.environment("crawlers")
        with target(folder) as site, ours(folder, site, env=env) as fleet:
            _strike(site, fleet, clocks)


def _strike(site: Target, fleet: Ours, clocks: Clocks) -> None:
    load = Load(fleet, RUNS)
    load.fill()
    wait(lambda: site.ask("/")["requests"] > 0, 180)
    load.run(AFTER_S)
    strikes = Strikes(fleet, load, clocks)
    failed = 0
    target = f"<= {MOST:g} a second, <= {CONNECTIONS} connections, 0 failed"
    for name, strike in FAULTS:
        site.journal()
        strike(strikes)
        seen = site.journal()
        before = failed
        failed = fleet.failed()
        use = seen.rate / RATE
        cell = f"{seen.most_a_second}, {seen.most_connections}, {failed - before}; use {use:.2f}"
        row(f"{name}", target, cell, "-", "-")
    _lower(site, fleet, load)


def _lower(site: Target, fleet: Ours, load: Load) -> None:
    """Lower the limit of the rate while all crawls visit the site."""
    begin = time.monotonic()
    fleet.limit(HOST, {"requests_per_s": LOWERED_RATE, "connections": CONNECTIONS})
    load.run(LOWERED_S + 2 * AFTER_S)
    requests = site.journal().requests
    above = [
        later.at - begin
        for one, later in zip(requests, requests[round(LOWERED_RATE) :], strict=False)
        if later.at - one.at < 1.0 and later.at > begin
    ]
    kept = [one for one in requests if one.at > begin + LOWERED_S]
    seen = Journal(kept, [], [])
    last = f"the last second with more ended after {above[-1]:.1f} s" if above else "never more"
    use = seen.rate / LOWERED_RATE
    row(
        f"limit lowered to {LOWERED_RATE:g} a second, after {LOWERED_S:g} s",
        f"<= {LOWERED_RATE:g} a second",
        f"{seen.most_a_second}; {last}; use {use:.2f}",
        "-",
        "-",
    )
