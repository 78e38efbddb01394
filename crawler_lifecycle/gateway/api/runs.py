"""Routes that read runs. They are plain functions, so FastAPI runs them in threads: the store blocks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

from fastapi import FastAPI, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.names import run_subject
from crawler_lifecycle.domain.overdue import overdue_before
from crawler_lifecycle.gateway.access.operations import check_own
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.runs.commands import as_it_stands, not_found
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.timeline import Timeline, TimelinePage
from crawler_lifecycle.ports import CorrectionReader, RunReader, RunRow, Store

from .answers import (
    CancellationEntry,
    CorrectionPage,
    DeliveryEntry,
    ExportEntry,
    Overdue,
    Run,
    RunDetail,
    RunPage,
    StopOfRun,
    TaskPage,
    entries,
)
from .etags import NOT_MODIFIED, conditional
from .long_poll import WAIT_MAX_S, next_answer
from .manager_answers import ENDED
from .paging import CorrectionFilters, CorrectionsOfRunFilters, Paging, RunFilters, TaskFilters, cut, id_before
from .run_waits import told_by_tasks

RunId = Annotated[int, Path(ge=1, le=ID_MAX)]


def add_readers(app: FastAPI, store: Store, blocked: Blocked, feed: Feed, clock: Callable[[], datetime]) -> None:
    """Add lists, details, timelines and corrections."""
    _add_runs(app, store, blocked, feed, clock)
    timeline = Timeline(store.runs, store.corrections, store.exports, store.events)
    _add_histories(app, store.runs, store.corrections, timeline)


def found(runs: RunReader, run_id: int) -> RunRow:
    """The run. Raises ``RunNotFound``."""
    row = runs.get_run(run_id)
    if row is None:
        raise not_found(run_id)
    return row


def _add_runs(app: FastAPI, store: Store, blocked: Blocked, feed: Feed, clock: Callable[[], datetime]) -> None:
    @app.get("/v1/runs", operation_id="listRuns", response_model=RunPage, responses=NOT_MODIFIED)
    def list_runs(filters: Annotated[RunFilters, Query()], request: Request) -> Response:
        """Runs, newest first, that fit every given filter; ``status`` and ``tag`` may be given several times."""
        filters.check()
        rows = store.runs.list_runs(
            before_run_id=decode("run", filters.page_token),
            limit=filters.page_size + 1,
            status=filters.status,
            stage=filters.stage,
            crawler=filters.crawler,
            trigger=filters.trigger,
            outcome=filters.outcome,
            flow_id=filters.flow_id,
            parent=filters.parent,
            tags=filters.tag,
            created_from=filters.created_from,
            created_until=filters.created_until,
        )
        page, token = cut("run", rows, filters.page_size, lambda row: row.run_id)
        now = clock()
        runs = [Run.of(row, now, blocked=blocked.listed(row)) for row in page]
        overdue = Overdue.of(store.overdue.overdue_looks(overdue_before(now)), now)
        return conditional(request, RunPage(runs=runs, next_page_token=token, overdue=overdue))

    @app.get("/v1/runs/{run_id}", operation_id="getRun", response_model=RunDetail, responses=NOT_MODIFIED)
    async def get_run(
        run_id: RunId, request: Request, wait: Annotated[int, Query(ge=0, le=WAIT_MAX_S)] = 0
    ) -> Response:
        """One run: its state, when that was last verified, its tasks by status, its stops, exports and deliveries.

        With ``wait`` the answer comes as soon as it is another one than ``If-None-Match`` names, or after so many
        seconds (then 304). Without that header: as soon as anything about the run changes; at once if it has ended.
        """

        async def read() -> RunDetail:
            row = await run_in_threadpool(found, store.runs, run_id)
            return await run_in_threadpool(detail_of, row, await blocked.of(row))

        if not wait:
            return conditional(request, await read())
        return await next_answer(request, feed, run_subject(run_id), wait, read, lambda run: run.status in ENDED)

    @app.get("/v1/runs/{run_id}/stop", operation_id="getStop")
    def get_stop(run_id: RunId) -> StopOfRun:
        """Whether a run is to end, and by force. A crawler may ask this of its own run with the token it was given."""
        try:
            row = found(store.runs, run_id)
        except RowUnreadable:  # a crawler that is to be killed hears of it all the same
            row = as_it_stands(store.runs, run_id)
            check_own(row.ref)
            wishes = [one["force"] for one in store.runs.cancellations(run_id) if one["attempt"] == row.attempt]
            stop = row.stop
            return StopOfRun(
                run_id=run_id,
                asked=bool(wishes) or stop is not None,
                force=True in wishes or (stop is not None and stop.force is True),
            )
        check_own(row.ref)
        return StopOfRun(run_id=run_id, asked=row.stop is not None, force=row.stop is not None and row.stop.force)

    def detail_of(row: RunRow, why_blocked: str | None) -> RunDetail:
        run_id = row.run_id
        return RunDetail.of(
            row,
            clock(),
            blocked=why_blocked,
            known=told_by_tasks(store.tasks, row),
            request=row.request,
            tasks=store.tasks.count_tasks(run_id).positive(),
            exports=entries(ExportEntry, store.exports.list_exports(run_id), run_id),
            cancellations=entries(CancellationEntry, store.runs.cancellations(run_id), run_id),
            deliveries=entries(DeliveryEntry, store.events.deliveries(run_id, keyed=True), run_id),
            resumption=store.runs.resumption(run_id) if row.attempt > 1 else [],
        )

    @app.get("/v1/runs/{run_id}/tasks", operation_id="listTasks", response_model=TaskPage, responses=NOT_MODIFIED)
    def list_tasks(run_id: RunId, filters: Annotated[TaskFilters, Query()], request: Request) -> Response:
        """Tasks of a run; those that a later attempt replaced only with ``superseded=true``."""
        after = decode("task", filters.page_token)
        if after is None:
            found(store.runs, run_id)
        rows = store.tasks.list_tasks(
            run_id, after_task_id=after or 0, limit=filters.page_size + 1, superseded=filters.superseded
        )
        page, token = cut("task", rows, filters.page_size, lambda row: row.task_id)
        return conditional(request, TaskPage(tasks=page, next_page_token=token))


def _add_histories(app: FastAPI, runs: RunReader, corrections: CorrectionReader, timeline: Timeline) -> None:
    @app.get(
        "/v1/runs/{run_id}/timeline", operation_id="getTimeline", response_model=TimelinePage, responses=NOT_MODIFIED
    )
    def get_timeline(run_id: RunId, paging: Annotated[Paging, Query()], request: Request) -> Response:
        """Everything that happened to a run: changes of status with the cluster's time, ours and the lag between,
        corrections, stops, exports and deliveries, each with a sentence for people."""
        return conditional(request, timeline.page(found(runs, run_id), paging.page_token, paging.page_size))

    @app.get(
        "/v1/runs/{run_id}/corrections",
        operation_id="listCorrectionsOfRun",
        response_model=CorrectionPage,
        responses=NOT_MODIFIED,
    )
    def list_corrections_of_run(
        run_id: RunId, filters: Annotated[CorrectionsOfRunFilters, Query()], request: Request
    ) -> Response:
        """What was recorded about a run and turned out to be untrue."""
        after = decode("correction", filters.page_token)
        if after is None:
            found(runs, run_id)
        return conditional(request, _corrections(corrections, run_id, after or 0, filters))

    @app.get("/v1/corrections", operation_id="listCorrections", response_model=CorrectionPage, responses=NOT_MODIFIED)
    def list_corrections(filters: Annotated[CorrectionFilters, Query()], request: Request) -> Response:
        """Corrections of all runs, oldest first, from ``since`` on."""
        after = decode("correction", filters.page_token)
        if after is None:
            after = id_before(corrections, filters.since) if filters.since else 0
        return conditional(request, _corrections(corrections, None, after, filters))


def _corrections(
    corrections: CorrectionReader, run_id: int | None, after: int, filters: CorrectionsOfRunFilters | CorrectionFilters
) -> CorrectionPage:
    rows = corrections.list_corrections(run_id, after, filters.page_size + 1, kind=filters.kind)
    page, token = cut("correction", rows, filters.page_size, lambda row: row.id)
    return CorrectionPage(corrections=page, next_page_token=token)
