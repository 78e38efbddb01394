"""The decisions of a manager's class between two commits: its window, and the results of its
hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from crawler_lifecycle.features.managers.domain.manager import (
    EndedJob,
    Facts,
    HookFailed,
    HookReport,
    Waiting,
)
from crawler_lifecycle.features.managers.domain.window import Window

from .platform import Platform
from .types import JobDict

_ERROR_MAX = 1000
_ERRORS_SHOWN = 3
#: Seconds of a cycle during which new hooks of ends may begin. With this limit, their results are
#: recorded soon, and the cycle has time to fill free slots.
HOOKS_S = 5.0


@dataclass(slots=True)
class Turn:
    """A waiting job that may start now; the first call of ``schedule_spider_with_jobargs`` uses
    it.
    """

    waiting: Waiting
    key: str | None = None
    """The job key, or ``None`` until the job is scheduled."""


#: The job that may start now. Each task of an event loop has its own.
TURN: ContextVar[Turn | None] = ContextVar("turn", default=None)
#: The platform for an object that is being created, or ``None`` if a user's program creates the
#: object.
BUILDING: ContextVar[Platform | None] = ContextVar("building", default=None)


@contextmanager
def building(platform: Platform) -> Iterator[None]:
    """Give this platform to all objects that are created inside the ``with`` block."""
    token = BUILDING.set(platform)
    try:
        yield
    finally:
        BUILDING.reset(token)


@dataclass(slots=True)
class Cycle:
    """The current cycle.

    The first object collects the work of ``__init__`` and ``on_start``, before any cycle.
    """

    facts: Facts
    window: Window
    hooked: list[HookReport] = field(default_factory=list)
    failed: list[HookFailed] = field(default_factory=list)
    flow_tags: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ends: dict[str, EndedJob] = field(default_factory=dict)
    """Ends that ``check_running_jobs`` has not handled yet, by job key."""
    handled: dict[str, EndedJob] = field(default_factory=dict)
    coming: dict[str, JobDict] = field(default_factory=dict)
    """Jobs that this cycle scheduled and that have no run yet, by job key. These jobs are
    pending.
    """
    begun: bool = False
    """False for the object before the first cycle."""
    again_s: float | None = None
    """Seconds until the next cycle, if the class requests a time."""
    waiting: str | None = None
    """One sentence from the class about why it is waiting."""
    clock: Callable[[], float] = lambda: 0.0
    began: float = 0.0
    report: Callable[[], None] = lambda: None
    """Reports the decisions made so far to the platform."""

    @property
    def took_s(self) -> float:
        """Seconds since the cycle began."""
        return self.clock() - self.began

    @classmethod
    def of(cls, facts: Facts, platform: Platform | None) -> Cycle:
        """Return a new cycle. Without a platform, it has no waiting jobs."""
        window = Window(
            facts, platform.waiting_jobs if platform is not None else lambda state, after, limit: []
        )
        return cls(
            facts,
            window,
            ends={ended.live.key: ended for ended in facts.ended},
            begun=platform is not None,
        )

    def carry(self, before: Cycle, platform: Platform) -> None:
        """Add the work from before the first cycle, except jobs that have been read from the source
        in the meantime.
        """
        identities = {added.job.identity for added in before.window.added if added.unique}
        self.window.carry(
            before.window, platform.known_identities(identities) if identities else ()
        )
        self.flow_tags += before.flow_tags
        self.errors += before.errors
        self.coming |= before.coming

    def note(self, error: str) -> None:
        """Record an error of the class; the cycle continues."""
        if error not in self.errors:
            self.errors.append(error)

    @property
    def error(self) -> str | None:
        if not self.errors:
            return None
        more = len(self.errors) - _ERRORS_SHOWN
        return (
            "; ".join(self.errors[:_ERRORS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        )[:_ERROR_MAX]
