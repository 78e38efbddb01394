"""The gateway's application: shared objects, background tasks, health."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request, Response

from crawler_lifecycle.background import Beside
from crawler_lifecycle.domain.audits.audit import LiveRun
from crawler_lifecycle.domain.audits.overdue import overdue_before
from crawler_lifecycle.domain.webhooks.addresses import WebhookRules
from crawler_lifecycle.gateway.access.limits import RateLimits, Serving
from crawler_lifecycle.gateway.access.logins import Logins
from crawler_lifecycle.gateway.access.operations import AuthenticationMiddleware, Entrance, Operations, caller_name
from crawler_lifecycle.gateway.access.tokens import TokenFile
from crawler_lifecycle.gateway.api.long_poll import NOT_MODIFIED, conditional
from crawler_lifecycle.gateway.api.openapi import describe
from crawler_lifecycle.gateway.events import add_stream
from crawler_lifecycle.gateway.graphs.commands import GraphCommands
from crawler_lifecycle.gateway.graphs.routes import GraphViews, add_graph_commands, add_graph_readers
from crawler_lifecycle.gateway.ledger import add_audit, add_ledger
from crawler_lifecycle.gateway.managers.commands import ManagerCommands
from crawler_lifecycle.gateway.managers.routes import ManagerViews, add_manager_commands, add_manager_readers
from crawler_lifecycle.gateway.metrics import Metrics, add_metrics, ask_the_database
from crawler_lifecycle.gateway.page.middleware import Pages
from crawler_lifecycle.gateway.pages import Behind, add_page
from crawler_lifecycle.gateway.runs.answers import CrawlerList, Readiness
from crawler_lifecycle.gateway.runs.blocked import LOST_MAX, Blocked, lost_words
from crawler_lifecycle.gateway.runs.commands import Commands
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.deliveries import Deliveries
from crawler_lifecycle.gateway.runs.files import RunFiles
from crawler_lifecycle.gateway.runs.output import add_files, add_logs
from crawler_lifecycle.gateway.runs.recent import AllCrawlerRuns, RecentRuns
from crawler_lifecycle.gateway.runs.routes import (
    RunViews,
    Uploads,
    add_commands,
    add_deliveries,
    add_readers,
    add_uploads,
)
from crawler_lifecycle.gateway.schedules.commands import ScheduleCommands
from crawler_lifecycle.gateway.schedules.routes import add_schedules
from crawler_lifecycle.gateway.scrapyd.jobs import Jobs
from crawler_lifecycle.gateway.scrapyd.routes import Dialect, add_scrapyd
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.gateway.streams.logs import LogReader
from crawler_lifecycle.gateway.webhooks.commands import WebhookCommands
from crawler_lifecycle.gateway.webhooks.routes import add_webhooks
from crawler_lifecycle.ports.cluster import LiveFiles, TaskLogs
from crawler_lifecycle.ports.protocols import FileArchive, SchedulerClient, TaskBundles
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import install
from crawler_lifecycle.web.serving import BodyLimit, Guard

from .health import Health, HealthStrip, Needs
from .sweep import Sweep

API_VERSION = "1.0"
_UNTOLD = "not available; ask with a token for the reason, or read the log"


def create_app(
    store: Store,
    workflows: Workflows,
    scheduler: SchedulerClient,
    *,
    entrance: Entrance,
    archive: FileArchive | None = None,
    logs: TaskLogs | None = None,
    files: LiveFiles | None = None,
    bundles: TaskBundles | None = None,
    elsewhere: str | None = None,
    sweep_s: float | None = 15.0,
    blocked_s: float = 5.0,
    catalogue_s: float | None = None,
    webhooks: WebhookRules = WebhookRules(),  # noqa: B008 - it never changes
    scrapyd: str | None = None,
    temporal_ui: str | None = None,
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> FastAPI:
    """The gateway over its ports, open to whom the entrance lets in.

    ``logs`` is what tasks print, and ``files`` what they leave, where this gateway can read that; ``bundles`` is where
    tasks in pods put their files, where they upload them, and ``elsewhere`` says in words where they leave those that
    cannot be read here. ``sweep_s`` is the pause between sweeps (``None``: no
    sweep), ``blocked_s`` that between searches for runs that cannot go on, ``catalogue_s`` that between readings of
    the catalogue that nobody asked for; ``webhooks``: where these may lead; ``scrapyd``: the
    name of the project that scrapyd's clients see (``None``: their dialect is not spoken); ``temporal_ui`` is where
    people see the namespace's workflows; ``background`` runs while the app does.
    """
    metrics = Metrics()
    needs = Needs(store.health, workflows)
    blocked = _blocked(store, workflows, metrics, blocked_s, clock)
    behind = _behind(
        *(store, workflows, Crawlers(scheduler), needs, blocked, metrics),
        archive=archive,
        logs=logs,
        files=files,
        elsewhere=elsewhere,
        webhooks=webhooks,
        logins=Logins(entrance.callers, entrance.login_key) if entrance.callers else None,
        temporal_ui=temporal_ui,
        clock=clock,
    )
    tasks = [*background, behind.feed.run, blocked.run]
    if catalogue_s is not None:
        tasks.append(functools.partial(behind.crawlers.keep_reading, catalogue_s))
    if sweep_s is not None:
        readers = (store.sweep, store.runs, store.managers, store.graphs)
        commanding = (behind.commands, behind.manager_commands, behind.graph_commands)
        tasks.append(Sweep(*readers, workflows, *commanding, every_s=sweep_s, clock=clock).run)
    leaving = [behind.feed.close, behind.reader.close]
    app = FastAPI(
        title="crawler-lifecycle gateway",
        redirect_slashes=False,
        version=API_VERSION,
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan(behind.reader, tasks, leaving),
    )
    app.state.leaving = leaving
    app.state.metrics = metrics
    install(app, describe)
    _add_api(app, behind, metrics, bundles)
    if scrapyd is not None:
        add_scrapyd(app, Jobs(scrapyd, behind.commands, behind.crawlers, store.runs), behind.reader, store.tasks)
    ask_the_database(metrics, store, clock)
    _add_rest(app, needs, behind.health, behind.crawlers, behind.recent, entrance.callers, metrics)
    add_page(app, behind)
    _add_middleware(app, entrance, behind.logins, metrics, clock)
    if scrapyd is not None:
        app.add_middleware(Dialect)
    return app


def _blocked(
    store: Store, workflows: Workflows, metrics: Metrics, every_s: float, clock: Callable[[], datetime]
) -> Blocked:
    def overdue(limit: int) -> list[LiveRun]:
        return store.overdue.overdue_runs(overdue_before(clock()), limit=limit)

    def note(*told: Any) -> bool:
        return store.troubles.note_blocked(*told)

    def lost() -> dict[str, str]:
        return lost_words(store.findings.audit_findings(limit=LOST_MAX))

    return Blocked(workflows, metrics, every_s=every_s, overdue=overdue, note=note, lost=lost)


def _behind(
    store: Store,
    workflows: Workflows,
    crawlers: Crawlers,
    needs: Needs,
    blocked: Blocked,
    metrics: Metrics,
    *,
    archive: FileArchive | None,
    logs: TaskLogs | None,
    files: LiveFiles | None,
    elsewhere: str | None,
    webhooks: WebhookRules,
    logins: Logins | None,
    temporal_ui: str | None,
    clock: Callable[[], datetime],
) -> Behind:
    """The readers and commands that routes and pages share, each once."""
    feed = Feed(store.events, store.runs, metrics, clock)
    managers = ManagerCommands(store.managers, store.plans, workflows, crawlers, clock)
    graphs = GraphCommands(store.graphs, store.plans, workflows, crawlers, clock)
    return Behind(
        store=store,
        blocked=blocked,
        views=RunViews(store, blocked, clock),
        feed=feed,
        reader=LogReader(store.runs, store.tasks, logs, metrics),
        files=RunFiles(store.tasks, store.exports, files, archive, elsewhere),
        health=Health(needs, workflows, feed, store.runs, store.overdue, store.corrections, clock),
        recent=RecentRuns(store.runs, crawlers, clock),
        crawlers=crawlers,
        commands=Commands(store.initiation, store.additions, store.stops, store.runs, workflows, crawlers, clock),
        deliveries=Deliveries(store.runs, store.events, store.exports, workflows, archive),
        logins=logins,
        clock=clock,
        workflows=workflows,
        manager_commands=managers,
        manager_views=ManagerViews(store.managers, blocked),
        graph_commands=graphs,
        graph_views=GraphViews(store.graphs, blocked),
        schedule_commands=ScheduleCommands(store.schedules, workflows, crawlers, managers, graphs, clock),
        webhook_commands=WebhookCommands(store.webhooks, workflows, webhooks),
        temporal_ui=temporal_ui,
    )


def _lifespan(
    reader: LogReader,
    tasks: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    leaving: Sequence[Callable[[], None]],
) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    """The lifespan of the app: ``tasks`` run beside it, and ``leaving`` are told when it ends; both as they are when
    the app begins."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        reader.open()
        async with Beside() as beside:
            for task in tasks:
                beside.start(task())
            try:
                yield
            finally:
                for leave in leaving:
                    leave()

    return lifespan


def _add_api(app: FastAPI, behind: Behind, metrics: Metrics, bundles: TaskBundles | None) -> None:
    store, clock = behind.store, behind.clock
    add_commands(app, behind.commands, clock)
    add_deliveries(app, behind.deliveries, clock)
    add_uploads(app, Uploads(store.tasks, bundles))
    add_ledger(app, store.corrections, store.overdue, clock)
    add_readers(app, store, behind.views, behind.feed)
    add_logs(app, behind.reader, store.runs, store.tasks)
    add_files(app, behind.files, store.runs, store.tasks)
    add_stream(app, behind.feed, store.runs, store.managers, store.graphs)
    add_audit(app, store.findings, behind.workflows)
    add_manager_commands(app, behind.manager_commands)
    add_manager_readers(app, store.managers, store.plans, behind.manager_views, clock)
    add_graph_commands(app, behind.graph_commands)
    add_graph_readers(app, store.graphs, behind.graph_views, behind.feed)
    add_schedules(app, behind.schedule_commands, store.schedules, clock, behind.blocked)
    add_webhooks(app, behind.webhook_commands, store.webhooks, behind.blocked)


def _add_middleware(
    app: FastAPI, entrance: Entrance, logins: Logins | None, metrics: Metrics, clock: Callable[[], datetime]
) -> None:
    """The one added last is the first that a request meets."""
    limits = RateLimits(entrance.quota)
    app.add_middleware(Serving, limits=limits)
    app.add_middleware(BodyLimit, limit=lambda scope: int(scope["lifecycle.body_max"]))
    app.add_middleware(
        AuthenticationMiddleware,
        operations=Operations(app),
        entrance=entrance,
        limits=limits,
        logins=logins,
        clock=clock,
    )
    app.add_middleware(Guard, check=entrance.check)
    app.add_middleware(Pages)
    app.add_middleware(metrics.requests)


def _add_rest(
    app: FastAPI,
    needs: Needs,
    health: Health,
    crawlers: Crawlers,
    recent: RecentRuns,
    callers: TokenFile | None,
    metrics: Metrics,
) -> None:
    add_metrics(app, metrics, needs)

    @app.get("/v1/health", operation_id="getHealth")
    async def get_health() -> HealthStrip:
        """The state of the house: database, Temporal, who polls each task queue, whether looks are made on time, the
        stream of events; and for how long at most a recorded status was untrue this week. It may be seconds old, as
        each part says."""
        return await health.read()

    @app.get("/v1/crawlers", operation_id="listCrawlers", response_model=CrawlerList, responses=NOT_MODIFIED)
    async def list_crawlers(request: Request) -> Response:
        """The crawlers that can be started, as the scheduler service declares them.

        While it does not answer: as it did last, with the header `Age` in seconds.
        """
        known = await crawlers.all()
        response = conditional(request, CrawlerList(crawlers=list(known.values())))
        if crawlers.age_s is not None:
            response.headers["Age"] = f"{crawlers.age_s:.0f}"
        return response

    @app.get("/v1/crawlers/runs", operation_id="listRecentRuns")
    async def list_recent_runs() -> AllCrawlerRuns:
        """The last 20 runs of each crawler of the catalogue, and which of them brought strikingly few items. The answer
        is kept for five seconds."""
        return await recent.read()

    @app.get("/healthz", operation_id="healthz")
    async def healthz() -> dict[str, str]:
        """Tell whether the process lives, without asking anybody."""
        return {"status": "alive"}

    @app.get(
        "/readyz", operation_id="readyz", responses={503: {"model": Readiness, "description": "Something is missing"}}
    )
    async def readyz(response: Response) -> Readiness:
        """Tell whether the database and Temporal answer."""
        checks = await needs()
        ready = set(checks.values()) == {"ok"}
        response.status_code = 200 if ready else 503
        if callers is not None and caller_name() is None:
            # Reasons name hosts and ports of ours; a stranger learns that something is wrong and not what.
            checks = {name: answer if answer == "ok" else _UNTOLD for name, answer in checks.items()}
        if callers is not None:
            # The callers of before hold, so a broken new file is told here and takes nobody out of service.
            checks["tokens"] = callers.problem or "ok"
        return Readiness(ready=ready, checks=checks)
