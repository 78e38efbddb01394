"""The start, the readiness and the shutdown of a worker process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import uvicorn
from temporalio.client import Client
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.meters import INSTRUMENTS
from crawler_lifecycle.background import Beside, Loop
from crawler_lifecycle.clusters.kind import kind_of
from crawler_lifecycle.compose import OBSERVER, ROLES, USER_CODE, build_numbers, build_parts
from crawler_lifecycle.domain.errors import InvalidRequest, LifecycleError
from crawler_lifecycle.features.user_code.users_code import UsersCode
from crawler_lifecycle.observability import logs
from crawler_lifecycle.observability.metrics import build
from crawler_lifecycle.ports.cluster import Observer
from crawler_lifecycle.settings import AuditSettings, Settings, WorkerSettings
from crawler_lifecycle.store.store import StoreHealth
from crawler_lifecycle.temporal import tracing
from crawler_lifecycle.temporal.audit_schedule import keep_audit_schedule
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.codec import codec_of
from crawler_lifecycle.temporal.directory import TemporalDirectory
from crawler_lifecycle.temporal.operator.server import (
    register_search_attributes,
    registration_command,
)
from crawler_lifecycle.temporal.operator.task_queues import BEAT_S
from crawler_lifecycle.temporal.plugin import connect, logging_of_core

from .duties import Duties, Health
from .polling import Polling, deployment_of
from .recording import Recording
from .run_numbers import FIRST_S, Numbers
from .watchdog import MORE_S, Watchdog

log = logging.getLogger(__name__)

T = TypeVar("T")
#: The missing parts, each with the reason and the fix, for readiness.
Problems = dict[str, str]

EXIT_ERROR = 1
#: Seconds between two tries to start, and between two checks while something is missing.
RETRY_S = 2.0
#: Seconds between two checks that database and Temporal are available.
CHECK_S = 5.0
#: Seconds between two checks that Temporal still knows our search attributes, because its database
#: may have been replaced.
REGISTER_S = 30.0
#: Seconds that a worker has during shutdown to notify the managers whose objects it holds.
MOVED_S = 5.0


def check_roles(roles: Sequence[str]) -> list[str]:
    """Return the roles to serve, without duplicates.

    ``all``, or no role, means every role with a task queue.

    Raises ``InvalidRequest`` for an unknown role.
    """
    if not roles or "all" in roles:
        return list(ROLES)
    for role in roles:
        if role not in (*ROLES, OBSERVER):
            raise InvalidRequest(
                f"role: {role!r} is unknown; choose from all, {', '.join(ROLES)}, {OBSERVER}"
            )
    return list(dict.fromkeys(roles))


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise InvalidRequest(
            f"LIFECYCLE_WORKER__HEALTH_PORT: {host}:{port} cannot be used ({error.strerror}); "
            "end the process that listens there, or choose another port (0 chooses a free port)"
        ) from None


@contextlib.asynccontextmanager
async def _serving_health(health: Health, settings: Settings) -> AsyncIterator[None]:
    listener = _listen(settings.worker.health_host, settings.worker.health_port)
    app = health.app(settings.worker.health_host)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", headers=settings.headers
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def _runtime(settings: WorkerSettings) -> Runtime:
    """Return the SDK's runtime.

    If a port is set, the runtime serves the SDK's metrics and ours for Prometheus.

    Raises ``InvalidRequest`` if the address cannot be used.
    """
    metrics = None
    host = settings.metrics_host
    if settings.metrics_port is not None:
        metrics = PrometheusConfig(
            bind_address=f"{f'[{host}]' if ':' in host else host}:{settings.metrics_port}",
            counters_total_suffix=True,
            unit_suffix=True,
            durations_as_seconds=True,
            histogram_bucket_overrides={i.name: i.buckets for i in INSTRUMENTS if i.buckets},
        )
    try:
        runtime = Runtime(
            telemetry=TelemetryConfig(logging=logging_of_core(), metrics=metrics),
            worker_heartbeat_interval=timedelta(seconds=BEAT_S),
        )
    except ValueError as error:
        raise InvalidRequest(
            f"LIFECYCLE_WORKER__METRICS_PORT: {settings.metrics_host}:{settings.metrics_port}: "
            f"{error}; "
            "end the process that listens there, choose another port, or unset it"
        ) from None
    version = settings.version()
    labels = build() | ({"build": version[1]} if version else {})
    runtime.metric_meter.create_gauge("lifecycle_build_info", "Always 1; version and build").set(
        1, labels
    )
    return runtime


async def _without_database(database: StoreHealth) -> Problems:
    """Return the problem of the database, for readiness; empty if the database can be used."""
    try:
        await asyncio.to_thread(database.ping)
    except LifecycleError as error:
        return {"database": str(error)}
    return {}


async def _registered(client: Client) -> Problems:
    """Register our missing search attributes.

    Return the problem and its fix, for readiness; empty if there is none.
    """
    try:
        added = await register_search_attributes(client)
    except RPCError as error:
        fix = registration_command(client.namespace)
        return {
            "search_attributes": f"cannot be registered ({error}); ask an operator to run: {fix}"
        }
    if added:
        log.info("registered search attributes %s", ", ".join(added))
    return {}


async def _registered_again(client: Client, audit: AuditSettings | None) -> Problems:
    """Register our search attributes again if they are missing.

    If ``audit`` is true, also create the schedule of audits again.
    """
    if audit is not None:
        with contextlib.suppress(RPCError):  # a missing permission was logged at the start
            await keep_audit_schedule(client, audit.interval_s, audit.repair, only_missing=True)
    return await _registered(client)


async def _connected(
    database: StoreHealth,
    workflows: Workflows,
    health: Health,
    connecting: Callable[[], Awaitable[Client]],
) -> Client:
    """Connect and check until nothing is missing.

    Raises ``LifecycleError`` for an error that waiting cannot fix.
    """
    while True:  # a background ``Loop`` would catch this error
        missing: Problems = {}
        if workflows.client is None:
            try:
                workflows.client = await connecting()
            except (RuntimeError, RPCError, OSError) as error:
                missing["temporal"] = (
                    f"no Temporal server responds ({error}); start one, or set TEMPORAL_ADDRESS"
                )
        client = workflows.client
        if client is not None:
            missing |= await _registered(client)
        missing |= await _without_database(database)
        if client is not None and not missing:
            return client
        for what, text in missing.items():
            if health.missing.get(what) != text:
                log.warning("not ready: %s: %s", what, text)
        health.missing = missing
        await asyncio.sleep(RETRY_S)


def _observer_of(settings: Settings, roles: Sequence[str]) -> Observer | None:
    """Return the observer for the ``observer`` role, or for ``cluster`` if its wake-ups are on;
    otherwise ``None``.

    Raises ``InvalidRequest`` for the ``observer`` role if this kind of cluster has no observer.
    """
    if OBSERVER not in roles and not ("cluster" in roles and settings.worker.wake_ups):
        return None
    observer = kind_of(settings.cluster).observer()
    if observer is None and OBSERVER in roles:
        raise InvalidRequest(
            f"role: {OBSERVER!r} has nothing to observe on a cluster of kind "
            f"{settings.cluster.kind!r}; leave it out"
        )
    return observer


async def _unless(
    over: asyncio.Event, work: Coroutine[Any, Any, T], within_s: float | None = None
) -> T | None:
    """Return the result of ``work``.

    If ``over`` is set or ``within_s`` elapses first, cancel ``work`` and return ``None``.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(over.wait())
    await asyncio.wait((working, leaving), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.wait((working,))
    return None


def _sight(recording: Recording) -> Problems:
    """Return the problem of a process that only observes, for readiness; empty if it can watch the
    cluster.
    """
    health = recording.health()
    return (
        {} if health.up else {"observer": health.problem or "the observer cannot watch the cluster"}
    )


async def _check_readiness(
    client: Client,
    database: StoreHealth,
    health: Health,
    registered: Callable[[], Awaitable[Problems]],
    also: Callable[[], Problems],
) -> None:
    """Until cancelled, keep ``health.missing`` up to date with everything that the worker needs and
    does not have.

    ``registered`` registers search attributes and returns the resulting problem; ``also`` returns
    further problems.
    """
    checked = time.monotonic()

    async def check() -> float:
        nonlocal checked
        missing = await _without_database(database) | also()
        try:
            await client.service_client.check_health(timeout=timedelta(seconds=CHECK_S))
        except (RPCError, RuntimeError) as error:
            missing["temporal"] = f"the Temporal server does not respond ({error})"
        else:
            if time.monotonic() - checked >= REGISTER_S or "search_attributes" in health.missing:
                checked = time.monotonic()
                missing |= await registered()
        for what in sorted({*missing, *health.missing}):
            if missing.get(what) != health.missing.get(what):
                log.warning("%s: %s", what, missing.get(what, "is available again"))
        health.missing = missing
        return CHECK_S if not missing else RETRY_S

    await Loop("the check of this worker's readiness", CHECK_S).run(check)


async def run(settings: Settings, roles: Sequence[str], over: asyncio.Event) -> None:
    """Serve until ``over`` is set, then let running activities end within the grace time."""
    deployment = deployment_of(settings.worker)
    health = Health(
        check_roles(roles), deployment.version.to_canonical_string() if deployment else None
    )
    async with _serving_health(health, settings), contextlib.AsyncExitStack() as stack:
        traces = tracing.start("worker")
        stack.callback(traces.close)
        runtime = _runtime(settings.worker)
        meters.outside(runtime.metric_meter)
        stack.callback(meters.outside, None)
        workflows = Workflows()
        directory = TemporalDirectory(asyncio.get_running_loop(), workflows)
        observer = _observer_of(settings, health.roles)
        parts = {
            role: build_parts(settings, directory, role)
            for role in health.roles
            if role != OBSERVER
        }
        observing = parts.get("cluster") or (
            build_parts(settings, directory, OBSERVER) if observer else None
        )
        store = next(part.store for part in (*parts.values(), observing) if part is not None)
        codec = codec_of(settings.payloads.keys)
        connecting = functools.partial(
            connect, runtime=runtime, plugins=traces.plugins, codec=codec
        )
        client = await _unless(over, _connected(store.health, workflows, health, connecting))
        if client is None:
            return
        beside = await stack.enter_async_context(Beside())
        if parts:
            numbers = Numbers(store.run_numbers, build_numbers(settings, directory, list(parts)))
            health.beside["numbers"] = numbers.state
            beside.start(numbers.run())
            await _unless(over, numbers.first.wait(), FIRST_S)
        user_code = (
            UsersCode(settings.user_code, parts[USER_CODE].store) if USER_CODE in parts else None
        )
        if user_code is not None:
            stack.callback(user_code.close)
            parts[USER_CODE].hosts = user_code.hosts
            parts[USER_CODE].functions = user_code.functions
            parts[USER_CODE].inspector = user_code.inspector
            health.beside["user-code"] = user_code.state
            beside.start(user_code.registering())
        polling = Polling(client, settings, deployment, stack)
        await polling.roles(parts)
        if user_code is not None:
            await polling.user_code(parts[USER_CODE], user_code)
        duties = Duties(settings, health, workflows, beside)
        recording = await duties.begin(client, parts, observer, observing, store)
        gc.collect()
        # All modules are loaded now. Searching them for garbage would take a tenth of the time of a
        # long poll.
        gc.freeze()
        also: Callable[[], Problems] = dict if user_code is None else user_code.registry.missing
        if recording is not None and not parts:
            also = functools.partial(_sight, recording)
        health.missing = also()
        log.info(
            "worker ready, roles %s, version %s", ", ".join(health.roles), health.version or "none"
        )
        registered = functools.partial(
            _registered_again, client, settings.audit if "audit" in parts else None
        )
        await _unless(over, _check_readiness(client, store.health, health, registered, also))
        beside.leave()
        health.missing = {"worker": "is shutting down"}
        log.info(
            "worker is shutting down; running activities get %s s to end", settings.worker.grace_s
        )
        await polling.leave(None if user_code is None else _notify_managers(user_code, workflows))


async def _notify_managers(user_code: UsersCode, workflows: Workflows) -> None:
    """Notify managers to continue on another worker.

    Give up after ``MOVED_S``, because managers also notice the shutdown on their own.
    """
    try:
        await asyncio.wait_for(user_code.leave(workflows.moved), MOVED_S)
    except (LifecycleError, TimeoutError) as error:
        log.warning(
            "not every manager was notified that this worker is shutting down: %s",
            error or "it takes too long",
        )


def serve(settings: Settings, roles: Sequence[str] = ()) -> int:
    """Run a worker until SIGTERM or SIGINT. Return the exit code."""
    logs.configure("worker", settings)

    async def main() -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, over.set)
        Watchdog(settings.worker.grace_s + MORE_S).watch()
        await run(settings, roles, over)

    try:
        asyncio.run(main())
    except LifecycleError as error:
        print(f"crawlctl worker: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0
