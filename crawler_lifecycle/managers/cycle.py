"""Decisions of a class between two commits: the window, and everything that its hooks did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from crawler_lifecycle.domain.managers.manager import Ended, Facts, Hooked, HookFailed, Waiting
from crawler_lifecycle.domain.managers.window import Window

from .platform import Platform

_ERROR_MAX, _ERRORS_SHOWN = 1000, 3
#: Seconds of a cycle in which hooks of ends begin: what they did is on record soon, and free slots are taken.
HOOKS_S = 5.0


@dataclass(slots=True)
class Turn:
    """A waiting job whose turn it is: the first ``schedule_spider_with_jobargs`` takes it."""

    waiting: Waiting
    key: str | None = None
    """Its job key, once it was scheduled."""


#: Whose turn it is; each task of the event loop has its own.
TURN: ContextVar[Turn | None] = ContextVar("turn", default=None)
#: The platform of the object that is being made; ``None`` in a script of its own.
BUILDING: ContextVar[Platform | None] = ContextVar("building", default=None)


@contextmanager
def building(platform: Platform) -> Iterator[None]:
    """Objects that are made inside belong to this platform."""
    token = BUILDING.set(platform)
    try:
        yield
    finally:
        BUILDING.reset(token)


@dataclass(slots=True)
class Cycle:
    """One cycle under way; before the first one it collects what ``__init__`` and ``on_start`` do."""

    facts: Facts
    window: Window
    hooked: list[Hooked] = field(default_factory=list)
    failed: list[HookFailed] = field(default_factory=list)
    flow_tags: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ends: dict[str, Ended] = field(default_factory=dict)
    """Ends that ``check_running_jobs`` has not handled, by their job key."""
    handled: dict[str, Ended] = field(default_factory=dict)
    coming: dict[str, list[str]] = field(default_factory=dict)
    """Jobs that were scheduled here and have no run yet: their tags by their key."""
    begun: bool = False
    """False for what comes before the first cycle."""
    again_s: float | None = None
    """Seconds after which the class itself wants the next cycle."""
    waiting: str | None = None
    """One sentence of the class itself: what it waits for."""
    clock: Callable[[], float] = lambda: 0.0
    began: float = 0.0
    report: Callable[[], None] = lambda: None
    """Reports to the platform what was decided so far."""

    @property
    def took_s(self) -> float:
        """Seconds since it began."""
        return self.clock() - self.began

    @classmethod
    def of(cls, facts: Facts, platform: Platform | None) -> Cycle:
        """The beginning of a cycle; without a platform nothing waits."""
        window = Window(facts, platform.waiting_jobs if platform is not None else lambda state, after, limit: [])
        return cls(facts, window, ends={ended.live.key: ended for ended in facts.ended}, begun=platform is not None)

    def carry(self, before: Cycle, platform: Platform) -> None:
        """Take over what was done before the first cycle; the source may have been read meanwhile."""
        identities = {added.job.identity for added in before.window.added if added.unique}
        self.window.carry(before.window, platform.known_identities(identities) if identities else ())
        self.flow_tags += before.flow_tags
        self.errors += before.errors
        self.coming |= before.coming

    def note(self, error: str) -> None:
        """Note what the class did wrong; the cycle goes on."""
        if error not in self.errors:
            self.errors.append(error)

    @property
    def error(self) -> str | None:
        if not self.errors:
            return None
        more = len(self.errors) - _ERRORS_SHOWN
        return ("; ".join(self.errors[:_ERRORS_SHOWN]) + (f"; and {more} more" if more > 0 else ""))[:_ERROR_MAX]
