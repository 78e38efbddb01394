"""Graphs: bodies of requests, and the commands start, page, cancel, retry, append and stop."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.activities.graphs.graphs import check_crawl, crawl_request
from crawler_lifecycle.domain.bounds import refusal, travels
from crawler_lifecycle.domain.errors import InvalidRequest, RowUnreadable
from crawler_lifecycle.domain.graph.checks import check, check_name, check_options, shown
from crawler_lifecycle.domain.graph.commands import NAMED_MAX, TEXT_MAX, CancelSteps, RetrySteps
from crawler_lifecycle.domain.graph.engine import Graph
from crawler_lifecycle.domain.graph.pages import (
    PAGES_MAX,
    decode_page,
    decode_pages,
    encode_pages,
    fingerprint,
    step_from_json,
)
from crawler_lifecycle.domain.graph.spec import NAME_MAX, GraphOptions, GraphSpec, GraphState, StepKind, StepSpec
from crawler_lifecycle.domain.managers.jobs import base_of
from crawler_lifecycle.domain.managers.manager import BUILT_IN
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.domain.run import StopIntent, StopRequest
from crawler_lifecycle.gateway.managers.commands import NAME_MODULE, check_read
from crawler_lifecycle.gateway.managers.requests import Tags
from crawler_lifecycle.gateway.runs.commands import Commanded, check_foreign, existing, mismatch, notify
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.requests import Person, RequestId, StopBody, StrictBody, Travels
from crawler_lifecycle.ports.graphs import GraphRow, NewGraph
from crawler_lifecycle.ports.managers import PLAN_MANAGER, PLAN_MODULE, PlanRow
from crawler_lifecycle.store.graphs.graphs import GraphStore
from crawler_lifecycle.store.managers.plans import PlanStore
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import FieldError, Problem

GraphName = Annotated[str, Field(min_length=1, max_length=NAME_MAX), Travels]
Names = Annotated[list[str], Field(min_length=1, max_length=NAMED_MAX)]
Reason = Annotated[str, Field(max_length=TEXT_MAX)]


class StartGraph(StrictBody):
    """Body of ``POST /v1/graphs``. A small graph has all its ``steps`` here, and starts at once. A large graph has the
    number of its ``pages`` and its ``fingerprint``; it is a draft until all pages are sent and it is started."""

    id: GraphName | None = None
    name: GraphName | None = None
    steps: list[dict[str, Any]] | None = None
    context: dict[str, Any] = Field(default_factory=dict)
    options: GraphOptions = Field(default_factory=GraphOptions)
    pages: int | None = Field(default=None, ge=1, le=PAGES_MAX)
    fingerprint: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    request_id: RequestId | None = None
    requested_by: Person | None = None
    parent: Person | None = None
    project: str | None = None
    """Only a caller of all projects may name another one than its own."""
    tags: Tags = Field(default_factory=list)

    def check(self) -> None:
        """Raise ``InvalidRequest`` for an id that is not allowed, and for fields that exclude each other."""
        if self.id is not None:
            check_key(self.id)
        if (self.steps is None) == (self.pages is None):
            raise InvalidRequest("steps: give either steps, or the number of pages that will follow, but not both")
        if (self.pages is None) != (self.fingerprint is None):
            raise InvalidRequest("fingerprint: needs pages, and pages need it; give both, or give steps")
        if self.pages is not None and self.context:
            raise InvalidRequest("context: must be in the first page; leave it out here")

    def spec(self) -> GraphSpec:
        """Return the whole graph after all checks. Raises ``InvalidRequest``."""
        spec = GraphSpec([step_from_json(one) for one in self.steps or ()], self.options, self.context)
        check(spec)
        return spec


class CancelGraph(StrictBody):
    """Body of ``POST /v1/graphs/{id}/cancel``: the paths of steps. Without ``names``, it cancels all steps."""

    names: Names | None = None
    reason: Reason | None = None
    request_id: RequestId | None = None
    requested_by: Person | None = None


class RetryGraph(StrictBody):
    """Body of ``POST /v1/graphs/{id}/retry``: the paths of steps. The default is all steps that did not complete."""

    names: Names | None = None
    cascade: bool = True
    fresh: bool = False
    request_id: RequestId | None = None
    requested_by: Person | None = None


class StopGraphBody(StopBody):
    """Body of ``POST /v1/graphs/{id}/stop``. All fields are optional."""

    reason: Reason | None = None


class ChangedSteps(BaseModel):
    """The outcome of a command about steps."""

    id: str
    count: int
    """The number of changed steps."""
    state: str
    note: str | None


def check_key(key: str) -> None:
    """Raise ``InvalidRequest`` unless this may be the id of a graph. The id is a part of web addresses."""
    check_name(key, "id")
    if key != key.strip():  # some databases ignore spaces at the end of an id
        raise refusal("id", key, "remove the white space at its beginning and end")
    if not travels(graph_workflow_id(key)):
        raise refusal("id", key, "give a shorter id: the workflow's id has graph/ before it")
    if key in (".", ".."):
        raise InvalidRequest(f"id: {key!r} is not allowed; an address cannot end with it")


logger = logging.getLogger(__name__)

NO_WORKER = (
    "No plans worker has registered yet: the functions are called as soon as a worker with their modules registers."
)
OPEN = (GraphState.DRAFT, GraphState.EXECUTING)


def found(graphs: GraphStore, key: str) -> GraphRow:
    """Return the graph. Blocks. Raises ``Problem`` 404."""
    return existing("graph", key, graphs.find_graph(key))


@dataclass(frozen=True)
class GraphCommands:
    """The commands that start and change graphs. They raise ``Problem`` or an error of the domain."""

    graphs: GraphStore
    plans: PlanStore
    workflows: Workflows
    crawlers: Crawlers
    clock: Callable[[], datetime]

    async def find(self, key: str) -> GraphRow:
        """Return the graph. Raises ``Problem`` 404."""
        return await run_in_threadpool(found, self.graphs, key)

    # --- start ------------------------------------------------------------------------------------------------------

    async def start(self, body: StartGraph, request_id: str | None) -> Commanded[GraphRow]:
        """Start a whole graph, or create a draft that waits for its pages. A repeat with the id finds the graph."""
        body.check()
        check_foreign("parent", body.parent)
        key = body.id or request_id or uuid.uuid4().hex
        check_key(key)
        if body.pages is not None:
            check_options(body.options)
            row, fresh = await run_in_threadpool(self._reserve, body, key, str(body.fingerprint), body.pages)
            return Commanded(row, fresh)
        spec = await run_in_threadpool(body.spec)
        note = await self.check_steps(spec.steps, chosen(body.project))
        pages = await run_in_threadpool(encode_pages, spec)
        whose = fingerprint(spec)
        row, fresh = await run_in_threadpool(self._reserve, body, key, whose, len(pages))
        if row.state is GraphState.DRAFT:
            for number, page in enumerate(pages):
                await run_in_threadpool(self._add_page, row, number, page)
            row = await run_in_threadpool(self.graphs.make_graph, row.graph_id)
        later = await self._notified(row)
        return Commanded(row, fresh, " ".join(filter(None, (note, later))) or None)

    def _reserve(self, body: StartGraph, key: str, whose: str, pages: int) -> tuple[GraphRow, bool]:
        new = NewGraph(
            key=key,
            fingerprint=whose,
            pages=pages,
            name=body.name,
            options=body.options,
            requested_by=body.requested_by,
            parent=body.parent,
            project=body.project,
            tags=body.tags,
        )
        with mismatch("id"):
            return self.graphs.reserve_graph(new)

    async def add_page(self, key: str, number: int, data: bytes) -> Commanded[GraphRow]:
        """Store one page of a draft. A repeat with the same page changes nothing."""
        row = await self.find(key)
        steps = await run_in_threadpool(decode_page, number, data)
        note = await self.check_steps(steps, row.project)
        await run_in_threadpool(self._add_page, row, number, data)
        return Commanded(row, note=note)

    def _add_page(self, row: GraphRow, number: int, data: bytes) -> None:
        with mismatch("page"):
            self.graphs.add_graph_page(row.graph_id, number, data)

    async def start_draft(self, key: str) -> Commanded[GraphRow]:
        """Make a graph from a draft that has all its pages, and start it. A repeat changes nothing."""
        before = await self.find(key)
        row = await run_in_threadpool(self.graphs.make_graph, before.graph_id)
        return Commanded(row, before.state is GraphState.DRAFT, await self._notified(row))

    async def check_steps(self, steps: Sequence[StepSpec], project: str) -> str | None:
        """Check that each step can be started. Return a note for the caller, if any. Raises ``Problem`` 422 or 503."""
        rows = await run_in_threadpool(self.plans.list_plans)
        plans = [row for row in rows if row.kind == PLAN_MANAGER]
        modules = [row for row in rows if row.kind == PLAN_MODULE]
        functions = False
        for step in steps:
            if step.kind is StepKind.FUNCTION:
                functions = True
                # If the pool has no workers yet, its modules are not known. Then any registered module is accepted.
                pool = [row for row in modules if row.queue == step.queue]
                pool = pool or [replace(row, error=None) for row in modules]
                self._check_served(step, "call", str(step.job["call"]).partition(":")[0], pool, rows)
            elif step.kind is StepKind.MANAGER and step.job["plan"] != BUILT_IN:
                self._check_served(step, "plan", step.job["plan"], plans, rows)
            place: str | None = None
            try:
                if step.kind is StepKind.MANAGER:
                    place = base_of(step.job["plan"], step.job.get("options", {})).pool
                elif step.kind is StepKind.CRAWL:
                    crawler, request = await self.crawlers.get(step.job["crawler"]), crawl_request(step.job)
                    check_crawl(crawler, request)
                    place = request.pool or crawler.pool
                self.graphs.known_pools.check(place, project)
            except Problem as problem:
                raise _refused(step, problem.code, problem.detail) from None
            except InvalidRequest as error:
                raise _refused(step, "invalid_request", str(error)) from None
        return NO_WORKER if functions and not modules else None

    def _check_served(
        self, step: StepSpec, field: str, name: str, known: Sequence[PlanRow], rows: Sequence[PlanRow]
    ) -> None:
        """Raise ``Problem`` 422 if no worker has registered this plan, although workers are alive, or if it cannot be
        used. Raise 503 while a worker still reads the module."""
        found = next((row for row in known if row.plan == name), None)
        if found is None:
            check_read(rows, name.partition(":")[0])
        # A worker that has only our built-in manager is alive, too. Nothing is known if the step's pool has no worker.
        if found is None and any(row.heard(self.clock()) for row in known or (rows if step.queue is None else ())):
            listed = ", ".join(sorted({row.plan for row in known}))[:2000] or "none"
            why = f"{field}: no plans worker has registered {name!r}; known are {listed}; {NAME_MODULE}"
            raise _refused(step, "unknown_plan", why)
        if found is not None and found.error is not None:
            raise _refused(step, "plan_unusable", f"{field}: {name!r} cannot be used: {found.error}")

    async def notify(self, row: GraphRow) -> None:
        """Wake the workflow of a graph after a change of its rows, or start it. Raises ``TemporalUnavailable``."""
        if row.state is GraphState.EXECUTING:
            await self.workflows.start_graph(row.graph_id, graph_workflow_id(row.key))

    async def _notified(self, row: GraphRow) -> str | None:
        return await notify(self.notify(row), f"graph {row.key!r}")

    # --- commands about steps ---------------------------------------------------------------------------------------

    async def cancel(self, key: str, body: CancelGraph, request_id: str | None) -> ChangedSteps:
        """Cancel steps and the steps that depend on them. The count has only steps that had not ended."""
        order = CancelSteps(requested_by=body.requested_by, names=body.names, reason=body.reason)
        return await self._command(key, "cancel", request_id, order.apply)

    async def retry(self, key: str, body: RetryGraph, request_id: str | None) -> ChangedSteps:
        """Execute steps again, and count them. A graph that has ended continues as its next attempt."""
        order = RetrySteps(requested_by=body.requested_by, names=body.names, cascade=body.cascade, fresh=body.fresh)
        return await self._command(key, "retry", request_id, order.apply)

    async def append(self, key: str, data: bytes, request_id: str | None) -> ChangedSteps:
        """Add the steps of a page, and count them."""
        spec = await run_in_threadpool(decode_pages, [data], GraphOptions())
        if spec.context:
            raise InvalidRequest("context: not allowed for appended steps; append a sub-graph with a context")
        note = await self.check_steps(spec.steps, (await self.find(key)).project)
        changed = await self._command(key, "append", request_id, lambda graph: len(graph.add(spec.steps)))
        return changed.model_copy(update={"note": " ".join(filter(None, (note, changed.note))) or None})

    async def _command(self, key: str, verb: str, request_id: str | None, how: Callable[[Graph], int]) -> ChangedSteps:
        row = await self.find(key)
        # The same key with another verb is another command.
        known = f"{verb}/{request_id or uuid.uuid4().hex}"
        count = await run_in_threadpool(self.graphs.command, row.graph_id, known, how)
        row = await self.find(key)
        return ChangedSteps(id=key, count=count, state=str(row.state), note=await self._notified(row))

    # --- stop -------------------------------------------------------------------------------------------------------

    async def stop(self, key: str, body: StopGraphBody) -> Commanded[GraphRow]:
        """Record the stop, which cancels all steps that have not ended. Then wake the workflow."""
        intent = StopIntent(self.clock(), body.force, body.requested_by, body.reason)
        try:
            before = await self.find(key)
        except RowUnreadable:
            # The workflow stops what executes. It records the stop as soon as the row is repaired.
            order = StopRequest(None, body.requested_by, body.reason, body.force)
            if await self.workflows.stop(graph_workflow_id(key), order):
                logger.warning("the row of graph %r cannot be read; the stop was sent to its workflow only", key)
            raise
        if before.state not in OPEN:
            return Commanded(before, fresh=False, note="The graph had already ended; nothing was stopped.")
        row = await run_in_threadpool(self.graphs.record_graph_stop, before.graph_id, intent)
        return Commanded(row, before.stop != row.stop, await self._notified(row))


def _refused(step: StepSpec, code: str, why: str) -> Problem:
    text = f"step {shown(step.path)}: {why}"
    return Problem(422, code, text, errors=[FieldError(field="steps", value=repr(step.path)[:120], message=why)])
