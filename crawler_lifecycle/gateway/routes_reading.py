"""Routes that only read. They are plain functions, which FastAPI runs in threads: the store blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query
from starlette.responses import PlainTextResponse

from crawler_lifecycle.domain.errors import RunNotFound
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports import RunRow, RunStore
from crawler_lifecycle.problems import Problem

from .paging import ID_MAX, CorrectionFilters, LogChoice, Paging, RunFilters, TaskFilters, cut, decode, id_before
from .schemas import CorrectionPage, Run, RunDetail, RunPage, TaskPage, TimelinePage

RunId = Annotated[int, Path(ge=1, le=ID_MAX)]


def add_readers(app: FastAPI, store: RunStore, clock: Callable[[], datetime]) -> None:
    """Add lists, details, timelines, corrections and logs."""
    _add_runs(app, store, clock)
    _add_histories(app, store)


def _found(store: RunStore, run_id: int) -> RunRow:
    row = store.get_run(run_id)
    if row is None:
        raise RunNotFound(f"run {run_id} does not exist; GET /v1/runs lists what there is")
    return row


def _add_runs(app: FastAPI, store: RunStore, clock: Callable[[], datetime]) -> None:
    @app.get("/v1/runs", operation_id="listRuns")
    def list_runs(filters: Annotated[RunFilters, Query()]) -> RunPage:
        """Runs, newest first."""
        rows = store.list_runs(
            before_run_id=decode("run", filters.page_token),
            limit=filters.page_size + 1,
            status=filters.status,
            crawler=filters.crawler,
            trigger=filters.trigger,
            outcome=filters.outcome,
            flow_id=filters.flow_id,
        )
        page, token = cut("run", rows, filters.page_size, lambda row: row.run_id)
        now = clock()
        return RunPage(runs=[Run.of(row, now) for row in page], next_page_token=token)

    @app.get("/v1/runs/{run_id}", operation_id="getRun")
    def get_run(run_id: RunId) -> RunDetail:
        """One run: its state, when that was last verified, its tasks by status, its stops and exports."""
        row = _found(store, run_id)
        return RunDetail.of(
            row,
            clock(),
            request=row.request,
            tasks={str(status): n for status, n in store.count_tasks(run_id).by_status.items() if n},
            exports=[_public(entry) for entry in store.exports(run_id)],
            cancellations=[_public(entry) for entry in store.cancellations(run_id)],
        )

    @app.get("/v1/runs/{run_id}/tasks", operation_id="listTasks")
    def list_tasks(run_id: RunId, filters: Annotated[TaskFilters, Query()]) -> TaskPage:
        """Tasks of a run; those that a later attempt replaced only with ``superseded=true``."""
        after = decode("task", filters.page_token)
        if after is None:
            _found(store, run_id)
        rows = store.list_tasks(
            run_id, after_task_id=after or 0, limit=filters.page_size + 1, superseded=filters.superseded
        )
        page, token = cut("task", rows, filters.page_size, lambda row: row.task_id)
        return TaskPage(tasks=page, next_page_token=token)


def _add_histories(app: FastAPI, store: RunStore) -> None:
    @app.get("/v1/runs/{run_id}/timeline", operation_id="getTimeline")
    def get_timeline(run_id: RunId, paging: Annotated[Paging, Query()]) -> TimelinePage:
        """Every change of status of a run and of its tasks, with the cluster's time, ours, and the lag between."""
        after = decode("seq", paging.page_token)
        if after is None:
            _found(store, run_id)
        rows = store.transitions(run_id, after or 0, paging.page_size + 1)
        page, token = cut("seq", rows, paging.page_size, lambda row: row.seq)
        return TimelinePage(timeline=page, next_page_token=token)

    @app.get("/v1/runs/{run_id}/corrections", operation_id="listCorrectionsOfRun")
    def list_corrections_of_run(run_id: RunId, paging: Annotated[Paging, Query()]) -> CorrectionPage:
        """What was recorded about a run and turned out to be untrue."""
        after = decode("correction", paging.page_token)
        if after is None:
            _found(store, run_id)
        rows = store.corrections(run_id, after or 0, paging.page_size + 1)
        page, token = cut("correction", rows, paging.page_size, lambda row: row.id)
        return CorrectionPage(corrections=page, next_page_token=token)

    @app.get("/v1/corrections", operation_id="listCorrections")
    def list_corrections(filters: Annotated[CorrectionFilters, Query()]) -> CorrectionPage:
        """Corrections of all runs, oldest first, from ``since`` on."""
        after = decode("correction", filters.page_token)
        if after is None:
            after = id_before(store, filters.since) if filters.since else 0
        rows = store.corrections(None, after, filters.page_size + 1)
        page, token = cut("correction", rows, filters.page_size, lambda row: row.id)
        return CorrectionPage(corrections=page, next_page_token=token)

    @app.get("/v1/runs/{run_id}/logs", operation_id="getLog", response_class=PlainTextResponse)
    def get_log(run_id: RunId, choice: Annotated[LogChoice, Query()]) -> PlainTextResponse:
        """The kept end of a task's log, which is written when the task has ended."""
        _found(store, run_id)
        task_id, status = _task(store, run_id, choice.task)
        tail = store.log_tail(task_id)
        if tail is None:
            kept = "none was kept" if status.terminal else "it is kept when the task has ended"
            raise Problem(404, "log_not_found", f"task {task_id} is {status}, its log is not here; {kept}")
        # A crawler's output is not ours: no browser may take it for a page.
        return PlainTextResponse(tail, headers={"X-Content-Type-Options": "nosniff"})


def _task(store: RunStore, run_id: int, task_id: int | None) -> tuple[int, TaskStatus]:
    if task_id is None:
        main = store.task_page(run_id, list(TaskStatus), limit=1)
        if main:
            return main[0].task_id, main[0].status
        raise Problem(404, "task_not_found", f"run {run_id} has no tasks")
    found = store.list_tasks(run_id, after_task_id=task_id - 1, limit=1, superseded=True)
    if not found or found[0].task_id != task_id:
        cure = f"GET /v1/runs/{run_id}/tasks lists its tasks"
        raise Problem(404, "task_not_found", f"task {task_id} does not belong to run {run_id}; {cure}")
    return found[0].task_id, found[0].status


def _public(entry: Mapping[str, object]) -> dict[str, Any]:
    """A stored entry without the columns that repeat its place."""
    return {name: value for name, value in entry.items() if name not in ("id", "run_id")}
