"""Retention: the rules about which data may be removed, and when. Other modules remove the data.

Data that can still be useful is kept. The ages come first, followed by the rules for rows in the
database, files of runs on the cluster volume and in object storage, folders on the local cluster,
and unfinished uploads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from .bounds import DAY_S, ID_MAX, whole
from .names import PROPERTY_PRUNED
from .run import RunStatus
from .run_ref import RunRef


@dataclass(frozen=True, slots=True)
class Retention:
    """The age after which one kind of data is removed."""

    default_s: float
    """The default age, in seconds."""
    least_s: float = 0.0
    """The shortest age that users may set, in seconds."""
    why_least: str = ""


#: The database: ``crawlctl db prune`` removes rows of the tables in ``GOES``
#: (store/retention/pruning.py). Audits compare runs that ended within three days, and deliveries
#: are retried for one day. A program that reads events again after a long weekend should find all
#: events.
DATABASE = Retention(
    90 * DAY_S, 7 * DAY_S, "audits, deliveries and readers of events still need more recent data"
)
#: The access log, which has its own age: ``crawlctl db prune --access-older-than``.
ACCESS = Retention(
    365 * DAY_S, 7 * DAY_S, "people use the access log to find out what was done last week"
)
#: The cluster volume and bundles in object storage: ``crawlctl cluster gc`` removes files and saved
#: state of runs that ended and were exported (clusters/volume.py, adapters/archive/bundles.py). One
#: export try can read files for six hours.
FILES = Retention(
    14 * DAY_S,
    12 * 3600.0,
    "an export can read files for hours, and a run that has just ended may be resumed",
)
#: Object storage: before and after its own upload, each export removes unfinished uploads of the
#: same archive that have not grown for this time (adapters/archive/s3/upload.py). This time is
#: shorter than the heartbeat timeout of an export (30 s).
UPLOADS = Retention(20.0)


# --- rows of the database -------------------------------------------------------------------------


#: The tables from which rows are removed, in this order, each with a description of these rows.
GOES: Mapping[str, str] = {
    "outbox_event": "events about objects that ended long ago",
    "outbox_delivery": "pushes and webhook deliveries of these events",
    "task_log": "tails of task logs in runs that ended long ago",
    "task_stats": "final statistics of crawlers in runs that ended long ago",
    "task_observation": "unapplied observations of runs that ended long ago",
    "task_finding": "unapplied changes of these runs",
    "manager_item": "jobs of managers that ended long ago; a resume begins without them",
    "manager_addition": "pages of jobs that were added to such managers",
    "graph_page": "pages of old drafts that never became a graph",
    "graph_result": "results of steps in graphs that ended long ago",
    "graph_step": "all steps of a graph together, after its results were removed",
    "graph_log": "the last output of their functions",
    "schedule_due": "old due times whose run, manager or graph has a verdict",
    "incident": "incidents that were closed long ago",
    "audit_finding": "findings that were closed long ago",
    "access_log": "old actions of people and tokens",
}

#: All other tables, and the reason why nothing is removed from them.
NEVER: Mapping[str, str] = {
    "run_history": "the record of runs",
    "task_history": "the record of tasks; a resume continues from it",
    "status_transition": "a permanent record: it is never changed or removed",
    "correction": "a permanent record: it is never changed or removed",
    "cancellation_log": "a permanent record: it is never changed or removed",
    "run_tag": "filters of lists need it",
    "run_code": "the record of which code a run executed",
    "run_word": "searches need it",
    "history_property": "the record of attempts, with notes about removed data",
    "task_addition": "a resume needs it to count tasks",
    "export_record": "the locations of archives",
    "pool": "the pools that people set",
    "pool_gate": "one row: the shares of pools",
    "crawler_memory": "a row for each crawler that ran out of memory, with its new memory",
    "pool_ticket": "a row is removed when its run has all its slots or ends",
    "run_site": "the hosts of runs; a resume needs them",
    "run_robots": "the rules of sites that runs got",
    "site_ticket": "a row is removed when its run has all its slots or ends",
    "outbox_counter": "one row: the number of the newest event",
    "manager": "the record of managers; a resume continues from it",
    "manager_log": "at most 16 KiB for each manager: the last output of its class",
    "graph": "the record of graphs",
    "graph_change": "empty between two transactions",
    "plan": "the list of user code that may be started",
    "access_token": "the record of tokens; a revoked token keeps its row",
    "process_note": "an expired note is removed when another note is added",
    "webhook": "the record of webhooks; a deleted webhook keeps its number",
    "schedule": "the record of schedules",
    "canary": "the record of canaries, one for each such deploy",
    "package": "a row is removed with its last version",
    "package_version": "gateways remove versions that nothing needs (LIFECYCLE_CODE__KEEP)",
    "site": "gateways remove rows of sites about which nothing else is known",
    "site_lease": "gateways remove rows of tasks that have left their sites",
    "site_minute": "gateways remove rows after 7 days",
    "site_day": "gateways remove rows after 30 days",
    "site_block": "gateways remove rows after 30 days",
    "site_robots": "gateways remove rows that were not renewed for 30 days",
    "site_report": "gateways remove rows after 30 days",
    "catalogue_entry": "the entries of the catalogue",
    "catalogue_change": "the versions of these entries, which runs name",
    "audit_report": "audits themselves remove reports after 30 days",
    "task_change": "empty between two transactions",
    "schema_compatibility": "one row: the builds that can use the schema",
}


class Stays(StrEnum):
    """The reason why data is kept. Functions return ``None`` for data that may be removed."""

    LIVE = "its run, manager or graph is live"
    RECENT = "too recent"
    ONCE = "occurs once per attempt; timeline, describe and export --resend need it"
    UNSENT = "its push failed; crawlctl export RUN --resend may still send it"
    OPEN = "the finding or incident is open"
    UNREADABLE = "its run cannot be read; crawlctl describe RUN names the fix"
    UNKNOWN = "the database has no such run"


#: The statuses of closed audit findings.
CLOSED = ("repaired", "gone")


def stays(
    state: object,
    words: type[StrEnum],
    over: Collection[str],
    moments: Iterable[object],
    before: datetime,
) -> Stays | None:
    """Return the reason why the data of a run, a manager or a graph is kept, or ``None`` if the
    data may be removed. ``state`` is the state of the run, manager or graph, or ``None`` if the row
    does not exist. ``words`` contains all states, and ``over`` contains the states after the end.
    ``moments`` contains the time of the end and the time of the last change. Both times count,
    because an end can be recorded late.
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


def event_stays(
    run: Stays | None, key: object, created_at: object, before: datetime
) -> Stays | None:
    """Return the reason why an event is kept, or ``None`` if the event may be removed. ``run`` is
    the reason why the data of the event's run is kept, if any. ``key`` is the key of an event that
    occurs once per attempt.
    """
    if run is not None:
        return run
    if key is not None:
        return Stays.ONCE
    return None if isinstance(created_at, datetime) and created_at < before else Stays.RECENT


def finding_stays(
    run: Stays | None, status: object, moments: Iterable[object], before: datetime
) -> Stays | None:
    """Return the reason why an audit's finding is kept, or ``None`` if the finding may be removed.
    The run in the finding may not exist.
    """
    if status not in CLOSED:
        return Stays.OPEN
    if any(
        moment is not None and not (isinstance(moment, datetime) and moment < before)
        for moment in moments
    ):
        return Stays.RECENT
    return None if run is Stays.UNKNOWN else run


def due_stays(begins: bool, live: bool, decided_at: object, before: datetime) -> Stays | None:
    """Return the reason why a firing is kept, or ``None`` if the firing may be removed. The row of
    the target is never removed, and the target's id contains the due time. So the target does not
    begin twice, even after the firing is removed.
    """
    if begins and live:
        return Stays.LIVE
    return None if isinstance(decided_at, datetime) and decided_at < before else Stays.RECENT


def incident_stays(state: object, closed_at: object, before: datetime) -> Stays | None:
    """Return the reason why an incident is kept, or ``None`` if the incident may be removed."""
    if state != "closed":
        return Stays.OPEN
    return None if isinstance(closed_at, datetime) and closed_at < before else Stays.RECENT


#: The number in place of a damaged mark. It means that all events may have been removed.
_ALL = ID_MAX


def mark(through: int, now: datetime) -> str:
    """Return the mark for an attempt: the number of the last removed event, and the time of the
    removal.

    The number 0 means that only rows without events were removed.
    """
    return f"{through} {now.isoformat()}"


def marked_through(value: object) -> int:
    """Return the number of the event in a mark."""
    number = whole(str(value).partition(" ")[0])
    return _ALL if number is None else number


def pruned_through(properties: Iterable[Mapping[str, object]]) -> int | None:
    """Return the number up to which events of the run may have been removed, or ``None`` if no
    events were removed.
    """
    marks = [marked_through(row["value"]) for row in properties if row["name"] == PROPERTY_PRUNED]
    return max(marks, default=None)


# --- files of runs --------------------------------------------------------------------------------


class RetentionState(StrEnum):
    """The state of a run with files, which decides whether they may be removed."""

    OLD = "old"
    """The run ended and was exported, both before the time for which files are kept."""
    RECENT = "recent"
    LIVE = "live"
    NOT_EXPORTED = "not exported"
    INCOMPLETE = "archive incomplete"
    REMOVED = "removed"
    """The run's files were removed. Any remaining files belong to no run, or could not be
    removed."""
    UNKNOWN = "unknown"
    """The database has no such run."""


@dataclass(frozen=True, slots=True)
class RetainedRun:
    """A run in the database, with the fields that decide about the files of its current attempt."""

    run_id: int
    run_uid: str
    crawler: str
    status: str
    attempt: int
    ended_at: datetime | None
    export: str | None = None
    """``exported``, ``empty`` or ``failed``, or ``None`` if no export was tried yet."""
    export_note: str | None = None
    """A note about files that are missing from the archive, or about a repeated export that
    failed."""
    exported_at: datetime | None = None
    """The time at which an export last began or ended."""
    given_up: bool = False
    """True if the removal of the run's files has begun, so that the files may not be read."""
    removed: bool = False
    """True if all its files were removed."""


def stand_of(
    run: RetainedRun | None, before: datetime, *, incomplete: bool = False
) -> tuple[RetentionState, str]:
    """Return the retention state of the run, and a phrase about this state. Files may be removed
    only in the state ``RetentionState.OLD``, that is, if the run ended and was exported before
    ``before``. If ``incomplete`` is true, an archive that lacks files counts as complete.
    """
    if run is None:
        return RetentionState.UNKNOWN, "the database has no such run"
    if not RunStatus(run.status).terminal or run.ended_at is None:
        return RetentionState.LIVE, f"it is {run.status}"
    if run.removed:
        return RetentionState.REMOVED, "its files were removed"
    if run.given_up:
        return RetentionState.OLD, "its removal has already begun"
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
    ref: RunRef | None, run: RetainedRun | None, before: datetime, *, incomplete: bool = False
) -> tuple[RetentionState, str]:
    """Return the result of ``stand_of`` for files under a name. ``ref`` is the run to which the
    name refers, if any. ``run`` is the row with the number in ``ref``.
    """
    if ref is None:
        return RetentionState.UNKNOWN, "this is not the name of a run"
    if run is not None and not ref.owns(run.run_uid):
        # The files are older than a restore of the database, or belong to another installation, so
        # keep them.
        return RetentionState.UNKNOWN, "the database has another run with this number"
    return stand_of(run, before, incomplete=incomplete)


# --- local folders, uploads -----------------------------------------------------------------------


def folders_go(tasks: Iterable[tuple[float | None, bool]], before: float) -> bool:
    """Return whether the folders of a local run may be removed. The run must have tasks, and all of
    them must have ended before ``before``. ``tasks`` contains, for each deployed task, its end in
    seconds since 1970 (``None`` if the end is unknown) and whether the task's supervisor process is
    alive. The folders are kept if a task is executing or was lost.
    """
    any_task = False
    for ended_at, supervised in tasks:
        if ended_at is None or ended_at >= before or supervised:
            return False
        any_task = True
    return any_task


def upload_goes(newest: datetime, now: datetime, quiet_s: float) -> bool:
    """Return whether an unfinished upload may be removed.

    It must not have grown in the ``quiet_s`` seconds since ``newest``.
    """
    return now - newest >= timedelta(seconds=quiet_s)
