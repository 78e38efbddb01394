"""Port of troubles: what happens to a run that no status tells, each told once by an event."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.audits.audit import LiveRun


class TroubleStore(Protocol):
    """Appends the events ``run.stale`` and ``run.blocked``."""

    def note_stale(self, run: LiveRun) -> bool:
        """Tell that the look which was due at ``run.due_at`` is overdue; whether it is, and was not told before."""
        ...

    def note_blocked(self, workflow_id: str, run_id: int | None, why: str, since: datetime) -> bool:
        """Tell that the workflow of a live run cannot go on; whether that is one, and was not told before.

        Without ``run_id`` it is the run that the workflow's id names.
        """
        ...
