"""The entry of the gateway: settings to a listening process."""

from __future__ import annotations

import sys

from crawler_lifecycle import logs
from crawler_lifecycle.adapters.database import open_store
from crawler_lifecycle.adapters.scheduler import HttpSchedulerClient
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.listening import Unservable, bind, run
from crawler_lifecycle.serving import is_loopback
from crawler_lifecycle.settings import Settings

from .app import create_app
from .workflows import LateTemporal

#: A person waits for the answer, so the scheduler service gets less time than a worker gives it.
SCHEDULER_TIMEOUT_S = 5.0


def serve(settings: Settings) -> int:
    """Serve until SIGTERM; the exit code. What prevents a start is told on standard error in one line.

    Neither the database nor Temporal needs to be there: ``/readyz`` tells what is missing, until it comes.
    """
    logs.configure("gateway")
    listen = settings.gateway
    try:
        if not is_loopback(listen.host):
            raise Unservable(
                f"LIFECYCLE_GATEWAY__HOST: {listen.host!r} can be reached from elsewhere, and this version knows no "
                "tokens; set it to 127.0.0.1 and put a proxy that checks who calls in front"
            )
        store = open_store(settings.database.url, pool_size=settings.database.pool_size)
        bound = bind(listen.host, listen.port, "LIFECYCLE_GATEWAY")
    except (LifecycleError, Unservable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    scheduler = HttpSchedulerClient(settings.scheduler.url, min(settings.scheduler.timeout_s, SCHEDULER_TIMEOUT_S))
    temporal = LateTemporal()
    app = create_app(
        store, temporal, scheduler, sweep_s=settings.gateway.sweep_s, background=[temporal.keep_connecting]
    )
    try:
        return run("gateway", app, bound)
    finally:
        scheduler.close()
        store.close()
