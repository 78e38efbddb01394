"""Metrics about runs: the table of instruments, and the functions that record values. All values go
through the SDK's meter: the activity's meter or, outside activities, the worker's meter. So one
endpoint on a worker serves both our own values and the SDK's values. An activity that is executed
outside a worker records nothing.

Metrics are for monitoring, not for accounting: an activity whose result was lost is counted twice.
The database contains the exact numbers. Labels have a fixed set of values. An outcome that a
crawler invented becomes ``other``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity
from temporalio.common import MetricMeter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, CancelledError

from crawler_lifecycle.domain.errors import LifecycleError, codes
from crawler_lifecycle.domain.run import OUTCOMES
from crawler_lifecycle.ports.polls import CommittedChanges, CorrectionRow

log = logging.getLogger(__name__)

#: Buckets in seconds for the duration of a poll, the duration of an export, and the time from a
#: change on the cluster to its record.
POLL_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0)
EXPORT_BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21600.0)
LAG_BUCKETS = (
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1800.0,
    3600.0,
    21600.0,
)


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. ``name`` is its name in the SDK, and ``exposed`` is its name in Prometheus."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """The upper bounds of the buckets, in seconds. A counter has no buckets."""

    @property
    def exposed(self) -> str:
        return f"{self.name}_seconds" if self.buckets else f"{self.name}_total"


RUNS_STARTED = Instrument(
    "lifecycle_runs_started", "Attempts of runs that a workflow began", ("trigger", "resumed")
)
RUNS_ENDED = Instrument(
    "lifecycle_runs_ended", "Verdicts of runs", ("status", "outcome", "ended_by")
)
POLLS = Instrument(
    "lifecycle_polls", "Polls of the cluster; a failed poll is not an observation", ("result",)
)
POLL_TIME = Instrument("lifecycle_poll", "Duration of complete polls", (), POLL_BUCKETS)
TASKS_CHANGED = Instrument("lifecycle_tasks_changed", "Changes of tasks' statuses", ("to",))
CORRECTIONS = Instrument(
    "lifecycle_corrections", "Recorded statuses that turned out to be wrong", ("kind",)
)
TRUTH_LAG = Instrument(
    "lifecycle_truth_lag",
    "Time from a change on the cluster to the commit of its record",
    ("source",),
    LAG_BUCKETS,
)
STOPS = Instrument("lifecycle_stops", "Stops that workflows received", ("kind",))
EXPORTS = Instrument("lifecycle_exports", "Tries to archive supporting files", ("result",))
EXPORT_BYTES = Instrument("lifecycle_export_bytes", "Size of stored archives in bytes")
EXPORT_TIME = Instrument("lifecycle_export", "Time to store an archive", (), EXPORT_BUCKETS)
DELIVERIES = Instrument("lifecycle_deliveries", "Tries to deliver an event", ("sink", "result"))
FAILURES = Instrument(
    "lifecycle_activity_failures",
    "Failed tries of activities, except those that wait",
    ("activity", "error"),
)

AUDIT_FINDINGS = Instrument(
    "lifecycle_audit_findings",
    "Findings of audits, counted each time they are found",
    ("kind", "repaired"),
)

SCHEDULE_DUE = Instrument(
    "lifecycle_schedule_firings", "Due times of schedules, by decision", ("decision",)
)
SCHEDULE_LATENESS = Instrument(
    "lifecycle_schedule_lateness",
    "Time from a due time to the row of its target",
    ("decision",),
    LAG_BUCKETS,
)

WEBHOOK_DELIVERIES = Instrument(
    "lifecycle_webhook_deliveries", "Tries to deliver an event to a webhook", ("result",)
)
WEBHOOK_LAG = Instrument(
    "lifecycle_webhook_lag",
    "Time from the commit of an event to its delivery to a webhook",
    (),
    LAG_BUCKETS,
)

#: Counted by the worker itself, outside activities.
WAKE_UPS = Instrument(
    "lifecycle_wake_ups", "Changes that the observer noticed, by result", ("what",)
)

INSTRUMENTS = (
    RUNS_STARTED,
    RUNS_ENDED,
    POLLS,
    POLL_TIME,
    TASKS_CHANGED,
    CORRECTIONS,
    TRUTH_LAG,
    STOPS,
    EXPORTS,
    EXPORT_BYTES,
    EXPORT_TIME,
    DELIVERIES,
    FAILURES,
    AUDIT_FINDINGS,
    SCHEDULE_DUE,
    SCHEDULE_LATENESS,
    WEBHOOK_DELIVERIES,
    WEBHOOK_LAG,
    WAKE_UPS,
)


def outcome_class(outcome: str | None) -> str:
    """Return the outcome if the project defines it, otherwise ``other``."""
    return outcome if outcome in OUTCOMES else "other"


def error_class(error: BaseException) -> str:
    """Return the stable type string of a domain error. For an error outside the domain, return
    ``cancelled`` or ``other``.
    """
    code = error.type if isinstance(error, ApplicationError) else getattr(error, "code", None)
    if isinstance(error, LifecycleError) or code in codes():
        return str(code)
    return "cancelled" if isinstance(error, CancelledError | asyncio.CancelledError) else "other"


def expected(error: BaseException) -> bool:
    """Return whether an activity raised this failure only because it is waiting."""
    return isinstance(error, ApplicationError) and error.category is ApplicationErrorCategory.BENIGN


_outside: MetricMeter | None = None


def outside(meter: MetricMeter | None) -> None:
    """Set the meter for counts outside activities. If it is ``None``, nothing is counted outside
    activities.
    """
    global _outside
    _outside = meter


def count(instrument: Instrument, by: int = 1, /, **labels: str) -> None:
    """Add to a counter, through the meter of the current activity or of the worker."""
    meter = _meter()
    if by and meter is not None:
        meter.create_counter(instrument.name, instrument.text).add(by, dict(labels))


def _meter() -> MetricMeter | None:
    return activity.metric_meter() if activity.in_activity() else _outside


def measure(what: Instrument, seconds: float, **labels: str) -> None:
    """Record a duration, through the meter of the current activity or of the worker."""
    meter = _meter()
    if meter is not None:
        histogram = meter.create_histogram_timedelta(what.name, what.text)
        histogram.record(timedelta(seconds=max(0.0, seconds)), dict(labels))


def observer_up(up: bool) -> None:
    """Record whether this worker's observer can watch the cluster."""
    if _outside is not None:
        text = "1 while the observer can watch the cluster, otherwise 0"
        _outside.create_gauge("lifecycle_observer_up", text).set(int(up))


def stretched(factor: float) -> None:
    """Record by which factor the interval between the poll that has just ended and the run's next
    poll is stretched."""
    if _outside is not None:
        text = (
            "Factor by which the interval before the last planned poll was stretched; 1 while "
            "polls are on time"
        )
        _outside.create_gauge_float("lifecycle_poll_stretch", text).set(factor)


# --- calls inside activities, for facts that their results do not contain -------------------------


def committed(news: CommittedChanges) -> None:
    """Count the statuses that a transaction changed, their lag, and the corrections. Call this
    function after the commit, in the thread that wrote. A second execution writes nothing, so
    nothing is counted twice.
    """
    for change in news.changes:
        count(TASKS_CHANGED, to=change.status)
        if change.lag_ms is not None:
            measure(
                TRUTH_LAG, change.lag_ms / 1000 + news.took.total_seconds(), source=change.source
            )
    for corrected in news.corrections:
        wrong = corrected.row
        count(CORRECTIONS, kind=wrong.kind)
        who = "the run" if wrong.task_id is None else f"task {wrong.task_id}"
        untrue = "" if wrong.lag_ms is None else f", untrue for {wrong.lag_ms / 1000:.1f} s"
        log.warning(
            "%s was recorded as %s and is %s (%s%s): %s",
            who,
            wrong.believed,
            wrong.truth,
            wrong.kind,
            untrue,
            corrected.cause or "see its evidence",
            extra={"run_id": news.run_id, "task_id": wrong.task_id, "correction": wrong.kind},
        )


def polled(seconds: float) -> None:
    """Count a complete poll, and record its duration."""
    count(POLLS, result="ok")
    measure(POLL_TIME, seconds)


def corrected(written: Sequence[CorrectionRow]) -> None:
    """Count corrections that were recorded without a poll."""
    for correction in written:
        count(CORRECTIONS, kind=str(correction.kind))


def delivered(sink: str, error: str | None = None) -> None:
    """Count one try to deliver an event.

    ``error`` is the reason why it failed.
    """
    count(DELIVERIES, sink=sink, result="failed" if error else "delivered")
