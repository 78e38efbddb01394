"""Values about pools that the store and the gateway exchange."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool: its settings, the holders of its slots, and the runs that are waiting for slots."""

    name: str
    max: int | None
    weight: float
    reserved: int
    queue: str | None
    project: str | None
    in_use: int
    """The number of slots that the pool's tasks hold. A task holds a slot from its offer to its
    end."""
    executing: int
    waiting_runs: int
    waiting_tasks: int
    oldest_wait_at: datetime | None
    """The time since which the oldest of its waiting runs has waited."""
    share: float | None
    """The pool's share of all slot-seconds in the last hour. ``None`` if no pool used any slots, or
    if the caller is limited to one project.
    """
    problem: str | None = None
    """A sentence for operators, with the fix."""
    origin: str | None = None
    """``settings`` or ``people``; ``None`` if nothing defines it."""
    changed_at: datetime | None = None
    """The time when a person last set it; ``None`` for a pool of the settings."""
    changed_by: str | None = None


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A run that holds slots of a pool."""

    run_id: int
    attempt: int
    crawler: str
    parent: str | None
    """The workflow of the manager or graph that started the run."""
    stop_requested_at: datetime | None
    slots: int
