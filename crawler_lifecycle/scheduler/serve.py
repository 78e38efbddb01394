"""The entry of the scheduler service: settings to a listening process."""

from __future__ import annotations

import sys

from crawler_lifecycle import logs
from crawler_lifecycle.adapters.catalogue import YamlCatalogue
from crawler_lifecycle.adapters.local.cluster import LocalCluster
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.listening import Unservable, bind, run
from crawler_lifecycle.ports import Deployer
from crawler_lifecycle.serving import is_loopback
from crawler_lifecycle.settings import Settings

from .app import create_app

_TOKEN_MIN = 20


def serve(settings: Settings) -> int:
    """Serve until SIGTERM; the exit code. What prevents a start is told on standard error in one line."""
    logs.configure("scheduler", settings)
    try:
        app = create_app(
            _deployer(settings), YamlCatalogue(settings.crawlers, settings.more_crawlers), token=_token(settings)
        )
        bound = bind(settings.scheduler.host, settings.scheduler.port, "LIFECYCLE_SCHEDULER")
    except (LifecycleError, Unservable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return run("scheduler service", app, bound)


def _token(settings: Settings) -> str | None:
    """What callers have to show. Raises ``Unservable``: off loopback nobody may deploy without showing anything."""
    token = settings.scheduler.token.get_secret_value() if settings.scheduler.token else None
    if token is not None and len(token) < _TOKEN_MIN:
        raise Unservable(
            f"LIFECYCLE_SCHEDULER__TOKEN: {len(token)} characters can be guessed; use {_TOKEN_MIN} or more, the same "
            "for workers and gateway: openssl rand -hex 32"
        )
    if token is None and not is_loopback(settings.scheduler.host):
        raise Unservable(
            f"LIFECYCLE_SCHEDULER__HOST: {settings.scheduler.host!r} can be reached from elsewhere; set "
            "LIFECYCLE_SCHEDULER__TOKEN here, for workers and for the gateway (openssl rand -hex 32), or set the host "
            "to 127.0.0.1"
        )
    return token


def _deployer(settings: Settings) -> Deployer:
    if settings.cluster.kind != "local":
        raise Unservable(
            f"LIFECYCLE_CLUSTER__KIND: {settings.cluster.kind!r} is not in this version; "
            "leave it out or set it to 'local'"
        )
    cluster = settings.cluster
    return LocalCluster(cluster.state_dir, cluster.slots, cgroup_setting=cluster.cgroup)
