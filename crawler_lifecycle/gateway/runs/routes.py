"""Routes of runs: commands, uploads of their tasks, lists and details."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.bounds import INT_MAX
from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.item_code import code_groups
from crawler_lifecycle.domain.names import run_subject
from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.gateway.access.operations import caller_name, check_own, signed
from crawler_lifecycle.gateway.api.lists import counted, page_of
from crawler_lifecycle.gateway.api.long_poll import Wait, conditional, documents, next_answer
from crawler_lifecycle.gateway.api.paging import (
    ArchiveChoice,
    CorrectionFilters,
    CorrectionsOfRunFilters,
    Id,
    Paging,
    RunFilters,
    TaskFilters,
    cut,
    id_before,
)
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.timeline import Timeline, TimelinePage
from crawler_lifecycle.ports.protocols import TaskBundles
from crawler_lifecycle.ports.runs import RunRow, RunTasks, TaskCounts, Ticket
from crawler_lifecycle.store.runs.corrections import CorrectionStore
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.tasks import TaskReader
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.web.problems import Problem

from .answers import (
    Accepted,
    CorrectionPage,
    Overdue,
    Run,
    RunCodes,
    RunDetail,
    RunPage,
    StopOfRun,
    TaskPage,
    UploadPart,
    UploadTicket,
    facts_of_line,
    facts_of_tasks,
)
from .blocked import BlockedRuns
from .commands import CommandResult, Commands, as_it_stands, found
from .deliveries import Deliveries, reading
from .requests import (
    AddedTasks,
    AddTasksBody,
    BodyOf,
    IdempotencyKey,
    OptionalBodyOf,
    ResendExport,
    ResumeRun,
    StartRun,
    StopRun,
)

#: The media types of an archive.
_ZIP = "application/zip"
#: For clients that are generated from the OpenAPI document and do not know zip.
_BYTES = "application/octet-stream"

RunId = Id


def add_commands(app: FastAPI, commands: Commands, clock: Clock) -> None:
    """Add the routes of commands: start, stop, resume, delete, poll and child tasks."""

    def answer(outcome: CommandResult[RunRow]) -> Accepted:
        return Accepted.of(outcome.row, clock(), note=outcome.note)

    @app.post("/v1/runs", status_code=202)
    async def start_run(
        body: BodyOf[StartRun], response: Response, idempotency_key: IdempotencyKey = None
    ) -> Accepted:
        """Start a run.

        A repeat with the same ``Idempotency-Key`` and body returns the same run, at any time.
        """
        outcome = await commands.start(signed(body), idempotency_key)
        outcome.mark(response, f"/v1/runs/{outcome.row.run_id}")
        return answer(outcome)

    @app.post(
        "/v1/runs/{run_id}/stop",
        status_code=202,
        responses={
            200: {
                "model": Accepted,
                "description": "The run has ended, or this stop was already recorded",
            }
        },
    )
    async def stop_run(
        run_id: RunId, body: OptionalBodyOf[StopRun], response: Response
    ) -> Accepted:
        """Stop a run, gracefully or by force.

        The response is sent after the stop is recorded.
        """
        outcome = await commands.stop(run_id, signed(body))
        response.status_code = 202 if outcome.fresh else 200
        return answer(outcome)

    @app.post("/v1/runs/{run_id}/resume", status_code=202)
    async def resume_run(run_id: RunId, body: OptionalBodyOf[ResumeRun]) -> Accepted:
        """Resume a run that has ended. This begins its next attempt."""
        return answer(await commands.resume(run_id, signed(body)))

    @app.delete("/v1/runs/{run_id}", status_code=202)
    async def delete_run(
        run_id: RunId,
        requested_by: Annotated[str | None, Query(min_length=1, max_length=255)] = None,
    ) -> Accepted:
        """Delete the data of an ended run: files, archives, logs, arguments, the content of events,
        and Temporal's histories.

        A short row stays. Its `deleted` lists the deleted data, and the remaining data with the
        reasons. A repeat returns the progress.
        """
        return answer(await commands.delete(run_id, requested_by or caller_name()))

    @app.post("/v1/runs/{run_id}/poll", status_code=202)
    async def poll_run(run_id: RunId) -> Accepted:
        """Poll the tasks of a run now, before the next scheduled poll."""
        return answer(await commands.poll(run_id))

    @app.post("/v1/runs/{run_id}/tasks", status_code=202)
    async def add_tasks(
        run_id: RunId, body: BodyOf[AddTasksBody], idempotency_key: IdempotencyKey = None
    ) -> AddedTasks:
        """Add child tasks to a live run.

        A crawler may call this for its own run, with its own token.
        """
        return await commands.add_tasks(run_id, body, idempotency_key)


def add_uploads(app: FastAPI, tasks: TaskReader, bundles: TaskBundles | None) -> None:
    """Add the route that gives out addresses for the supporting files of tasks in pods."""

    @app.post("/v1/runs/{run_id}/tasks/{index}/attempts/{attempt}/files")
    async def upload_files(
        run_id: RunId,
        index: Annotated[int, Path(ge=0, le=INT_MAX)],
        attempt: Annotated[int, Path(ge=1, le=INT_MAX)],
        body: BodyOf[UploadPart],
    ) -> UploadTicket:
        """An address in object storage for one part of a task's supporting files.

        The task's runner calls this.
        """
        ticket = await run_in_threadpool(_ticket, tasks, bundles, (run_id, index, attempt), body)
        return UploadTicket.from_row(ticket)


def add_deliveries(app: FastAPI, deliveries: Deliveries, clock: Clock) -> None:
    """Add the routes that repeat deliveries and download archives."""

    @app.post("/v1/runs/{run_id}/export", status_code=202)
    async def resend_export(run_id: RunId, body: OptionalBodyOf[ResendExport]) -> Accepted:
        """Repeat the deliveries of an ended run: the event ``run.ended``, failed pushes, and the
        supporting files.
        """
        outcome = await deliveries.resend(run_id, body)
        return Accepted.of(outcome.row, clock(), note=outcome.note)

    @app.get(
        "/v1/runs/{run_id}/archive",
        response_class=StreamingResponse,
        responses={
            200: {
                "content": {
                    kind: {"schema": {"type": "string", "format": "binary"}}
                    for kind in (_ZIP, _BYTES)
                },
                "description": "The zip of the supporting files",
            }
        },
    )
    def download_archive(
        run_id: RunId, choice: Annotated[ArchiveChoice, Query()], request: Request
    ) -> StreamingResponse:
        """The supporting files of a run's newest archived attempt, or of the given attempt."""
        chunks, headers = deliveries.download(run_id, choice.attempt)
        accept = request.headers.get("accept", "")
        kind = _BYTES if _BYTES in accept and _ZIP not in accept else _ZIP
        return StreamingResponse(chunks, media_type=kind, headers=headers)


_ALIVE = {status.value for status in TaskStatus if not status.terminal}


def no_task(run_id: int, index: int, attempt: int) -> Problem:
    """Return the problem 404 for a task that does not exist, or that the caller may not see."""
    detail = (
        f"run {run_id} has no task {index} of attempt {attempt}; GET "
        f"/v1/runs/{run_id}/tasks lists them"
    )
    return Problem(404, "task_not_found", detail, run_id=run_id)


def _ticket(
    tasks: TaskReader, bundles: TaskBundles | None, key: tuple[int, int, int], body: UploadPart
) -> Ticket:
    """Return an address for one part of the files of a live task. The bytes do not pass through the
    gateway.

    Raises ``Problem`` 404, 409 or 503, and ``InvalidRequest``.
    """
    run_id, index, attempt = key
    if bundles is None:
        detail = (
            "this gateway has no storage for files; set its LIFECYCLE_CLUSTER__FILES_URL to the "
            "value that the "
            "scheduler service has"
        )
        raise Problem(409, "not_in_this_state", detail, run_id=run_id)
    found = tasks.recorded_tasks([key])
    if not found:
        raise no_task(run_id, index, attempt)
    check_own(found[0].run)
    if found[0].status not in _ALIVE:
        # Earlier addresses expire, and after that nobody can change the files of an ended task.
        detail = (
            f"task {index} of attempt {attempt} of run {run_id} is {found[0].status}; it accepts "
            "no more files"
        )
        raise Problem(409, "not_in_this_state", detail, run_id=run_id)
    with reading(run_id):
        return bundles.ticket(found[0].run, index, attempt, body.part, body.bytes, body.md5)


#: The maximum number of ended runs whose task counts are cached, so that lists do not count them
#: again.
ENDED_MAX = 5_000
_NO_TASKS = RunTasks(TaskCounts({}))
#: Filters that do not have the same name in the store.
_OWN = {"page_size", "page_token", "tag", "project", "search", "sort"}


def add_readers(app: FastAPI, store: Store, views: RunViews, feed: Feed) -> None:
    """Add the routes of lists, details, timelines and corrections."""
    _add_runs(app, store, views, feed)
    timeline = Timeline(store.runs, store.tasks, store.corrections, store.exports, store.events)
    _add_histories(app, store.runs, store.corrections, timeline)


@dataclass(eq=False)
class RunViews:
    """Reads runs for responses: a page of runs, or one run with all its fields."""

    store: Store
    blocked: BlockedRuns
    clock: Clock
    _ended: dict[tuple[str, int] | None, RunTasks] = field(default_factory=dict)
    """Facts about the tasks of ended attempts, which no longer change."""

    def listed(self, filters: RunFilters) -> tuple[RunPage, dict[int, RunTasks]]:
        """Return the runs that match the filters, newest first, and facts about the tasks of each.

        Raises ``InvalidRequest`` and ``Problem`` 422. This call blocks.
        """
        filters.check()
        with narrowed(filters.project), self.store.database.together():
            return self._listed(filters)

    def _listed(self, filters: RunFilters) -> tuple[RunPage, dict[int, RunTasks]]:
        runs = self.store.runs
        wanted = _wanted(filters)
        newest = partial(runs.list_runs, **wanted)
        search = partial(runs.search_runs, **wanted)
        page, more = page_of("runs", filters, newest, search, lambda row: row.run_id)
        now = self.clock()
        overdue = Overdue.of(self.store.overdue.overdue_polls(now), now)
        tasks = self.tasks_of(page)
        return RunPage(
            runs=[self.of(row, now, tasks[row.run_id]) for row in page], overdue=overdue, **more
        ), tasks

    def counted(self, filters: RunFilters, page: RunPage) -> tuple[int, bool]:
        """Return the number of runs that match the filters, and whether it is exact. This call
        blocks.
        """
        with narrowed(filters.project):
            count = partial(self.store.runs.count_found, **_wanted(filters))
            return counted(filters, page, len(page.runs), count)

    def of(self, row: RunRow, now: datetime, tasks: RunTasks | None = None) -> Run:
        """Return one run as in a list.

        With ``tasks``, its ``waiting`` also considers facts about its tasks.
        """
        known = {} if tasks is None else {"tasks": tasks.counts.positive(), "reason": tasks.reason}
        return Run.of(row, now, blocked=self.blocked.listed(row), known=known)

    def tasks_of(self, rows: Sequence[RunRow]) -> dict[int, RunTasks]:
        """Return facts about the tasks of each of these runs. This call blocks."""
        keys = {
            row.run_id: (row.run_uid, row.attempt) if row.status.terminal else None for row in rows
        }
        known = {run_id: self._ended[key] for run_id, key in keys.items() if key in self._ended}
        asked = [run_id for run_id in keys if run_id not in known]
        found = self.store.tasks.tasks_of_runs(asked)
        if len(self._ended) > ENDED_MAX:
            self._ended = {}
        for run_id in asked:
            known[run_id] = found.get(run_id, _NO_TASKS)
            if (key := keys[run_id]) is not None:
                self._ended[key] = known[run_id]
        return known

    async def detail(self, run_id: int) -> RunDetail:
        """Return one run with all its fields. Raises ``Problem`` 404."""
        return await self.detail_of(await run_in_threadpool(found, self.store.runs, run_id))

    async def detail_of(self, row: RunRow) -> RunDetail:
        """Return one run with all its fields, from a row that was already read."""
        detail = self.store.database.together()(self._detail)
        return await run_in_threadpool(detail, row, await self.blocked.of(row))

    def _detail(self, row: RunRow, why_blocked: str | None) -> RunDetail:
        run_id = row.run_id
        store = self.store
        return RunDetail.of(
            row,
            self.clock(),
            blocked=why_blocked,
            known={**facts_of_tasks(store.tasks, row), **facts_of_line(store, row)},
            request=row.request,
            tasks=store.tasks.count_tasks(run_id).positive(),
            exports=store.exports.list_exports(run_id),
            cancellations=store.runs.cancellations(run_id),
            deliveries=store.events.deliveries(run_id, keyed=True),
            robots=store.sites.robots_of_run(run_id),
            resumption=store.runs.resumption(run_id) if row.attempt > 1 else [],
        )


def _wanted(filters: RunFilters) -> dict[str, Any]:
    """Return the filters by the names that the store uses."""
    return {
        **filters.model_dump(include=RunFilters.model_fields.keys() - _OWN),
        "tags": filters.tag,
    }


def _add_runs(app: FastAPI, store: Store, views: RunViews, feed: Feed) -> None:
    @app.get("/v1/runs", **documents(RunPage))
    def list_runs(filters: Annotated[RunFilters, Query()], request: Request) -> Response:
        """The runs that match all given filters, newest first.

        ``status`` and ``tag`` can be given several times.

        ``search`` selects runs with all words of this text, each of them as a whole word or as the
        beginning of one, in their number, crawler, tags, flow, error texts or arguments, ignoring
        case and accents. ``note`` names what the search omitted. ``sort`` selects another order:
        crawler, status, outcome, verified_at, pages, items, errors, started_at, took or trigger,
        with a leading ``-`` for the largest first; it covers only the newest 2,000 runs that match.

        ``waits`` selects live runs by what they are waiting for: a slot in their ``pool`` or
        of a ``site``, an answer of the ``cluster``, the ``scheduler`` service, the time of their
        next try (``retry``), a ``worker``, the ``start`` of their first task, or the ``code`` of a
        task.

        ``attention=true`` selects runs of the last 30 days (or since ``created_from``) that need a
        person. Such a run failed, but not because a person ended it, or its results fell short of
        expectations. In addition, no later good run did the same work (crawler, arguments,
        settings, tasks) or came from the same schedule.
        """
        return conditional(request, views.listed(filters)[0].with_total(filters, views.counted))

    @app.get("/v1/runs/{run_id}", **documents(RunDetail))
    async def get_run(run_id: RunId, request: Request, wait: Wait = 0) -> Response:
        """One run: its status, the time of its last verification, its tasks by status, stops,
        exports and deliveries.

        With ``wait``, the response is sent when it differs from the one that ``If-None-Match``
        names, or after ``wait`` seconds with status 304. Without that header, the response is sent
        after the next change, or immediately if the run has ended.
        """
        read, ended = partial(views.detail, run_id), lambda run: run.status.terminal
        return await next_answer(request, feed, run_subject(run_id), wait, read, ended)

    @app.get("/v1/runs/{run_id}/stop")
    def get_stop(run_id: RunId) -> StopOfRun:
        """Return whether a run must stop, and whether by force.

        A crawler may call this for its own run, with its own token."""
        wishes: list[Any] = []
        try:
            row = found(store.runs, run_id)
        except RowUnreadable:  # a crawler must see a stop even in this case
            row = as_it_stands(store.runs, run_id)
            wishes = [
                cancellation["force"]
                for cancellation in store.runs.cancellations(run_id)
                if cancellation["attempt"] == row.attempt
            ]
        check_own(row.ref)
        wishes += [] if row.stop is None else [row.stop.force]
        return StopOfRun(run_id=run_id, asked=bool(wishes), force=True in wishes)

    @app.get("/v1/runs/{run_id}/tasks", **documents(TaskPage))
    def list_tasks(
        run_id: RunId, filters: Annotated[TaskFilters, Query()], request: Request
    ) -> Response:
        """The tasks of a run.

        Tasks that a later attempt replaced are included only with ``superseded=true``.
        """
        after = decode("task", filters.page_token)
        found(store.runs, run_id)
        rows = store.tasks.list_tasks(
            run_id,
            after_task_id=after or 0,
            limit=filters.page_size + 1,
            superseded=filters.superseded,
        )
        page, token = cut("task", rows, filters.page_size, lambda row: row.task_id)
        return conditional(request, TaskPage(tasks=page, next_page_token=token))

    @app.get("/v1/runs/{run_id}/codes", **documents(RunCodes))
    def list_codes(run_id: RunId, request: Request) -> Response:
        """The known codes that the tasks of a run executed, with the folders of their files."""
        found(store.runs, run_id)
        codes = code_groups(store.tasks.codes(run_id))
        return conditional(request, RunCodes.model_validate({"codes": codes}))


def _add_histories(
    app: FastAPI, runs: RunReader, corrections: CorrectionStore, timeline: Timeline
) -> None:
    @app.get("/v1/runs/{run_id}/timeline", **documents(TimelinePage))
    def get_timeline(
        run_id: RunId, paging: Annotated[Paging, Query()], request: Request
    ) -> Response:
        """The timeline of a run: changes of status, corrections, stops, exports and deliveries,
        each with a sentence for people.

        Changes of status have the cluster's time, the time of our record, and the lag between them.
        """
        return conditional(
            request, timeline.page(found(runs, run_id), paging.page_token, paging.page_size)
        )

    @app.get("/v1/runs/{run_id}/corrections", **documents(CorrectionPage))
    def list_corrections_of_run(
        run_id: RunId, filters: Annotated[CorrectionsOfRunFilters, Query()], request: Request
    ) -> Response:
        """The corrections of a run: recorded statuses that were untrue, oldest first."""
        after = decode("correction", filters.page_token)
        found(runs, run_id)
        return conditional(request, _corrections(corrections, run_id, after or 0, filters))

    @app.get("/v1/corrections", **documents(CorrectionPage))
    def list_corrections(
        filters: Annotated[CorrectionFilters, Query()], request: Request
    ) -> Response:
        """The corrections of all runs since ``since``, oldest first."""
        after = decode("correction", filters.page_token)
        if after is None:
            after = id_before(corrections, filters.since) if filters.since else 0
        return conditional(request, _corrections(corrections, None, after, filters))


def _corrections(
    corrections: CorrectionStore,
    run_id: int | None,
    after: int,
    filters: CorrectionsOfRunFilters | CorrectionFilters,
) -> CorrectionPage:
    rows = corrections.list_corrections(run_id, after, filters.page_size + 1, kind=filters.kind)
    page, token = cut("correction", rows, filters.page_size, lambda row: row.id)
    return CorrectionPage(corrections=page, next_page_token=token)
