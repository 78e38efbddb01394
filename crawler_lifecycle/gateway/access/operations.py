"""The table of operations with the roles that they need, and the authentication middleware.

Every operation needs an entry in the table: an app with a route that has none cannot be created.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal, TypeVar
from urllib.parse import parse_qs

import structlog
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crawler_lifecycle import task_tokens
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.projects import ALL, NONE, limited
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.task_tokens import Purpose
from crawler_lifecycle.web.origins import Check, own_page_only
from crawler_lifecycle.web.problems import Problem
from crawler_lifecycle.web.serving import (
    ABOUT,
    FREQUENT,
    STREAMED,
    bearer,
    password,
    unauthorised,
)
from crawler_lifecycle.web.tries import address_of

from .limits import Quota, RateLimits
from .logins import Logins, cookie_of, from_own_page
from .oidc import SIGNED, Oidc
from .recorder import present_call
from .tokens import Caller, Role, TokenFile

logger = logging.getLogger(__name__)

#: The maximum size of a body in bytes. Only bodies that list tasks can be larger.
BODY_MAX = 1024 * 1024
BODY_OF_TASKS_MAX = 2 * 1024 * 1024
#: Seconds between two checks of the token during a long response. The docs promise that such a
#: response ends within a second after its token was revoked.
CHECK_S = 0.4

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Access:
    """The permissions that an operation needs, and its limits.

    Everyone may call it if ``role`` is ``None``.
    """

    role: Role | None
    body_max: int = BODY_MAX
    stream: Literal["never", "always", "when followed", "when waited"] = "never"
    own_run: bool = False
    """True if a crawler may call it with its own token, for its own run."""
    own_task: Purpose | None = None
    """The purpose of the token with which a task may call it, for itself."""
    streamed: bool = False
    """True if the route itself reads the body, in parts and with its own limits."""
    frequent: bool = False
    """True if a log line for each successful call would hide all others."""
    basic: bool = False
    """True if the token may also be sent as the password of basic authentication."""
    everything: bool = False
    """True if it concerns the whole installation, so that only a caller with all projects may call
    it.
    """
    page: bool = False
    """True if it belongs to the web UI, which docs/web-ui.md describes and openapi.json does not.
    """
    per_s: float = 100.0
    """The maximum number of requests per second from one address, if no role is needed."""

    @property
    def writes(self) -> bool:
        return self.role is not None and self.role is not Role.READ


_READ = Access(Role.READ)
#: The maximum size in bytes of the forms for login and logout.
_FORM_MAX = 8 * 1024
#: The maximum size in bytes of what a task asks about sites, and of a site's robots.txt in base64.
_LEASES_MAX = 256 * 1024
_ROBOTS_MAX = 768 * 1024
#: Permissions, each with the operations that need them. A forced stop, ``rerun`` and resending need
#: no higher role than a plain stop or start, because a caller who may start crawls must also be
#: able to end them. All operations on webhooks need ``admin``, because we call the address of a
#: webhook, and that address can contain a secret of the receiver.
_NEEDS: tuple[tuple[Access, str], ...] = (
    (Access(None), "healthz readyz"),
    (
        _READ,
        """metrics openapi getHealth listCrawlers listPools listRuns
        listTasks getTimeline listCorrections listCorrectionsOfRun summarizeCorrections listFiles
        getItems getItemStats listManagers getManager listJobs getManagerLog listUserCode listGraphs
        getGraphPicture getGraphLog listSteps getStep getContext listSchedules getSchedule
        listFirings listQuotas listIncidents getIncident listSites getSite getRobots
        listPackages listPackageVersions getPackageVersion listEntries getCrawler
        listCrawlerHistory listCanaries listCodes""",
    ),
    (Access(Role.READ, everything=True), "getAudit"),
    # The limits of a site and a pool apply to the runs of all projects.
    (Access(Role.OPERATE, everything=True), "audit closeSite openSite"),
    (Access(Role.ADMIN, everything=True), "putSite deleteSite putPool patchPool deletePool"),
    (Access(Role.READ, stream="when waited"), "getRun getGraph getGraphStatus"),
    (Access(Role.READ, stream="when followed"), "getLog"),
    (
        Access(Role.READ, stream="always"),
        "getFile getFeed streamEvents downloadArchive getStepResult listResults",
    ),
    (Access(Role.READ, own_run=True), "getStop"),
    (
        Access(Role.OPERATE),
        """stopRun resumeRun pollRun resendExport startManager addJobs stopManager pauseManager
        resumeManager setManagerLimit startDraft cancelSteps retrySteps approveStep stopGraph
        putSchedule deleteSchedule pauseSchedule resumeSchedule triggerSchedule backfillSchedule
        closeIncident muteIncident assignIncident commentIncident usePackageVersion
        useCrawlerVersion rollBackCrawler acceptCanary rejectCanary""",
    ),
    (
        Access(Role.OPERATE, body_max=BODY_OF_TASKS_MAX),
        "startRun startGraph addGraphPage appendSteps",
    ),
    (Access(Role.OPERATE, body_max=BODY_OF_TASKS_MAX, own_run=True), "addTasks"),
    (Access(Role.OPERATE, own_task=Purpose.FILES), "uploadFiles"),
    (Access(Role.READ, stream="always", own_task=Purpose.CODE), "downloadCode"),
    # Who deploys code decides what executes on the cluster.
    (Access(Role.ADMIN, streamed=True), "putPackageVersion"),
    (Access(Role.ADMIN), "deletePackageVersion deletePackage putCrawler deleteCrawler"),
    (
        Access(Role.OPERATE, own_task=Purpose.LEASES, body_max=_LEASES_MAX, frequent=True),
        "leaseSites",
    ),
    (
        Access(Role.OPERATE, own_task=Purpose.LEASES, stream="always", frequent=True),
        "waitForClosings",
    ),
    (
        Access(Role.OPERATE, own_task=Purpose.LEASES, body_max=_ROBOTS_MAX, frequent=True),
        "shareRobots",
    ),
    (
        Access(Role.ADMIN),
        """deleteRun putWebhook listWebhooks getWebhook deleteWebhook pauseWebhook resumeWebhook
        testWebhook listWebhookDeliveries listAccess""",
    ),
    # scrapyd's API, if it is switched on.
    (
        Access(Role.READ, basic=True),
        """scrapydDaemonstatus scrapydListprojects scrapydListversions scrapydListspiders
        scrapydListjobs scrapydStatus scrapydLog""",
    ),
    (
        Access(Role.OPERATE, basic=True),
        "scrapydSchedule scrapydCancel",
    ),
    (Access(Role.ADMIN, basic=True, streamed=True), "scrapydAddversion"),
    (Access(Role.ADMIN, basic=True), "scrapydDelversion scrapydDelproject"),
    # The web UI.
    (Access(None, page=True), "getAsset showLogin signIn"),
    # Each call of this operation makes us send the client's secret to the issuer.
    (Access(None, page=True, per_s=4.0), "endSignIn"),
    (Access(None, body_max=_FORM_MAX, page=True), "logIn logOut"),
    (
        Access(Role.READ, page=True),
        """showFleet showParts showRuns showRun showTasks showTimeline showRequest showLog showFiles
        showFile showSearch showItems showCrawlers showCrawler showCorrections showManagers
        showManager showManagerJobs showManagerRuns showGraphs showGraph showGraphSteps
        showGraphRuns showSchedules showSchedule showPools showIncidents showIncident joinChannel
        leaveChannel showCrawlerRuns showCrawlerSchedules showCrawlerTab showDueTimes
        showScheduleDefinition showSites showSite showSiteBlocks showSiteRuns showSiteLimits
        showCrawlerVersions showPackages showPackage""",
    ),
    (Access(Role.READ, everything=True, page=True), "showAudit"),
    (Access(Role.OPERATE, everything=True, page=True), "pressAudit pressSite"),
    (Access(Role.ADMIN, everything=True, page=True), "showPutSite pressPutSite"),
    (Access(Role.READ, stream="always", page=True), "fetchLog streamPage openChannel"),
    (
        Access(Role.OPERATE, page=True),
        """showStart showStartManager showStartGraph pressRuns pressExport pressManager
        pressManagers pressManagerRuns pressGraph pressGraphSteps pressGraphRuns pressGraphs
        pressSchedule showPutSchedule pressPutSchedule pressIncident pressIncidents pressCrawlerRuns
        pressCrawlerVersions
        showBackfill""",
    ),
    (
        Access(Role.OPERATE, body_max=BODY_OF_TASKS_MAX, page=True),
        "pressStart pressStartManager pressStartGraph",
    ),
    (
        Access(Role.ADMIN, page=True),
        """showWebhooks showWebhook pressWebhook showPutWebhook pressPutWebhook showAccess
        showDeliveries showWebhookDefinition""",
    ),
)
#: The permissions for each operation id.
ACCESS: Mapping[str, Access] = {name: access for access, names in _NEEDS for name in names.split()}


@dataclass(frozen=True, slots=True)
class Entrance:
    """The rules for callers of a gateway.

    Without ``callers``, the gateway is open. ``check`` refuses foreign pages and hosts.
    """

    callers: TokenFile | None = None
    task_key: bytes | None = None
    quota: Quota | None = None
    check: Check = own_page_only
    login_key: bytes | None = None
    """The key that signs browser sessions. Without a key, sessions end with the process."""
    oidc: Oidc | None = None
    """The people from an issuer, or ``None`` if the gateway accepts only its own tokens."""


class Operations:
    """Finds the operation of a request.

    Raises ``RuntimeError`` if a route of the app has no entry in ``ACCESS``.
    """

    def __init__(self, app: FastAPI) -> None:
        self._known: list[tuple[re.Pattern[str], set[str], str]] = []
        for route in iter_route_contexts(app.routes):
            name = getattr(route, "operation_id", None) or route.name
            if name not in ACCESS or route.path is None:
                raise RuntimeError(
                    f"{route.path}: operation {name!r} has no entry in ACCESS; add who may call it"
                )
            self._known.append((compile_path(route.path)[0], set(route.methods or ()), str(name)))

    def of(self, method: str, path: str) -> tuple[str | None, Mapping[str, str]]:
        """Return the id of an operation and the parameters in its path, or ``None`` if no operation
        matches.
        """
        for pattern, methods, name in self._known:
            found = pattern.match(path)
            if found and method in methods:
                return name, found.groupdict()
        return None, {}

    def unknown(self, path: str) -> Access:
        """Return the permissions for a request that matches no operation because of an unknown path
        or a wrong method.

        Only a caller with permission to read gets 404 or 405.
        """
        basic = any(ACCESS[name].basic for pattern, _, name in self._known if pattern.match(path))
        return replace(_READ, basic=basic)


def caller_name() -> str | None:
    """Return the name of the present caller, or ``None`` on an open gateway or for a request
    without a token.
    """
    caller = present_call().caller
    return None if caller is None else caller.name


def caller_run() -> RunRef | None:
    """Return the run to which the token of the present caller belongs, or ``None`` for a token of
    the tokens file and for a request without a token.
    """
    caller = present_call().caller
    return None if caller is None else caller.run


def caller_key() -> str | None:
    """Return the name and project of the present caller as the key for quotas, or ``None`` as
    ``caller_name`` does.
    """
    caller = present_call().caller
    return None if caller is None else caller.key


def caller_role() -> Role | None:
    """Return the role of the present caller, or ``None`` on an open gateway, where every caller may
    do everything.
    """
    caller = present_call().caller
    return None if caller is None else caller.role


def may(operation: str) -> bool:
    """Return whether the present caller may call this operation.

    Pages use it to show only buttons that will work.
    """
    caller = present_call().caller
    needed = ACCESS[operation].role
    if caller is None or needed is None:
        return True
    return (
        caller.role is not None
        and caller.role.covers(needed)
        and _reaches(caller, ACCESS[operation])
    )


def _reaches(caller: Caller, access: Access) -> bool:
    return caller.project == ALL or not access.everything


def check_own(run: RunRef) -> None:
    """Raise ``Problem`` 403 if the token belongs to the crawler of another run with the same
    number.
    """
    own = caller_run()
    if own is not None and own != run:
        raise Problem(403, "forbidden", run.foreign("the token", own.uid), run_id=run.run_id)


def signed(body: T) -> T:
    """Return the body, with the name of the caller as ``requested_by`` if it has none."""
    name = caller_name()
    if name is None or getattr(body, "requested_by", None) is not None:
        return body
    return body.model_copy(update={"requested_by": name})


@dataclass(eq=False)
class AuthenticationMiddleware:
    """ASGI middleware that checks the caller, its permissions and its limits.

    It runs before the body is read, so that we receive no bodies from unknown callers.
    """

    app: ASGIApp
    _: KW_ONLY
    operations: Operations
    entrance: Entrance
    limits: RateLimits
    logins: Logins | None = None
    clock: Clock = utc_now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        operation, parameters = self.operations.of(scope["method"], scope["path"])
        access = ACCESS[operation] if operation else self.operations.unknown(scope["path"])
        scope["lifecycle.body_max"] = access.body_max
        scope[FREQUENT] = access.frequent
        scope[STREAMED] = access.streamed
        headers = Headers(scope=scope)
        if (
            access.page
            and scope["method"] == "POST"
            and "origin" not in headers
            and "authorization" not in headers
        ):
            # Only browsers send forms, and they always send ``Origin`` with them. Programs use the
            # API.
            raise Problem(
                403, "foreign_origin", "Origin: missing; send the form from a page of this gateway"
            )
        address = address_of(scope.get("client"))
        call = present_call()
        if (oidc := self.entrance.oidc) is not None:
            with contextlib.suppress(Problem):
                await oidc.prepare(_token(headers, access))
        if access.role is None:
            call.caller = self._known(headers, address)
            call.admitted = call.caller is not None
            if self.entrance.callers is not None:
                self.limits.spend_freely(
                    call.caller.key if call.caller else address, operation, access.per_s
                )
            with self._called(scope, call.caller, operation):
                await self.app(scope, receive, send)
            return
        caller = call.caller = self._caller(
            headers, access, address, writes=scope["method"] not in ("GET", "HEAD")
        )
        call.admitted = True
        _check(caller, access, operation or "this", parameters)
        name = caller.key if caller else None
        self.limits.spend(name, writes=access.writes)
        scope["lifecycle.stream"] = stream = _is_stream(access, scope)
        with self.limits.slot(caller, stream=stream), self._called(scope, caller, operation):
            if caller is None or access.writes:
                await self.app(scope, receive, send)
            else:
                await self._until_revoked(caller, headers, access, scope, receive, send)

    @contextlib.contextmanager
    def _called(self, scope: Scope, caller: Caller | None, operation: str | None) -> Iterator[None]:
        """Add the name of the caller to every log line of the request, and limit the request to the
        caller's project.
        """
        if caller is None:
            project = None if self.entrance.callers is None else NONE
        else:
            # Crawlers and runners have no role. Their token names the only run that they can
            # access.
            project = None if caller.role is None or caller.project == ALL else caller.project
        about = {"caller": caller.name if caller else None, "operation": operation}
        scope[ABOUT] = {name: value for name, value in about.items() if value is not None}
        with limited(project), structlog.contextvars.bound_contextvars(**scope[ABOUT]):
            yield

    def _caller(
        self, headers: Headers, access: Access, address: str | None, *, writes: bool = False
    ) -> Caller | None:
        """Return the caller, or ``None`` on an open gateway.

        Raises ``Problem`` 401, or 429 after too many wrong tokens from this address. Without an
        address, wrong tokens are not counted.
        """
        callers = self.entrance.callers
        key = self.entrance.task_key
        if callers is None:
            # The token of a crawler is limited to its own run, even on an open gateway.
            with contextlib.suppress(Problem):
                return _crawler(key, _token(headers, access))
            return None
        if (
            not access.basic
            and "authorization" not in headers
            and (browser := self._browser(headers, writes))
        ):
            return browser
        token = _token(headers, access)
        if crawler := _crawler(key, token):
            return crawler
        if (oidc := self.entrance.oidc) is not None and token.startswith(SIGNED):
            try:
                return oidc.person(token)[0]
            except Problem as problem:
                if problem.code == "invalid_token":
                    self._count_wrong(address)
                raise
        caller, expired = callers.find(token, self.clock())
        if caller is None:
            self._count_wrong(address)
            detail = "Authorization: the token is unknown; get a valid one"
            raise unauthorised("invalid_token", detail, error="invalid_token", basic=access.basic)
        if expired:
            present_call().caller = caller
            detail = f"Authorization: the token of {caller.name!r} has expired; get a new one"
            raise unauthorised("token_expired", detail, error="invalid_token", basic=access.basic)
        return caller

    def _count_wrong(self, address: str | None) -> None:
        if self.logins is not None and address is not None:
            self.logins.tries.wrong(address)

    def _browser(self, headers: Headers, writes: bool) -> Caller | None:
        """Return the caller of a browser session, if one of our own pages sent the request."""
        cookie = cookie_of(headers)
        if self.logins is None or cookie is None or not from_own_page(headers, writes=writes):
            return None
        return self.logins.find(cookie, self.clock())

    def _known(self, headers: Headers, address: str) -> Caller | None:
        """Return the caller of an operation that needs no token, if the request has a valid token
        anyway.
        """
        try:
            return (
                self._caller(headers, _READ, address)
                if {"authorization", "cookie"} & set(headers)
                else None
            )
        except Problem:
            return None

    async def _until_revoked(
        self,
        caller: Caller,
        headers: Headers,
        access: Access,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Send the response while the token stays valid.

        If the token is revoked, or gets another role or project, end the response, even if it is a
        silent stream.
        """
        begun = ended = sized = False

        async def noted(message: Message) -> None:
            nonlocal begun, ended, sized
            begun = True
            sized = sized or any(
                name.lower() == b"content-length" for name, _ in message.get("headers", ())
            )
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async def answered() -> None:
            await self.app(scope, receive, noted)

        answer = asyncio.create_task(answered())
        try:
            while not (await asyncio.wait([answer], timeout=CHECK_S))[0]:
                try:
                    now = self._caller(headers, access, None)
                    if now is None or (now.role, now.project) != (caller.role, caller.project):
                        detail = "Authorization: the token's role or project has changed"
                        raise unauthorised("unauthenticated", detail)
                except Problem as problem:
                    logger.info("ended a response early: %s", problem.detail)
                    answer.cancel()
                    await asyncio.wait([answer])
                    if not begun:
                        raise
                    # After the header Content-Length was sent, the server closes the connection.
                    if not ended and not sized:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(CHECK_S):
                                await send(
                                    {"type": "http.response.body", "body": b"", "more_body": False}
                                )
                    return
            answer.result()
        finally:
            answer.cancel()


def _token(headers: Headers, access: Access) -> str:
    """Return the token of a request. Raises ``Problem`` 401."""
    token = password(headers) if access.basic else bearer(headers)
    if token is None:
        how = (
            "log in with the token as the password"
            if access.basic
            else "send Authorization: Bearer TOKEN"
        )
        raise unauthorised("unauthenticated", f"Authorization: missing; {how}", basic=access.basic)
    return token


def _crawler(key: bytes | None, token: str) -> Caller | None:
    """Return the crawler or runner for which this token was signed, if any."""
    if key is None:
        return None
    if (run := task_tokens.verify(key, token)) is not None:
        return Caller(f"run {run.run_id}", None, run)
    if (claim := task_tokens.verify_task(key, token)) is not None:
        run_id = claim.run.run_id
        return Caller(f"run {run_id} task {claim.index}", None, claim.run, claim)
    return None


def _check(
    caller: Caller | None, access: Access, operation: str, parameters: Mapping[str, str]
) -> None:
    """Raise ``Problem`` 403 if this caller may not call this operation."""
    if caller is None or access.role is None:
        return
    run_id = caller.run.run_id if caller.run is not None else None
    if caller.role is not None:
        if caller.role.covers(access.role) and _reaches(caller, access):
            return
        detail = (
            f"{operation} needs the role {access.role}; the token of {caller.name!r} has "
            f"{caller.role}"
        )
        if caller.role.covers(access.role):
            detail = (
                f"{operation} is about all projects; the token of {caller.name!r} has the "
                f"project {caller.project}"
            )
    elif (claim := caller.claim) is not None:
        own = {
            "run_id": str(run_id),
            "index": str(claim.index),
            "attempt": str(claim.attempt),
        }
        if access.own_task is claim.purpose and parameters == own:
            return
        detail = (
            f"the token of task {claim.index} of run {run_id} is for the {claim.purpose} of that "
            "task only"
        )
    else:
        # The text does not show whether the other run exists.
        if access.own_run and parameters.get("run_id") == str(run_id):
            return
        detail = (
            f"the token of run {run_id} adds tasks to that run, reads its stop, and does "
            "nothing else"
        )
    logger.warning("refused: %s", detail)
    raise forbidden(detail, access.role)


def forbidden(detail: str, scope: str) -> Problem:
    """Return the problem 403 for a token with too few permissions. It names the missing permission
    (RFC 6750, section 3).
    """
    challenge = f'Bearer realm="crawler-lifecycle", error="insufficient_scope", scope="{scope}"'
    return Problem(403, "forbidden", detail, headers={"WWW-Authenticate": challenge})


def _is_stream(access: Access, scope: Scope) -> bool:
    """Return whether this request counts as a stream.

    A request that waits for changes also counts as one.
    """
    asked = parse_qs(scope["query_string"].decode("latin-1"))
    match access.stream:
        case "when followed":
            return any(
                value.lower() in ("1", "true", "t", "yes", "y", "on")
                for value in asked.get("follow", [])
            )
        case "when waited":
            return any(value.strip() != "0" for value in asked.get("wait", []))
    return access.stream == "always"
