"""The load of ``polite``, and its table."""

from __future__ import annotations

import contextlib
import random
import time

from benchmarks.polite_fleets import RATE, Fleet
from benchmarks.sizes import size

#: The number of parallel crawls.
RUNS = size(40, 4, "BENCHMARK_RUNS")
#: Seconds for which the limits are measured, for each way to run the crawls.
SECONDS = size(45.0, 5.0, "BENCHMARK_S")
#: Requests in a second, with 10 % of jitter.
MOST = RATE * 1.1


class Load:
    """Keeps this number of crawls alive, each for its own time."""

    def __init__(self, fleet: Fleet, runs: int) -> None:
        self.fleet = fleet
        self.runs = runs
        self.started = 0
        self.chance = random.Random(65)

    def fill(self) -> None:
        """Start the missing crawls."""
        for _ in range(self.runs - self.fleet.alive()):
            seconds = self.chance.uniform(SECONDS / 2, SECONDS * 3)
            self.fleet.start(self.started, max(10.0, seconds))
            self.started += 1

    def run(self, seconds: float) -> None:
        """Replace crawls that end, for this time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(Exception):  # the gateway may be down
                self.fill()
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))


def row(*cells: str) -> None:
    """Print a row of the table."""
    print(f"| {' | '.join(cells)} |", flush=True)
