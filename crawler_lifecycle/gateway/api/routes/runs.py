"""Routes that read runs. They are plain functions, so FastAPI runs them in threads: the store blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

from fastapi import FastAPI, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.audits.overdue import overdue_before
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.names import run_subject
from crawler_lifecycle.gateway.access.operations import check_own
from crawler_lifecycle.gateway.api.answers import (
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
from crawler_lifecycle.gateway.api.etags import NOT_MODIFIED, conditional
from crawler_lifecycle.gateway.api.long_poll import WAIT_MAX_S, next_answer
from crawler_lifecycle.gateway.api.manager_answers import ENDED
from crawler_lifecycle.gateway.api.paging import (
    CorrectionFilters,
    CorrectionsOfRunFilters,
    Paging,
    RunFilters,
    TaskFilters,
    cut,
    id_before,
)
from crawler_lifecycle.gateway.api.run_waits import told_by_tasks
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.runs.commands import as_it_stands, not_found
from crawler_lifecycle.gateway.runs.recent import Comparison, compared
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.timeline import Timeline, TimelinePage
from crawler_lifecycle.ports.runs import RunRow, RunTasks, TaskCounts
from crawler_lifecycle.store.runs.corrections import CorrectionStore
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.store import Store

#: Runs that have ended whose tasks are remembered, so that lists do not count them again.
ENDED_MAX = 5_000
_NO_TASKS = RunTasks(TaskCounts({}))
RunId = Annotated[int, Path(ge=1, le=ID_MAX)]


def add_readers(app: FastAPI, store: Store, views: RunViews, feed: Feed) -> None:
    """Add lists, details, timelines and corrections."""
    _add_runs(app, store, views, feed)
    timeline = Timeline(store.runs, store.tasks, store.corrections, store.exports, store.events)
    _add_histories(app, store.runs, store.corrections, timeline)


def found(runs: RunReader, run_id: int) -> RunRow:
    """The run. Raises ``RunNotFound``."""
    row = runs.get_run(run_id)
    if row is None:
        raise not_found(run_id)
    return row


class RunViews:
    """Runs as they are answered: a page of them, and one with everything about it."""

    def __init__(self, store: Store, blocked: Blocked, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._blocked = blocked
        self.clock = clock
        #: Tasks of attempts that have ended: nothing changes them any more.
        self._ended: dict[tuple[str, int] | None, RunTasks] = {}

    def page(self, filters: RunFilters) -> RunPage:
        """Runs, newest first, that fit. Blocks. Raises ``InvalidRequest`` and ``Problem`` 422."""
        return self.listed(filters)[0]

    def listed(self, filters: RunFilters) -> tuple[RunPage, dict[int, RunTasks]]:
        """The same, and what there is to say about the tasks of each."""
        filters.check()
        rows = self._store.runs.list_runs(
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
            attention=filters.attention,
        )
        page, token = cut("run", rows, filters.page_size, lambda row: row.run_id)
        now = self.clock()
        overdue = Overdue.of(self._store.overdue.overdue_looks(overdue_before(now)), now)
        tasks = self.tasks_of(page)
        runs = [self.of(row, now, tasks[row.run_id]) for row in page]
        return RunPage(runs=runs, next_page_token=token, overdue=overdue), tasks

    def of(self, row: RunRow, now: datetime, tasks: RunTasks | None = None) -> Run:
        """One run as a list has it; what it waits for tells of its tasks where they are given."""
        known = {} if tasks is None else {"tasks": tasks.counts.positive(), "reason": tasks.reason}
        return Run.of(row, now, blocked=self._blocked.listed(row), known=known)

    def tasks_of(self, rows: Sequence[RunRow]) -> dict[int, RunTasks]:
        """What there is to say about the tasks of each of these runs. Blocks."""
        keys = {row.run_id: (row.run_uid, row.attempt) if row.status.terminal else None for row in rows}
        known = {run_id: self._ended[key] for run_id, key in keys.items() if key in self._ended}
        asked = [run_id for run_id in keys if run_id not in known]
        found = self._store.tasks.tasks_of_runs(asked)
        if len(self._ended) > ENDED_MAX:
            self._ended = {}
        for run_id in asked:
            known[run_id] = found.get(run_id, _NO_TASKS)
            if (key := keys[run_id]) is not None:
                self._ended[key] = known[run_id]
        return known

    async def detail(self, run_id: int) -> RunDetail:
        """One run with everything that is known about it. Raises ``RunNotFound``."""
        return await self.detail_of(await run_in_threadpool(found, self._store.runs, run_id))

    async def detail_of(self, row: RunRow) -> RunDetail:
        """The same of a row that was read."""
        return await run_in_threadpool(self._detail, row, await self._blocked.of(row))

    def _detail(self, row: RunRow, why_blocked: str | None) -> RunDetail:
        run_id, store = row.run_id, self._store
        return RunDetail.of(
            row,
            self.clock(),
            blocked=why_blocked,
            known=told_by_tasks(store.tasks, row),
            request=row.request,
            tasks=store.tasks.count_tasks(run_id).positive(),
            exports=entries(ExportEntry, store.exports.list_exports(run_id), run_id),
            cancellations=entries(CancellationEntry, store.runs.cancellations(run_id), run_id),
            deliveries=entries(DeliveryEntry, store.events.deliveries(run_id, keyed=True), run_id),
            resumption=store.runs.resumption(run_id) if row.attempt > 1 else [],
        )


def _add_runs(app: FastAPI, store: Store, views: RunViews, feed: Feed) -> None:
    @app.get("/v1/runs", operation_id="listRuns", response_model=RunPage, responses=NOT_MODIFIED)
    def list_runs(filters: Annotated[RunFilters, Query()], request: Request) -> Response:
        """Runs, newest first, that fit every given filter; ``status`` and ``tag`` may be given several times.

        ``attention=true``: those of the last 30 days, or from ``created_from`` on, that failed, that no person ended,
        and that no later good run followed, of the same work (crawler, arguments, settings, tasks) or of the same
        schedule.
        """
        return conditional(request, views.page(filters))

    @app.get("/v1/runs/{run_id}", operation_id="getRun", response_model=RunDetail, responses=NOT_MODIFIED)
    async def get_run(
        run_id: RunId, request: Request, wait: Annotated[int, Query(ge=0, le=WAIT_MAX_S)] = 0
    ) -> Response:
        """One run: its state, when that was last verified, its tasks by status, its stops, exports and deliveries.

        With ``wait`` the answer comes as soon as it is another one than ``If-None-Match`` names, or after so many
        seconds (then 304). Without that header: as soon as anything about the run changes; at once if it has ended.
        """

        async def read() -> RunDetail:
            return await views.detail(run_id)

        if not wait:
            return conditional(request, await read())
        return await next_answer(request, feed, run_subject(run_id), wait, read, lambda run: run.status in ENDED)

    @app.get("/v1/runs/{run_id}/comparison", operation_id="compareRun")
    def compare_run(run_id: RunId) -> Comparison:
        """The counters of a run and their rates beside those of its crawler's last run before it that completed."""
        return compared(store.runs, found(store.runs, run_id), views.clock())

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


def _add_histories(app: FastAPI, runs: RunReader, corrections: CorrectionStore, timeline: Timeline) -> None:
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
    corrections: CorrectionStore, run_id: int | None, after: int, filters: CorrectionsOfRunFilters | CorrectionFilters
) -> CorrectionPage:
    rows = corrections.list_corrections(run_id, after, filters.page_size + 1, kind=filters.kind)
    page, token = cut("correction", rows, filters.page_size, lambda row: row.id)
    return CorrectionPage(corrections=page, next_page_token=token)
