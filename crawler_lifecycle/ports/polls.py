"""Values for polls: observers, the findings of a poll, corrections, and the findings of audits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.blocked import BlockReport
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Change, Counters, Observation, TaskState

from .runs import TaskCounts


@dataclass(frozen=True, slots=True)
class ObserverHealth:
    """The state of an observer: whether it can currently watch and, if it cannot, the reason."""

    up: bool
    problem: str | None = None
    """The reason why the observer cannot watch."""
    watched: int = 0
    """The number of tasks that the observer watches."""
    place: int = 0
    """The number of observers that precede this observer on the same cluster. The first observer
    wakes runs at once, and the other observers first wait a moment, because a preceding observer
    may wake the run.
    """


@dataclass(frozen=True, slots=True)
class LiveCounters:
    """The current counters of one executing task's crawler, read between polls."""

    run: RunRef
    attempt: int
    index: int
    counters: Counters
    at: datetime | None = None
    """The time at which the crawler last wrote its counters, or ``None`` if the crawler does not
    report this time.
    """
    blocked: tuple[BlockReport, ...] | None = None
    """The refused requests that the crawler reports, new and old ones."""


@dataclass(frozen=True, slots=True)
class Poll:
    """One complete reading of the cluster for one run. An incomplete reading is an error, not a
    poll.
    """

    observed_at: datetime
    seconds: float
    observations: Sequence[Observation]
    again_s: float | None = None
    """Seconds after which the cluster requests another poll, because a state is not proved yet."""


@dataclass(frozen=True, slots=True)
class Details:
    """Debugging information about one task, read from the cluster."""

    task_id: int
    log_tail: str | None = None
    counters: Counters = field(default_factory=Counters)
    peak_memory: int | None = None
    statistics: Mapping[str, int | float] | None = None
    """The statistics that the crawler reported at its end, cut to their limits, or ``None`` if
    there is no report.
    """


@dataclass(frozen=True, slots=True)
class PollReport:
    """The changes that a poll found and the store staged, and the state of the run."""

    changed: int
    active: int
    queued: int
    stop: StopIntent | None = None
    """The recorded stop intent. The gateway may have recorded the intent without the workflow."""
    quiet: timedelta = timedelta(0)
    """The time without progress that polls have confirmed (``domain.stall``)."""
    pages: int | None = None
    items: int | None = None
    errors: int | None = None
    details: int = 0
    """The number of ended tasks whose debugging information is not written yet."""


@dataclass(frozen=True, slots=True)
class RecordedState:
    """The recorded state of a run that the workflow needs."""

    counts: TaskCounts
    started: bool
    started_at: datetime | None
    stop: StopIntent | None
    details: int
    """The number of ended tasks whose debugging information is not written yet."""


#: The number of recorded polls, stops and task changes of a run, and the time of the last poll.
#: This version orders the polls of two processes, whatever their clocks show. The time is compared
#: because builds before migration 0008 do not count polls.
Revision = tuple[int, datetime | None]


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a run, as a poll found it."""

    at: datetime | None
    """The earliest start of a task, or ``None`` if the cluster does not report it."""
    next_look_at: datetime | None


@dataclass(frozen=True, slots=True)
class FoundState:
    """The recorded state of a run with which a poll is compared, read in one transaction."""

    tasks: Sequence[TaskState]
    stop: StopIntent | None
    next_look_at: datetime | None
    last_progress_at: datetime | None
    counters: Counters
    crawler: str
    revision: Revision = (0, None)
    complete: bool = True
    """False if ``tasks`` contains only some tasks of the run."""
    poll_minutes: Sequence[float] | None = None
    resuming: bool = False
    """True if the run was resumed and its ended tasks have not been queued again yet."""
    waiting_for: str | None = None


@dataclass(frozen=True, slots=True)
class TaskFinding:
    """One change that a poll found, and the observation that proves the change. The change is
    staged until ``sync_statuses``.
    """

    change: Change
    observation: Observation


@dataclass(frozen=True, slots=True)
class CorrectionRow:
    """One row in the table ``correction``: a recorded status that was wrong."""

    id: int
    run_id: int
    task_id: int | None
    attempt: int
    kind: str
    believed: str
    believed_since: datetime | None
    truth: str
    truth_since: datetime | None
    found_by: str
    lag_ms: int | None
    evidence: Mapping[str, object]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Correction:
    """A recorded status that turned out to be wrong. ``CorrectionStore.record_corrections`` records
    the correction. ``believed`` is the recorded status, and ``truth`` is the true status. Instead
    of a status, either field can contain a different word with at most 20 characters.
    """

    kind: CorrectionKind
    believed: str
    truth: str
    task_id: int | None = None
    """The task that had the wrong status, or ``None`` if the run itself had the wrong status."""
    attempt: int | None = None
    """The attempt. ``None`` stands for the attempt of the task, or for the current attempt of the
    run.
    """
    believed_since: datetime | None = None
    """The time at which the wrong status was recorded. If it is ``None``, the database finds this
    time.
    """
    truth_since: datetime | None = None
    """The time since which the status ``truth`` is true, or ``None`` if unknown."""
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskChanged:
    """One committed transition of a task."""

    status: str
    source: str
    lag_ms: int | None
    """Milliseconds from the change on the cluster to ``committed_at`` of the row."""


@dataclass(frozen=True, slots=True)
class CommittedCorrection:
    """One committed correction, and the current cause of its task."""

    row: CorrectionRow
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedChanges:
    """The transitions and corrections that one transaction added."""

    run_id: int
    attempt: int
    changes: Sequence[TaskChanged]
    corrections: Sequence[CommittedCorrection]
    took: timedelta
    """The time from the timestamp in the new rows to the end of the transaction."""


@dataclass(frozen=True, slots=True)
class CorrectionTotal:
    """The number of corrections of one kind, and the longest time for which a recorded status was
    wrong.
    """

    kind: str
    count: int
    worst_ms: int | None


@dataclass(frozen=True, slots=True)
class CorrectionSummary:
    """The corrections of all runs since the time ``since``, by kind."""

    since: datetime
    kinds: Sequence[CorrectionTotal]
    """The totals of the kinds in alphabetical order. Kinds without corrections are left out."""

    @property
    def count(self) -> int:
        return sum(total.count for total in self.kinds)

    @property
    def worst_ms(self) -> int | None:
        """Return the longest time for which a recorded status was wrong, in milliseconds. Return
        ``None`` if no status was wrong, or if the time is unknown.
        """
        return max(
            (total.worst_ms for total in self.kinds if total.worst_ms is not None), default=None
        )


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One row in ``audit_finding``: a fault that audits found, and the state of the finding."""

    id: int
    subject: str
    kind: str
    status: str
    """``open``, ``repaired``, or ``gone`` if the fault disappeared without a repair."""
    run_id: int | None
    task_id: int | None
    workflow_id: str | None
    detail: str
    evidence: Mapping[str, object]
    first_seen: datetime
    last_seen: datetime
    repair: str | None
    repaired_at: datetime | None
    tries: int
    """The number of consecutive takeovers without success."""
