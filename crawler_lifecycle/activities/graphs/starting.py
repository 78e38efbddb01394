"""Checks whether steps can be started, and starts graphs for users' code."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.bounds import check_text
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import InvalidRequest, PlansUnknown, TemporalUnavailable
from crawler_lifecycle.domain.graph.checks import check, check_key, shown
from crawler_lifecycle.domain.graph.pages import decode_pages, fingerprint
from crawler_lifecycle.domain.graph.spec import NAME_MAX, GraphOptions, GraphState, StepKind, StepSpec
from crawler_lifecycle.domain.managers.jobs import base_of
from crawler_lifecycle.domain.managers.manager import BUILT_IN
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.pools import Pools
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.domain.run import check_tags
from crawler_lifecycle.ports.graphs import NewGraph
from crawler_lifecycle.ports.managers import PLAN_MANAGER, PLAN_MODULE, PLAN_READING, PlanRow
from crawler_lifecycle.ports.protocols import Catalogue, WorkflowDirectory

from .graphs import check_crawl, crawl_request

if TYPE_CHECKING:
    from crawler_lifecycle.store.graphs.graphs import GraphStore
    from crawler_lifecycle.store.managers.plans import PlanStore

log = logging.getLogger(__name__)

NAME_MODULE = "name its module in LIFECYCLE_PLANS__MODULES of a worker, or put it into the folder of crawlctl dev"
_OPTIONS = TypeAdapter(GraphOptions)


class Unstartable(InvalidRequest):
    """The step with this path cannot be started. ``problem`` is the code for HTTP."""

    def __init__(self, why: str, path: str = "", problem: str = "invalid_request") -> None:
        super().__init__(f"step {shown(path)}: {why}")
        self.why, self.path, self.problem = why, path, problem


def check_steps(
    steps: Sequence[StepSpec],
    rows: Sequence[PlanRow],
    crawlers: Mapping[str, CrawlerDefinition],
    pools: Pools,
    project: str,
    now: datetime,
) -> None:
    """Raise ``Unstartable`` for a step that cannot be started, and ``PlansUnknown`` while a worker reads its module.

    ``rows``: the plans that workers have registered. Without ``crawlers`` they are not checked.
    """
    plans = [row for row in rows if row.kind == PLAN_MANAGER]
    modules = [row for row in rows if row.kind == PLAN_MODULE]
    for step in steps:
        if step.kind is StepKind.FUNCTION:
            # If the pool has no workers yet, its modules are not known. Then any registered module is accepted.
            pool = [row for row in modules if row.queue == step.queue]
            pool = pool or [replace(row, error=None) for row in modules]
            _check_served(step, "call", str(step.job["call"]).partition(":")[0], pool, rows, now)
        elif step.kind is StepKind.MANAGER and step.job["plan"] != BUILT_IN:
            _check_served(step, "plan", step.job["plan"], plans, rows, now)
        place: str | None = None
        try:
            if step.kind is StepKind.MANAGER:
                place = base_of(step.job["plan"], step.job.get("options", {})).pool
            elif step.kind is StepKind.CRAWL:
                crawler, request = crawlers.get(step.job["crawler"]), crawl_request(step.job)
                if crawler is not None:
                    check_crawl(crawler, request)
                elif crawlers:
                    cure = "crawlctl crawler list shows all crawlers"
                    raise InvalidRequest(f"crawler: {request.crawler!r} is unknown; {cure}")
                place = request.pool or (crawler.pool if crawler else None)
            pools.check(place, project)
        except InvalidRequest as error:
            raise Unstartable(str(error), step.path) from None


def _check_served(
    step: StepSpec, field: str, name: str, known: Sequence[PlanRow], rows: Sequence[PlanRow], now: datetime
) -> None:
    """Raise ``Unstartable`` if no worker has registered this plan, although workers are alive, or if it cannot be used.
    Raise ``PlansUnknown`` while a worker still reads the module."""
    found = next((row for row in known if row.plan == name), None)
    if found is None:
        check_read(rows, name.partition(":")[0])
    # A worker that has only our built-in manager is alive, too. Nothing is known if the step's pool has no worker.
    if found is None and any(row.heard(now) for row in known or (rows if step.queue is None else ())):
        listed = ", ".join(sorted({row.plan for row in known}))[:2000] or "none"
        why = f"{field}: no plans worker has registered {name!r}; known are {listed}; {NAME_MODULE}"
        raise Unstartable(why, step.path, "unknown_plan")
    if found is not None and found.error is not None:
        raise Unstartable(f"{field}: {name!r} cannot be used: {found.error}", step.path, "plan_unusable")


def check_read(rows: Sequence[PlanRow], module: str | None) -> None:
    """Raise ``PlansUnknown`` while a worker still reads this module (``None``: any module)."""
    read = next((row.plan for row in rows if row.kind == PLAN_READING and module in (None, row.plan)), None)
    if read is not None:
        raise PlansUnknown(f"A plans worker reads the module {read} now; send this again in a moment")


def starts_none(*_: object, **__: object) -> bool:
    """Refuse to start a graph, on a worker that cannot."""
    raise InvalidRequest("this worker starts no graphs; let a worker of the role plans execute this")


@dataclass(frozen=True)
class GraphStarts:
    """Starts graphs for steps and hooks, with the checks of the gateway."""

    graphs: GraphStore
    plans: PlanStore
    directory: WorkflowDirectory
    catalogue: Catalogue
    clock: Clock = utc_now

    def start(
        self,
        by: str,
        pages: Sequence[bytes],
        key: str,
        name: str | None,
        tags: Sequence[str],
        options: Mapping[str, Any],
    ) -> bool:
        """Start a graph for ``by``, a step or a manager, in the present project. Return whether it is new.

        A second start of the same graph finds it, also if its steps have other times in ``not_before``: code that is
        executed again computes them anew. Raises ``InvalidRequest``, ``DuplicateRequest`` and ``TooManyOpen``.
        """
        check_key(key)
        check_tags("tags", tags)
        if name is not None:
            check_text("name", name, NAME_MAX, needed=True)
        spec = decode_pages(pages, _OPTIONS.validate_python(options))
        check(spec)
        same = replace(spec, steps=[replace(step, not_before=None) for step in spec.steps])
        new = NewGraph(key, fingerprint(same), name=name, options=spec.options, requested_by=by, tags=tags)
        row = self.graphs.find_graph(key)
        fresh = False
        if row is None or not new.begun_as(row):
            crawlers = {crawler.name: crawler for crawler in self.catalogue.all()}
            plans, pools = self.plans.list_plans(), self.graphs.known_pools
            check_steps(spec.steps, plans, crawlers, pools, chosen(None), self.clock())
            row, fresh = self.graphs.reserve_graph(new, spec)
        if row.state is GraphState.EXECUTING:
            try:
                self.directory.begin_graph(row.graph_id, graph_workflow_id(row.key))
            except TemporalUnavailable as error:  # the gateway starts it as soon as Temporal is back
                log.info("graph %s is recorded, and begins later: %s", row.key, error)
        return fresh
