"""The results of runs: which of them are good, how long they took, and whether the newest found
unusually few items.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import Protocol

from .run import RunStatus

#: A run has unusually few items if it has less than this share of the median of earlier good runs.
LESS = 0.7
#: With fewer earlier good runs than this, nothing is reported.
RUNS_MIN = 3


class Result(Protocol):
    """The result of a run."""

    @property
    def status(self) -> str: ...

    @property
    def lacks(self) -> str | None: ...


class Times(Protocol):
    """The times of a run."""

    @property
    def started_at(self) -> datetime | None: ...

    @property
    def ended_at(self) -> datetime | None: ...


class ItemsResult(Result, Protocol):
    """The result of a run with the number of its items."""

    @property
    def run_id(self) -> int: ...

    @property
    def items(self) -> int | None: ...


def is_good(run: Result) -> bool:
    """Return whether the run completed and met all expectations."""
    return run.status == RunStatus.COMPLETED and run.lacks is None


def run_seconds(run: Times, now: datetime | None = None) -> float | None:
    """Return the seconds from the start of a run to its end, or until ``now`` if it is live.

    ``None`` means that the run has not started or, without ``now``, that it has not ended. Clocks
    differ, so a negative value becomes 0.
    """
    end = run.ended_at or now
    if run.started_at is None or end is None:
        return None
    return max((end - run.started_at).total_seconds(), 0.0)


def brought_less(runs: Sequence[ItemsResult]) -> str | None:
    """Return a sentence if the newest completed run found unusually few items.

    ``runs`` is sorted from newest to oldest.
    """
    completed = [run for run in runs if run.status == RunStatus.COMPLETED and run.items is not None]
    before = [run.items or 0 for run in completed[1:] if is_good(run)]
    if len(before) < RUNS_MIN:
        return None
    newest = completed[0]
    usual = median(before)
    if (newest.items or 0) >= LESS * usual:
        return None
    return (
        f"run {newest.run_id} brought {newest.items:,} items, the {len(before)} good runs "
        f"before it {usual:,g} (median)"
    )
