"""Who works on our task queues: workers that live, and that belong to the version to which Temporal gives work.

A poll stays on the server's list for minutes after its worker was killed. So a worker is believed to live by its
heartbeat, which our workers send every two seconds; one that sends none (another SDK) by its last poll.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue, TaskQueueVersioningInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, DescribeTaskQueueResponse, ListWorkersRequest
from temporalio.client import Client
from temporalio.service import RPCError

from crawler_lifecycle.cli.doctor.clock import clock_line
from crawler_lifecycle.cli.doctor.line import Line, counted
from crawler_lifecycle.compose import ROLES
from crawler_lifecycle.domain import names
from crawler_lifecycle.temporal.plugin import BEAT_S

#: A worker that sent no heartbeat for so long is gone, or stands still.
SILENT_S = 4 * BEAT_S
#: One without heartbeats asks for work at least once a minute; one that did not for so long is gone.
FRESH_S = 120.0
#: Work that waited longer than this was forgotten by somebody.
BACKLOG_AGE_S = 60.0
#: Pages of the server's list of workers that are read, with so many workers each.
PAGES, PAGE = 10, 500

#: Deployment and build; ``None`` for workers without a build id.
Version = tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Poller:
    """Somebody who asked a task queue for work."""

    version: Version
    seen_s: float
    """Seconds since it was heard of."""
    alive: bool


@dataclass(frozen=True, slots=True)
class Queue:
    """What is known about a task queue."""

    name: str
    kind: str
    pollers: Sequence[Poller] = ()
    backlog: int = 0
    backlog_age_s: float = 0.0
    current: Version = None
    """The version that work is given to."""
    ramping: Version = None
    """Another one that some of it is given to."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The latest heartbeat of a worker: when it was sent by the worker's clock, and whether it was the last one."""

    at: float
    leaving: bool


Beats = dict[tuple[str, str], Beat]


async def check_queues(client: Client, call_s: float, unreachable: str) -> list[Line]:
    """A line for each task queue of ours. ``unreachable`` is the cure where the server does not answer."""
    wanted = [(names.QUEUE_MAIN, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)]
    wanted += [(queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY) for queue in ROLES.values()]
    answers = await asyncio.gather(*(_describe(client, *one, call_s) for one in wanted), return_exceptions=True)
    beats = await _beats(client, call_s)
    now = time.time()
    silent = {one for one, beat in beats.items() if SILENT_S <= now - beat.at < FRESH_S and not beat.leaving}
    again: Beats = {}
    if silent:
        # Our clocks may differ, and machines may be slow: whoever beats once more lives.
        await asyncio.sleep(2 * BEAT_S)
        again = await _beats(client, call_s)
    living = {one for one, beat in beats.items() if not beat.leaving and now - beat.at < SILENT_S}
    living |= {one for one in silent if one in again and again[one].at > beats[one].at}
    lines, latest = [], 0.0
    for (queue, kind), answer in zip(wanted, answers, strict=True):
        word = "workflows" if kind == TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW else "activities"
        if isinstance(answer, BaseException):
            lines.append(Line("workers", "bad", f"{queue} ({word}) cannot be described: {answer}", unreachable))
            continue
        latest = max([latest, *(poller.last_access_time.ToMicroseconds() / 1e6 for poller in answer.pollers)])
        lines.append(
            queue_line(
                Queue(
                    queue,
                    word,
                    [_poller(queue, poller, beats, living, now) for poller in answer.pollers],
                    answer.stats.approximate_backlog_count,
                    answer.stats.approximate_backlog_age.ToMicroseconds() / 1e6,
                    *_routes(answer.versioning_info),
                )
            )
        )
    # A poll is recorded by the server's clock, some time ago: one from the future shows a clock that is behind.
    if latest > now:
        lines.append(clock_line("Temporal", latest - now, 0.0))
    return lines


async def _describe(
    client: Client, queue: str, kind: TaskQueueType.ValueType, call_s: float
) -> DescribeTaskQueueResponse:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind, report_stats=True
    )
    return await asyncio.wait_for(client.workflow_service.describe_task_queue(request), call_s)


async def _beats(client: Client, call_s: float) -> Beats:
    """Task queue and identity of every worker that sends heartbeats -> its latest one; older servers keep none."""
    found: Beats = {}
    request = ListWorkersRequest(namespace=client.namespace, page_size=PAGE)
    for _ in range(PAGES):
        try:
            answer = await asyncio.wait_for(client.workflow_service.list_workers(request), call_s)
        except (RPCError, TimeoutError):
            return {}
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


def _poller(queue: str, poller: PollerInfo, beats: Beats, living: set[tuple[str, str]], now: float) -> Poller:
    options = poller.deployment_options
    versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    version = (options.deployment_name, options.build_id) if versioned else None
    key = (queue, poller.identity)
    if key in beats:
        return Poller(version, max(0.0, now - beats[key].at), key in living)
    ago = max(0.0, now - poller.last_access_time.ToMicroseconds() / 1e6)
    return Poller(version, ago, ago < FRESH_S)


def _routes(info: TaskQueueVersioningInfo) -> tuple[Version, Version]:
    found: list[Version] = []
    for one in (info.current_deployment_version, info.ramping_deployment_version):
        found.append((one.deployment_name, one.build_id) if one.build_id else None)
    return found[0], found[1]


def queue_line(queue: Queue) -> Line:
    """Whether somebody works on a task queue."""
    role = next(role for role, name in ROLES.items() if name == queue.name)
    what = f"{queue.name} ({queue.kind})"
    waiting = f", {queue.backlog} waiting for {queue.backlog_age_s:.0f} s" if queue.backlog else ""
    ours = [one for one in queue.pollers if one.version == queue.current]
    number = sum(one.alive for one in ours)
    gone = min((one.seen_s for one in ours if not one.alive), default=None)
    served = [queue.current, *([queue.ramping] if queue.ramping else [])]
    others = [one.version for one in queue.pollers if one.alive and one.version not in served]
    if number == 0 and others:
        text = f"nobody of {_called(queue.current)}, which is current, polls {what}{waiting}; "
        text += f"{_counts(others)} and get no work"
        cure = f"start workers of {_called(queue.current)}, or make current what polls: {_make_current(queue, others)}"
        return Line("workers", "bad", text, cure)
    if number == 0:
        seen = f": last seen {gone:.0f} s ago" if gone is not None else ""
        return Line("workers", "bad", f"nobody polls {what}{seen}{waiting}", f"crawlctl worker {role}")
    if queue.backlog and queue.backlog_age_s > BACKLOG_AGE_S:
        cure = f"start more workers (crawlctl worker {role}), or raise LIFECYCLE_WORKER__THREADS"
        return Line("workers", "warn", f"{what}: {counted(number, 'poller')} cannot keep up{waiting}", cure)
    lost = f"; another one was last seen {gone:.0f} s ago" if gone is not None and gone < FRESH_S else ""
    spare = f"; {_counts(others)} and get no work" if others else ""
    return Line("workers", "ok", f"{what}: {number} polling{waiting}{lost}{spare}")


def _called(version: Version) -> str:
    return "workers without a version" if version is None else f"version {'.'.join(version)}"


def _counts(others: Sequence[Version]) -> str:
    return " and ".join(f"{others.count(one)} of {_called(one)} poll" for one in sorted(set(others), key=str))


def _make_current(queue: Queue, others: Sequence[Version]) -> str:
    version = others[0]
    which = "--unversioned" if version is None else f"--build-id {version[1]}"
    name = (version or queue.current or ("",))[0]
    return f"temporal worker deployment set-current-version --deployment-name {name} {which} --yes"
