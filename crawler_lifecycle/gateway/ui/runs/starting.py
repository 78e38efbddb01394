"""The form that starts a run. It is empty for a crawler in the catalogue, or contains the values of
an earlier run.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.pools import DEFAULT
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.api.paging import Id
from crawler_lifecycle.gateway.runs.commands import Commands, mapping_of
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.requests import StartRun
from crawler_lifecycle.gateway.ui.parts import crawler_fields
from crawler_lifecycle.gateway.ui.parts import forms as fields
from crawler_lifecycle.gateway.ui.parts.rendering import answer
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.runs.tasks import TaskReader
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.web.problems import Problem, refused
from crawler_lifecycle.web.turns import in_turn

#: The maximum number of tasks of an earlier run that the form contains. Runs with more tasks must
#: be started through the API.
TASKS_SHOWN_MAX = 2000
LIMITS = tuple(field.name for field in dataclasses.fields(Limits))
_PLAIN = (
    "crawler",
    "max_parallel_tasks",
    "flow_id",
    "pool",
    "priority",
    "tags",
    "settings",
    "tasks",
    "project",
    "version",
)
_RESOURCES = ("cpu", "memory")
_KNOWN = frozenset(
    (
        *_PLAIN,
        "key",
        "show",
        *(f"limit.{name}" for name in LIMITS),
        *(f"resources.{name}" for name in _RESOURCES),
    )
)
#: The field of the form for each field of the API.
_PLACES = {name: name for name in _PLAIN} | {
    "args": crawler_fields.PREFIX,
    "limits": "limit.",
    "resources": "resources.",
    "Idempotency-Key": "key",
    "key": "key",
}


def add_start(
    app: FastAPI,
    commands: Commands,
    crawlers: Crawlers,
    store: Store,
    versions: crawler_fields.Versions,
) -> None:
    """Add the routes that show and receive the form."""

    @app.get("/runs/new")
    async def show_start(
        request: Request,
        crawler: str | None = None,
        like: Id | None = None,
    ) -> Response:
        """Show the form of a crawler.

        ``like`` is the number of a run whose values are filled in.
        """
        given: dict[str, str] = {}
        note = executed = None
        if like is not None:
            row = await commands.find(like)
            given, note = await run_in_threadpool(_of_run, row, store.tasks)
            crawler = crawler or row.crawler
            executed = row.request.get("version")
        given |= {"crawler": crawler} if crawler else {}
        return await shown(request, given, note=note, executed=executed)

    @app.post("/runs/new")
    async def press_start(request: Request) -> Response:
        """Start a run and redirect to its page. Sending a form again does not start a second
        run."""
        pairs = await fields.form(request)
        given = dict(pairs)

        async def started() -> str:
            body = await in_turn(len(await request.body()), _body, pairs)
            outcome = await commands.start(signed(body), given.get("key"))
            return f"/runs/{outcome.row.run_id}"

        async def again(problem: Problem) -> Response:
            if problem.status == 422:
                known, _ = await crawlers.last()
                checks = _checks(pairs)
                if not given.get("tasks"):
                    checks += crawler_fields.checks(known, crawlers.problem, given)
                problem.errors += await in_turn(math.inf, lambda: fields.mistakes(*checks))
            return await shown(request, given, problem=problem)

        if "show" in given:
            present_call().admitted = False  # nothing is started
            return await shown(request, given)
        return await fields.sent(started, again)

    async def shown(
        request: Request,
        given: Mapping[str, str],
        *,
        note: str | None = None,
        executed: object = None,
        problem: Problem | None = None,
    ) -> Response:
        known, away = await crawlers.last()
        pools = await run_in_threadpool(store.pools.known_pools)
        key = fields.next_key(given, problem)
        hint = crawler_fields.hint(known, away, given)
        chosen = known.get(given.get("crawler", "").strip())
        values: dict[str, Any] = {
            "crawlers": sorted(known),
            "crawler": chosen,
            "versions": await crawler_fields.version_choices(versions, chosen),
            "executed": executed,
            "away": away,
            "wrong": fields.placed(problem, _PLACES) if problem else hint,
            "pools": [DEFAULT, *sorted({*pools.named} - {DEFAULT})] if pools.counted else [],
            "given": given,
            "key": key,
            "limits": LIMITS,
            "note": note,
        }
        return answer(request, "start.html", status=problem.status if problem else 200, **values)


def _body(pairs: fields.Pairs) -> StartRun:
    """Return the API body for the form. Raises ``Problem`` 422 and ``InvalidRequest``."""
    given = fields.typed(pairs, [*_KNOWN, *(name for name, _ in pairs if name.startswith("arg."))])
    if not given.get("key"):
        raise refused("key", "missing; load the form again")
    body: dict[str, Any] = {
        name: given[name]
        for name in ("crawler", "flow_id", "pool", "project", "version")
        if name in given
    }
    body |= {name: given[name] for name in ("max_parallel_tasks", "priority") if name in given}
    body["args"] = crawler_fields.args_of(given)
    body["limits"] = {name: given[f"limit.{name}"] for name in LIMITS if f"limit.{name}" in given}
    body["resources"] = {
        name: given[f"resources.{name}"] for name in _RESOURCES if f"resources.{name}" in given
    }
    body["tags"] = fields.parts(given.get("tags", ""))
    settings = fields.assignments("settings", given.get("settings", ""))
    body["settings"] = {name: value.strip() for name, value in settings.items()}
    if "tasks" in given:
        body["tasks"] = [{"args": args} for args in fields.objects("tasks", given["tasks"])]
    found = fields.validated(StartRun, body)
    found.request()
    return found


def _checks(pairs: fields.Pairs) -> list[Callable[[], object]]:
    """Return separate checks for the fields, so that an error in one field hides no error in
    another."""
    needed = [(name, text) for name, text in pairs if name in ("key", "crawler")]
    others = [(name, text) for name, text in pairs if name in _KNOWN and text]
    return [partial(_body, [*needed, pair]) for pair in others if pair not in needed]


def _of_run(row: RunRow, tasks: TaskReader) -> tuple[dict[str, str], str | None]:
    """Return the values of the form that would start this run again, and a note about values that
    are missing.
    """
    stored = row.request
    plain = {
        name: stored.get(name)
        for name in ("flow_id", "pool", "priority", "max_parallel_tasks", "project")
    }
    plain |= {f"arg.{name}": value for name, value in mapping_of(stored.get("args")).items()}
    plain |= {f"limit.{name}": value for name, value in mapping_of(stored.get("limits")).items()}
    resources = mapping_of(stored.get("resources"))
    plain |= {f"resources.{name}": value for name, value in resources.items()}
    given = {name: str(value) for name, value in plain.items() if value is not None}
    given["settings"] = "\n".join(
        f"{name}={value}" for name, value in mapping_of(stored.get("settings")).items()
    )
    tags = stored.get("tags")
    given["tags"] = ", ".join(str(tag) for tag in tags) if isinstance(tags, list) else ""
    notes = [
        (
            f"The run had an empty value for {name}. This form cannot send one, so the "
            "default would "
            "be used."
        )
        for name, value in given.items()
        if name.startswith("arg.") and not value.strip()
    ]
    if row.multi:
        own = tasks.list_tasks(row.run_id, limit=TASKS_SHOWN_MAX + 1)
        if len(own) > TASKS_SHOWN_MAX:
            notes.append(
                f"The run has more than {TASKS_SHOWN_MAX} tasks, which are omitted. Use the API "
                "to start it."
            )
        else:
            given["tasks"] = "\n".join(
                json.dumps(dict(task.args), ensure_ascii=False) for task in own
            )
    return given, " ".join(notes) or None
