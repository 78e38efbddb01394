"""One cycle of a crawl manager: its class decides in a process of its own, and what it decided is committed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CycleOrder:
    """Input of ``run_manager_cycle``: whose cycle, and as who the workflow owns the manager."""

    manager_id: int
    attempt: int
    owner_run_id: str
    """Id of the workflow's execution that claimed the manager."""
    closing: bool = False
    """Whether the manager was stopped and nothing of it lives any more: ``on_close`` is called, and no cycle."""


@dataclass(frozen=True, slots=True)
class CycleAnswer:
    """What one cycle of a manager led to."""

    queue: str
    """The task queue of the worker that holds the user's object: the next cycle is asked for there. Without a worker
    on it after 10 s, any other worker of ``crawler-lifecycle-plans`` builds the object anew."""
    picked: int = 0
    """Jobs whose run is to be begun now, those of earlier cycles included."""
    live: int = 0
    """Jobs that hold a slot, the picked ones included."""
    ended: int = 0
    """Ends whose hooks ran in this cycle."""
    waiting: str | None = None
    """One sentence: why nothing more was picked."""
    again_s: float | None = None
    """Seconds until the next cycle at the latest; 0: at once; ``None``: when something happens."""
    over: bool = False
    """Whether no further cycle is wanted: what is picked begins, and the manager ends. Jobs that live then go on."""
    close_reason: str | None = None
    """With ``over``: the close reason that the class set; ``None``: it set none."""
    failed: bool = False
    """With ``over``: whether the close reason is one of the class's failed outcomes, so that the manager FAILED."""
    error: str | None = None
    """What the class did wrong, at which position, and the cure. With ``over``: the manager fails for it."""
