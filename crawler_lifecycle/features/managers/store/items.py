"""Inserts jobs of managers, and records their runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert, select, update

from crawler_lifecycle.domain.errors import DuplicateRequest, InvalidRequest, NotInThisState
from crawler_lifecycle.domain.names import REQUEST_ID_MAX
from crawler_lifecycle.store.base.bulk import change_in, insert_mappings

from ..domain.manager import Job, JobState, Page, SourceItem, yields_behind
from ..ports import ManagerFence
from .queries import known
from .rows import dump_job, jobs_hash
from .tables import manager_addition, manager_item
from .unit import ManagerPart, ManagerUnit


class ManagerItems(ManagerPart):
    """The methods of ``ManagerStore`` that insert jobs and record their starts."""

    def add_page(self, fence: ManagerFence, page: Page) -> int:
        """Append yields of the source in one transaction. Returns the number of BUFFERED jobs.

        A yield with a new identity becomes BUFFERED, and an invalid one SKIPPED. A known identity
        is only counted. The position and the state of the source are taken from the page. A second
        call with the same page adds nothing. A yield counts once, even if the source is read
        several times. Raises ``InvalidRequest`` if the page omits positions.
        """
        with self._unit(fence.manager_id, fence) as unit:
            row = unit.row
            if page.position < row["position"]:  # a late retry; a later page is already recorded
                return int(row["jobs_buffered"])
            items = yields_behind(page, row["position"])
            added = _insert_new(unit, items)
            # The number of positions that were never read before.
            first_time = max(page.position - row["yields"], 0)
            again = items[len(items) - first_time :]
            duplicates = sum(item.position not in added and item.error is None for item in again)
            skipped = sum(item.error is not None for item in items if item.position in added)
            unit.moved(None, JobState.BUFFERED, len(added) - skipped)
            unit.moved(None, JobState.SKIPPED, skipped)
            unit.count(yields=first_time, duplicates=duplicates)
            # A long source has thousands of pages, so the event of the next cycle reports their
            # results.
            unit.changed = False
            unit.set(exhausted=page.exhausted, source_error=page.error)
            unit.changed = unit.changed or skipped > 0
            unit.row["position"] = page.position
            return int(row["jobs_buffered"])

    def add_jobs(
        self, manager_id: int, jobs: Sequence[Job], request_key: str | None, *, seal: bool = False
    ) -> int:
        """Insert jobs of users as QUEUED, except jobs with known identities.

        Returns the number of new jobs.

        A second call with the same ``request_key`` adds nothing and returns the same number.
        ``seal`` is true if no further jobs will come. Raises ``NotInThisState`` after a stop or the
        end, and ``DuplicateRequest`` if the key belongs to a request with different jobs.
        """
        if request_key is not None and not 0 < len(request_key) <= REQUEST_ID_MAX:
            raise InvalidRequest(
                f"request_key: give 1 to {REQUEST_ID_MAX} characters, not {len(request_key)}"
            )
        with self._unit(manager_id) as unit:
            fingerprint = jobs_hash(jobs)
            if (
                request_key is not None
                and (before := _addition(unit, request_key, fingerprint)) is not None
            ):
                return before
            if unit.status.terminal or unit.row["stop_requested_at"] is not None:
                raise NotInThisState(
                    f"Manager {manager_id} is {unit.status} and accepts no more jobs"
                )
            fresh = _unknown(unit, ((job.identity, job) for job in jobs))
            rows = [
                item_row(unit, job, identity, JobState.QUEUED, None)
                for identity, job in fresh.items()
            ]
            insert_mappings(unit.conn, manager_item, rows)
            unit.moved(None, JobState.QUEUED, len(rows))
            if seal:
                unit.set(sealed=True)
            if request_key is not None:
                unit.conn.execute(
                    insert(manager_addition).values(
                        manager_id=manager_id,
                        request_key=request_key,
                        jobs_hash=fingerprint,
                        jobs=len(rows),
                        created_at=unit.now,
                    )
                )
            return len(rows)

    def job_started(
        self, fence: ManagerFence, item_id: int, run_id: int | None, error: str | None = None
    ) -> None:
        """Record that the run of a job exists, or that it can never be started.

        A second call changes nothing.

        Give either ``run_id`` or ``error``. If ``error`` is given, the job has the outcome
        ``deploy_failed``, and its hooks are called as for any other bad end. Raises
        ``NotInThisState`` unless the job is waiting to start.
        """
        if (run_id is None) == (error is None):
            raise InvalidRequest("run_id: give either run_id or the error that prevents the start")
        i = manager_item.c
        with self._unit(fence.manager_id, fence) as unit:
            query = select(manager_item).where(
                i.item_id == item_id, i.manager_id == unit.manager_id
            )
            row = unit.conn.execute(query).mappings().one_or_none()
            if row is None:
                raise InvalidRequest(
                    f"item_id: {item_id} is not allowed; manager {unit.manager_id} has no such job"
                )
            if row["state"] not in (JobState.STARTING, JobState.QUEUED) or row["seq"] is None:
                if row["run_id"] == run_id:
                    return
                raise NotInThisState(
                    f"Job {item_id} of manager {unit.manager_id} is {row['state']}: it needs "
                    "no start"
                )
            outcome = "deploy_failed" if error is not None else None
            set_items(
                unit, [item_id], JobState.STARTED, run_id=run_id, error=error, outcome=outcome
            )
            unit.moved(JobState(row["state"]), JobState.STARTED, 1)
            unit.changed = error is not None  # the events of the run already report a start


def set_items(unit: ManagerUnit, item_ids: Sequence[int], state: JobState, **values: Any) -> None:
    """Set the state and other columns of these jobs."""
    new = update(manager_item).values(state=state.value, updated_at=unit.now, **values)
    change_in(unit.conn, new, manager_item.c.item_id, item_ids)


def item_row(
    unit: ManagerUnit,
    job: Job | None,
    identity: str | None,
    state: JobState,
    position: int | None,
    **more: Any,
) -> dict[str, Any]:
    """Return a new row of ``manager_item``. All such rows have the same columns."""
    return {
        "manager_id": unit.manager_id,
        "identity": identity,
        "position": position,
        "state": state.value,
        "spider": None if job is None else job.spider,
        "params": None if job is None else dump_job(job),
        **dict.fromkeys(("seq", "retry_of", "cap_key", "not_before", "error")),
        **dict.fromkeys(("retry", "handled_attempt", "hook_tries"), 0),
        "created_at": unit.now,
        "updated_at": unit.now,
        **more,
    }


def moment(seconds: float | None) -> datetime | None:
    """Return valid epoch seconds as a time."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _unknown(unit: ManagerUnit, jobs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the first job of each identity that the manager does not have already."""
    first: dict[str, Any] = {}
    for identity, job in jobs:
        first.setdefault(identity, job)
    there = known(unit.conn, unit.manager_id, first)
    return {identity: job for identity, job in first.items() if identity not in there}


def _insert_new(unit: ManagerUnit, items: Sequence[SourceItem]) -> set[int]:
    """Insert the new yields. Returns their positions."""
    fresh: Mapping[str, SourceItem] = _unknown(
        unit, ((_identity(item), item) for item in items if not item.known)
    )
    rows = []
    for identity, item in fresh.items():
        state = JobState.BUFFERED if item.error is None else JobState.SKIPPED
        rows.append(item_row(unit, item.job, identity, state, item.position, error=item.error))
    insert_mappings(unit.conn, manager_item, rows)
    return {item.position for item in fresh.values()}


def _identity(item: SourceItem) -> str:
    """Return the identity of a yield.

    The identity of an invalid yield is derived from its position and error, so the yield is listed
    once, even if the source is read several times.
    """
    if item.error is None and item.job is not None:
        return item.job.identity
    text = json.dumps(["skipped", item.position, item.error], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _addition(unit: ManagerUnit, request_key: str, fingerprint: str) -> int | None:
    """Return the number of jobs that this key added before, or ``None`` if the key is new.

    Raises ``DuplicateRequest``.
    """
    a = manager_addition.c
    query = select(a.jobs, a.jobs_hash).where(
        a.manager_id == unit.manager_id, a.request_key == request_key
    )
    row = unit.conn.execute(query).one_or_none()
    if row is not None and row.jobs_hash != fingerprint:
        raise DuplicateRequest(
            f"request_key {request_key!r} belongs to other jobs; use a new request_key for these"
        )
    return None if row is None else int(row.jobs)
