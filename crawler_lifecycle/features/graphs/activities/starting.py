"""Checks whether steps can be started, and starts graphs for users' code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.bounds import check_text
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, check_request, unknown
from crawler_lifecycle.domain.errors import InvalidRequest, TemporalUnavailable
from crawler_lifecycle.domain.pools import Pools
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.domain.run import check_tags
from crawler_lifecycle.domain.unknown import suggest
from crawler_lifecycle.features.managers.activities.registered import NAME_MODULE, check_read
from crawler_lifecycle.features.managers.domain.jobs import base_of
from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from crawler_lifecycle.features.managers.ports import CODE_MANAGER, CODE_MODULE, UserCodeRow
from crawler_lifecycle.ports.protocols import Catalogue, WorkflowDirectory

from ..domain.checks import check, check_key, shown
from ..domain.commands import GraphOrder
from ..domain.pages import decode_pages, fingerprint
from ..domain.spec import NAME_MAX, GraphOptions, GraphState, StepKind, StepSpec
from ..ports import NewGraph
from .graphs import crawl_request

if TYPE_CHECKING:
    from crawler_lifecycle.features.managers.store.user_code import UserCodeStore

    from ..store.graphs import GraphStore

log = logging.getLogger(__name__)

_OPTIONS = TypeAdapter(GraphOptions)


class Unstartable(InvalidRequest):
    """The step with this path cannot be started. ``problem`` is the code for HTTP."""

    def __init__(self, why: str, path: str = "", problem: str = "invalid_request") -> None:
        super().__init__(f"step {shown(path)}: {why}")
        self.why = why
        self.path = path
        self.problem = problem


def check_steps(
    steps: Sequence[StepSpec],
    rows: Sequence[UserCodeRow],
    crawlers: Mapping[str, CrawlerDefinition],
    pools: Pools,
    project: str,
    now: datetime,
    problem: str | None = None,
) -> None:
    """Raise ``Unstartable`` for a step that cannot be started, and ``UserCodeUnknown`` while a
    worker is reading the step's module.

    ``rows`` are the user code that workers have registered. If ``crawlers`` is not given, the
    crawlers are not checked. ``problem`` is the reason why the newest catalogue could not be read.
    """
    offered = _StepOffers(rows, crawlers, pools, project, now, problem)
    for step in steps:
        check_offered = OFFERED.get(step.kind)
        if check_offered is None:
            continue
        try:
            check_offered(offered, step)
        except Unstartable:
            raise
        except InvalidRequest as error:
            raise Unstartable(str(error), step.path) from None


@dataclass(frozen=True, slots=True)
class _StepOffers:
    """Workers' code, the catalogue and the pools, which the steps of a graph are checked
    against.
    """

    rows: Sequence[UserCodeRow]
    crawlers: Mapping[str, CrawlerDefinition]
    pools: Pools
    project: str
    now: datetime
    problem: str | None

    def check_function(self, step: StepSpec) -> None:
        modules = [row for row in self.rows if row.kind == CODE_MODULE]
        # If the pool has no workers yet, its modules are unknown, so any registered module is
        # accepted.
        pool = [row for row in modules if row.queue == step.queue]
        pool = pool or [replace(row, error=None) for row in modules]
        self._check_served(step, "call", str(step.job["call"]).partition(":")[0], pool)

    def check_manager(self, step: StepSpec) -> None:
        plan = step.job["plan"]
        if plan != BUILT_IN:
            self._check_served(
                step, "plan", plan, [row for row in self.rows if row.kind == CODE_MANAGER]
            )
        self.pools.check(base_of(plan, step.job.get("options", {})).pool, self.project)

    def check_crawl(self, step: StepSpec) -> None:
        crawler = self.crawlers.get(step.job["crawler"])
        request = crawl_request(step.job)
        if crawler is not None:
            check_request(crawler, request)
        elif self.crawlers:
            why = unknown(request.crawler, self.crawlers, self.problem)
            raise InvalidRequest(f"crawler: {request.crawler!r} is unknown; {why}")
        self.pools.check(request.pool or (crawler.pool if crawler else None), self.project)

    def _check_served(
        self, step: StepSpec, field: str, name: str, known: Sequence[UserCodeRow]
    ) -> None:
        """Raise ``Unstartable`` if workers are alive but no worker has registered this class, or if
        the class cannot be used. Raise ``UserCodeUnknown`` while a worker is still reading the
        module.
        """
        found = next((row for row in known if row.plan == name), None)
        if found is None:
            check_read(self.rows, name.partition(":")[0])
        # A worker that only has our built-in manager counts as alive. If the step's pool has no
        # worker, it is unknown which modules its workers will have.
        alive = known or (self.rows if step.queue is None else ())
        if found is None and any(row.heard(self.now) for row in alive):
            advice = suggest(name, sorted({row.plan for row in known}))
            why = f"{field}: no user-code worker has registered {name!r}; {advice}; {NAME_MODULE}"
            raise Unstartable(why, step.path, "unknown_class")
        if found is not None and found.error is not None:
            raise Unstartable(
                f"{field}: {name!r} cannot be used: {found.error}", step.path, "user_code_unusable"
            )


#: The checks of steps against the available code and crawlers. The steps of all other kinds need
#: neither code nor a crawler.
OFFERED: Mapping[StepKind, Callable[[_StepOffers, StepSpec], None]] = {
    StepKind.FUNCTION: _StepOffers.check_function,
    StepKind.CRAWL: _StepOffers.check_crawl,
    StepKind.MANAGER: _StepOffers.check_manager,
}


@dataclass(frozen=True)
class GraphStarts:
    """Starts graphs for steps and hooks, with the checks of the gateway."""

    graphs: GraphStore
    user_code: UserCodeStore
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
        """Start a graph for ``by``, a step or a manager, in the current project. Return whether the
        graph is new.

        A second start finds the same graph, even if the times in ``not_before`` of its steps
        differ, because code that is executed again computes new times. Raises ``InvalidRequest``,
        ``DuplicateRequest`` and ``TooManyOpen``.
        """
        check_key(key)
        check_tags("tags", tags)
        if name is not None:
            check_text("name", name, NAME_MAX, needed=True)
        spec = decode_pages(pages, _OPTIONS.validate_python(options))
        check(spec)
        same = replace(spec, steps=[replace(step, not_before=None) for step in spec.steps])
        new = NewGraph(
            key, fingerprint(same), name=name, options=spec.options, requested_by=by, tags=tags
        )
        row = self.graphs.find_graph(key)
        fresh = False
        if row is None or not new.begun_as(row):
            crawlers = {crawler.name: crawler for crawler in self.catalogue.all()}
            user_code = self.user_code.list_user_code()
            pools = self.graphs.known_pools()
            check_steps(
                spec.steps,
                user_code,
                crawlers,
                pools,
                chosen(None),
                self.clock(),
                self.catalogue.problem,
            )
            row, fresh = self.graphs.reserve_graph(new, spec)
        if row.state is GraphState.EXECUTING:
            try:
                self.directory.begin_for(GraphOrder(row.graph_id), row.workflow_id)
            # The gateway starts the graph as soon as Temporal is available again.
            except TemporalUnavailable as error:
                log.info("graph %s is recorded and will begin later: %s", row.key, error)
        return fresh
