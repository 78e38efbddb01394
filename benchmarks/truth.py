"""The figures of the ledger of truth: how late a status is, what is in the way of it, and what it
costs.
"""

from __future__ import annotations

import os

from benchmarks import truth_away, truth_faults, truth_lag

PARTS = {"lag": truth_lag.main, "away": truth_away.main, "faults": truth_faults.main}


async def main() -> None:
    """The parts of ``BENCHMARK_PARTS``, by default all; the half hour at rest has a name of its own
    (``rest``).
    """
    for part in os.environ.get("BENCHMARK_PARTS", ",".join(PARTS)).split(","):
        await PARTS[part]()
