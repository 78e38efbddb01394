"""The routes of the scheduler service."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Response
from prometheus_client import Counter
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import Scope

from crawler_lifecycle import redaction
from crawler_lifecycle.adapters.catalogue import NOTHING_OWNED, read_document
from crawler_lifecycle.domain.bounds import REASON_MAX, words
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, overridden, unknown
from crawler_lifecycle.domain.crawlers.pod import ReservedNames
from crawler_lifecycle.domain.errors import DeploymentExpired, InvalidRequest
from crawler_lifecycle.observability.metrics import Figures
from crawler_lifecycle.ports.cluster import Deployer
from crawler_lifecycle.ports.protocols import Catalogue
from crawler_lifecycle.ports.runs import DeployedTask
from crawler_lifecycle.web.origins import Check, programs_only
from crawler_lifecycle.web.problems import FieldError, JsonBody, Problem, service
from crawler_lifecycle.web.serving import BodyLimit, Guard, bearer, unauthorised
from crawler_lifecycle.web.tries import Tries, address_of

from .schemas import CrawlerList, DeploymentAnswer, OnetimeCall, ScheduledCall, merged

API_VERSION = "1.0"
BODY_MAX = 4 * 1024 * 1024

_ONETIME = JsonBody(OnetimeCall)
_SCHEDULED = JsonBody(ScheduledCall)


class SchedulerMetrics(Figures):
    """The metrics of the scheduler service."""

    def __init__(self) -> None:
        super().__init__("scheduler")
        about = "Tasks of deployment calls, by result"
        self.tasks = Counter(f"{self.prefix}_tasks", about, ["state"], registry=self.registry)
        for state in ("created", "existing", "deferred", "refused"):
            self.tasks.labels(state)


def create_app(
    deployer: Deployer,
    catalogue: Catalogue,
    *,
    token: str | None = None,
    listens: str = "",
    owned: ReservedNames = NOTHING_OWNED,
    reaches_gateway: bool = False,
) -> FastAPI:
    """Return the app for the service. If there is a ``token``, all routes except health checks
    require it.

    ``listens`` is the host on which the service listens. ``owned`` contains names that no entry may
    use. ``reaches_gateway`` is true if tasks can fetch deployed code from the gateway.
    """
    app = service("crawler-lifecycle scheduler service", API_VERSION)
    app.add_middleware(BodyLimit, limit=lambda _: BODY_MAX)
    app.add_middleware(Guard, check=_known_programs(token, programs_only(listens)))
    metrics = SchedulerMetrics()
    app.add_middleware(metrics.requests)

    async def deploy(call: OnetimeCall, response: Response) -> DeploymentAnswer:
        if call.code is not None and not reaches_gateway:
            raise InvalidRequest(
                "code: tasks could not fetch it, because LIFECYCLE_GATEWAY__TASK_KEY is not set; "
                "set it and LIFECYCLE_GATEWAY__URL for the scheduler service, or give the crawler "
                "an image (crawlctl dev --cluster kubernetes executes only images, because pods "
                "cannot reach its gateway)"
            )
        deployed = await run_in_threadpool(_deployed, call, deployer, catalogue, owned)
        for task in deployed:
            metrics.tasks.labels(task.state).inc()
        response.status_code = 201 if any(task.state == "created" for task in deployed) else 200
        return DeploymentAnswer(
            tasks=[replace(task, reason=words(task.reason, REASON_MAX)) for task in deployed]
        )

    @app.post(
        "/v1/deployments/onetime",
        status_code=201,
        responses={200: {"model": DeploymentAnswer, "description": "Nothing had to be created"}},
    )
    async def deploy_onetime(
        call: Annotated[OnetimeCall, Depends(_ONETIME)], response: Response
    ) -> DeploymentAnswer:
        """Deploy the tasks of a manual or API run onto the cluster, each at most once."""
        return await deploy(call, response)

    @app.post(
        "/v1/deployments/scheduled",
        status_code=201,
        responses={200: {"model": DeploymentAnswer, "description": "Nothing had to be created"}},
    )
    async def deploy_scheduled(
        call: Annotated[ScheduledCall, Depends(_SCHEDULED)], response: Response
    ) -> DeploymentAnswer:
        """Deploy the tasks of a scheduled run onto the cluster, each at most once."""
        return await deploy(call, response)

    @app.get("/v1/crawlers")
    def list_crawlers() -> CrawlerList:
        """List the crawlers in the catalogue, omitting the values of their variables."""
        # Some people put passwords into variables, so the values are not sent.
        listed = [
            asdict(crawler) | {"env": dict.fromkeys(crawler.env, "…")}
            for crawler in catalogue.all()
        ]
        return CrawlerList(crawlers=listed, problem=catalogue.problem)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Report that the process is alive. No other system is called."""
        return {"status": "alive"}

    @app.get("/readyz")
    def readyz(response: Response) -> dict[str, Any]:
        """Report whether deployments are accepted, which requires that the newest version of the
        catalogue was read and is valid.
        """
        problem = catalogue.problem
        response.status_code = 503 if problem else 200
        return {"ready": problem is None, "checks": {"catalogue": problem or "ok"}}

    @app.get(
        "/metrics",
        operation_id="metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def read_metrics() -> Response:
        """Return the metrics of the service in the text format of Prometheus."""
        return metrics.answer()

    return app


def _known_programs(token: str | None, programs: Check) -> Check:
    tries = Tries()

    def check(scope: Scope, headers: Headers) -> Problem | None:
        problem = programs(scope, headers)
        if problem is not None or token is None or scope["path"] in ("/healthz", "/readyz"):
            return problem
        given = bearer(headers)
        if given is None:
            return unauthorised(
                "unauthenticated", "Authorization: missing; send Authorization: Bearer TOKEN"
            )
        if not hmac.compare_digest(given.encode(), token.encode()):
            tries.wrong(address_of(scope.get("client")))
            detail = (
                "Authorization: the token is wrong; send the value of "
                "LIFECYCLE_SCHEDULER__TOKEN of this service"
            )
            return unauthorised("invalid_token", detail, error="invalid_token")
        return None

    return check


def _entry_of(
    call: OnetimeCall, catalogue: Catalogue, owned: ReservedNames
) -> CrawlerDefinition | None:
    """Return the crawler of a call, from our catalogue or from the call. Raises
    ``InvalidRequest``.
    """
    own = catalogue.get(call.crawler)
    if call.entry is None or (own is not None and own.package is None):
        return own
    given = read_document({**call.entry, "name": call.crawler}, owned)
    redaction.learn(secrets_of([given]))
    return given if own is None else overridden(given, own)


def secrets_of(crawlers: Iterable[CrawlerDefinition]) -> set[str]:
    """Return the secrets of crawlers, which are the values of the variables in ``secrets`` and
    secret values in ``env``.
    """
    found: set[str] = set()
    for crawler in crawlers:
        found |= {
            os.environ.get(reference.removeprefix("env:"), "")
            for reference in crawler.secrets.values()
        }
        found |= redaction.secrets_of_environment(crawler.env)
    return found


def _deployed(
    call: OnetimeCall, deployer: Deployer, catalogue: Catalogue, owned: ReservedNames
) -> list[DeployedTask]:
    """Deploy the tasks of a call, and return each with its result.

    This call blocks. Raises ``Problem`` and domain errors.
    """
    crawler = _entry_of(call, catalogue, owned)
    if crawler is None:
        words = unknown(call.crawler, (known.name for known in catalogue.all()), catalogue.problem)
        value = repr(call.crawler)[:120]
        message = f"unknown crawler; {words}"
        error = FieldError(field="crawler", value=value, message=message)
        raise Problem(422, "unknown_crawler", f"crawler: {value}: {message}", errors=[error])
    try:
        return deployer.deploy(merged(call, crawler), crawler)
    except DeploymentExpired as error:
        raise Problem(410, "deployment_expired", str(error)) from error
