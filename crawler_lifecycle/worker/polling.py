"""The pollers of the task queues of a worker process, with one SDK worker per queue.

All of them shut down together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity
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

from crawler_lifecycle.compose import ROLES, USER_CODE, WEBHOOKS, Parts, activities_of, workflows_of
from crawler_lifecycle.domain.names import QUEUE_FUNCTIONS, functions_queue
from crawler_lifecycle.features.user_code.users_code import UsersCode
from crawler_lifecycle.observability.metrics import release
from crawler_lifecycle.settings import Settings, WorkerSettings
from crawler_lifecycle.temporal.interceptors import HeartbeatInterceptor
from crawler_lifecycle.workflows.policies import DEAD_S, POLICIES

#: Seconds that a workflow waits for the worker that has the workflow in its cache. After this time,
#: any worker can execute the workflow. A killed worker causes at most one such wait per step,
#: because after 10 s Temporal knows that nothing polls the worker's own queue.
STICKY_S = 2.0
#: The number of concurrent polls for workflow tasks. ``TAKEN_UP`` of them poll the shared queue.
#: With only one such poll, a new worker would start only 20 workflows per second, and fewer on a
#: busy server, where each poll takes half a second.
WORKFLOW_POLLS = 20


def deployment_of(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """Return the SDK's versioning options for a worker with a build id; ``None`` for a worker
    without one.

    Every workflow moves to the current build with its next step (``AUTO_UPGRADE``). Runs can last
    for days, and any build must be able to stop them. Tests replay recorded histories to prove that
    a build can continue the workflows of other builds.
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
    """Return the SDK worker that polls the queue of a role, or ``queue`` for the same activities.

    ``most`` limits concurrent activities. If ``functions`` is not 0, the worker accepts only calls
    of users' functions, and at most ``functions`` calls at the same time.
    """
    beaten = [name for name, policy in POLICIES.items() if policy.beaten]
    lag = Lag()
    return Worker(
        client,
        task_queue=queue or ROLES[role],
        workflows=workflows_of(role),
        activities=activities_of(role, parts, QUEUE_FUNCTIONS if functions else None),
        activity_executor=threads,
        tuner=tuner(functions or most or settings.threads, lag),
        max_cached_workflows=settings.cached(),
        graceful_shutdown_timeout=timedelta(seconds=settings.grace_s),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_S),
        max_concurrent_workflow_task_polls=WORKFLOW_POLLS,
        nonsticky_to_sticky_poll_ratio=TAKEN_UP / WORKFLOW_POLLS,
        interceptors=[HeartbeatInterceptor(beaten, lag.note)],
        # By default, the SDK delays heartbeats by up to 80 % of the timeout, which a slow machine
        # would then miss.
        max_heartbeat_throttle_interval=timedelta(seconds=DEAD_S / 3),
        deployment_config=deployment,
        # Otherwise the SDK derives an id from the code of every loaded module, which takes 0.3 s.
        build_id=None if deployment else release(),
    )


#: Seconds for which the queue of users' objects is still polled while managers are notified to use
#: another worker. The grace time begins afterwards, so this must be short.
NOTIFIED_S = 2.0


@dataclass(eq=False)
class Polling:
    """The SDK workers of one process. ``stack`` releases their resources."""

    client: Client
    settings: Settings
    deployment: WorkerDeploymentConfig | None
    stack: AsyncExitStack

    def __post_init__(self) -> None:
        self._workers: list[Worker] = []
        self._own: Worker | None = None

    async def roles(self, parts: Mapping[str, Parts]) -> None:
        """Poll the queue of each role."""
        for role, its in parts.items():
            most = (
                self.settings.webhooks.max_concurrent_deliveries
                if role == WEBHOOKS
                else self.settings.worker.threads
            )
            threads = self._threads(most, role)
            await self._begin(
                worker(
                    self.client,
                    role,
                    its,
                    self.settings.worker,
                    threads,
                    self.deployment,
                    most=most,
                )
            )

    async def user_code(self, parts: Parts, user_code: UsersCode) -> None:
        """Poll the queue of users' objects in this process, and the queue of users' functions."""
        settings = self.settings.worker
        threads = self._threads(settings.threads, "user-code-own")
        # There is no deployment version, because the object is in this process, whichever build is
        # current.
        await self._begin(
            worker(
                self.client, USER_CODE, parts, settings, threads, None, user_code.hosts.own_queue
            )
        )
        self._own = self._workers.pop()
        most = self.settings.user_code.functions
        queue = functions_queue(self.settings.user_code.queue)
        # This allows as many calls as there can be processes, so no call waits for a free process.
        threads = self._threads(most, "functions")
        await self._begin(
            worker(self.client, USER_CODE, parts, settings, threads, self.deployment, queue, most)
        )

    async def leave(self, moving: Awaitable[None] | None = None) -> None:
        """Accept no more work, and let running activities end within the grace time.

        ``moving`` notifies managers.

        All workers shut down at the same time. Otherwise the last worker would still accept work
        while the first one waits, and the grace times would add up.
        """
        await asyncio.gather(
            *(worker.shutdown() for worker in self._workers), self._leave_own(moving)
        )

    async def _leave_own(self, moving: Awaitable[None] | None) -> None:
        """Shut down the queue of users' objects in this process after its managers are notified, or
        after ``NOTIFIED_S``.
        """
        if self._own is None or moving is None:
            return
        notifying = asyncio.ensure_future(moving)
        await asyncio.wait([notifying], timeout=NOTIFIED_S)
        await asyncio.gather(self._own.shutdown(), notifying)

    def _threads(self, most: int, name: str) -> ThreadPoolExecutor:
        return self.stack.enter_context(ThreadPoolExecutor(most, thread_name_prefix=name))

    async def _begin(self, polling: Worker) -> None:
        self._workers.append(await self.stack.enter_async_context(polling))


#: The wait of activities in Temporal's queue, in seconds, from which starts are paced, the longest
#: pause before a start, and the interval of checks during the pause.
LAG_S = 0.1
PACED_S = 1.0
CHECK_S = 0.05
#: An activity with a shorter wait came with the response to a step, without a queue.
EAGER_S = 0.002
#: The first activity of each run.
BEGINNING = "create_history_id"


class Lag:
    """Seconds that activities of a worker recently waited in Temporal's queue, by the server's
    clock.

    When a server is near its limit, every step waits. Fewer concurrent starts do not take longer in
    total, because the server is busy either way, but a stop then waits for fewer steps of other
    workflows.
    """

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._at = 0.0
        self.run_began = False
        """True if a run has started since this was last set to false."""

    def note(self, info: activity.Info) -> None:
        """Count the wait of an activity that is starting.

        A long wait counts as ``PACED_S``, because it may come from an outage that has ended.
        """
        self.run_began |= info.activity_type == BEGINNING
        waited_s = (info.started_time - info.current_attempt_scheduled_time).total_seconds()
        if waited_s > EAGER_S:
            self._waited_s += (min(waited_s, PACED_S) - self._waited_s) / 8
            self._at = time.monotonic()

    async def over(self) -> None:
        """Wait until activities wait less than ``LAG_S``, or until no activity has started for
        ``PACED_S``, but for at most ``PACED_S``.
        """
        for _ in range(round(PACED_S / CHECK_S)):
            if self._waited_s < LAG_S or time.monotonic() > self._at + PACED_S:
                return
            await asyncio.sleep(CHECK_S)


#: The number of concurrent workflow tasks of cached workflows (from the worker's sticky queue) and
#: of other workflows (from the shared queue).
REMEMBERED = 32
TAKEN_UP = 3


def tuner(activities: int, lag: Lag) -> WorkerTuner:
    """Return the slots of a worker, with this number of concurrent activities, and with
    ``WorkflowSlots`` for workflow tasks.
    """
    return WorkerTuner.create_composite(
        workflow_supplier=WorkflowSlots(lag),
        activity_supplier=FixedSizeSlotSupplier(activities),
        local_activity_supplier=FixedSizeSlotSupplier(1),
        nexus_supplier=FixedSizeSlotSupplier(1),
    )


class WorkflowSlots(CustomSlotSupplier):
    """Slots for the workflow tasks of a worker, with separate slots for cached workflows.

    This class is thread-safe. All workflow tasks of a process share one interpreter.

    If a task takes 10 s, Temporal gives it to another worker, behind all starts. A burst of starts
    would fill the SDK's hundred shared slots, and a stop would wait among them. With fewer shared
    slots, the starts would occupy all of them, and a stop would not get one. With separate slots,
    starts without a slot wait in Temporal's queue and do not delay stops. Temporal 1.32 also
    responds to polls for cached workflows with starts unless this is disabled (docs/deployment.md).
    """

    def __init__(self, lag: Lag, remembered: int = REMEMBERED, taken_up: int = TAKEN_UP) -> None:
        self._lag = lag
        self._slots = {True: asyncio.Semaphore(remembered), False: asyncio.Semaphore(taken_up)}

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Return a slot for the next poll as soon as one is free.

        This may pause once for each run that has started.

        Further tasks of runs that have left the cache are not paced, because they would wait behind
        starts.
        """
        if not ctx.is_sticky and self._lag.run_began:
            self._lag.run_began = False
            await self._lag.over()
        slots = self._slots[ctx.is_sticky]
        await slots.acquire()
        return _Permit(slots, asyncio.get_running_loop())

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Return ``None``, because no workflow is started eagerly, with its first task in the
        answer to the start.
        """
        return None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Do nothing, because the kinds of slots are separate from the beginning."""

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Release the slot.

        The SDK calls this in its own threads, possibly even after the end of the loop.
        """
        if isinstance(ctx.permit, _Permit):
            with suppress(RuntimeError):  # the loop has ended, so nothing waits for a slot
                ctx.permit.loop.call_soon_threadsafe(ctx.permit.slots.release)


class _Permit(SlotPermit):
    """A taken slot, with its semaphore and the loop that waits for slots."""

    def __init__(self, slots: asyncio.Semaphore, loop: asyncio.AbstractEventLoop) -> None:
        self.slots = slots
        self.loop = loop
