"""The entry of the scheduler service: settings to a listening process."""

from __future__ import annotations

import sys

from crawler_lifecycle import logs
from crawler_lifecycle.adapters.catalogue import YamlCatalogue
from crawler_lifecycle.adapters.local.cluster import LocalCluster
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.listening import Unservable, bind, run
from crawler_lifecycle.ports import Deployer
from crawler_lifecycle.settings import Settings

from .app import create_app


def serve(settings: Settings) -> int:
    """Serve until SIGTERM; the exit code. What prevents a start is told on standard error in one line."""
    logs.configure("scheduler")
    try:
        app = create_app(_deployer(settings), YamlCatalogue(settings.crawlers, settings.more_crawlers))
        bound = bind(settings.scheduler.host, settings.scheduler.port, "LIFECYCLE_SCHEDULER")
    except (LifecycleError, Unservable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return run("scheduler service", app, bound)


def _deployer(settings: Settings) -> Deployer:
    if settings.cluster.kind != "local":
        raise Unservable(
            f"LIFECYCLE_CLUSTER__KIND: {settings.cluster.kind!r} is not in this version; "
            "leave it out or set it to 'local'"
        )
    return LocalCluster(settings.cluster.state_dir, settings.cluster.slots)
