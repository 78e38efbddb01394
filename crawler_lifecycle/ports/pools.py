"""Values about pools that cross the store and the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool: its settings, who holds its slots and who waits for them."""

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
    """The time since which the oldest of its waiting runs waits."""
    share: float | None
    """Its part of all slot-seconds of the last hour; ``None``: no pool used any, or the caller is
    of one project.
    """
    problem: str | None = None
    """A sentence for operators, with the fix."""
