"""Pollers of the task queues of a worker process: one SDK worker for each queue, and all of them leave together."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    Worker,
    WorkerDeploymentConfig,
    WorkerTuner,
)

from crawler_lifecycle.compose import PLANS, ROLES, WEBHOOKS, Parts, activities_of, workflows_of
from crawler_lifecycle.domain.names import QUEUE_FUNCTIONS, functions_queue
from crawler_lifecycle.plans.users_code import UsersCode
from crawler_lifecycle.settings import Settings, WorkerSettings
from crawler_lifecycle.temporal.interceptors import HeartbeatInterceptor
from crawler_lifecycle.workflows.policies import DEAD_S, POLICIES

#: How long a workflow waits for the worker that remembers it before any other takes it: the price of a killed worker,
#: once: after 10 s Temporal knows that nobody polls. In a burst that other queue is the one where all starts wait.
STICKY_S = 10.0
#: Polls for workflow tasks at once, as many of them as there are slots for workflows that are taken up. With one of
#: those a new worker takes up 20 workflows a second; on a server that is busy each poll takes half a second.
WORKFLOW_POLLS = 20


def deployment_of(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """The part of a worker with a build id in a deployment; ``None`` for one without.

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


def worker(
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
    """A poller of the queue of one role, or another one for the same activities, ``most`` of them at once; or, with
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


#: Seconds for which the queue of users' objects is still served while managers are told to go elsewhere. They come
#: before the grace time, so they are few.
NOTIFIED_S = 2.0


class Polling:
    """The workers of one process. Their resources are released with ``stack``."""

    def __init__(
        self, client: Client, settings: Settings, deployment: WorkerDeploymentConfig | None, stack: AsyncExitStack
    ) -> None:
        self._client, self._settings, self._deployment, self._stack = client, settings, deployment, stack
        self._workers: list[Worker] = []
        self._own: Worker | None = None

    async def roles(self, parts: Mapping[str, Parts]) -> None:
        """Poll the queue of each role."""
        for role, its in parts.items():
            most = self._settings.webhooks.at_once if role == WEBHOOKS else self._settings.worker.threads
            threads = self._threads(most, role)
            await self._begin(
                worker(self._client, role, its, self._settings.worker, threads, self._deployment, most=most)
            )

    async def plans(self, parts: Parts, plans: UsersCode) -> None:
        """Poll the queue of the users' objects in this process, and the one of functions."""
        settings = self._settings.worker
        threads = self._threads(settings.threads, "plans-own")
        # Without a deployment: the object is in this process, whatever build is current.
        await self._begin(worker(self._client, PLANS, parts, settings, threads, None, plans.hosts.own_queue))
        self._own = self._workers.pop()
        most, queue = self._settings.plans.functions, functions_queue(self._settings.plans.queue)
        # Whoever calls a function waits for no process: there are as many calls as there may be processes.
        threads = self._threads(most, "functions")
        await self._begin(worker(self._client, PLANS, parts, settings, threads, self._deployment, queue, most))

    async def leave(self, moving: Awaitable[None] | None = None) -> None:
        """Take no more work, and let what runs end within the grace time. ``moving`` tells managers to go elsewhere.

        All at once: one after the other, the last would still take work while the first waits, and the grace adds up.
        """
        await asyncio.gather(*(one.shutdown() for one in self._workers), self._leave_own(moving))

    async def _leave_own(self, moving: Awaitable[None] | None) -> None:
        """The queue of the users' objects here, which managers still use until they are notified."""
        if self._own is None or moving is None:
            return
        notifying = asyncio.ensure_future(moving)
        await asyncio.wait([notifying], timeout=NOTIFIED_S)
        await asyncio.gather(self._own.shutdown(), notifying)

    def _threads(self, most: int, name: str) -> ThreadPoolExecutor:
        return self._stack.enter_context(ThreadPoolExecutor(most, thread_name_prefix=name))

    async def _begin(self, polling: Worker) -> None:
        self._workers.append(await self._stack.enter_async_context(polling))


#: Workflow tasks at once: of workflows that are remembered (their sticky queue), and of those that are taken up.
REMEMBERED, TAKEN_UP = 32, 3


def tuner(activities: int) -> WorkerTuner:
    """Slots of a worker: so many activities at once, and workflow tasks as above."""
    return WorkerTuner.create_composite(
        workflow_supplier=WorkflowSlots(),
        activity_supplier=FixedSizeSlotSupplier(activities),
        local_activity_supplier=FixedSizeSlotSupplier(1),
        nexus_supplier=FixedSizeSlotSupplier(1),
    )


class WorkflowSlots(CustomSlotSupplier):
    """Slots of workflow tasks of one worker: remembered workflows have some that no other can take. Thread-safe.

    All workflow tasks of a process share one interpreter. Temporal gives one that lasts 10 s to another worker, behind
    all starts. With the SDK's hundred slots for both kinds a burst of starts fills them all, and a stop waits among
    them. With few slots for both, starts hold them, and a stop waits outside. Two numbers cure both: a task that waits
    outside waits in Temporal's queue, where it holds up nobody.
    """

    def __init__(self, remembered: int = REMEMBERED, taken_up: int = TAKEN_UP) -> None:
        self._slots = {True: _Slots(remembered), False: _Slots(taken_up)}

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """A slot for the next poll, as soon as there is one."""
        slots = self._slots[ctx.is_sticky]
        await slots.wait()
        return _Permit(slots)

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """A slot for a task that comes with an answer of Temporal; none when all are taken."""
        slots = self._slots[ctx.is_sticky]
        return _Permit(slots) if slots.take() else None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Nothing: a slot counts from its reservation on."""

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Give the slot back."""
        if isinstance(ctx.permit, _Permit):
            ctx.permit.slots.give()


class _Slots:
    """A semaphore: so many at once, first come, first served. Slots are returned from the SDK's own threads."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take one now; false when there is none."""
        with self._lock:
            taken = self._free > 0
            self._free -= taken
            return taken

    async def wait(self) -> None:
        """Take one as soon as there is one."""
        turn = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                waits = turn in self._waiting
                if waits:
                    self._waiting.remove(turn)
            if not waits:
                self.give()
            raise

    def give(self) -> None:
        """Give one back."""
        with self._lock:
            self._free += 1
        self._serve()

    def _serve(self) -> None:
        with self._lock:
            if not (self._free and self._waiting):
                return
            self._free -= 1
            turn = self._waiting.popleft()
        turn.get_loop().call_soon_threadsafe(_served, turn)


def _served(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # a waiter that gave up meanwhile returns it
        turn.set_result(None)


class _Permit(SlotPermit):
    """A taken slot, and its kind."""

    def __init__(self, slots: _Slots) -> None:
        self.slots = slots
