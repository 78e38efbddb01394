"""A worker process: the roles it serves, its health, and its shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError
from temporalio.worker import Worker, WorkerDeploymentConfig

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.meters import INSTRUMENTS
from crawler_lifecycle.background import Beside, Loop
from crawler_lifecycle.compose import (
    OBSERVER,
    PLANS,
    ROLES,
    WEBHOOKS,
    Parts,
    activities_of,
    build_audit,
    build_keeper,
    build_numbers,
    build_observer,
    build_parts,
    build_store,
    workflows_of,
)
from crawler_lifecycle.domain.errors import InvalidRequest, LifecycleError
from crawler_lifecycle.domain.names import QUEUE_FUNCTIONS, functions_queue
from crawler_lifecycle.observability import logs
from crawler_lifecycle.observability.metrics import build
from crawler_lifecycle.plans.users_code import UsersCode
from crawler_lifecycle.ports import Observer, ObserverHealth, StoreHealth
from crawler_lifecycle.ports.store.managers import ManagerReader
from crawler_lifecycle.settings import AuditSettings, Settings, WorkerSettings
from crawler_lifecycle.temporal import tracing
from crawler_lifecycle.temporal.audit_schedule import keep_audit_schedule
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.codec import codec_of
from crawler_lifecycle.temporal.directory import TemporalDirectory
from crawler_lifecycle.temporal.heartbeats import HeartbeatInterceptor
from crawler_lifecycle.temporal.plugin import connect, logging_of_core
from crawler_lifecycle.temporal.schedules import ScheduleKeeper
from crawler_lifecycle.temporal.search_attributes import register_search_attributes, registration_command
from crawler_lifecycle.temporal.task_queues import BEAT_S
from crawler_lifecycle.temporal.webhooks import WebhookKeeper
from crawler_lifecycle.web.origins import Gate, programs_only
from crawler_lifecycle.workflows.policies import DEAD_S, POLICIES

from .finalizer_release import Releaser
from .live_counters import Counting
from .overdue_looks import Overdue
from .run_numbers import FIRST_S, Numbers
from .slots import TAKEN_UP, tuner
from .wake_ups import Waker
from .watchdog import MORE_S, Watchdog

log = logging.getLogger(__name__)

T = TypeVar("T")

EXIT_ERROR, EXIT_UNREACHABLE = 1, 8
#: How often a worker that cannot start yet tries again, seconds.
RETRY_S = 2.0
#: How often a worker that serves asks whether what it needs is there, seconds.
CHECK_S = 5.0
#: How often a worker asks whether Temporal still knows what was registered, seconds: its database may be another one.
REGISTER_S = 30.0
#: How long a workflow waits for the worker that remembers it before any other takes it: the price of a killed worker,
#: once: after 10 s Temporal knows that nobody polls. In a burst that other queue is the one where all starts wait.
STICKY_S = 10.0
#: Polls for workflow tasks at once, as many of them as there are slots for workflows that are taken up. With one of
#: those a new worker takes up 20 workflows a second; on a server that is busy each poll takes half a second.
WORKFLOW_POLLS = 20
#: Seconds in which a worker that leaves tells the managers whose objects it holds.
MOVED_S = 5.0


@dataclass
class Health:
    """What the probes answer. Liveness is the event loop itself; readiness is a list of what is missing."""

    roles: list[str]
    version: str | None = None
    missing: dict[str, str] = field(default_factory=lambda: {"temporal": "not connected yet"})

    wake_ups: Callable[[], Mapping[str, object]] | None = None
    """How the observer stands. A dead one is no reason to take no work: it only makes things faster."""
    counting: Callable[[], Mapping[str, object]] | None = None
    """Of how many running tasks counters were written between looks, and why that fails."""
    releases: Callable[[], Mapping[str, object]] | None = None
    """How many ends the cluster still keeps as evidence, and why they cannot be let go of."""
    numbers: Callable[[], Mapping[str, object]] | None = None
    """Whether everything that bears numbers of runs has said which ones. New ones are given out all the same."""
    overdue: Callable[[], Mapping[str, object]] | None = None
    """How many looks are overdue, and what was done about them."""
    schedules: Callable[[], Mapping[str, object]] | None = None
    """How many schedules were compared with Temporal, and why that fails. Temporal fires all the same."""
    plans: Callable[[], Mapping[str, object]] | None = None
    """How many processes with users' code there are, which plans are served, and which are broken. A broken one is no
    reason to take no work: the others are served."""

    def app(self, listens: str) -> Starlette:
        """``/healthz`` (alive) and ``/readyz`` (serving; otherwise what is missing and the cure)."""

        async def healthz(_: Request) -> JSONResponse:
            return JSONResponse({"status": "alive", "roles": self.roles, "version": self.version, "pid": os.getpid()})

        async def readyz(_: Request) -> JSONResponse:
            body: dict[str, object] = {"ready": not self.missing, "missing": self.missing}
            if self.wake_ups is not None:
                body["wake_ups"] = dict(self.wake_ups())
            if self.counting is not None:
                body["counting"] = dict(self.counting())
            if self.releases is not None:
                body["releases"] = dict(self.releases())
            if self.numbers is not None:
                body["numbers"] = dict(self.numbers())
            if self.overdue is not None:
                body["overdue"] = dict(self.overdue())
            if self.schedules is not None:
                body["schedules"] = dict(self.schedules())
            if self.plans is not None:
                body["plans"] = dict(self.plans())
            return JSONResponse(body, status_code=503 if self.missing else 200)

        gate = Middleware(Gate, check=programs_only(listens))
        return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz)], middleware=[gate])


def check_roles(roles: Sequence[str]) -> list[str]:
    """The roles to serve; ``all`` or none means every one that has a queue, and ``cluster`` observes as well.

    Raises ``InvalidRequest``.
    """
    if not roles or "all" in roles:
        return list(ROLES)
    for role in roles:
        if role not in (*ROLES, OBSERVER):
            raise InvalidRequest(f"role: {role!r} is unknown; choose from all, {', '.join(ROLES)}, {OBSERVER}")
    return list(dict.fromkeys(roles))


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InvalidRequest(
            f"LIFECYCLE_WORKER__HEALTH_PORT: {host}:{port} cannot be used ({error.strerror}); "
            "end what listens there or choose another port (0 takes a free one)"
        ) from None


@contextlib.asynccontextmanager
async def _serving_health(health: Health, settings: Settings) -> AsyncIterator[None]:
    listener = _listen(settings.worker.health_host, settings.worker.health_port)
    app = health.app(settings.worker.health_host)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def _runtime(settings: WorkerSettings) -> Runtime:
    """The SDK's runtime, with a Prometheus endpoint for its figures and ours when a port is set.

    Raises ``InvalidRequest`` when nobody can listen there.
    """
    metrics, host = None, settings.metrics_host
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
            f"LIFECYCLE_WORKER__METRICS_PORT: {settings.metrics_host}:{settings.metrics_port}: {error}; "
            "end what listens there, choose another port, or unset it"
        ) from None
    version = settings.version()
    labels = build() | ({"build": version[1]} if version else {})
    runtime.metric_meter.create_gauge("lifecycle_build_info", "Always 1; version and build").set(1, labels)
    return runtime


def _deployment(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """How a worker with a build id takes part in a deployment; ``None`` for one without.

    Every workflow moves to the current build with its next step (``AUTO_UPGRADE``): runs live for days, a stop must be
    carried out by whatever build there is, and recorded histories prove that each build continues what others began.
    """
    version = settings.version()
    if version is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(*version),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )


async def _without_database(database: StoreHealth) -> dict[str, str]:
    """What is missing of the database, for readiness; empty when it can be used."""
    try:
        await asyncio.to_thread(database.ping)
    except LifecycleError as error:
        return {"database": str(error)}
    return {}


async def _registered(client: Client) -> dict[str, str]:
    """Register the search attributes that the server does not know; what is missing of them."""
    try:
        added = await register_search_attributes(client)
    except RPCError as error:
        cure = registration_command(client.namespace)
        return {"search_attributes": f"cannot be registered ({error}); let an operator run: {cure}"}
    if added:
        log.info("registered search attributes %s", ", ".join(added))
    return {}


async def _connected(
    database: StoreHealth,
    workflows: Workflows,
    health: Health,
    connecting: Callable[[], Awaitable[Client]],
) -> Client:
    """Connect and check until everything is there. Raises ``LifecycleError`` for what no waiting mends."""
    while True:  # not a loop in the background: such an error has to end the worker
        missing: dict[str, str] = {}
        if workflows.client is None:
            try:
                workflows.client = await connecting()
            except (RuntimeError, RPCError, OSError) as error:
                missing["temporal"] = f"no Temporal server answers ({error}); start one or set TEMPORAL_ADDRESS"
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


class _WakeMeters:
    """Wake-ups in the worker's metrics."""

    def __init__(self, runtime: Runtime) -> None:
        meter = runtime.metric_meter
        self._wake_ups = meter.create_counter("lifecycle_wake_ups", "Changes that the observer noticed, by what became")
        self._up = meter.create_gauge("lifecycle_observer_up", "1 while the observer sees the cluster, otherwise 0")

    def count(self, what: str, by: int) -> None:
        self._wake_ups.add(by, {"what": what})

    def observer(self, health: ObserverHealth) -> None:
        self._up.set(int(health.up))


def _observer_of(settings: Settings, roles: Sequence[str]) -> Observer | None:
    """The observer that these roles have: that of the role ``observer``, or the one beside ``cluster``.

    Raises ``InvalidRequest`` for the role ``observer`` where there is nothing that observes.
    """
    if OBSERVER not in roles and not ("cluster" in roles and settings.worker.wake_ups):
        return None
    observer = build_observer(settings)
    if observer is None and OBSERVER in roles:
        raise InvalidRequest(
            f"role: {OBSERVER!r} has nothing to observe on a cluster of kind {settings.cluster.kind!r}; leave it out"
        )
    return observer


async def _unless(over: asyncio.Event, work: Coroutine[Any, Any, T], within_s: float | None = None) -> T | None:
    """What ``work`` returns or raises; ``None`` when ``over`` is set or the time is up before that, which ends it."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(over.wait())
    await asyncio.wait((working, leaving), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.wait((working,))
    return None


def _sight(waker: Waker) -> dict[str, str]:
    """What is missing of a process that does nothing but observe; empty when it sees."""
    health = waker.health()
    return {} if health.up else {"observer": health.problem or "it does not see the cluster"}


async def _stay_truthful(
    client: Client,
    database: StoreHealth,
    health: Health,
    registered: Callable[[], Awaitable[dict[str, str]]],
    also: Callable[[], dict[str, str]],
) -> None:
    """Until it is cancelled: readiness says what the worker cannot do without and does not have at present.

    ``registered`` makes sure that Temporal knows what workflows need.
    """
    checked = time.monotonic()

    async def check() -> float:
        nonlocal checked
        missing = await _without_database(database) | also()
        try:
            await client.service_client.check_health(timeout=timedelta(seconds=CHECK_S))
        except (RPCError, RuntimeError) as error:
            missing["temporal"] = f"the Temporal server does not answer ({error})"
        else:
            if time.monotonic() - checked >= REGISTER_S or "search_attributes" in health.missing:
                checked = time.monotonic()
                missing |= await registered()
        for what in sorted({*missing, *health.missing}):
            if missing.get(what) != health.missing.get(what):
                log.warning("%s: %s", what, missing.get(what, "is there again"))
        health.missing = missing
        return CHECK_S if not missing else RETRY_S

    await Loop("the check of what this worker needs", CHECK_S).run(check)


async def _keep_schedule(client: Client, settings: AuditSettings) -> None:
    """Make the schedule of audits what the settings say. Without the right to, audits on demand still work."""
    try:
        await keep_audit_schedule(client, settings.every_s, settings.repair)
    except RPCError as error:
        log.warning(
            "audits are not scheduled (%s); give this worker the right to, or call crawlctl audit from a timer", error
        )


def _worker(
    client: Client,
    role: str,
    parts: Parts,
    settings: WorkerSettings,
    threads: ThreadPoolExecutor,
    deployment: WorkerDeploymentConfig | None,
    queue: str | None = None,
    functions: int = 0,
    most: int = 0,
) -> Worker:
    """What polls the queue of one role, or another one for the same activities, ``most`` of them at once; or, with
    ``functions``, for so many calls of functions at once."""
    return Worker(
        client,
        task_queue=queue or ROLES[role],
        workflows=workflows_of(role),
        activities=activities_of(role, parts, QUEUE_FUNCTIONS if functions else None),
        activity_executor=threads,
        tuner=tuner(functions or most or settings.threads),
        max_cached_workflows=settings.cached(),
        graceful_shutdown_timeout=timedelta(seconds=settings.grace_s),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_S),
        max_concurrent_workflow_task_polls=WORKFLOW_POLLS,
        nonsticky_to_sticky_poll_ratio=TAKEN_UP / WORKFLOW_POLLS,
        interceptors=[HeartbeatInterceptor([name for name, policy in POLICIES.items() if policy.beaten])],
        # The SDK would hold a beat back for up to four fifths of the timeout: too near for a slow machine.
        max_heartbeat_throttle_interval=timedelta(seconds=DEAD_S / 3),
        deployment_config=deployment,
    )


async def run(settings: Settings, roles: Sequence[str], over: asyncio.Event) -> None:
    """Serve until ``over`` is set, then let running activities end within the grace time."""
    deployment = _deployment(settings.worker)
    health = Health(check_roles(roles), deployment.version.to_canonical_string() if deployment else None)
    async with _serving_health(health, settings), contextlib.AsyncExitStack() as stack:
        traces = tracing.start("worker")
        stack.callback(traces.close)
        runtime = _runtime(settings.worker)
        meters.outside(runtime.metric_meter)
        stack.callback(meters.outside, None)
        codec = codec_of(settings.payloads.keys)
        workflows = Workflows()
        directory = TemporalDirectory(asyncio.get_running_loop(), workflows)
        queued = [role for role in health.roles if role != OBSERVER]
        parts = {role: build_parts(settings, directory, role) for role in queued}
        observer = _observer_of(settings, health.roles)
        store = next(iter(parts.values())).store if parts else build_store(settings)
        connecting = functools.partial(connect, runtime=runtime, plugins=traces.plugins, codec=codec)
        client = await _unless(over, _connected(store.health, workflows, health, connecting))
        if client is None:
            return
        beside = await stack.enter_async_context(Beside())
        if queued:
            numbers = Numbers(store.run_numbers, build_numbers(settings, directory, queued))
            health.numbers = numbers.state
            beside.start(numbers.run())
            await _unless(over, numbers.first.wait(), FIRST_S)
        plans = UsersCode(settings.plans, parts[PLANS].store.plans) if PLANS in parts else None
        if plans is not None:
            stack.callback(plans.close)
            parts[PLANS].hosts, parts[PLANS].functions = plans.hosts, plans.functions
            health.plans = plans.state
            beside.start(plans.registering())
        workers = []
        for role in queued:
            most = settings.webhooks.at_once if role == WEBHOOKS else settings.worker.threads
            threads = stack.enter_context(ThreadPoolExecutor(most, thread_name_prefix=role))
            worker = _worker(client, role, parts[role], settings.worker, threads, deployment, most=most)
            workers.append(await stack.enter_async_context(worker))
        if plans is not None:
            threads = stack.enter_context(ThreadPoolExecutor(settings.worker.threads, thread_name_prefix="plans-own"))
            # Of no deployment: what is called here is the object in this very process, whatever build is current.
            worker = _worker(client, PLANS, parts[PLANS], settings.worker, threads, None, plans.hosts.own_queue)
            workers.append(await stack.enter_async_context(worker))
            most, queue = settings.plans.functions, functions_queue(settings.plans.queue)
            # Whoever calls a function waits for no process: there are as many calls as there may be processes.
            threads = stack.enter_context(ThreadPoolExecutor(most, thread_name_prefix="functions"))
            worker = _worker(client, PLANS, parts[PLANS], settings.worker, threads, deployment, queue, most)
            workers.append(await stack.enter_async_context(worker))
        also: Callable[[], dict[str, str]] = dict if plans is None else plans.registry.missing
        if observer is not None:
            near = parts["cluster"].store if "cluster" in parts else store
            waker = Waker(observer, near.wake_ups, workflows.look_now, _WakeMeters(runtime))
            health.wake_ups = waker.state
            also = also if queued else functools.partial(_sight, waker)
            beside.start(waker.run())
            counting = Counting(observer, near.live_counters)
            health.counting = counting.state
            beside.start(counting.run())
        keeper = build_keeper(settings) if "cluster" in parts else None
        if keeper is not None:
            releaser = Releaser(keeper, parts["cluster"].store.tasks)
            health.releases = releaser.state
            beside.start(releaser.run())
        if WEBHOOKS in parts:
            beside.start(WebhookKeeper(parts[WEBHOOKS].store.webhooks, workflows).run())
        if "audit" in health.roles:
            await _keep_schedule(client, settings.audit)
            take_over = functools.partial(build_audit(parts["audit"]).take_over, repair=settings.audit.repair)
            of_audits = parts["audit"].store
            note = of_audits.troubles.note_stale
            overdue = Overdue(of_audits.overdue, take_over, workflows.look_now, note=note)
            health.overdue = overdue.state
            beside.start(overdue.run())
            schedules = ScheduleKeeper(parts["audit"].store.schedules, workflows)
            health.schedules = schedules.state
            beside.start(schedules.run())
        health.missing = also()
        log.info("worker ready, roles %s, version %s", ", ".join(health.roles), health.version or "none")

        async def registered() -> dict[str, str]:
            if "audit" in health.roles:
                with contextlib.suppress(RPCError):  # that it may not was said at the start
                    await keep_audit_schedule(client, settings.audit.every_s, settings.audit.repair, only_missing=True)
            return await _registered(client)

        await _unless(over, _stay_truthful(client, store.health, health, registered, also))
        beside.leave()
        health.missing = {"worker": "is leaving"}
        log.info("worker leaves; running activities get %s s", settings.worker.grace_s)
        # All at once: one after the other, the last would still take work while the first waits, and the grace adds up.
        telling = [] if plans is None else [_tell_moved(plans, parts[PLANS].store.managers, workflows)]
        await asyncio.gather(*(worker.shutdown() for worker in workers), *telling)


async def _tell_moved(plans: UsersCode, managers: ManagerReader, workflows: Workflows) -> None:
    """Have managers go on elsewhere at once. For a while: they find out by themselves."""
    try:
        await asyncio.wait_for(plans.leave(managers, workflows.moved), MOVED_S)
    except (LifecycleError, TimeoutError) as error:
        log.warning("not every manager could be told that this worker leaves: %s", error or "it takes too long")


def serve(settings: Settings, roles: Sequence[str] = ()) -> int:
    """Run a worker until SIGTERM or SIGINT; the exit code."""
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
