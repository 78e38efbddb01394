"""Wake-ups of runs after noticed changes: a run has at most one open wake-up.

A wake-up is a signal to the run's workflow, which then looks. The wake-up is open until a look is recorded that
observed the change or a later time, at most ``PATIENCE_S``. Only the newest time of further changes is remembered. It
leads to one more wake-up, or to none if that look observed it. Therefore a run gets no more signals than looks, even
with a thousand changes a second. The workflow itself decides how close together its looks are.

A change is known by a time ``at`` at which it had already happened (with time zone, in UTC). ``now`` is a clock in
seconds that only goes forward. The class is not thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

#: A later change waits for its own wake-up until the look of the sent wake-up is recorded. Seconds between two checks
#: for that look.
POLL_S = 0.1
#: Seconds to wait for the look after a wake-up.
PATIENCE_S = 30.0
#: The first and the longest wait after failed tries, in seconds. The wait doubles after each try.
RETRY_S, RETRY_MAX_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class WakeUpState:
    """The fields of a run's row that a decision about a wake-up needs."""

    run_id: int
    workflow_id: str | None
    """The workflow id of the owner, or ``None`` while no workflow owns the run."""
    ended: bool
    verified_at: datetime | None


@dataclass(frozen=True, slots=True)
class Wake:
    """A signal to send. It covers all changes up to the time ``covers``."""

    run_id: int
    workflow_id: str
    covers: datetime


@dataclass(slots=True)
class _Run:
    changed: datetime | None = None
    """The time of the newest change without a wake-up."""
    covers: datetime | None = None
    """The time of the change for which the open wake-up was sent."""
    sent_at: float = -math.inf
    check_at: float = math.inf
    failures: int = 0


class Wakes:
    """The runs that changed lately, each with its wake-up."""

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def changed(self, run_id: int, at: datetime, now: float, delay: float = 0.0) -> bool:
        """Remember a change. Return true if the run had no waiting and no open wake-up.

        ``delay``: seconds in which another observer of the same change may wake the run first.
        """
        run = self._runs.setdefault(run_id, _Run())
        if run.changed is not None:
            run.changed = max(run.changed, at)
            return False
        run.changed = at
        run.check_at = now + (POLL_S if run.covers is not None else delay)
        return run.covers is None

    def due(self, now: float, limit: int = 500) -> list[int]:
        """Return the runs to decide about now, the longest waiting first. Forget runs without a waiting change."""
        ripe = sorted((run.check_at, run_id) for run_id, run in self._runs.items() if run.check_at <= now)
        for _, run_id in ripe:
            if self._runs[run_id].changed is None:
                del self._runs[run_id]
        return [run_id for _, run_id in ripe if run_id in self._runs][:limit]

    def next_at(self) -> float:
        """Return the next time at which ``due`` returns a run or forgets one; infinity: never."""
        return min((run.check_at for run in self._runs.values()), default=math.inf)

    def decide(self, asked: Iterable[int], standings: Iterable[WakeUpState], now: float) -> list[Wake]:
        """Return the signals to send for the runs in ``asked``; ``standings`` are their rows.

        Forget runs that are unknown or have ended, runs without an owner, and runs that a look observed after the
        change. The caller reports each signal with ``sent`` or ``failed``.
        """
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
        """Note that the server has accepted the signal. ``heard``: false if the workflow was already closed."""
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
        """Note that the decision or the signal failed. The next try comes after a wait that doubles each time."""
        run = self._runs.get(run_id)
        if run is not None:
            run.check_at = now + min(RETRY_S * 2.0 ** min(run.failures, 20), RETRY_MAX_S)
            run.failures += 1
