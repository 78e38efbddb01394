"""The gateway's application: shared objects, background tasks and health checks."""

from __future__ import annotations

from dataclasses import replace

from fastapi import FastAPI, Request, Response

from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.gateway.access.limits import RateLimits, Serving
from crawler_lifecycle.gateway.access.operations import (
    AuthenticationMiddleware,
    Operations,
    caller_name,
)
from crawler_lifecycle.gateway.access.recorder import Recording
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.openapi import describe
from crawler_lifecycle.gateway.runs.answers import CrawlerList, Readiness
from crawler_lifecycle.gateway.runs.items import add_items
from crawler_lifecycle.gateway.runs.output import add_files, add_logs
from crawler_lifecycle.gateway.runs.routes import (
    add_commands,
    add_deliveries,
    add_readers,
    add_uploads,
)
from crawler_lifecycle.gateway.ui.middleware import Pages
from crawler_lifecycle.web.problems import service
from crawler_lifecycle.web.serving import BodyLimit, Guard

from .access_log import add_access_log
from .events import add_stream
from .health import HealthReport
from .ledger import add_audit, add_ledger
from .metrics import add_metrics, ask_the_database
from .pages import add_page
from .parts import Gateway
from .pools import add_pools, add_quotas

API_VERSION = "1.0"
_HIDDEN = "not available; send a token to see the reason, or read the log"


def create_app(gateway: Gateway) -> FastAPI:
    """Return the app of a gateway. Its ``entrance`` decides who can call it."""
    app = service("crawler-lifecycle gateway", API_VERSION, describe, lifespan=gateway.lifespan)
    app.state.leaving = gateway.leaving
    app.state.metrics = gateway.metrics
    _add_api(app, gateway)
    ask_the_database(gateway.metrics, gateway.store, gateway.clock)
    _add_rest(app, gateway)
    app.router.include_in_schema = False  # openapi.json does not describe the routes below
    add_page(app, gateway)
    _add_middleware(app, gateway)
    for feature in FEATURES:
        for name in feature.middleware:
            feature.load(name)(app, gateway)
    return app


def _add_api(app: FastAPI, gateway: Gateway) -> None:
    store = gateway.store
    clock = gateway.clock
    add_commands(app, gateway.commands, clock)
    add_deliveries(app, gateway.deliveries, clock)
    add_uploads(app, store.tasks, gateway.bundles)
    add_ledger(app, store.corrections, store.overdue, clock)
    add_readers(app, store, gateway.views, gateway.feed)
    add_pools(app, store.pools, gateway.crawlers)
    add_logs(app, gateway.reader)
    add_files(app, gateway.files, store.runs, store.tasks)
    add_items(app, gateway.items)
    add_stream(app, gateway)
    add_audit(app, store.findings, gateway.workflows)
    add_quotas(app, store.quotas)
    add_access_log(app, store.access, clock)
    for feature in FEATURES:
        for name in feature.routes:
            feature.load(name)(app, gateway)


def _add_middleware(app: FastAPI, gateway: Gateway) -> None:
    """Add the middleware. A request passes through the last one first."""
    entrance = gateway.entrance
    operations = Operations(app)
    limits = RateLimits(entrance.quota)
    app.add_middleware(Serving, limits=limits)
    app.add_middleware(BodyLimit, limit=lambda scope: int(scope["lifecycle.body_max"]))
    app.add_middleware(
        AuthenticationMiddleware,
        operations=operations,
        entrance=entrance,
        limits=limits,
        logins=gateway.logins,
        clock=gateway.clock,
    )
    app.add_middleware(Guard, check=entrance.check)
    app.add_middleware(
        Recording, recorder=gateway.recorder, operation=lambda *asked: operations.of(*asked)[0]
    )
    app.add_middleware(Pages)
    app.add_middleware(gateway.metrics.requests)


def _add_rest(app: FastAPI, gateway: Gateway) -> None:
    needs = gateway.needs
    crawlers = gateway.crawlers
    callers = gateway.entrance.callers
    add_metrics(app, gateway.metrics, needs, lambda: gateway.store.health.projects())

    @app.get("/v1/health")
    async def get_health() -> HealthReport:
        """The state of the installation: the database, Temporal, the workers of each task queue,
        overdue polls, and the event stream. It also shows the longest time for which a recorded
        status may have been untrue this week. A part can be some seconds old; `at` is the time of
        its check.
        """
        return await gateway.health.read()

    @app.get("/v1/crawlers", **documents(CrawlerList))
    async def list_crawlers(request: Request) -> Response:
        """The crawlers that can be started: those that the scheduler service declares, and those of
        the database, with the numbers of their versions.

        If the scheduler service does not answer, this is its last answer, and the header `Age` has
        the age in seconds.
        """
        known = await crawlers.all()
        # Some people put passwords into variables.
        listed = [
            replace(crawler, env=dict.fromkeys(crawler.env, "…")) if crawler.env else crawler
            for crawler in known.values()
        ]
        response = conditional(request, CrawlerList(crawlers=listed, note=crawlers.problem))
        if crawlers.age_s is not None:
            response.headers["Age"] = f"{crawlers.age_s:.0f}"
        return response

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Report that the process is alive, without asking the database or Temporal."""
        return {"status": "alive"}

    @app.get(
        "/readyz", responses={503: {"model": Readiness, "description": "Something is missing"}}
    )
    async def readyz(response: Response) -> Readiness:
        """Report whether the database and Temporal answer (status 503 if one of them does not)."""
        checks = await needs()
        ready = set(checks.values()) == {"ok"}
        response.status_code = 200 if ready else 503
        # We stay ready while the issuer is unavailable, because its known keys remain valid.
        if (oidc := gateway.entrance.oidc) is not None:
            checks["issuer"] = oidc.problem or "ok"
        # All gateways are equally affected, so all of them stay ready.
        if gateway.marks is not None:
            checks["settings"] = gateway.same_settings.problem or "ok"
        if callers is not None and caller_name() is None:
            # The reasons name our hosts and ports. A caller without a token sees only that a check
            # has failed.
            checks = {
                name: answer if answer == "ok" else _HIDDEN for name, answer in checks.items()
            }
        if callers is not None:
            # If a new tokens file is broken, the previous tokens stay valid. So the fault is
            # reported here, and we stay ready.
            checks["tokens"] = callers.problem or "ok"
        return Readiness(ready=ready, checks=checks)
