"""Converts rows of managers and jobs to the values of the ports, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.names import request_fingerprint
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.base.rows import Fault, Row, made, unreadable, validated
from crawler_lifecycle.store.base.unit import stop_of
from crawler_lifecycle.store.runs.tables import OVER_RUNS

from ..domain.manager import EndedJob, Job, JobState, Live, Waiting, run_request_id
from ..domain.scrapy_cloud import never_retried
from ..ports import JobRow, ManagerCounts, ManagerRow, NewManager
from .tables import manager_item

_JOB = TypeAdapter(Job)
_JOBS = TypeAdapter(list[Job])

#: Columns of a run that a query of jobs adds to each job, with the prefix ``run_``.
RUN_FACTS = ("status", "attempt", "started_at", "outcome")

#: The statuses of runs by the states of jobs in Scrapy Cloud.
STATES = {
    "pending": (RunStatus.INITIALIZING,),
    "running": (RunStatus.PROCESSING, RunStatus.STOPPING),
    "finished": (RunStatus.COMPLETED, RunStatus.FAILED),
}

#: The Scrapy statistics that are derived from the counters of a run if its crawler reported no
#: statistics.
COUNTER_NAMES = {
    "pages": "response_received_count",
    "items": "item_scraped_count",
    "errors": "log_count/ERROR",
}


# --- managers -------------------------------------------------------------------------------------


def manager_hash(new: NewManager) -> str:
    """Return the fingerprint of class and options, which is the same for a repeated start."""
    return request_fingerprint(
        json.dumps([new.plan, dict(new.options)], sort_keys=True, ensure_ascii=True)
    )


def manager_row(row: Row) -> ManagerRow:
    """Return the manager of a row."""
    return made(
        ManagerRow,
        row,
        status=RunStatus(row["status"]),
        over=row["is_over"],
        leave=row["leave_runs"],
        stop=stop_of(row),
        ended_by=ended_by(row),
        counts=counts_of(row),
    )


def ended_by(row: Row) -> EndedBy | None:
    """Return who ended the manager: a stop, its class or the service, or ``None`` before its
    end.
    """
    if not RunStatus(row["status"]).terminal:
        return None
    # A close reason from its class may be any string, including this one.
    stopped = row["stop_requested_at"] is not None and row["outcome"] == "cancelled"
    return EndedBy.PERSON if stopped else EndedBy.CRAWLER if row["is_over"] else EndedBy.SERVICE


def counts_of(row: Row) -> ManagerCounts:
    by_state = {state: row[f"jobs_{state}"] for state in JobState}
    return made(ManagerCounts, row, by_state=by_state, skipped=row["jobs_skipped"])


# --- jobs -----------------------------------------------------------------------------------------


def dump_job(job: Job) -> dict[str, Any]:
    return dict(_JOB.dump_python(job, mode="json", exclude_defaults=True))


def jobs_hash(jobs: Sequence[Job]) -> str:
    """Return the fingerprint of a page of jobs."""
    return request_fingerprint(_JOBS.dump_json(list(jobs)).decode())


def load_job(row: Row) -> Job:
    """Return the job of a row with ``item_id`` and ``params``. Raises ``RowUnreadable``."""
    fix = "set spider, spider_args and the other fields of a job"
    return validated(_JOB.validate_python, manager_item, row, "params", "job", fix)


def waiting_row(row: Row) -> Waiting:
    before = row["not_before"]
    return made(
        Waiting,
        row,
        job=load_job(row),
        not_before=before.timestamp() if before is not None else None,
    )


def live_row(row: Row) -> Live:
    """Return a job that holds a slot.

    ``row`` also has the columns ``RUN_FACTS`` of the job's run, if there is one.

    Raises ``RowUnreadable``.
    """
    if row["seq"] is None:
        raise unreadable(
            manager_item,
            row,
            Fault("seq", None, f"a job that is {row['state']} needs a number; set seq"),
        )
    started = row["run_started_at"]
    at = started.timestamp() if started is not None else None
    return made(Live, row, key=job_key(row), job=load_job(row), started_at=at)


def job_key(row: Row) -> str:
    """Return the key of the job: the number of its run, or the request id before the job has a
    run.
    """
    if row["run_id"] is not None:
        return str(row["run_id"])
    return run_request_id(row["manager_id"], row["seq"], row["retry"])


@dataclass(frozen=True, slots=True)
class JobTask:
    """The end of one task of a job's run."""

    outcome: str | None
    retry_note: str | None


@dataclass(frozen=True, slots=True)
class JobRun:
    """The run of a job: its row, the tasks that decide about its end, and the statistics of its
    crawlers.
    """

    row: RunRow
    tasks: Sequence[JobTask] = ()
    statistics: Mapping[str, float] = field(default_factory=dict)


def ended_row(row: Row, run: JobRun | None) -> EndedJob:
    """Return the end of a job, for which hooks must be called.

    ``run`` is ``None`` when the run could not be started.
    """
    live = live_row(row)
    outcome = job_outcome(row, run)
    notes = [] if run is None else [task.retry_note for task in run.tasks]
    ended_by = EndedBy.SERVICE if run is None else run.row.ended_by
    if run is not None and run.row.lacks:
        ended_by = None  # the service judged it, and another try may yield more
    return EndedJob(
        live=live,
        attempt=1 if run is None else run.row.attempt,
        bad=run is None or run.row.status != RunStatus.COMPLETED,
        outcome=outcome,
        retryable=not never_retried(ended_by, notes),
        metadata=metadata_of(row, run),
        tries=row["hook_tries"],
    )


def job_outcome(row: Row, run: JobRun | None) -> str:
    """Return the outcome of the job's run.

    If the run could not be started, the job's own row has the outcome.
    """
    return str((row["outcome"] if run is None else outcome_of(run.row, run.tasks)) or "failed")


def metadata_of(row: Row | None, run: JobRun | None) -> dict[str, Any]:
    """Return a job in the form of Scrapy Cloud.

    ``row`` is the manager's job, or ``None`` for a run of another owner.
    """
    job = None if row is None or row["params"] is None else load_job(row)
    if run is not None:
        spider, units = (job.spider, job.units) if job is not None else (None, None)
        found = job_metadata(run.row, run.tasks, run.statistics, spider=spider, units=units)
        began = run.row.created_at
        key = str(run.row.run_id)
    else:
        assert row is not None, "a run or a job"
        found = _without_run(row, job)
        began = row["created_at"]
        key = job_key(row)
    project = None if job is None else job.project_id
    return {
        "key": key,
        **found,
        "project_id": project,
        "pending_time": int(began.timestamp() * 1000),
    }


def state_of(status: RunStatus | str) -> str:
    """Return the state of a run in Scrapy Cloud's words: ``pending``, ``running`` or
    ``finished``.
    """
    return next(state for state, statuses in STATES.items() if status in statuses)


def outcome_of(run: RunRow, tasks: Sequence[JobTask]) -> str | None:
    """Return the outcome for Scrapy Cloud's ``close_reason``, or ``None`` before the end.

    A single-process run has the outcome of its task, which also shows how the crawler ended after a
    stop. ``tasks`` are those of the run's current attempt.
    """
    if state_of(run.status) != "finished":
        return None
    own = (
        tasks[0].outcome
        if len(tasks) == 1 and not run.multi and run.ended_by != EndedBy.SERVICE
        else None
    )
    return own or run.outcome


def job_metadata(
    run: RunRow,
    tasks: Sequence[JobTask] = (),
    statistics: Mapping[str, float] | None = None,
    *,
    spider: str | None = None,
    units: int | None = None,
) -> dict[str, Any]:
    """Return a run as the metadata of a job.

    Times are milliseconds since the epoch. Unknown values are ``None``.

    ``spider`` and ``units`` are those of the job, if a manager started the run.
    """
    counted = {name: getattr(run, ours) for ours, name in COUNTER_NAMES.items()}
    return {
        "state": state_of(run.status),
        "close_reason": outcome_of(run, tasks),
        "spider": spider or run.crawler,
        "spider_args": dict(_mapping(run.request.get("args"))),
        "job_settings": dict(_mapping(run.request.get("settings"))),
        "tags": _list(run.request.get("tags")),
        "units": units,
        "running_time": _milliseconds(run.started_at),
        "finished_time": _milliseconds(run.ended_at),
        **{
            name: getattr(run, name)
            for name in ("items", "pages", "errors", "run_id", "attempt", "cause")
        },
        "scrapystats": dict(
            statistics or {name: value for name, value in counted.items() if value is not None}
        ),
    }


def _milliseconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _without_run(row: Row, job: Job | None) -> dict[str, Any]:
    """Return the metadata of a job whose run does not exist yet, or can never be started."""
    over = row["error"] is not None
    nothing = ("running_time", "finished_time", "items", "pages", "errors", "run_id")
    return {
        "state": "finished" if over else "pending",
        "close_reason": row["outcome"],
        **asdict(job or Job("")),
        "scrapystats": {},
        "attempt": 1,
        "cause": row["error"],
        **dict.fromkeys(nothing),
    }


def listed_job(row: Row, *, over: bool) -> JobRow:
    """Return a job as an entry in a list. An invalid job is reported in ``unreadable``.

    ``over`` is true if the job's manager has ended. A started job then counts as ended if its run
    has ended.
    """
    if over and row["state"] == JobState.STARTED and row["run_status"] in (None, *OVER_RUNS):
        row = {
            **row,
            "state": JobState.ENDED.value,
            "outcome": row["outcome"] or row["run_outcome"],
        }
    job = None
    wrong = None
    try:
        job = None if row["params"] is None else load_job(row)
    except RowUnreadable as error:
        wrong = str(error)
    return made(JobRow, row, state=JobState(row["state"]), job=job, unreadable=wrong)
