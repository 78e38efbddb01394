"""Wake-ups of runs after noticed changes: at most one is outstanding for each run.

A wake-up is outstanding from its signal until a look is on record that observed at or after the change it was sent for,
or until ``PATIENCE_S`` have passed. Of further changes only the newest time is remembered. It leads to at most one more
wake-up, and to none when that look has already seen it. So even with a thousand changes a second a run gets no more
signals than looks; how close together those may be is the workflow's own rule.

A change is known by the moment ``at`` by which it had happened, aware, in UTC. ``now`` is any clock in seconds that
only goes forward. Not thread-safe: the owner calls it from one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

#: Seconds between two questions whether an outstanding wake-up has been answered, when something changed after it.
POLL_S = 0.1
#: Seconds after which a wake-up that no look answered is no longer waited for.
PATIENCE_S = 30.0
#: Seconds after a try that failed; doubling.
RETRY_S, RETRY_MAX_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class WakeUpState:
    """A run as the database has it now, as far as who wakes it needs it."""

    run_id: int
    workflow_id: str | None
    """The workflow id of the owner, or ``None`` while no workflow owns the run."""
    ended: bool
    verified_at: datetime | None


@dataclass(frozen=True, slots=True)
class Wake:
    """A signal to be sent, for all that changed until ``covers``."""

    run_id: int
    workflow_id: str
    covers: datetime


@dataclass(slots=True)
class _Run:
    changed: datetime | None = None
    """The newest change that no wake-up was sent for."""
    covers: datetime | None = None
    """The moment of the change for which the outstanding wake-up was sent."""
    sent_at: float = -math.inf
    check_at: float = math.inf
    failures: int = 0


class Wakes:
    """The runs that changed lately, each with its pending wake-up."""

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def changed(self, run_id: int, at: datetime, now: float, delay: float = 0.0) -> bool:
        """Remember a change.

        Returns whether the run was not already waiting for a wake-up. ``delay`` gives another observer of the same
        change time to wake the run first.
        """
        run = self._runs.setdefault(run_id, _Run())
        if run.changed is not None:
            run.changed = max(run.changed, at)
            return False
        run.changed = at
        run.check_at = now + (POLL_S if run.covers is not None else delay)
        return run.covers is None

    def due(self, now: float, limit: int = 500) -> list[int]:
        """The runs to decide about now; those that have waited longest come first. Old entries are forgotten here."""
        ripe = sorted((run.check_at, run_id) for run_id, run in self._runs.items() if run.check_at <= now)
        for _, run_id in ripe:
            if self._runs[run_id].changed is None:
                del self._runs[run_id]
        return [run_id for _, run_id in ripe if run_id in self._runs][:limit]

    def next_at(self) -> float:
        """The time at which something is due next; infinity when nothing is."""
        return min((run.check_at for run in self._runs.values()), default=math.inf)

    def decide(self, asked: Iterable[int], standings: Iterable[WakeUpState], now: float) -> list[Wake]:
        """The signals to send for the runs that were asked about. Runs that are unknown, ended, without an owner, or
        looked at since they changed are forgotten. Follow each with ``sent`` or ``failed``."""
        known = {standing.run_id: standing for standing in standings}
        wakes = []
        for run_id in asked:
            run = self._runs.get(run_id)
            if run is None or run.changed is None:
                continue
            standing = known.get(run_id)
            if standing is None or standing.ended or standing.workflow_id is None:
                del self._runs[run_id]
                continue
            seen = standing.verified_at
            if seen is not None and seen >= run.changed:
                del self._runs[run_id]
                continue
            answered = run.covers is None or (seen is not None and seen >= run.covers)
            if not answered and now - run.sent_at < PATIENCE_S:
                run.check_at = now + POLL_S
                continue
            run.check_at = math.inf
            wakes.append(Wake(run_id, standing.workflow_id, run.changed))
        return wakes

    def sent(self, wake: Wake, now: float, *, heard: bool = True) -> None:
        """The signal was taken by the server; ``heard`` says whether the workflow is still open."""
        run = self._runs.get(wake.run_id)
        if run is None:
            return
        if not heard:
            del self._runs[wake.run_id]
            return
        more = run.changed if run.changed is not None and run.changed > wake.covers else None
        run.changed, run.covers, run.sent_at, run.failures = more, wake.covers, now, 0
        run.check_at = now + (PATIENCE_S if more is None else POLL_S)

    def failed(self, run_id: int, now: float) -> None:
        """It could not be decided or sent now: try again later, ever more rarely."""
        run = self._runs.get(run_id)
        if run is not None:
            run.check_at = now + min(RETRY_S * 2.0 ** min(run.failures, 20), RETRY_MAX_S)
            run.failures += 1
