"""Corrections: their kinds, and the time for which a recorded status was wrong.

A **correction** is the record of a status that turned out to be wrong. A normal end that is found
by the due poll is not a correction: the delay is lag, which each transition records. An end that is
found after the due poll is a correction, even after an outage. Both durations are measured from the
time of the change itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum


class CorrectionKind(StrEnum):
    """The reasons why a recorded status was wrong.

    The set is fixed, because reports, metrics and alarms depend on it.
    """

    KILLED = "killed"
    VANISHED = "vanished"
    NOT_OURS = "not_ours"
    STILL_ALIVE = "still_alive"
    NEVER_EXISTED = "never_existed"
    LATE = "late"
    LATE_EVIDENCE = "late_evidence"
    REPAIR = "repair"

    @property
    def meaning(self) -> str:
        """The kind in one sentence."""
        return MEANINGS[self]


MEANINGS: dict[CorrectionKind, str] = {
    CorrectionKind.KILLED: (
        "The task was ended from outside; neither we nor the crawler requested this."
    ),
    CorrectionKind.VANISHED: (
        "The task is certainly gone from the cluster, and left no trace of its end."
    ),
    CorrectionKind.NOT_OURS: "Another object had the name of our object.",
    CorrectionKind.STILL_ALIVE: "The task was recorded as ended, but it was still running.",
    CorrectionKind.NEVER_EXISTED: (
        "The task was recorded as deployed, but it never existed on the cluster."
    ),
    CorrectionKind.LATE: "The end was found late: the poll that was due should have found it.",
    CorrectionKind.LATE_EVIDENCE: "New evidence showed that the recorded end was wrong.",
    CorrectionKind.REPAIR: "A resume or an audit corrected a status that no poll had checked.",
}

#: The sources of a change: values of the column ``source`` of transitions and of ``found_by`` of
#: corrections.
SOURCES: dict[str, str] = {
    "look": "a poll that was due",
    "wake": "an early poll that a person or the observer requested",
    "stop": "a poll that proves a stop, or the stop itself",
    "resume": "the first poll of a resume",
    "deploy": "the deployment, or the wait for the start of the main task",
    "sweep": "an audit",
    "retry": "the retry policy",
}


def untrue_since(believed_since: datetime | None, truth_since: datetime | None) -> datetime | None:
    """Return the time since which a recorded status was wrong: the time of its record or of the
    real change, whichever came later.
    """
    known = [moment for moment in (believed_since, truth_since) if moment is not None]
    return max(known, default=None)


def untrue_ms(now: datetime, since: datetime | None) -> int | None:
    """Return the milliseconds from ``since`` to ``now``.

    The result is never negative, even if the cluster's clock is ahead.
    """
    return None if since is None else max(0, round((now - since) / timedelta(milliseconds=1)))


#: A remark after the sentence about corrections. That sentence does not count normal lag.
NOT_COUNTED = "a change that the next planned poll finds is not a correction"


def wrong_words(worst_ms: int | None, kinds: Mapping[str, int], period: str) -> str:
    """Return one sentence about the corrections in a period, followed by ``NOT_COUNTED``.

    Example: ``wrong for at most 41.3 s this week: 3 corrections (killed 2, late 1)``.
    """
    return f"{_corrections(worst_ms, kinds, period)}; {NOT_COUNTED}"


def _corrections(worst_ms: int | None, kinds: Mapping[str, int], period: str) -> str:
    count = sum(kinds.values())
    if not count:
        return f"no corrections {period}"
    by_kind = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()) if number)
    many = f"{count} correction{'' if count == 1 else 's'} ({by_kind})"
    return f"{wrong_for(worst_ms)} {period}: {many}"


def wrong_for(worst_ms: int | None) -> str:
    """Return words for the longest time for which a status was wrong; ``None`` stands for an
    unknown time."""
    return (
        "wrong for an unknown time"
        if worst_ms is None
        else f"wrong for at most {_seconds(worst_ms)} s"
    )


def _seconds(milliseconds: int) -> str:
    """Return seconds as text, rounded up so that "at most" stays true: to tenths below one minute,
    and otherwise to whole seconds.
    """
    if milliseconds >= 60_000:
        return str(-(-milliseconds // 1000))
    return f"{-(-milliseconds // 100) / 10:g}"
