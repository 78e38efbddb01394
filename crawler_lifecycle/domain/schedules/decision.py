"""The decision about one due time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .definition import Overlap

#: Seconds late from which a due time is caught up, and does not just wait for a worker that is slow.
CAUGHT_UP_S = 60.0


class Decision(StrEnum):
    """The decision about a due time, once it was made."""

    STARTED = "started"
    QUEUED = "queued"
    SKIPPED_OVERLAP = "skipped_overlap"
    PAUSED = "paused"
    MISSED = "missed"
    FAILED = "failed"

    @property
    def begins(self) -> bool:
        """Return whether something was begun, or will be."""
        return self in (Decision.STARTED, Decision.QUEUED)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The facts that a decision depends on."""

    late_s: float
    """Seconds between the due time and this decision."""
    allowed_s: float
    """Seconds by which it may be late: the catch-up window and the jitter."""
    overlap: Overlap
    previous_live: bool
    """True when the previous target has no verdict yet."""
    paused: str | None = None
    """The reason why the schedule is paused."""
    next_due: str | None = None
    """The following due time, if it has also passed."""
    asked: bool = False
    """True when a person requested this due time: it is never too late, and a pause does not hold it back."""


def decide(c: Circumstances) -> tuple[Decision, str | None]:
    """The decision, and its reason unless it is ``started``: a sentence that stays true later."""
    if c.paused is not None and not c.asked:
        return Decision.PAUSED, c.paused
    if c.late_s > c.allowed_s and not c.asked:
        why = f"it came {c.late_s:.0f} s late, and at most {c.allowed_s:g} s are caught up"
        return Decision.MISSED, f"{why}; Backfill begins it (crawlctl schedule backfill)"
    if c.overlap is Overlap.STOP_PREVIOUS and c.next_due is not None and not c.asked:
        return Decision.SKIPPED_OVERLAP, gave_way(c.next_due)
    if not c.previous_live or c.overlap is Overlap.ALLOW:
        return Decision.STARTED, None
    if c.overlap is Overlap.SKIP:
        return Decision.SKIPPED_OVERLAP, "what the previous due time began had no verdict when it came"
    if c.overlap is Overlap.QUEUE:
        return Decision.QUEUED, "it was queued behind what the previous due time began"
    return Decision.QUEUED, "it was queued: what the previous due time began had to be stopped first"


def gave_way(next_due: str) -> str:
    """Return why a due time does not begin a target that would be stopped at once."""
    return f"it was due again, at {next_due}, before this had begun (overlap: stop_previous)"


def too_many_failures(verdicts: list[bool], most: int | None) -> str | None:
    """Return why a schedule pauses itself: ``verdicts`` says of each begun target, newest first, whether it failed."""
    if most is None or len(verdicts) < most or not all(verdicts[:most]):
        return None
    return f"the last {most} failed (pause_after_failures); Resume lets it go on (crawlctl schedule resume)"
