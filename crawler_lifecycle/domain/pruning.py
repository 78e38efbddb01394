"""Pruning of the database: which rows of runs that ended long ago may go, and which stay and why.

A row that is not known to be of no more use stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from .bounds import ID_MAX
from .names import PROPERTY_PRUNED
from .run import RunStatus

#: The shortest time of keeping, in seconds. Audits compare runs that ended within three days, deliveries are tried for
#: one, and a reader of events that comes back after a long weekend should find what it missed.
LEAST_S = 7 * 86400.0

#: The tables that rows leave, in the order in which they are gone through, and what these rows are.
GOES: Mapping[str, str] = MappingProxyType(
    {
        "outbox_event": "run.changed of runs that ended long ago",
        "outbox_delivery": "how these were pushed",
        "task_log": "the end of what tasks printed in runs that ended long ago",
        "task_observation": "what a look staged and nobody applied, of runs that ended long ago",
        "task_finding": "the same, ready to be applied",
        "audit_finding": "findings that were closed long ago",
    }
)

#: All others, and why nothing leaves them.
NEVER: Mapping[str, str] = MappingProxyType(
    {
        "run_history": "the record of runs",
        "task_history": "the record of tasks; a resume goes on from it",
        "status_transition": "the ledger: nobody edits or deletes it",
        "correction": "the ledger: nobody edits or deletes it",
        "cancellation_log": "the ledger: nobody edits or deletes it",
        "run_tag": "lists are filtered by it",
        "history_property": "the record of attempts; it says what was removed of them",
        "task_addition": "a resume counts its tasks by it",
        "export_record": "says where archives are",
        "outbox_counter": "one row: the number of the newest event",
        "audit_report": "audits keep 30 days of it themselves",
        "task_change": "empty between two transactions",
        "schema_compatibility": "one row: which builds the schema serves",
    }
)


class Stays(StrEnum):
    """Why a row of such a table stays."""

    LIVE = "its run is live"
    RECENT = "too recent"
    ONCE = "happened once in an attempt: timeline, describe and export --resend tell of it"
    UNSENT = "its push failed; crawlctl export RUN --resend may still make it"
    OPEN = "the finding is open"
    UNREADABLE = "its run cannot be read; crawlctl describe RUN names the cure"
    UNKNOWN = "the database has no such run"


def run_stays(status: object, ended_at: object, updated_at: object, before: datetime) -> Stays | None:
    """Why nothing of a run may go; ``None``: it ended before ``before``, and was not touched since.

    ``status`` is ``None`` when there is no such run. An end may have been recorded long after it came, so the time of
    the last change counts as well.
    """
    if status is None:
        return Stays.UNKNOWN
    if status not in RunStatus.__members__:
        return Stays.UNREADABLE
    if not RunStatus(str(status)).terminal:
        return Stays.LIVE
    if not isinstance(ended_at, datetime) or not isinstance(updated_at, datetime):
        return Stays.UNREADABLE
    return Stays.RECENT if max(ended_at, updated_at) >= before else None


def event_stays(run: Stays | None, key: object, created_at: object, before: datetime) -> Stays | None:
    """Why an event stays whose run does (``run``) or does not; ``key`` is that of what happens once."""
    if run is not None:
        return run
    if key is not None:
        return Stays.ONCE
    return None if isinstance(created_at, datetime) and created_at < before else Stays.RECENT


def finding_stays(run: Stays | None, status: object, moments: Iterable[object], before: datetime) -> Stays | None:
    """Why an audit's finding stays. What was found may belong to no run that there is."""
    if status not in ("repaired", "gone"):
        return Stays.OPEN
    if any(moment is not None and not (isinstance(moment, datetime) and moment < before) for moment in moments):
        return Stays.RECENT
    return None if run is Stays.UNKNOWN else run


#: Of a mark that somebody spoilt: everything may have gone.
_ALL = ID_MAX


def mark(through: int, now: datetime) -> str:
    """What is kept with an attempt: its events up to this number went, at this time; 0: only other rows did."""
    return f"{through} {now.isoformat()}"


def marked_through(value: object) -> int:
    """The number of a mark."""
    number = str(value).partition(" ")[0]
    return min(int(number), _ALL) if number.isascii() and number.isdecimal() and len(number) <= 19 else _ALL


def pruned_through(properties: Iterable[Mapping[str, object]]) -> int | None:
    """Events of the run up to this number may be gone; ``None`` when nothing was ever removed of the run."""
    marks = [marked_through(one["value"]) for one in properties if one["name"] == PROPERTY_PRUNED]
    return max(marks, default=None)
