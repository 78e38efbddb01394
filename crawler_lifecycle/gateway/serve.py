"""The entry point of the gateway, which reads the settings and serves requests."""

from __future__ import annotations

import functools
import logging
import sys

from pydantic import SecretStr

from crawler_lifecycle.clusters.kind import kind_of
from crawler_lifecycle.compose import (
    build_archive,
    build_bundles,
    build_code_store,
    build_scheduler,
    build_store,
)
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.loopback import is_loopback
from crawler_lifecycle.gateway.access.limits import Quota
from crawler_lifecycle.gateway.access.oidc import Oidc
from crawler_lifecycle.gateway.access.operations import Entrance
from crawler_lifecycle.gateway.access.tokens import TokenFile, TokenFileError
from crawler_lifecycle.observability import logs
from crawler_lifecycle.settings import GatewaySettings, OidcSettings, Settings, fingerprints
from crawler_lifecycle.task_tokens import KEY_MIN
from crawler_lifecycle.temporal import tracing
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.codec import codec_of
from crawler_lifecycle.temporal.plugin import connect
from crawler_lifecycle.web.listening import Unservable, bind, run
from crawler_lifecycle.web.origins import named_hosts, own_page_only

from .app import create_app
from .parts import Gateway

logger = logging.getLogger(__name__)

#: The time limit in seconds for an answer of the scheduler service. It is shorter than for a
#: worker, because a person waits.
SCHEDULER_TIMEOUT_S = 5.0

#: Seconds between two reads of the catalogue. Starts use the last one while the scheduler
#: service is unavailable.
CATALOGUE_S = 60.0

_OPEN = "LIFECYCLE_GATEWAY__AUTH_DISABLED"
_FILE = "LIFECYCLE_GATEWAY__CALLERS_FILE"
_HOW = "crawlctl gateway token new --name NAME --role operate writes the lines for it"


def serve(settings: Settings) -> int:
    """Serve until SIGTERM, and return the exit code.

    If the gateway cannot start, write the reason to standard error.

    The gateway also starts without the database or Temporal. ``/readyz`` shows which of them does
    not answer.
    """
    logs.configure("gateway", settings)
    # A thread that reads items keeps the processor busy. By default, the event loop would then wait
    # 5 ms for each of its turns.
    sys.setswitchinterval(0.0005)
    listen = settings.gateway
    try:
        entrance = entrance_of(listen, settings.oidc)
        code = build_code_store(settings)
        archive = build_archive(settings)
        bundles = build_bundles(settings)
        kind = kind_of(settings.cluster)
        task_logs = kind.logs()
        live_files = kind.live_files()
        store = build_store(settings, told=None)
        bound = bind(listen.host, listen.port, "LIFECYCLE_GATEWAY")
        codec = codec_of(settings.payloads.keys)
        traces = tracing.start("gateway")
    except (LifecycleError, Unservable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not is_loopback(listen.host):
        logger.info("this port does not encrypt tokens; put a proxy with TLS in front of it")
    scheduler = build_scheduler(settings, SCHEDULER_TIMEOUT_S)
    workflows = Workflows()
    connecting = functools.partial(connect, plugins=traces.plugins, codec=codec)
    gateway = Gateway(
        store,
        workflows,
        scheduler,
        entrance=entrance,
        code=code,
        keep_versions=settings.code.keep,
        archive=archive,
        logs=task_logs,
        live_files=live_files,
        bundles=bundles,
        elsewhere=kind.files_elsewhere(),
        outbox_retry_s=listen.outbox_retry_s,
        catalogue_s=CATALOGUE_S,
        webhook_rules=settings.webhooks.rules,
        scrapyd=listen.scrapyd_project if listen.scrapyd else None,
        temporal_ui=listen.temporal_ui,
        marks=fingerprints(settings, "gateway.login_key", "gateway.task_key", "sites"),
        owned=settings.owned,
        sites=settings.sites,
        watches=True,
        background=[functools.partial(workflows.keep_connecting, connecting)],
    )
    try:
        return run("gateway", create_app(gateway), bound, settings.headers)
    finally:
        traces.close()
        scheduler.close()
        store.close()


def entrance_of(settings: GatewaySettings, oidc: OidcSettings | None = None) -> Entrance:
    """Return the rules for callers from the settings. By default, nobody is admitted.

    Raises ``Unservable``, which names the setting and the fix.
    """
    key = _key("TASK_KEY", settings.task_key)
    login_key = _key("LOGIN_KEY", settings.login_key)
    if settings.auth_disabled and settings.callers_file is not None:
        raise Unservable(
            f"{_OPEN} and {_FILE}: both are set; remove the first, or remove the second to need "
            "no tokens"
        )
    if settings.auth_disabled:
        if not is_loopback(settings.host):
            raise Unservable(
                f"LIFECYCLE_GATEWAY__HOST: {settings.host!r} can be reached from elsewhere, and "
                f"{_OPEN} accepts "
                f"every caller; set the host to 127.0.0.1, or replace {_OPEN} with {_FILE} ({_HOW})"
            )
        if oidc is not None and oidc.issuer is not None:
            raise Unservable(
                f"LIFECYCLE_OIDC__ISSUER: set, and {_OPEN} lets everyone in without a login; "
                "remove one of them"
            )
        return Entrance(task_key=key, check=own_page_only)
    if settings.callers_file is None:
        raise Unservable(
            f"{_FILE}: not set, so nobody could call the gateway; set it to a TOML file of tokens "
            f"({_HOW}), "
            "or set "
            f"{_OPEN}=true for a gateway without tokens, on 127.0.0.1 only"
        )
    try:
        callers = TokenFile(settings.callers_file)
    except TokenFileError as error:
        raise Unservable(str(error)) from None
    quota = Quota(
        settings.max_reads_per_s,
        settings.max_writes_per_s,
        settings.max_concurrent_requests,
        settings.max_concurrent_streams,
    )
    people = (
        Oidc(oidc, settings.web_ui_url or "")
        if oidc is not None and oidc.issuer is not None
        else None
    )
    if people is not None and settings.web_ui_url is None:
        raise Unservable(
            "LIFECYCLE_GATEWAY__WEB_UI_URL: not set; set it to the address to which the issuer "
            "sends people back"
        )
    return Entrance(callers, key, quota, named_hosts(tuple(settings.hosts)), login_key, people)


def _key(name: str, given: SecretStr | None) -> bytes | None:
    """Return the bytes of a signing key. Raises ``Unservable`` for a key that is too short."""
    if given is None:
        return None
    key = given.get_secret_value().encode()
    if len(key) < KEY_MIN:
        raise Unservable(
            f"LIFECYCLE_GATEWAY__{name}: {len(key)} bytes are too few; use {KEY_MIN} or more: "
            "openssl rand -hex 32"
        )
    return key
