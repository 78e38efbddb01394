"""The ledger of truth: how late statuses are recorded, what delays them, and what they cost."""

from __future__ import annotations

import os

from benchmarks import truth_away, truth_faults, truth_lag

PARTS = {"lag": truth_lag.main, "away": truth_away.main, "faults": truth_faults.main}


async def main() -> None:
    """Execute the parts of ``BENCHMARK_PARTS``, by default all; the half hour at rest has its own
    name (``rest``).
    """
    for part in os.environ.get("BENCHMARK_PARTS", ",".join(PARTS)).split(","):
        await PARTS[part]()
