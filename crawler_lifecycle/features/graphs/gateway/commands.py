"""Bodies of requests about graphs, and the commands start, page, cancel, retry, approve, append and
stop.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import InvalidRequest, RowUnreadable
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.domain.run import StopIntent, StopRequest
from crawler_lifecycle.features.managers.gateway.requests import Tags
from crawler_lifecycle.features.managers.ports import CODE_MODULE
from crawler_lifecycle.features.managers.store.user_code import UserCodeStore
from crawler_lifecycle.gateway.runs.commands import (
    CommandResult,
    check_foreign,
    existing,
    mismatch,
    notify,
    sentences,
)
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.requests import Person, RequestId, SignedBody, StopBody, Travels
from crawler_lifecycle.gateway.sweep import Unsent
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import FieldError, Problem

from ..activities.starting import Unstartable, check_steps
from ..domain.checks import check, check_key, check_options, shown
from ..domain.commands import NAMED_MAX, TEXT_MAX, ApproveStep, CancelSteps, GraphOrder, RetrySteps
from ..domain.engine import Graph
from ..domain.kinds import STEP_RULES
from ..domain.pages import (
    PAGES_MAX,
    decode_page,
    decode_pages,
    fingerprint,
    step_from_json,
)
from ..domain.spec import (
    NAME_MAX,
    PATH_MAX,
    STEPS_MAX,
    GraphOptions,
    GraphSpec,
    GraphState,
    StepSpec,
)
from ..ports import GraphRow, NewGraph
from ..store.graphs import GraphStore, PageMissing

GraphName = Annotated[str, Field(min_length=1, max_length=NAME_MAX), Travels]
Names = Annotated[list[str], Field(min_length=1, max_length=NAMED_MAX)]
#: If nothing was written to a graph's row for this time, the graph's workflow is woken, or started
#: again if it has ended.
SILENT = timedelta(minutes=15)
FINGERPRINT = r"^[0-9a-f]{64}$"
Reason = Annotated[str, Field(max_length=TEXT_MAX)]


class StartGraph(SignedBody):
    """Body of ``POST /v1/graphs``.

    The body of a small graph contains all ``steps``, and the graph starts at once. The body of a
    large graph contains the number of ``pages`` and the ``fingerprint``; the graph is a draft until
    all pages are sent and it is started.
    """

    id: GraphName | None = None
    name: GraphName | None = None
    steps: list[dict[str, Any]] | None = Field(default=None, max_length=STEPS_MAX, fail_fast=True)
    context: dict[str, Any] = Field(default_factory=dict)
    options: GraphOptions = Field(default_factory=GraphOptions)
    pages: int | None = Field(default=None, ge=1, le=PAGES_MAX)
    fingerprint: str | None = Field(default=None, pattern=FINGERPRINT)
    request_id: RequestId | None = None
    parent: Person | None = None
    project: str | None = None
    """Only a caller with access to all projects may name a project other than its own."""
    tags: Tags = Field(default_factory=list)

    def check(self) -> None:
        """Raise ``InvalidRequest`` for an invalid id, and for fields that cannot be combined."""
        if self.id is not None:
            check_key(self.id)
        if (self.steps is None) == (self.pages is None):
            raise InvalidRequest(
                "steps: give either steps or the number of pages that will follow, but not both"
            )
        if (self.pages is None) != (self.fingerprint is None):
            raise InvalidRequest(
                "fingerprint: give it together with pages, or give steps instead of both"
            )
        if self.pages is not None and self.context:
            raise InvalidRequest("context: send it in the first page; leave it out here")

    def spec(self) -> GraphSpec:
        """Return the whole graph after all checks. Raises ``InvalidRequest``."""
        spec = GraphSpec(
            [step_from_json(step) for step in self.steps or ()], self.options, self.context
        )
        check(spec)
        return spec


class CancelGraph(SignedBody):
    """Body of ``POST /v1/graphs/{id}/cancel``: the paths of steps.

    Without ``names``, all steps are cancelled.
    """

    names: Names | None = None
    reason: Reason | None = None
    request_id: RequestId | None = None


class RetryGraph(SignedBody):
    """Body of ``POST /v1/graphs/{id}/retry``: the paths of steps.

    The default is all steps that did not complete.
    """

    names: Names | None = None
    cascade: bool = True
    fresh: bool = False
    request_id: RequestId | None = None


class ApproveGraphStep(SignedBody):
    """Body of ``POST /v1/graphs/{id}/approve``: the path of an approval, and yes or no."""

    step: Annotated[str, Field(min_length=1, max_length=PATH_MAX)]
    approved: bool = True
    note: Reason | None = None
    request_id: RequestId | None = None


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


logger = logging.getLogger(__name__)

NO_WORKER = (
    "No user-code worker has registered yet: the functions are called as soon as a worker with "
    "their modules registers."
)
OPEN = (GraphState.DRAFT, GraphState.EXECUTING)


@dataclass(frozen=True)
class GraphCommands:
    """The commands that start and change graphs.

    The methods raise ``Problem`` or an error of the domain.
    """

    graphs: GraphStore
    user_code: UserCodeStore
    workflows: Workflows
    crawlers: Crawlers
    clock: Clock

    async def find(self, key: str) -> GraphRow:
        """Return the graph. Raises ``Problem`` 404."""
        return existing("graph", key, await run_in_threadpool(self.graphs.find_graph, key))

    # --- start ------------------------------------------------------------------------------------

    async def start(self, body: StartGraph, request_id: str | None) -> CommandResult[GraphRow]:
        """Start a whole graph, or create a draft that waits for its pages. A repeat with the same
        id finds the graph.
        """
        body.check()
        check_foreign("parent", body.parent)
        key = body.id or request_id or uuid.uuid4().hex
        check_key(key)
        if body.pages is not None:
            check_options(body.options)
            with mismatch("id"):
                new = _new(body, key, str(body.fingerprint), body.pages)
                return CommandResult(*await run_in_threadpool(self.graphs.reserve_graph, new))
        spec = await run_in_threadpool(body.spec)
        new = _new(body, key, await run_in_threadpool(fingerprint, spec))
        project = chosen(body.project)
        known = await run_in_threadpool(self.graphs.find_graph, key)
        # An existing graph is not checked again, because the code or crawlers that it needs may no
        # longer exist.
        if known is not None and new.begun_as(known):
            return CommandResult(known, False, await self._notified(known))
        note = await self.check_steps(spec.steps, project)
        with mismatch("id"):
            row, fresh = await run_in_threadpool(self.graphs.reserve_graph, new, spec)
        later = await self._notified(row)
        return CommandResult(row, fresh, sentences(note, later))

    async def add_page(
        self, key: str, number: int, data: bytes, whose: str | None = None
    ) -> CommandResult[GraphRow]:
        """Store one page of a draft.

        A repeat with the same page changes nothing. If ``whose`` is the fingerprint of the graph,
        the same is true after the start. If a step is refused, the draft is removed.
        """
        row = await self._draft(key, whose)
        if whose is not None and row.state is not GraphState.DRAFT:
            return CommandResult(row, fresh=False)
        steps = await run_in_threadpool(decode_page, number, data)
        async with self._removed_if_refused(row):
            note = await self.check_steps(steps, row.project)
        with mismatch("page"):
            again = whose is not None
            await run_in_threadpool(
                self.graphs.add_graph_page, row.graph_id, number, data, again=again
            )
        return CommandResult(row, note=note)

    async def start_draft(self, key: str, whose: str | None = None) -> CommandResult[GraphRow]:
        """Make a graph from a draft that has all its pages, and start it.

        A repeat changes nothing. If the graph is refused, the draft is removed."""
        before = await self._draft(key, whose)
        async with self._removed_if_refused(before):
            row = await run_in_threadpool(self.graphs.make_graph, before.graph_id)
        return CommandResult(row, before.state is GraphState.DRAFT, await self._notified(row))

    async def _draft(self, key: str, whose: str | None) -> GraphRow:
        row = await self.find(key)
        if whose not in (None, row.fingerprint):
            raise Problem(
                422,
                "idempotency_mismatch",
                f"id: {key!r} belongs to another graph now; use another id",
            )
        return row

    @asynccontextmanager
    async def _removed_if_refused(self, draft: GraphRow) -> AsyncIterator[None]:
        """Remove the draft if the block refuses its steps, so that a refusal leaves nothing
        behind.
        """
        try:
            yield
        except (InvalidRequest, Problem) as error:
            if not isinstance(error, PageMissing) and getattr(error, "status", 422) == 422:
                await run_in_threadpool(self.graphs.drop_draft, draft.graph_id)
            raise

    async def check_steps(self, steps: Sequence[StepSpec], project: str) -> str | None:
        """Check that each step can be started.

        Return a note for the caller, if any. Raises ``Problem`` 422 or 503.
        """
        rows = await run_in_threadpool(self.user_code.list_user_code)
        known = dict[str, CrawlerDefinition]()
        for step in steps:
            if STEP_RULES[step.kind].brings_items:
                try:
                    known[step.job["crawler"]] = await self.crawlers.get(step.job["crawler"])
                except Problem as problem:
                    raise _refused(step.path, problem.code, problem.detail) from None
        try:
            pools = await run_in_threadpool(self.graphs.known_pools)
            await run_in_threadpool(check_steps, steps, rows, known, pools, project, self.clock())
        except Unstartable as error:
            raise _refused(error.path, error.problem, error.why) from None
        functions = any(STEP_RULES[step.kind].called for step in steps)
        return NO_WORKER if functions and not any(row.kind == CODE_MODULE for row in rows) else None

    async def notify(self, row: GraphRow) -> None:
        """Wake or start the workflow of a graph after a change to its rows.

        Raises ``TemporalUnavailable``.
        """
        if row.state is GraphState.EXECUTING:
            await self.workflows.start_for(GraphOrder(row.graph_id), row.workflow_id)

    def unsent(self, due: datetime) -> Iterator[Unsent]:
        """Yield the stops and wake-ups from before ``due`` that did not reach Temporal, and
        wake-ups for graphs whose rows have not changed for a long time. First remove old drafts.
        This blocks.
        """
        self.graphs.drop_old_drafts()
        for row in self.graphs.untold_graphs(due, self.clock() - SILENT):
            what = "stop" if row.stop else "wake-up"
            yield f"the {what} of graph {row.graph_id}", partial(self.notify, row)

    async def _notified(self, row: GraphRow) -> str | None:
        return await notify(self.notify(row), f"graph {row.key!r}")

    # --- commands about steps ---------------------------------------------------------------------

    async def cancel(self, key: str, body: CancelGraph, request_id: str | None) -> ChangedSteps:
        """Cancel steps and the steps that depend on them.

        Only steps that had not ended are counted.
        """
        order = CancelSteps(requested_by=body.requested_by, names=body.names, reason=body.reason)
        return await self._command(key, "cancel", request_id, order.apply)

    async def retry(self, key: str, body: RetryGraph, request_id: str | None) -> ChangedSteps:
        """Execute steps again, and count them.

        A graph that has ended continues as its next attempt.
        """
        order = RetrySteps(
            requested_by=body.requested_by, names=body.names, cascade=body.cascade, fresh=body.fresh
        )
        return await self._command(key, "retry", request_id, order.apply)

    async def approve(
        self, key: str, body: ApproveGraphStep, request_id: str | None
    ) -> ChangedSteps:
        """Grant or reject an approval. A repeat of the same decision changes nothing; a different
        decision is refused.
        """
        by = body.requested_by
        at = self.clock()
        order = ApproveStep(
            requested_by=by, step=body.step, approved=body.approved, note=body.note, at=at
        )
        return await self._command(key, "approve", request_id, order.apply)

    async def append(
        self, key: str, data: bytes, request_id: str | None, draft: str | None = None
    ) -> ChangedSteps:
        """Add the steps of a page, or of a draft, which is then removed. Return their number."""
        row = await self.find(key)
        parts = None
        if draft is not None:
            parts = await run_in_threadpool(self.graphs.find_graph, draft)
        if draft is None:
            spec = await run_in_threadpool(decode_pages, [data], GraphOptions())
        elif parts is not None and parts.state is GraphState.DRAFT:
            spec = await run_in_threadpool(self.graphs.draft_spec, parts.graph_id)
        else:  # a repeat finds the recorded answer instead of the draft
            spec = GraphSpec([])
        if spec.context:
            raise InvalidRequest(
                "context: not allowed for appended steps; append a sub-graph with a context"
            )
        note = await self.check_steps(spec.steps, row.project)

        def add(graph: Graph) -> int:
            if draft is not None and not spec.steps:
                raise refusal("draft", draft, "give the id of a draft with all its pages")
            return len(graph.add(spec.steps))

        changed = await self._command(key, "append", request_id, add)
        if parts is not None:
            await run_in_threadpool(self.graphs.drop_draft, parts.graph_id)
        return changed.model_copy(update={"note": sentences(note, changed.note)})

    async def _command(
        self, key: str, verb: str, request_id: str | None, how: Callable[[Graph], int]
    ) -> ChangedSteps:
        row = await self.find(key)
        # The same key with a different verb identifies a different command.
        known = f"{verb}/{request_id or uuid.uuid4().hex}"
        count = await run_in_threadpool(self.graphs.command, row.graph_id, known, how)
        row = await self.find(key)
        return ChangedSteps(
            id=key, count=count, state=str(row.state), note=await self._notified(row)
        )

    # --- stop -------------------------------------------------------------------------------------

    async def stop(self, key: str, body: StopGraphBody) -> CommandResult[GraphRow]:
        """Record the stop, which cancels all steps that have not ended, and then wake the
        workflow.
        """
        intent = StopIntent(self.clock(), body.force, body.requested_by, body.reason)
        try:
            before = await self.find(key)
        except RowUnreadable:
            # The workflow stops the executing steps, and records the stop as soon as the row is
            # repaired.
            order = StopRequest(None, body.requested_by, body.reason, body.force)
            if await self.workflows.stop(graph_workflow_id(key), order):
                logger.warning(
                    "the row of graph %r cannot be read; the stop was sent to its workflow only",
                    key,
                )
            raise
        if before.state is GraphState.DRAFT and await run_in_threadpool(
            self.graphs.drop_draft, before.graph_id
        ):
            return CommandResult(
                replace(before, state=GraphState.CANCELLED), note="It was a draft, and was removed."
            )
        if before.state not in OPEN:
            return CommandResult(
                before, fresh=False, note="The graph had already ended; nothing was stopped."
            )
        row = await run_in_threadpool(self.graphs.record_graph_stop, before.graph_id, intent)
        return CommandResult(row, before.stop != row.stop, await self._notified(row))


def _new(body: StartGraph, key: str, whose: str, pages: int = 1) -> NewGraph:
    own = {
        name: getattr(body, name)
        for name in ("name", "options", "requested_by", "parent", "project", "tags")
    }
    return NewGraph(key, whose, pages, **own)


def _refused(path: str, code: str, why: str) -> Problem:
    text = f"step {shown(path)}: {why}"
    return Problem(
        422, code, text, errors=[FieldError(field="steps", value=repr(path)[:120], message=why)]
    )
