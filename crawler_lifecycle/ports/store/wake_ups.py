"""Port of wake-ups: runs that wait for a start, a signal or a look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.audits.audit import LiveRun
from crawler_lifecycle.domain.audits.overdue import OverdueLooks
from crawler_lifecycle.domain.wake_ups import WakeUpState
from crawler_lifecycle.ports.values import RunRow


class SweepStore(Protocol):
    """Runs that were accepted, or told to stop, and have no workflow that knows."""

    def unowned_runs(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs that were reserved or resumed and not claimed: they were accepted, so somebody must start them."""
        ...

    def unheard_stops(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs whose recorded stop no workflow has acted on yet."""
        ...


class WakeUpStore(Protocol):
    """Whom to wake."""

    def wake_targets(self, run_ids: Sequence[int]) -> list[WakeUpState]:
        """Who is to be woken for these runs, at most 500, and what their last look saw. Unknown runs are left out."""
        ...


class OverdueStore(Protocol):
    """Looks that were planned and have not come."""

    def overdue_runs(
        self, before: datetime, after: tuple[datetime, int] | None = None, limit: int = 500
    ) -> list[LiveRun]:
        """Live runs whose next look was due before then, in that order and by id; ``after`` is the last one seen.

        Those without a planned look are among them when their row has not changed since then.
        """
        ...

    def overdue_looks(self, before: datetime) -> OverdueLooks:
        """How many looks that were planned for before then have not come, and the oldest; and how many managers,
        graphs, due times and webhooks no workflow carries, as searches found it."""
        ...
