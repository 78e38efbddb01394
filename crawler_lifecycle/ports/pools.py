"""Values about pools that are exchanged between the store and the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool: its settings, the holders of its slots, and the runs that wait for them."""

    name: str
    max: int | None
    weight: float
    reserved: int
    queue: str | None
    project: str | None
    in_use: int
    """Slots that its tasks hold, from their offer to their end."""
    executing: int
    waiting_runs: int
    waiting_tasks: int
    oldest_wait_at: datetime | None
    """The time since which the oldest of its waiting runs has waited."""
    share: float | None
    """Its share of all slot-seconds in the last hour. ``None`` if no pool used any, or if the
    caller is limited to one project.
    """
    problem: str | None = None
    """A sentence for operators, with the fix."""
