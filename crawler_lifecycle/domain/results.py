"""The results of runs: which of them are good, how long they took, what is usual, and which of them
produced unusually few items.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from statistics import median
from typing import Any, Protocol, TypeVar

from .run import RunStatus

#: A run has unusually few items if it has less than this share of the median of earlier good runs.
LESS = 0.7
#: What is usual is derived from the good ones among this many ended runs before a run. With fewer
#: good ones than ``RUNS_MIN``, nothing is usual.
EARLIER = 20
#: The number of ended runs that are needed to judge each of the newest ``EARLIER`` ones.
JUDGED = 2 * EARLIER
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
    """The number of a run's items, and the fingerprint of its arguments and settings."""

    @property
    def run_id(self) -> int: ...

    @property
    def items(self) -> int | None: ...

    @property
    def work_hash(self) -> str | None: ...


ResultT = TypeVar("ResultT", bound=ItemsResult)


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


def comparable(run: ItemsResult, before: Sequence[ResultT]) -> list[ResultT]:
    """Return the good runs with the same arguments and settings as ``run``, among the ``EARLIER``
    newest ended ones of ``before``.

    ``before`` contains runs with lower numbers, sorted from newest to oldest.
    """
    if run.work_hash is None:
        return []
    ended = [earlier for earlier in before if RunStatus(earlier.status).terminal][:EARLIER]
    return [earlier for earlier in ended if is_good(earlier) and earlier.work_hash == run.work_hash]


def usual(good: Sequence[object], name: str = "items") -> float | None:
    """Return the usual value of a counter, or of ``duration`` in seconds: its median in these
    ``comparable`` runs.

    Returns ``None`` if fewer than ``RUNS_MIN`` of them have a value.
    """
    read: Any = run_seconds if name == "duration" else attrgetter(name)
    known = [value for value in map(read, good) if value is not None]
    return median(known) if len(known) >= RUNS_MIN else None


def brought_less(runs: Sequence[ItemsResult]) -> dict[int, str]:
    """Return a sentence about each run that produced unusually few items, by its number.

    Among the newest ``EARLIER`` ended runs, the newest completed run with each combination of
    arguments and settings is judged, because a good run says nothing about other arguments.
    ``runs`` is sorted by number, newest first, and so is the result.
    """
    ended = [run for run in runs if RunStatus(run.status).terminal]
    newest: dict[str | None, int] = {}
    for position, run in enumerate(ended[:EARLIER]):
        if run.status == RunStatus.COMPLETED:
            newest.setdefault(run.work_hash, position)
    found = {}
    for position in newest.values():
        run = ended[position]
        expected = usual(comparable(run, ended[position + 1 :]))
        if run.items is not None and expected is not None and run.items < LESS * expected:
            found[run.run_id] = (
                f"run {run.run_id} produced {run.items:,} items; good runs with the same arguments "
                f"produce {expected:,g} (median)"
            )
    return found
