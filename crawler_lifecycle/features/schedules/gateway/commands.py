"""Schedules: bodies of requests, and the commands put, trigger and backfill.

If Temporal is unavailable, workers with the role audit update Temporal later, and start the
requested firings.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from pydantic import AwareDatetime, Field, TypeAdapter
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.bounds import check_time, refusal
from crawler_lifecycle.domain.code import CodeVersions
from crawler_lifecycle.domain.due_ids import due_workflow_id
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.projects import DEFAULT, chosen
from crawler_lifecycle.domain.run import ChildTask, RunRequest
from crawler_lifecycle.features.graphs.activities.graphs import checked_run
from crawler_lifecycle.features.graphs.gateway.commands import GraphCommands, StartGraph
from crawler_lifecycle.features.managers.domain.manager import BUILT_IN, NAME_MAX
from crawler_lifecycle.features.managers.gateway.commands import ManagerCommands
from crawler_lifecycle.features.managers.gateway.requests import NAME_PATTERN, StartManager
from crawler_lifecycle.gateway.named import NamedCommands
from crawler_lifecycle.gateway.runs.commands import BY_AUDIT, CommandResult, notify, sentences
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.requests import (
    PauseBody,
    RequestId,
    SignedBody,
    StartRun,
    StrictBody,
    texts,
)
from crawler_lifecycle.web.turns import in_turn

from ..activities.due import run_request
from ..domain.definition import (
    EXCLUDED_MAX,
    Overlap,
    ScheduleSpec,
    TargetKind,
    check_own,
    check_schedule_name,
)
from ..ports import DueOrder, DueRow, ScheduleRow
from ..store.schedules import ScheduleStore
from ..temporal import ScheduleKeeper

_REQUEST = TypeAdapter(RunRequest)


class PutSchedule(SignedBody):
    """Body of ``PUT /v1/schedules/{name}``: the target (``run``, ``manager`` or ``graph``), and its
    times (``cron`` or ``every_s``)."""

    run: StartRun | None = None
    manager: StartManager | None = None
    graph: StartGraph | None = None
    cron: str | None = None
    """Five fields: minute, hour, day, month and weekday, in the local time of ``time_zone``."""
    every_s: int | None = None
    offset_s: int = 0
    time_zone: str = "UTC"
    jitter_s: int = 0
    start_at: AwareDatetime | None = None
    end_at: AwareDatetime | None = None
    excluded: list[date] = Field(default_factory=list, max_length=EXCLUDED_MAX)
    overlap: Overlap = Overlap.SKIP
    catch_up_s: int = 600
    pause_after_failures: int | None = None
    project: str | None = None
    """Only a caller with access to all projects may name a project other than its own."""

    def spec(self) -> ScheduleSpec:
        """Return the definition, with its target in the form in which each firing starts it.

        Raises ``InvalidRequest``.
        """
        for kind in TargetKind:
            target: StrictBody | None = getattr(self, kind)
            check_own(kind, () if target is None else target.model_fields_set)
        same = {name: getattr(self, name) for name in type(self).model_fields if name not in _BUILT}
        return ScheduleSpec(
            run=None if self.run is None else _run(self.run),
            manager=None if self.manager is None else _manager(self.manager),
            graph=None if self.graph is None else _graph(self.graph),
            excluded=[day.isoformat() for day in self.excluded],
            **same,
        )


_BUILT = ("run", "manager", "graph", "excluded", "requested_by", "project")


class PauseSchedule(PauseBody):
    """Body of ``POST /v1/schedules/{name}/pause``. All fields are optional."""


class AskSchedule(SignedBody):
    """Body of ``POST /v1/schedules/{name}/trigger``. All fields are optional."""

    request_id: RequestId | None = None


class Backfill(SignedBody):
    """Body of ``POST /v1/schedules/{name}/backfill``. The body selects the due times after
    ``after`` and up to ``until`` (default: now).
    """

    after: AwareDatetime
    until: AwareDatetime | None = None


def _run(body: StartRun) -> dict[str, Any]:
    request = body.request()
    tasks = None if body.tasks is None else [ChildTask(texts(task.args)) for task in body.tasks]
    found: dict[str, Any] = _REQUEST.dump_python(request, mode="json", exclude_defaults=True)
    if tasks is not None:
        found["tasks"] = [{"args": task.args} for task in tasks]
    return found


def _manager(body: StartManager) -> dict[str, Any]:
    body.check()
    if body.flow() is not None:
        raise InvalidRequest("manager.argv: omit --flow-id; each firing gets its own flow id")
    name = body.name or body.crawler
    if name is None:
        raise InvalidRequest("manager.name: missing; give a name, which identifies its flows")
    if not re.fullmatch(NAME_PATTERN, name):
        raise refusal("manager.name", name, f"give at most {NAME_MAX} letters, digits and _ . -")
    plan = body.plan or BUILT_IN
    return {
        "name": name,
        "plan": plan,
        "options": {"argv": body.command_line()},
        "tags": list(body.tags),
    }


def _graph(body: StartGraph) -> dict[str, Any]:
    body.check()
    body.spec()
    found = {
        "steps": body.steps,
        "context": body.context,
        "tags": list(body.tags),
        "options": dataclasses.asdict(body.options),
    }
    return {**found, **({} if body.name is None else {"name": body.name})}


def check_window(body: Backfill, now: datetime) -> datetime:
    """Return the end of the window of a backfill. Raises ``InvalidRequest``."""
    until = body.until or now
    check_time("after", body.after)
    check_time("until", until)
    if not body.after < until:
        fix = f"give a time later than after, {body.after.isoformat()}"
        raise refusal("until", until.isoformat(), fix)
    if until > now:
        raise refusal("until", until.isoformat(), "it is in the future; give a time in the past")
    return until


#: The maximum number of due times in one backfill.
BACKFILL_MAX = 500


@dataclass(frozen=True)
class ScheduleCommands(NamedCommands[ScheduleRow]):
    """The commands that change schedules."""

    store: ScheduleStore
    crawlers: Crawlers
    managers: ManagerCommands
    graphs: GraphCommands
    versions: CodeVersions
    clock: Clock

    noun = "schedule"

    async def put(self, name: str, body: PutSchedule) -> CommandResult[ScheduleRow]:
        """Create a schedule, or change its definition. A repeat changes nothing."""
        check_schedule_name(name)
        spec = await in_turn(math.inf if body.graph else 0, body.spec)
        before = await self.seen(name)
        project = chosen(body.project, before.project if before else DEFAULT)
        note = await self._check_target(name, body, spec, project)
        return await self._put(name, spec.document(), body.requested_by, body.project, note)

    async def _check_target(
        self, name: str, body: PutSchedule, spec: ScheduleSpec, project: str
    ) -> str | None:
        """Check that the target can be started. Return a note for the caller, if any.

        Raises ``Problem`` 422 or 503.
        """
        if body.run is not None:
            crawler = await self.crawlers.get(body.run.crawler)
            asked = run_request(name, self.clock(), spec, project)
            request = await run_in_threadpool(checked_run, asked, [crawler], self.versions)
            pools = await run_in_threadpool(self.store.known_pools)
            pools.check(request.pool, project)
            return self.crawlers.note()
        if body.manager is not None:
            _, note = await self.managers.check_user_code(body.manager, project)
            return note
        if body.graph is not None:
            graph = await in_turn(math.inf, body.graph.spec)
            return await self.graphs.check_steps(graph.steps, project)
        return None

    async def trigger(
        self, name: str, body: AskSchedule, seen: datetime | None = None, key: str | None = None
    ) -> CommandResult[list[DueRow]]:
        """Fire the schedule now, at most once per second, and return the firing. A repeat with the
        same ``key`` finds this firing.

        Raises ``NotInThisState`` if a person requested a firing after ``seen``, or if another key
        has fired the schedule in the same second.
        """
        await self.find(name)
        before = None if key is None else await run_in_threadpool(self.store.asked_due, name, key)
        now = self.clock().replace(microsecond=0)
        lines, note = await self._ask(name, [now], body.requested_by, "triggered", seen, key)
        return CommandResult(lines, fresh=before is None, note=note)

    async def backfill(self, name: str, body: Backfill) -> tuple[list[DueRow], str | None]:
        """Start the target for the due times in a time window at which nothing started.

        Return their firings, and a note if any.
        """
        row = await self.find(name)
        until = check_window(body, self.clock())
        found = ScheduleSpec.read(row.definition).due_times(body.after, until)
        due = await run_in_threadpool(lambda: list(itertools.islice(found, BACKFILL_MAX + 1)))
        if len(due) > BACKFILL_MAX:
            raise InvalidRequest(
                f"until: this window has more than {BACKFILL_MAX} due times; "
                f"give {due[BACKFILL_MAX - 1].isoformat()}, and send a second request for the rest"
            )
        return await self._ask(name, due, body.requested_by, "backfilled")

    async def _ask(
        self,
        name: str,
        due: Sequence[datetime],
        by: str | None,
        what: str,
        seen: datetime | None = None,
        key: str | None = None,
    ) -> tuple[list[DueRow], str | None]:
        who = by or "somebody over HTTP"
        lines = await run_in_threadpool(
            self.store.ask_due, name, due, who, f"{what} by {who}", seen, key
        )
        waiting = [DueOrder(name, line.due_at) for line in lines if line.target is None]

        async def begin() -> None:
            for order in waiting:
                await self.workflows.start_for(order, due_workflow_id(order.name, order.due_at))

        return lines, await notify(begin(), f"the firings of schedule {name}", BY_AUDIT)

    async def _kept(
        self, row: ScheduleRow, fresh: bool = True, note: str | None = None
    ) -> CommandResult[ScheduleRow]:
        keeper = ScheduleKeeper(self.store, self.workflows, self.clock)
        later = await notify(keeper.keep(row.name), f"schedule {row.name}", BY_AUDIT)
        found = await run_in_threadpool(self.store.get, row.name)
        return CommandResult(found or row, fresh, sentences(note, later))
