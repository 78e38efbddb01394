"""The web page of one run.

It first shows whether the status is true, then the reasons, and then the possible actions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from markupsafe import Markup, escape
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.audits.corrections import SOURCES
from crawler_lifecycle.domain.due_ids import schedule_of
from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.names import names_of_workflow
from crawler_lifecycle.domain.polling_schedule import POLLING_MINUTES
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.gateway.api.paging import Id, Paging, TaskFilters, cut
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.runs.answers import RunDetail
from crawler_lifecycle.gateway.runs.commands import found
from crawler_lifecycle.gateway.runs.deliveries import Deliveries
from crawler_lifecycle.gateway.runs.recent import compared
from crawler_lifecycle.gateway.runs.requests import ResendExport
from crawler_lifecycle.gateway.runs.routes import RunId, RunViews
from crawler_lifecycle.gateway.streams.timeline import Timeline, TimelineEntry
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.formats import size, visible
from crawler_lifecycle.gateway.ui.parts.forms import Outcome, form, outcomes_page, read
from crawler_lifecycle.gateway.ui.parts.lists import RowPage, filters_of, list_page
from crawler_lifecycle.gateway.ui.parts.rendering import answer, next_page
from crawler_lifecycle.gateway.ui.runs.columns import TASKS
from crawler_lifecycle.gateway.ui.runs.counters import READ, counters_of
from crawler_lifecycle.gateway.ui.runs.story import told
from crawler_lifecycle.ports.runs import DrawnTask, RunRow, TaskRow
from crawler_lifecycle.store.store import Store

#: The maximum number of tasks that are drawn as squares. The counts and the table include all
#: tasks.
SQUARES_MAX = 10_000
#: The number of squares in one block. A block is sent again if one of its squares changes.
BLOCK = 250
#: The number of squares in one row. Ten rows make a block.
COLUMNS = 25
#: The maximum number of characters in the text of a square. A reason may have thousands of
#: characters for each of ten thousand tasks.
SAID_MAX = 200
#: The maximum number of tasks that are listed in addition to their squares.
FEW = 20
#: The maximum number of timeline entries and of corrections on the page of a run. Other pages have
#: the rest.
ENTRIES_MAX = 200
#: The letter for each status of a task: its first letter, but T for STOPPING.
LETTERS = {status.value: status[0] for status in TaskStatus} | {"STOPPING": "T"}
_STATUSES = {letter: status.lower() for status, letter in LETTERS.items()}


TASKS_OF = Chooser(
    TASKS,
    "",
    presets={"Current tasks": {}, "Also replaced tasks": {"superseded": True}},
)


class PageTasks(TaskFilters):
    """Filters in the address of a run's tasks. The list begins with the task id ``task``."""

    task: Id | None = None


class AgainForm(BaseModel):
    """The form that repeats deliveries."""

    model_config = ConfigDict(extra="forbid")

    what: str | None = None


def add_run(
    app: FastAPI,
    store: Store,
    views: RunViews,
    temporal_page: Callable[[str, str], str | None],
    deliveries: Deliveries,
) -> None:
    """Add the web pages of a run, of its tasks and of its timeline, and the action that repeats
    deliveries.
    """
    clock = views.clock
    timeline = Timeline(store.runs, store.tasks, store.corrections, store.exports, store.events)

    @app.get("/runs/{run_id}")
    async def show_run(run_id: RunId, request: Request) -> Response:
        """Show one run."""
        row = await run_in_threadpool(found, store.runs, run_id)
        together = store.database.together()(shown)
        return await run_in_threadpool(together, request, row, await views.detail_of(row))

    def shown(request: Request, row: RunRow, run: RunDetail) -> Response:
        values: dict[str, Any] = {
            "run": run,
            "polling_schedule": polling_schedule(run),
            "temporal": temporal_page("workflows", run.workflow_id),
            "now": clock(),
            "schedule": schedule_of(run.request_id),
            "manager": names_of_workflow(run.parent or ""),
            **tasks_of(store, run),
            **(history := history_of(store, timeline, row)),
        }
        whole: bool = history["whole_timeline"]
        oldest = history["timeline"][::-1] if whole else history["timeline"]
        values |= told(run, values["tasks"], oldest, whole=whole)
        values["counters"] = counters_of(run, store.events.newest_events(run.run_id, READ), clock())
        return answer(request, "run.html", beside=compared(store.runs, row, clock()), **values)

    @app.get("/runs/{run_id}/tasks")
    def show_tasks(run_id: RunId, request: Request) -> Response:
        """Show the tasks of a run as a table."""
        filters = filters_of(request, PageTasks)
        found(store.runs, run_id)
        path = f"/runs/{run_id}/tasks"
        title = f"Tasks of run {run_id}"
        chooser = replace(TASKS_OF, path=path, title=title, links=[("", f"/runs/{run_id}", "Run")])

        def read_tasks(asked: PageTasks) -> RowPage:
            after = decode("task", asked.page_token) or (asked.task or 1) - 1
            rows = store.tasks.list_tasks(
                run_id, after_task_id=after, limit=asked.page_size + 1, superseded=asked.superseded
            )
            page, token = cut("task", rows, asked.page_size, lambda task: task.task_id)
            return RowPage(list(map(asdict, page)), token)

        return list_page(request, chooser, filters, read_tasks, now=clock())

    @app.get("/runs/{run_id}/timeline")
    def show_timeline(
        run_id: RunId, paging: Annotated[Paging, Query()], request: Request
    ) -> Response:
        """Show the timeline of a run, oldest entries first."""
        row = found(store.runs, run_id)
        page = timeline.page(row, paging.page_token, paging.page_size)
        return answer(
            request,
            "timeline.html",
            run=row,
            now=clock(),
            timeline=page.timeline,
            more=next_page(paging, page.next_page_token),
        )

    @app.post("/runs/{run_id}/export")
    async def press_export(run_id: RunId, request: Request) -> Response:
        """Repeat the deliveries of an ended run.

        They keep their ids, so that a receiver can ignore duplicates.
        """
        read(AgainForm, await form(request))
        outcome = await deliveries.resend(run_id, ResendExport())
        text = outcome.note or "The deliveries are repeated."
        sent = Outcome(f"run {run_id}", f"/runs/{run_id}", True, text)
        return outcomes_page(request, "Send again", [sent], clock())


def tasks_of(store: Store, run: RunDetail) -> dict[str, Any]:
    """Return the tasks as squares, and the few tasks that the page lists: all tasks of a small run,
    or those that failed.
    """
    drawn: Sequence[DrawnTask] = []
    few: Sequence[TaskRow] = []
    unreadable = None
    try:
        drawn = store.tasks.drawn_tasks(run.run_id, SQUARES_MAX + 1)
        bad = [one for one in drawn if one.status in ("FAILED", "LOST")]
        shown = drawn if len(drawn) <= FEW else bad[:FEW]
        few = store.tasks.list_tasks(run.run_id, among=[one.task_id for one in shown])
    except RowUnreadable as error:
        unreadable = str(error)
    made = squares(drawn[:SQUARES_MAX] if len(drawn) > 1 else [])
    more = len(drawn) > SQUARES_MAX
    counts = Counter(run.tasks)
    return {
        "squares": made,
        "tasks": few,
        "few": list(map(asdict, few)),
        "task_subject": TASKS,
        "more_tasks": more,
        "counts": counts,
        "unread": unreadable,
    }


def squares(tasks: Sequence[DrawnTask]) -> list[Markup]:
    """Return one square for each task, as blocks of HTML.

    The number of blocks is fixed, because a page can replace a block but not add one. A square is a
    character and not an HTML element, because ten thousand elements would slow down a browser. A
    block has its complete rows, and then the last row. Both have one text for each status, with
    spaces for the other statuses.

    The attribute ``data-tasks`` has a line with the id and the text of each square. ``squares.js``
    shows that text, and opens the task after a click.
    """
    said: dict[tuple[object, ...], str] = {}
    blocks = []
    for first in range(0, SQUARES_MAX, BLOCK):
        some = tasks[first : first + BLOCK]
        letters = "".join(LETTERS.get(one.status, "?") for one in some)
        whole = len(letters) - len(letters) % COLUMNS
        lines = []
        for one in some:
            about = one[2:]
            if about not in said:
                said[about] = str(escape(visible(about_of(one)))).replace("\n", " ")
            lines.append(f"{one.task_id} {one.task_index}: {said[about]}")
        blocks.append((_pad(letters[:whole]) + _pad(letters[whole:]), "\n".join(lines)))
    made = [f' data-tasks="{lines}">{pads}' if pads else ">" for pads, lines in blocks]
    return [Markup(f'<span id="squares-{n}"{inner}</span>') for n, inner in enumerate(made)]  # noqa: S704


def _pad(letters: str) -> str:
    """Return rows of squares: one text for each status, all drawn in the same position."""
    rows = [letters[n : n + COLUMNS] for n in range(0, len(letters), COLUMNS)]
    layers = []
    for letter in sorted(set(letters)):
        alone = re.sub(f"[^{re.escape(letter)}\n]", " ", "\n".join(rows))
        layers.append(f'<i class="{_STATUSES.get(letter, "")}">{alone}</i>')
    return f"<span>{''.join(layers)}</span>" if letters else ""


def about_of(task: DrawnTask) -> str:
    """Return one line of text about a task."""
    parts = [
        str(task.status),
        task.outcome or "",
        task.cause or task.reason or "",
        f"on {task.node}" if task.node else "",
        exit_of(task),
        f"memory {size(task.peak_memory)}" if task.peak_memory is not None else "",
    ]
    text = ", ".join(part for part in parts if part)
    return text if len(text) <= SAID_MAX else f"{text[:SAID_MAX]}…"


def exit_of(task: DrawnTask) -> str:
    """Return the signal or the exit code of a task's process."""
    if task.exit_signal:
        return f"signal {task.exit_signal}"
    return f"exit {task.exit_code}" if task.exit_code is not None else ""


def history_of(store: Store, timeline: Timeline, row: RunRow) -> dict[str, Any]:
    """Return the history of a run: all entries, newest first, or if they are too many, the first
    entries, oldest first.
    """
    page = timeline.page(row, None, ENTRIES_MAX)
    entries: Sequence[TimelineEntry] = page.timeline
    whole = page.next_page_token is None
    corrections = store.corrections.list_corrections(row.run_id, 0, ENTRIES_MAX + 1)
    return {
        "timeline": list(reversed(entries)) if whole else entries,
        "whole_timeline": whole,
        "corrections": corrections[:ENTRIES_MAX],
        "sources": SOURCES,
        "more_corrections": len(corrections) > ENTRIES_MAX,
        "statistics": store.tasks.statistics(row.run_id),
    }


def polling_schedule(run: RunDetail) -> list[tuple[float, bool]]:
    """Return the minutes between polls.

    ``True`` marks the interval that applies now, as far as the times of polls show.
    """
    own = run.request.get("poll_minutes")
    minutes = (
        [float(one) for one in own] if isinstance(own, list) and own else list(POLLING_MINUTES)
    )
    if run.next_poll_at is None or run.verified_at is None or run.status in ("COMPLETED", "FAILED"):
        return [(minute, False) for minute in minutes]
    gap = (run.next_poll_at - run.verified_at).total_seconds() / 60
    nearest = min(range(len(minutes)), key=lambda n: abs(minutes[n] - gap))
    return [(one, n == nearest) for n, one in enumerate(minutes)]
