"""Retention of files: which runs are old enough, what of them may be removed, what stays and why.

Files are given up for good, so everything that is not known counts as a reason to keep them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from .run import RunStatus

#: The shortest time of keeping, in seconds. One try of an export may read files for six hours.
LEAST_S = 12 * 3600.0


class RetentionState(StrEnum):
    """Where a run stands whose files lie somewhere."""

    OLD = "old"
    """Ended, exported, and longer ago than files are kept."""
    RECENT = "recent"
    LIVE = "live"
    NOT_EXPORTED = "not exported"
    INCOMPLETE = "archive incomplete"
    REMOVED = "removed"
    """Its files are gone; what is still found belongs to nobody, or could not be removed."""
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"
    """The database has no such run."""


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run of the database, as far as it decides about its files. Export and removal are those of this attempt."""

    run_id: int
    run_uid: str
    crawler: str
    status: str
    attempt: int
    ended_at: datetime | None
    export: str | None = None
    """``exported``, ``empty`` or ``failed``; ``None``: none was tried yet."""
    export_note: str | None = None
    """What the archive lacks, or why a later try failed."""
    exported_at: datetime | None = None
    """When an export began or ended for the last time."""
    given_up: bool = False
    """Its files may no longer be read."""
    removed: bool = False
    """They were removed to the last one."""
    unreadable: str | None = None


def stand_of(run: KeptRun | None, before: datetime, *, incomplete: bool = False) -> tuple[RetentionState, str]:
    """Where the run stands, and that in words. Only of ``Stand.OLD`` anything may be removed.

    Old is what ended and was exported before ``before``. ``incomplete`` counts archives that lack files as whole.
    """
    if run is None:
        return RetentionState.UNKNOWN, "the database has no such run"
    if run.unreadable is not None:
        return RetentionState.UNREADABLE, run.unreadable
    if run.status not in RunStatus.__members__ or not RunStatus(run.status).terminal or run.ended_at is None:
        return RetentionState.LIVE, f"it is {run.status}"
    if run.removed:
        return RetentionState.REMOVED, "its files are gone"
    if run.given_up:
        return RetentionState.OLD, "its removal was begun before"
    if run.ended_at >= before:
        return RetentionState.RECENT, "it ended too recently"
    if run.export not in ("exported", "empty"):
        return RetentionState.NOT_EXPORTED, run.export_note or "no export of this attempt has ended"
    if run.exported_at is None or run.exported_at >= before:
        return RetentionState.RECENT, "it was exported too recently"
    if run.export_note is not None and not incomplete:
        return RetentionState.INCOMPLETE, run.export_note
    return RetentionState.OLD, "exported" if run.export == "exported" else "it left no files"
