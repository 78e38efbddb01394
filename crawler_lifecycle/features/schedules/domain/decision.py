"""The decision about one due time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .definition import Overlap

#: A due time counts as caught up if it is later than this many seconds. A smaller delay is normal
#: for a slow worker.
CAUGHT_UP_S = 60.0
#: Part of the reason for a pause that no person requested.
PAUSED_ITSELF = "(pause_after_failures)"


class Decision(StrEnum):
    """The decision about a due time."""

    STARTED = "started"
    QUEUED = "queued"
    SKIPPED_OVERLAP = "skipped_overlap"
    PAUSED = "paused"
    MISSED = "missed"
    FAILED = "failed"

    @property
    def begins(self) -> bool:
        """Return whether this decision begins the target, either now or later."""
        return self in (Decision.STARTED, Decision.QUEUED)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The facts on which a decision depends."""

    late_s: float
    """Seconds between the due time and this decision."""
    allowed_s: float
    """The seconds by which the decision may be late: the catch-up window and the jitter."""
    overlap: Overlap
    previous_live: bool
    """True if the target of the previous due time has no verdict yet."""
    paused: str | None = None
    """The reason why the schedule is paused."""
    next_due: str | None = None
    """The next due time, if it has already passed as well."""
    asked: bool = False
    """True if a person requested this due time. Such a due time is never too late, and a pause does
    not hold it back.
    """


def decide(c: Circumstances) -> tuple[Decision, str | None]:
    """Return the decision and its reason, which is a sentence that remains true later.

    ``started`` has no reason.
    """
    if c.paused is not None and not c.asked:
        return Decision.PAUSED, c.paused
    if c.late_s > c.allowed_s and not c.asked:
        why = (
            f"it was {c.late_s:.0f} s late, and at most {c.allowed_s:g} s are allowed (catch_up_s)"
        )
        return Decision.MISSED, f"{why}; Backfill starts it (crawlctl schedule backfill)"
    if c.overlap is Overlap.STOP_PREVIOUS and c.next_due is not None and not c.asked:
        return Decision.SKIPPED_OVERLAP, gave_way(c.next_due)
    if not c.previous_live or c.overlap is Overlap.ALLOW:
        return Decision.STARTED, None
    if c.overlap is Overlap.SKIP:
        return Decision.SKIPPED_OVERLAP, "the target of the previous due time had no verdict then"
    if c.overlap is Overlap.QUEUE:
        return Decision.QUEUED, "it was queued behind the target of the previous due time"
    return (
        Decision.QUEUED,
        "it was queued, because the target of the previous due time had to be stopped first",
    )


def gave_way(next_due: str) -> str:
    """Return the reason why nothing begins at a due time, if the next due time would stop its
    target immediately.
    """
    return f"it was due again, at {next_due}, before its target had begun (overlap: stop_previous)"


def too_many_failures(verdicts: list[bool], most: int | None) -> str | None:
    """Return the reason why a schedule pauses itself, or ``None`` if the schedule does not pause
    itself.

    ``verdicts`` has one entry for each begun target, newest first. An entry is true if the target
    failed.
    """
    if most is None or len(verdicts) < most or not all(verdicts[:most]):
        return None
    return (
        f"the last {most} targets failed {PAUSED_ITSELF}; Resume starts it again "
        "(crawlctl schedule resume)"
    )
