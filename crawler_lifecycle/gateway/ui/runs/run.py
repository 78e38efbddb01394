"""The web page of one run: the overview, and the tabs for tasks, timeline and request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.audits.corrections import SOURCES
from crawler_lifecycle.domain.due_ids import schedule_of
from crawler_lifecycle.domain.polling_schedule import POLLING_MINUTES
from crawler_lifecycle.gateway.api.paging import Choice, Id, Paging, TaskFilters, cut
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.runs.answers import RunDetail
from crawler_lifecycle.gateway.runs.commands import found
from crawler_lifecycle.gateway.runs.deliveries import Deliveries
from crawler_lifecycle.gateway.runs.requests import ResendExport
from crawler_lifecycle.gateway.runs.routes import RunId
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.formats import size
from crawler_lifecycle.gateway.ui.parts.forms import form, query_of, read
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    RowPage,
    filters_of,
    held_sorts,
    list_page,
    windowed,
)
from crawler_lifecycle.gateway.ui.parts.notes import Outcome, go_back
from crawler_lifecycle.gateway.ui.parts.rendering import answer, next_page
from crawler_lifecycle.ports.polls import CorrectionRow
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.subjects import RUN

from .columns import TASKS, parent_link
from .figures import (
    EVENTS,
    Earlier,
    Figure,
    counters_over_time,
    differences,
    figures,
)
from .head import RunHead
from .reading import FAILED
from .story import Picture, picture
from .why import ErrorLines

#: The maximum number of corrections that are read, and of changes of status that are drawn.
CORRECTIONS_MAX = 200
CHANGES_MAX = 200
#: The number of tasks whose largest memory is shown.
TASKS_READ = 20


class RunChoice(Choice):
    """The address of the overview. ``compare`` names a run that is shown next to it."""

    compare: Id | None = None


TASKS_OF = Chooser(
    TASKS,
    "",
    "Number, status, reason, argument, node",
    sorts=held_sorts(TASKS.columns[:-1]),
    presets={
        "Current tasks": {},
        "Failed or lost tasks": {"failed": True},
        "Also replaced tasks": {"superseded": True},
    },
)


class PageTasks(TaskFilters, HeldFilters):
    """Filters in the address of a run's tasks. The list begins with the task id ``task``.

    ``failed`` selects the tasks that failed or were lost, of which only the first page is shown.
    """

    task: Id | None = None
    failed: bool = False


class AgainForm(BaseModel):
    """The form that repeats deliveries."""

    model_config = ConfigDict(extra="forbid")

    what: str | None = None


def add_run(
    app: FastAPI, store: Store, head: RunHead, lines: ErrorLines, deliveries: Deliveries
) -> None:
    """Add the web page of a run, and the action that repeats deliveries."""
    clock = head.views.clock

    @app.get("/runs/{run_id}")
    async def show_run(run_id: RunId, request: Request) -> Response:
        """Show the overview of one run, or compare it with another one."""
        choice = query_of(request, RunChoice)
        row, values = await head.read(run_id)
        values["failed"] = await lines.of(row)
        together = store.database.together()(overview)
        values = await run_in_threadpool(together, row, values, choice.compare)
        return answer(request, "run.html", **values)

    def overview(row: RunRow, values: dict[str, Any], compare: int | None) -> dict[str, Any]:
        run: RunDetail = values["run"]
        earlier = Earlier.read(store.runs, row)
        shown = figures(run, earlier, clock())
        memory = store.tasks.peak_memory(run.run_id, TASKS_READ)
        if memory:
            limit = (run.request.get("resources") or {}).get("memory")
            shown.append(Figure("memory", size(memory), limit))
        other = None if compare is None else found(store.runs, compare)
        other_run = other and head.views.of(other, clock())
        corrections = store.corrections.list_corrections(run.run_id, 0, CORRECTIONS_MAX)
        events = store.events.newest_events(run.run_id, EVENTS)
        values |= {
            "figures": shown,
            "picture": drawn(store, run, corrections),
            "earlier": earlier,
            "chart": earlier.chart(row),
            "counters": counters_over_time(run, events, clock()),
            "corrections": corrections,
            "sources": SOURCES,
            "polling_schedule": polling_schedule(run),
            "schedule": schedule_of(run.request_id),
            "parent": parent_link(run.parent),
            "other": other_run,
            "differences": [] if other is None else differences(row, other),
        }
        return values

    @app.get("/runs/{run_id}/tasks")
    async def show_tasks(run_id: RunId, request: Request) -> Response:
        """Show the tasks of a run as a table."""
        filters = filters_of(request, PageTasks)
        _, values = await head.read(run_id)
        find = windowed(TASKS_OF, partial(tasks_of, run_id))
        page = partial(list_page, tab="Tasks", **values)
        return await run_in_threadpool(page, request, TASKS_OF, filters, find)

    def tasks_of(run_id: int, asked: PageTasks) -> RowPage:
        size = asked.page_size
        after = decode("task", asked.page_token) or (asked.task or 1) - 1
        among = None
        if asked.failed:
            failed = store.tasks.task_page(run_id, list(FAILED), limit=size)
            among = [task.task_id for task in failed]
        rows = store.tasks.list_tasks(
            run_id,
            after_task_id=after,
            limit=size + 1,
            superseded=asked.superseded,
            among=among,
        )
        page, token = cut("task", rows, size, lambda task: task.task_id)
        return RowPage(list(map(asdict, page)), token)

    @app.get("/runs/{run_id}/timeline")
    async def show_timeline(
        run_id: RunId, paging: Annotated[Paging, Query()], request: Request
    ) -> Response:
        """Show the timeline of a run, oldest entries first, and its records of other kinds."""
        row, values = await head.read(run_id)
        values |= await run_in_threadpool(history_of, row, paging)
        return answer(request, "timeline.html", sources=SOURCES, **values)

    def history_of(row: RunRow, paging: Paging) -> dict[str, Any]:
        page = head.timeline.page(row, paging.page_token, paging.page_size)
        return {
            "timeline": page.timeline,
            "first": paging.page_token is None,
            "more": next_page(paging, page.next_page_token),
            "corrections": store.corrections.list_corrections(row.run_id, 0, CORRECTIONS_MAX),
            "most": CORRECTIONS_MAX,
            "statistics": store.tasks.statistics(row.run_id),
        }

    @app.get("/runs/{run_id}/request")
    async def show_request(run_id: RunId, request: Request) -> Response:
        """Show the request."""
        _, values = await head.read(run_id)
        return answer(request, "request.html", **values)

    @app.post("/runs/{run_id}/export")
    async def press_export(run_id: RunId, request: Request) -> Response:
        """Repeat the deliveries of an ended run.

        They keep their ids, so that a receiver can ignore duplicates.
        """
        read(AgainForm, await form(request))
        outcome = await deliveries.resend(run_id, ResendExport())
        text = outcome.note or "The deliveries are repeated."
        sent = Outcome(f"run {run_id}", None, True, text)
        return go_back(request, "Send again", sent, RUN.path(run_id))


def drawn(store: Store, run: RunDetail, corrections: Sequence[CorrectionRow]) -> Picture | None:
    """Return the picture of the recorded and the true statuses in the present attempt, or ``None``
    if there are too many changes to draw.
    """
    changes = store.runs.transitions(run.run_id, limit=CHANGES_MAX)
    if len(changes) + len(corrections) >= CHANGES_MAX:
        return None
    mine = [change for change in changes if change.attempt == run.attempt]
    wrong = [correction for correction in corrections if correction.attempt == run.attempt]
    ids = {change.task_id for change in mine if change.task_id is not None}
    return picture(run, mine, wrong, store.tasks.task_indexes(ids))


def polling_schedule(run: RunDetail) -> list[tuple[float, bool]]:
    """Return the minutes between polls.

    ``True`` marks the present interval, as far as the times of polls show it.
    """
    own = run.request.get("poll_minutes")
    minutes = (
        [float(step) for step in own] if isinstance(own, list) and own else list(POLLING_MINUTES)
    )
    if run.next_poll_at is None or run.verified_at is None or run.status.terminal:
        return [(minute, False) for minute in minutes]
    gap = (run.next_poll_at - run.verified_at).total_seconds() / 60
    nearest = min(range(len(minutes)), key=lambda n: abs(minutes[n] - gap))
    return [(step, n == nearest) for n, step in enumerate(minutes)]
