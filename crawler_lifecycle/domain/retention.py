"""Retention: what may be removed, when, and who removes it.

Other modules carry out these rules. Data that may still be useful stays. The ages come first, then the rules: rows of
the database, files of runs on the cluster volume and in object storage, folders of the local cluster, unfinished
uploads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from .bounds import ID_MAX
from .names import PROPERTY_PRUNED
from .run import RunStatus
from .run_ref import RunRef

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """The ages at which data may be removed."""

    default_s: float
    """The age from which it is removed by default, in seconds."""
    least_s: float = 0.0
    """The shortest age that may be set, in seconds."""
    why_least: str = ""


#: The database: rows of ``GOES``, by ``crawlctl db prune`` (store/retention/pruning.py). Audits compare runs that ended
#: within three days, deliveries are retried for one day, and a reader of events that returns after a long weekend
#: should find all events.
DATABASE = Retention(90 * DAY_S, 7 * DAY_S, "audits, deliveries and readers of events still need what is younger")
#: The local cluster: task folders and saved state of runs whose tasks have all ended, by the scheduler service, every
#: hour (LIFECYCLE_CLUSTER__KEEP_DAYS; clusters/local/folders/retention.py).
LOCAL_FOLDERS = Retention(14 * DAY_S)
#: The cluster volume and bundles in object storage: files and saved state of runs that ended and were exported, by
#: ``crawlctl cluster tidy`` (clusters/volume.py, adapters/archive/bundles.py). One try of an
#: export may read files for six hours.
FILES = Retention(
    14 * DAY_S, 12 * 3600.0, "an export may read files for hours, and a run that just ended may be resumed"
)
#: Object storage: unfinished uploads of the same archive to which nothing was added lately, by each export, before and
#: after its own (adapters/archive/s3/upload.py). It is below the heartbeat timeout of an export (30 s).
UPLOADS = Retention(20.0)


# --- rows of the database ------------------------------------------------------------------------------------------


#: The tables from which rows are removed, in this order, and a name for these rows.
GOES: Mapping[str, str] = MappingProxyType(
    {
        "outbox_event": "news of changes, of what ended long ago",
        "outbox_delivery": "how these were pushed, or told to webhooks",
        "task_log": "the end of what tasks printed in runs that ended long ago",
        "task_stats": "what crawlers told of themselves at their end, in runs that ended long ago",
        "task_observation": "what a look staged and nobody applied, of runs that ended long ago",
        "task_finding": "the same, ready to be applied",
        "manager_item": "jobs of managers that ended long ago; a resume begins anew without them",
        "manager_addition": "pages of jobs that were given to such managers",
        "graph_page": "pages of drafts that nobody has made a graph of for long",
        "graph_result": "what steps gave, of graphs that ended long ago",
        "graph_step": "their steps, once the results are gone; only whole graphs go",
        "graph_log": "what their functions printed last",
        "schedule_due": "due times of long ago whose run, manager or graph has its verdict",
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
        "manager": "the record of managers; a resume goes on from it",
        "manager_log": "16 KiB at most for each manager: what its class printed last",
        "graph": "the record of graphs",
        "graph_change": "empty between two transactions",
        "plan": "what may be started",
        "webhook": "the record of webhooks; one that was deleted keeps its number",
        "schedule": "the record of schedules",
        "audit_report": "audits keep 30 days of it themselves",
        "task_change": "empty between two transactions",
        "schema_compatibility": "one row: which builds the schema serves",
    }
)


class Stays(StrEnum):
    """The reason why a row of this table stays; ``None``: it may be removed."""

    LIVE = "its run, manager or graph is live"
    RECENT = "too recent"
    ONCE = "happened once in an attempt: timeline, describe and export --resend tell of it"
    UNSENT = "its push failed; crawlctl export RUN --resend may still make it"
    OPEN = "the finding is open"
    UNREADABLE = "its run cannot be read; crawlctl describe RUN names the cure"
    UNKNOWN = "the database has no such run"


#: Audit findings with these statuses are closed.
CLOSED = ("repaired", "gone")


def stays(
    state: object, words: type[StrEnum], over: Collection[str], moments: Iterable[object], before: datetime
) -> Stays | None:
    """The reason why data of a run, a manager or a graph stays;

    ``None``: it may be removed. ``state`` is ``None`` when the row does not exist; ``words`` are all states, ``over``
    those after the end. An end may have been recorded late, so the time of the last change counts too: ``moments`` are
    both.
    """
    if state is None:
        return Stays.UNKNOWN
    if state not in set(words):
        return Stays.UNREADABLE
    if state not in over:
        return Stays.LIVE
    known = [moment for moment in moments if isinstance(moment, datetime)]
    if len(known) < 2:
        return Stays.UNREADABLE
    return Stays.RECENT if max(known) >= before else None


def event_stays(run: Stays | None, key: object, created_at: object, before: datetime) -> Stays | None:
    """The reason why an event stays; ``run``: the reason of its run, if any; ``key``: the key of an event that happens
    once.
    """
    if run is not None:
        return run
    if key is not None:
        return Stays.ONCE
    return None if isinstance(created_at, datetime) and created_at < before else Stays.RECENT


def finding_stays(run: Stays | None, status: object, moments: Iterable[object], before: datetime) -> Stays | None:
    """The reason why an audit's finding stays. It may be about a run that does not exist."""
    if status not in CLOSED:
        return Stays.OPEN
    if any(moment is not None and not (isinstance(moment, datetime) and moment < before) for moment in moments):
        return Stays.RECENT
    return None if run is Stays.UNKNOWN else run


def due_stays(begins: bool, live: bool, decided_at: object, before: datetime) -> Stays | None:
    """The reason why a firing stays. Its target stays for ever, under an id made of the due time: so nothing begins
    twice, even when the firing is removed.
    """
    if begins and live:
        return Stays.LIVE
    return None if isinstance(decided_at, datetime) and decided_at < before else Stays.RECENT


#: For a damaged mark: everything may have been removed.
_ALL = ID_MAX


def mark(through: int, now: datetime) -> str:
    """The mark kept with an attempt: its events up to this number went, at this time; 0: only other rows did."""
    return f"{through} {now.isoformat()}"


def marked_through(value: object) -> int:
    """The number of a mark."""
    number = str(value).partition(" ")[0]
    return min(int(number), _ALL) if number.isascii() and number.isdecimal() and len(number) <= 19 else _ALL


def pruned_through(properties: Iterable[Mapping[str, object]]) -> int | None:
    """The highest number of a possibly removed event of the run; ``None`` when no event of the run was ever removed."""
    marks = [marked_through(one["value"]) for one in properties if one["name"] == PROPERTY_PRUNED]
    return max(marks, default=None)


# --- files of runs -------------------------------------------------------------------------------------------------


class RetentionState(StrEnum):
    """The state, for the removal of files, of a run whose files lie somewhere."""

    OLD = "old"
    """Ended, exported, and longer ago than files are kept."""
    RECENT = "recent"
    LIVE = "live"
    NOT_EXPORTED = "not exported"
    INCOMPLETE = "archive incomplete"
    REMOVED = "removed"
    """Its files are removed; files that are still found belong to no run, or could not be removed."""
    UNKNOWN = "unknown"
    """The database has no such run."""


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run of the database, with the fields that decide about its files. Export and removal are those of this
    attempt.
    """

    run_id: int
    run_uid: str
    crawler: str
    status: str
    attempt: int
    ended_at: datetime | None
    export: str | None = None
    """``exported``, ``empty`` or ``failed``; ``None``: none was tried yet."""
    export_note: str | None = None
    """The files that the archive lacks, or why a later try failed."""
    exported_at: datetime | None = None
    """The time at which an export last began or ended."""
    given_up: bool = False
    """Its files may no longer be read."""
    removed: bool = False
    """They were removed to the last one."""


def stand_of(run: KeptRun | None, before: datetime, *, incomplete: bool = False) -> tuple[RetentionState, str]:
    """The state of the run, and a text about it.

    Files may be removed only in the state ``RetentionState.OLD``. A run is old when it ended and was exported before
    ``before``. With ``incomplete``, archives that lack files count as complete.
    """
    if run is None:
        return RetentionState.UNKNOWN, "the database has no such run"
    if not RunStatus(run.status).terminal or run.ended_at is None:
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


def stand_of_name(
    ref: RunRef | None, run: KeptRun | None, before: datetime, *, incomplete: bool = False
) -> tuple[RetentionState, str]:
    """As ``stand_of``, for the files under a run's name: ``ref`` is that name, ``run`` the row of its number."""
    if ref is None:
        return RetentionState.UNKNOWN, "this is not the name of a run"
    if run is not None and not ref.owns(run.run_uid):
        # From before a restore of the database, or from another installation: it is not ours to remove.
        return RetentionState.UNKNOWN, "the database has another run of this number"
    return stand_of(run, before, incomplete=incomplete)


# --- local folders, uploads ----------------------------------------------------------------------------------------


def folders_go(tasks: Iterable[tuple[float | None, bool]], before: float) -> bool:
    """Return whether the folders of a local run may be removed: it has tasks, and all of them ended before ``before``.

    ``tasks`` are the end of each task that was ever deployed, in seconds since 1970 (``None``: there is none, or nobody
    can tell), and whether its supervisor lives. A run that was resumed, or has a task that was lost, stays.
    """
    any_task = False
    for ended_at, supervised in tasks:
        if ended_at is None or ended_at >= before or supervised:
            return False
        any_task = True
    return any_task


def upload_goes(newest: datetime, now: datetime, quiet_s: float) -> bool:
    """Return whether an unfinished upload was left behind: nothing was added for ``quiet_s`` seconds after
    ``newest``.
    """
    return now - newest >= timedelta(seconds=quiet_s)
