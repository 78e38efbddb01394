"""The figures of the ledger of truth: how late a status is, and what is in the way of it."""

from __future__ import annotations

from benchmarks import truth_faults, truth_lag


async def main() -> None:
    """Everything but the half hour at rest (``rest``)."""
    await truth_lag.main()
    await truth_faults.main()
