"""From rows of managers and their jobs to the values of the ports, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.manager import (
    Ended,
    Job,
    JobState,
    Live,
    Waiting,
    never_retried,
    run_request_id,
)
from crawler_lifecycle.domain.names import request_fingerprint
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.store.managers import JobRow, ManagerCounts, ManagerRow, NewManager, PlanRow
from crawler_lifecycle.ports.values import UnknownStatus

from .columns import Broken, json_text
from .row_validation import Fault, check, salvaged, unreadable
from .rows import Row, stop_of
from .tables import manager, manager_item

_JOB = TypeAdapter(Job)
_JOBS = TypeAdapter(list[Job])
_STATES = tuple(state.value for state in JobState)
_SAME = tuple(
    name
    for name in ManagerRow.__dataclass_fields__
    if name not in ("status", "leave", "over", "stop", "counts", "unreadable")
)

#: Columns of a run that say how a job's run stands; under names of their own beside the job's.
RUN_FACTS = (
    *("status", "outcome", "cause", "attempt", "multi", "items", "pages", "errors", "started_at", "ended_at"),
    "created_at",
)


# --- managers -----------------------------------------------------------------------------------------------------


def manager_hash(new: NewManager) -> str:
    """Fingerprint of what was asked for: a repeated start has the same."""
    return request_fingerprint(json.dumps([new.plan, dict(new.options)], sort_keys=True, ensure_ascii=True))


def whole_manager(row: Row) -> ManagerRow:
    """One manager. Raises ``RowUnreadable`` when nobody can go on with the row."""
    check(manager, row, graver=True)
    return listed_manager(row)


def listed_manager(row: Row) -> ManagerRow:
    """One manager of many: what cannot be is told in ``unreadable``, and the status is what stands there."""
    values, wrong = salvaged(manager, row)
    stands: str = values["status"]
    status: Any = RunStatus(stands) if stands in RunStatus.__members__ else UnknownStatus(stands)
    return ManagerRow(
        **{name: values[name] for name in _SAME},
        status=status,
        over=values["is_over"],
        leave=values["leave_runs"],
        stop=stop_of(values),
        counts=counts_of(values),
        unreadable=wrong,
    )


def counts_of(row: Row) -> ManagerCounts:
    return ManagerCounts(
        by_state={state: row[f"jobs_{state}"] for state in _STATES},
        yields=row["yields"],
        duplicates=row["duplicates"],
        skipped=row["jobs_skipped"],
        scheduled=row["scheduled"],
        retried=row["retried"],
        good=row["good"],
        bad=row["bad"],
    )


# --- jobs ---------------------------------------------------------------------------------------------------------


def dump_job(job: Job) -> dict[str, Any]:
    return dict(_JOB.dump_python(job, mode="json", exclude_defaults=True))


def jobs_hash(jobs: Sequence[Job]) -> str:
    """Fingerprint of a page of jobs."""
    return request_fingerprint(_JOBS.dump_json(list(jobs)).decode())


def load_job(row: Row) -> Job:
    """The job of a row with ``item_id`` and ``params``. Raises ``RowUnreadable``."""
    try:
        return _JOB.validate_python(row["params"])
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole"
        shown = row["params"].stored if isinstance(row["params"], Broken) else json_text(row["params"])
        fault = Fault("params", shown, f"{field} of the job: {first['msg']}; set spider, spider_args and the like")
        raise unreadable(manager_item, row, fault) from None


def waiting_row(row: Row) -> Waiting:
    check(manager_item, row)
    return Waiting(
        item_id=row["item_id"],
        job=load_job(row),
        seq=row["seq"],
        retry=row["retry"],
        retry_of=row["retry_of"],
        not_before=row["not_before"].timestamp() if row["not_before"] is not None else None,
    )


def live_row(row: Row) -> Live:
    """A job that holds a slot; ``row`` has the columns ``RUN_FACTS`` of its run, if it has one."""
    check(manager_item, row)
    if row["seq"] is None:
        raise unreadable(manager_item, row, Fault("seq", None, f"a job that is {row['state']} has a number: set it"))
    started = row["run_started_at"]
    return Live(
        item_id=row["item_id"],
        key=job_key(row),
        job=load_job(row),
        seq=row["seq"],
        retry=row["retry"],
        cap_key=row["cap_key"],
        started_at=started.timestamp() if started is not None else None,
        pending=row["run_status"] in (None, RunStatus.INITIALIZING),
    )


def job_key(row: Row) -> str:
    """What names the job: its run, and before there is one the id of the request for it."""
    if row["run_id"] is not None:
        return str(row["run_id"])
    return run_request_id(row["manager_id"], row["seq"], row["retry"])


def ended_row(row: Row, task: Mapping[str, Any] | None) -> Ended:
    """An end whose hooks are to run. ``task`` has outcome and exit code of the one task of a single-process run."""
    live = live_row(row)
    outcome, failed, exit_code = outcome_of(row, task), row["run_status"] != RunStatus.COMPLETED, None
    if task is not None:
        exit_code = task["exit_code"]
    return Ended(
        live=live,
        attempt=row["run_attempt"] or 1,
        bad=failed,
        outcome=outcome,
        retryable=not never_retried(outcome, exit_code),
        metadata=_metadata(row, live, outcome),
    )


def outcome_of(row: Row, task: Mapping[str, Any] | None) -> str:
    """Of a single-process run that of its task: the run's own is ``cancelled`` for every stop by a person."""
    own = row["outcome"] if row["run_id"] is None else row["run_outcome"]
    said = task["outcome"] if task is not None and not row["run_multi"] else None
    return str(said or own or "failed")


def _metadata(row: Row, live: Live, outcome: str) -> dict[str, Any]:
    """What Scrapy Cloud tells of a finished job, as far as rows know it."""
    job = live.job
    began, ended = row["run_started_at"], row["run_ended_at"]
    return {
        "state": "finished",
        "close_reason": outcome,
        "spider": job.spider,
        "spider_args": dict(job.spider_args),
        "job_settings": dict(job.job_settings),
        "tags": list(job.tags),
        "units": job.units,
        "running_time": began.timestamp() * 1000 if began is not None else None,
        "finished_time": ended.timestamp() * 1000 if ended is not None else None,
        "items": row["run_items"],
        "pages": row["run_pages"],
        "errors": row["run_errors"],
        "run_id": row["run_id"],
        "attempt": row["run_attempt"],
        "cause": row["run_cause"] if row["run_id"] is not None else row["error"],
    }


def listed_job(row: Row) -> JobRow:
    """One job of many: what cannot be is told in ``unreadable``."""
    values, wrong = salvaged(manager_item, row)
    job: Job | None = None
    if values["params"] is not None:
        try:
            job = load_job(values)
        except RowUnreadable as error:
            wrong = wrong or str(error)
    stands = values["state"]
    return JobRow(
        item_id=values["item_id"],
        state=JobState(stands) if stands in _STATES else stands,
        job=job,
        unreadable=wrong,
        **{n: values[n] for n in ("seq", "retry", "position", "run_id", "outcome", "error", "not_before")},
    )


def plan_row(row: Row) -> PlanRow:
    return PlanRow(**{name: row[name] for name in PlanRow.__dataclass_fields__})
