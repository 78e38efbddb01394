"""Pollers of task queues: which workers are alive, and whether Temporal gives work to their
version.

The server lists a poller for minutes after its worker was killed. Therefore we use heartbeats,
which our workers send every two seconds. A worker without a known heartbeat is judged by its last
poll. It may have just started or died before its first heartbeat, or the server may not keep
heartbeats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue, TaskQueueVersioningInfo
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    ListWorkersRequest,
)
from temporalio.client import Client

from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.temporal.errors import answering

#: Seconds between two heartbeats of a worker.
BEAT_S = 2.0
#: A worker is dead or suspended if its last heartbeat is older than these seconds.
SILENT_S = 4 * BEAT_S
#: A worker without heartbeats is dead if its last poll is older than these seconds. A living worker
#: polls every minute.
POLLED_S = 120.0
#: The maximum number of pages that are read from the server's list of workers, and the workers per
#: page.
PAGES = 10
PAGE = 500

#: Deployment and build; ``None`` for workers without a build id.
Version = tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Poller:
    """A worker that polled a task queue."""

    version: Version
    seen_s: float
    """Seconds since its last heartbeat or poll."""
    alive: bool


@dataclass(frozen=True, slots=True)
class Queue:
    """Facts about a task queue."""

    name: str
    kind: str
    pollers: Sequence[Poller] = ()
    backlog: int = 0
    backlog_age_s: float = 0.0
    current: Version = None
    """The version that gets the work."""
    ramping: Version = None
    """Another version that gets part of the work."""
    ahead_s: float = 0.0
    """Seconds by which the latest poll is in the future, because our clock is behind the server's
    clock.
    """
    problem: str | None = None
    """The reason why the server does not describe the queue; ``None`` if it does."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The latest heartbeat of a worker: its time by the worker's clock, and whether the worker was
    shutting down.
    """

    at: float
    leaving: bool


Beats = dict[tuple[str, str], Beat]


async def describe_queues(
    client: Client, workflows: Sequence[str], activities: Sequence[str], call_s: float
) -> list[Queue]:
    """Return facts about these queues of workflows and of activities.

    A queue without a response has a ``problem``.
    """
    wanted = [(queue, "workflows", TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW) for queue in workflows]
    wanted += [
        (queue, "activities", TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY) for queue in activities
    ]
    calls = (_describe(client, queue, kind, call_s) for queue, _, kind in wanted)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    listed = await _beats(client, call_s)
    beats = listed or {}
    polled_s = SILENT_S if listed is not None and await _takes_beats(client, call_s) else POLLED_S
    now = time.time()
    silent = {
        worker
        for worker, beat in beats.items()
        if SILENT_S <= now - beat.at < POLLED_S and not beat.leaving
    }
    again: Beats = {}
    if silent:
        # A clock may be wrong, or a machine slow. Ask again: a worker with a newer heartbeat is
        # alive.
        await asyncio.sleep(2 * BEAT_S)
        again = await _beats(client, call_s) or {}
    living = {
        worker for worker, beat in beats.items() if not beat.leaving and now - beat.at < SILENT_S
    }
    living |= {
        worker for worker in silent if worker in again and again[worker].at > beats[worker].at
    }
    found = []
    for (queue, word, _), answer in zip(wanted, answers, strict=True):
        if isinstance(answer, BaseException):
            found.append(Queue(queue, word, problem=str(answer)))
            continue
        ahead = (poller.last_access_time.ToMicroseconds() / 1e6 - now for poller in answer.pollers)
        found.append(
            Queue(
                queue,
                word,
                [_poller(queue, poller, beats, living, now, polled_s) for poller in answer.pollers],
                answer.stats.approximate_backlog_count,
                answer.stats.approximate_backlog_age.ToMicroseconds() / 1e6,
                *_routes(answer.versioning_info),
                ahead_s=max([0.0, *ahead]),
            )
        )
    return found


async def _describe(
    client: Client, queue: str, kind: TaskQueueType.ValueType, call_s: float
) -> DescribeTaskQueueResponse:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=kind,
        report_stats=True,
    )
    async with answering(call_s):
        return await client.workflow_service.describe_task_queue(request, retry=True)


async def _takes_beats(client: Client, call_s: float) -> bool:
    """Return whether the server keeps heartbeats of workers; older servers do not."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        async with answering(call_s):
            answer = await client.workflow_service.describe_namespace(request, retry=True)
    except TemporalUnavailable:
        return False
    return answer.namespace_info.capabilities.worker_heartbeats


async def _beats(client: Client, call_s: float) -> Beats | None:
    """Return the latest heartbeat of each worker, by task queue and identity; ``None`` if the
    server does not respond.
    """
    found: Beats = {}
    request = ListWorkersRequest(namespace=client.namespace, page_size=PAGE)
    for _ in range(PAGES):
        try:
            async with answering(call_s):
                answer = await client.workflow_service.list_workers(request, retry=True)
        except TemporalUnavailable:
            return None
        for info in answer.workers_info:
            beat = info.worker_heartbeat
            key = (beat.task_queue, beat.worker_identity)
            leaving = beat.status == WorkerStatus.WORKER_STATUS_SHUTDOWN
            at = beat.heartbeat_time.ToMicroseconds() / 1e6
            if key not in found or found[key].at < at:
                found[key] = Beat(at, leaving)
        if not answer.next_page_token:
            break
        request.next_page_token = answer.next_page_token
    return found


def _poller(
    queue: str,
    poller: PollerInfo,
    beats: Beats,
    living: set[tuple[str, str]],
    now: float,
    polled_s: float,
) -> Poller:
    options = poller.deployment_options
    versioned = (
        options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    )
    version = (options.deployment_name, options.build_id) if versioned else None
    key = (queue, poller.identity)
    if key in beats:
        return Poller(version, max(0.0, now - beats[key].at), key in living)
    ago = max(0.0, now - poller.last_access_time.ToMicroseconds() / 1e6)
    return Poller(version, ago, ago < polled_s)


def _routes(info: TaskQueueVersioningInfo) -> tuple[Version, Version]:
    found: list[Version] = []
    for version in (info.current_deployment_version, info.ramping_deployment_version):
        found.append((version.deployment_name, version.build_id) if version.build_id else None)
    return found[0], found[1]
