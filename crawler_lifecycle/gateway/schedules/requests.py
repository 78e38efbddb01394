"""Bodies of requests that do something to schedules."""

from __future__ import annotations

import dataclasses
import re
from datetime import date
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, TypeAdapter

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.manager import BUILT_IN, NAME_MAX
from crawler_lifecycle.domain.run import ChildTask, RunRequest
from crawler_lifecycle.domain.schedules.definition import EXCLUDED_MAX, Overlap, ScheduleSpec, TargetKind, check_own
from crawler_lifecycle.gateway.graphs.commands import StartGraph
from crawler_lifecycle.gateway.managers.requests import NAME_PATTERN, StartManager
from crawler_lifecycle.gateway.runs.requests import Person, RequestId, StartRun, StrictBody, texts

_REQUEST = TypeAdapter(RunRequest)


class PutSchedule(StrictBody):
    """Body of ``PUT /v1/schedules/{name}``: what begins (one of ``run``, ``manager``, ``graph``), and when (``cron`` or
    ``every_s``)."""

    run: StartRun | None = None
    manager: StartManager | None = None
    graph: StartGraph | None = None
    cron: str | None = None
    """Five fields: minute, hour, day, month, weekday, by the clock of ``time_zone``."""
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
    requested_by: Person | None = None

    def spec(self) -> ScheduleSpec:
        """The definition, with its target as due times begin it. Raises ``InvalidRequest``."""
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


_BUILT = ("run", "manager", "graph", "excluded", "requested_by")


class PauseSchedule(StrictBody):
    """Body of ``POST /v1/schedules/{name}/pause``; all of it may be left out."""

    reason: Annotated[str, Field(min_length=1, max_length=2000)] | None = None
    requested_by: Person | None = None


class AskSchedule(StrictBody):
    """Body of ``POST /v1/schedules/{name}/trigger``; all of it may be left out."""

    request_id: RequestId | None = None
    requested_by: Person | None = None


class Backfill(StrictBody):
    """Body of ``POST /v1/schedules/{name}/backfill``: the due times behind ``after``, up to ``until``, or to now."""

    after: AwareDatetime
    until: AwareDatetime | None = None
    requested_by: Person | None = None


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
        raise InvalidRequest("manager.argv: leave --flow-id out; each due time has a flow of its own")
    name = body.name or body.crawler
    if name is None:
        raise InvalidRequest("manager.name: missing; name the manager, as its flows are known by it")
    if not re.fullmatch(NAME_PATTERN, name):
        raise refusal("manager.name", name, f"give at most {NAME_MAX} letters, digits and _ . -")
    plan = body.plan or BUILT_IN
    return {"name": name, "plan": plan, "options": {"argv": body.command_line()}, "tags": list(body.tags)}


def _graph(body: StartGraph) -> dict[str, Any]:
    body.check()
    body.spec()
    found: dict[str, Any] = {"steps": body.steps, "context": body.context, "tags": list(body.tags)}
    found["options"] = dataclasses.asdict(body.options)
    return {**found, **({} if body.name is None else {"name": body.name})}
