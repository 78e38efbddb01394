"""``python -m tests.histories.record [NAME …]``: record golden histories, by hand, when the
workflows have a new form.

Each history is a promise: a run that is at any of its points when a new version is deployed goes
on. So a recording is never changed or removed; a new form gets a scenario of its own below, and a
change that must keep the old ones is made with ``workflow.patched``. Without names, what has no
recording yet is recorded. One that no landed build made may be removed, with its line, and made
again. ``SHA256SUMS`` keeps the promise visible, and a test compares.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import (
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
    WorkflowUpdateStage,
)

from crawler_lifecycle.activities.audits import audit
from crawler_lifecycle.activities.poll_step import Recorder
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.compose import USER_CODE, WEBHOOKS
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import AuditReport
from crawler_lifecycle.domain.due_ids import due_request_id, due_workflow_id
from crawler_lifecycle.domain.errors import NotDelivered, SchedulerUnavailable, StoreUnavailable
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits, RunRequest, RunResult
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec, StepState
from crawler_lifecycle.features.managers.domain.manager import Job
from crawler_lifecycle.features.packages.ports import Inspection, InspectionOrder
from crawler_lifecycle.features.schedules.domain.definition import Overlap, ScheduleSpec
from crawler_lifecycle.features.schedules.ports import DueOrder
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec, webhook_workflow_id
from crawler_lifecycle.features.webhooks.ports import WebhookOrder
from crawler_lifecycle.ports.polls import Poll
from crawler_lifecycle.ports.runs import Deployment, Event, Fence, QueuedTask, TaskRef
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.workflows.lifecycle import CrawlerLifecycleWorkflow
from tests.contracts.store.graphing import approval, chain, step
from tests.support.fakes.cluster import FINISHED, SHUTDOWN, Behaviour
from tests.support.fakes.packages import put_package
from tests.support.faulty_http import Answer, serving
from tests.support.graphing import graph_testbed
from tests.support.managing import manager_testbed, quick
from tests.support.receiver import Receiver
from tests.support.run_refs import run_ref
from tests.support.temporal import in_real_time, temporal_server
from tests.support.testbed import (
    CRAWLERS,
    WorkflowHarness,
    open_testbed,
    start_workers,
    workflow_clock,
)

FOLDER = Path(__file__).parent
SUMS = FOLDER / "SHA256SUMS"
SIZE_MAX = 150_000
#: How this machine names its workers and their own task queues: ``pid@host``, ``pid@host-…``.
MACHINE = re.compile(rf"{os.getpid()}@{re.escape(socket.gethostname())}")

History = dict[str, Any]
Handle = WorkflowHandle[Any, RunResult]


async def completed(testbed: WorkflowHarness) -> Handle:
    """A single-process run on the polling schedule, to its end, with an archive."""
    testbed.cluster.behaviour = Behaviour(executes=900)
    testbed.cluster.folders[1, 0] = testbed.folder
    return await _to_its_end(
        testbed, {"crawler": "books", "requested_by": "ada", "flow_id": "f1", "parent": "nobody"}
    )


async def waves(testbed: WorkflowHarness) -> Handle:
    """Five tasks of a scheduled run, two at a time."""
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(executes=50 + 40 * index)
    tasks = [{"args": {"shelf": str(n)}} for n in range(5)]
    return await _to_its_end(
        testbed,
        {"crawler": "books", "trigger": "scheduled", "tasks": tasks, "max_parallel_tasks": 2},
    )


async def put_off(testbed: WorkflowHarness) -> Handle:
    """The main task is deferred at first, another one executes meanwhile, and the third waits while
    the service is down.
    """
    answers = iter(["deferred"])
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        deployed=next(answers, "created") if index == 0 else "created",
        deploy_reason="quota exceeded",
        executes=150,
    )
    testbed.scheduler.lose = 1
    request = {
        "crawler": "books",
        "tasks": [{}] * 3,
        "max_parallel_tasks": 2,
        "poll_minutes": [1, 2, 10],
    }
    return await _to_its_end(testbed, request)


async def stopped(testbed: WorkflowHarness) -> Handle:
    """A stop while three tasks execute and one is queued."""
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=8)
    handle = await testbed.start({"crawler": "books", "tasks": [{}] * 4, "max_parallel_tasks": 3})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    await handle.signal("stop", {"requested_by": "ada", "reason": "enough", "request_id": "s1"})
    return await _ended(handle, "cancelled")


async def force_stopped(testbed: WorkflowHarness) -> Handle:
    """A plain stop that is ignored, then a forced one without a payload."""
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await testbed.start({"crawler": "books", "limits": {"force_stop_after_s": None}})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    await handle.signal("stop")
    await testbed.until(lambda: testbed.cluster.signals(1))
    await handle.signal("force_stop")
    return await _ended(handle, "cancelled")


async def resumed(testbed: WorkflowHarness) -> Handle:
    """The second attempt of a terminated run: one end found late, one task adopted, one queued
    again.
    """
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=None if attempt == 1 else 30
    )
    first = await testbed.start({"crawler": "books", "tasks": [{}] * 3})
    await testbed.snapshot_where(first, lambda s: s.polls >= 1)
    await first.terminate("by an operator")
    testbed.cluster.end_now(1, 0, end=FINISHED)
    testbed.cluster.end_now(1, 1)
    again = await testbed.start({"run_id": 1})
    await testbed.snapshot_where(again, lambda s: s.stage == "reconciliation" and s.polls >= 2)
    testbed.cluster.end_now(1, 2, end=FINISHED)
    return await _ended(again, "finished")


async def refused(testbed: WorkflowHarness) -> Handle:
    """An unknown crawler."""
    return await _to_its_end(testbed, {"crawler": "nobody"})


async def corrected(testbed: WorkflowHarness) -> Handle:
    """Killed from outside and corrected."""
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    testbed.cluster.end_now(1)
    return await _ended(handle, "failed")


async def retried(testbed: WorkflowHarness) -> Handle:
    """Killed from outside, and tried again after a wait, while another task executes."""
    killed = Behaviour(executes=None)
    testbed.cluster.behaviour = lambda run, index, attempt: (
        killed if index == 0 and attempt == 1 else Behaviour(executes=900)
    )
    retries = {"max": 2, "on": ["failed"], "backoff_s": 300, "jitter": 0}
    handle = await testbed.start({"crawler": "books", "tasks": [{}] * 2, "retries": retries})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    testbed.cluster.end_now(1)
    return await _ended(handle, "finished")


async def continued(testbed: WorkflowHarness) -> Handle:
    """Several executions of one run, all of whose histories are kept."""
    testbed.cluster.behaviour = Behaviour(executes=2 * 3600)
    return await _to_its_end(testbed, {"crawler": "books", "tasks": [{}] * 2})


async def grown(testbed: WorkflowHarness) -> Handle:
    """Two tasks added to an executing run, and a third that is refused."""
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=None if index == 0 else 20
    )
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    await handle.execute_update(
        "add_tasks", {"tasks": [{"args": {"shelf": n}} for n in "78"], "request_id": "g1"}
    )
    with contextlib.suppress(WorkflowUpdateFailedError):
        await handle.execute_update("add_tasks", {"tasks": [{"args": {"colour": "red"}}]})
    await testbed.until(lambda: testbed.tasks(1) == {0: "RUNNING", 1: "SUCCEEDED", 2: "SUCCEEDED"})
    testbed.cluster.end_now(1, 0, end=FINISHED)
    return await _ended(handle, "finished")


async def pushed(testbed: WorkflowHarness) -> Handle:
    """A notifier that wants every change, and accepts none."""
    testbed.outside.sends = True
    testbed.outside.fail["push"] = NotDelivered("refused")
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(executes=50 + 40 * index)
    return await _to_its_end(testbed, {"crawler": "books", "tasks": [{}] * 2})


async def exported(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """The deliveries of an ended run, repeated."""
    testbed.cluster.folders[1, 0] = testbed.folder
    await _to_its_end(testbed, {"crawler": "books"})
    row = testbed.store.runs.get_run(1)
    workflow_id = await Workflows(testbed.client).export_again(
        Fence(1, 1, row.owner_run_id, row.run_uid)
    )
    first = (await testbed.client.get_workflow_handle(workflow_id).describe()).run_id
    handle = testbed.client.get_workflow_handle(
        workflow_id, run_id=first, first_execution_run_id=first
    )
    await handle.result()
    return handle


async def deleted(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """The deletion of a run's results, whose archive cannot be removed at once."""
    testbed.cluster.folders[1, 0] = testbed.folder
    await _to_its_end(testbed, {"crawler": "books"})
    await testbed.until(lambda: testbed.outside.stored)
    testbed.outside.fail["remove"] = NotDelivered("the bucket is away")
    testbed.handles.clear()  # its executions disappear
    run, _ = testbed.store.deletion.ask_deletion(1, "ada")
    await Workflows(testbed.client).delete_run(run.ref)
    await testbed.until(lambda: "archives" in testbed.store.runs.get_run(1).deletion["left"])
    testbed.outside.fail.clear()
    handle = testbed.client.get_workflow_handle(names.deletion_workflow_id(run.ref))
    first = (await handle.describe()).run_id
    handle = testbed.client.get_workflow_handle(
        handle.id, run_id=first, first_execution_run_id=first
    )
    await handle.result()
    return handle


async def deleted_files_first(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """The same since the removal of files no longer waits for histories."""
    return await deleted(testbed)


async def delivered(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """The delivery of a manager's end."""
    m = manager_testbed(testbed, source=[])
    async with m.user_code():
        await (await m.start()).result()
    row = m.row()
    workflow_id = names.event_workflow_id(
        names.ended_key("manager", row.manager_id, row.manager_uid, row.attempt)
    )
    first = (await testbed.client.get_workflow_handle(workflow_id).describe()).run_id
    handle = testbed.client.get_workflow_handle(
        workflow_id, run_id=first, first_execution_run_id=first
    )
    await handle.result()
    return handle


class HeldPolls:
    """Polls that wait until they are released: all, or only those of one activity."""

    def __init__(self, testbed: WorkflowHarness, only: str | None = None) -> None:
        self._testbed, self._poll, self._only = testbed, testbed.cluster.poll, only
        self._entered, self._gate = threading.Event(), threading.Event()
        testbed.cluster.poll = self._held  # type: ignore[method-assign]

    def _held(self, run_id: int, tasks: Sequence[TaskRef]) -> Poll:
        if self._only is None or activity.info().activity_type == self._only:
            self._entered.set()
            assert self._gate.wait(120)
        return self._poll(run_id, tasks)

    def let_go(self) -> None:
        """Let all polls pass."""
        self._gate.set()

    async def wake_in_one(self, handle: Handle) -> None:
        """Hold the next poll, wake the run during it, and release all."""
        self._gate.clear()
        self._entered.clear()
        await self.inside()
        await self.wake(handle)

    async def wake(self, handle: Handle) -> None:
        """Wake the run during a poll that is held, and release all."""
        await handle.signal("poll_now")
        await handle.query(names.QUERY_STATUS)  # a workflow that knows the signal responds
        self.let_go()

    async def inside(self) -> None:
        """Wait until a poll is held."""
        await self._testbed.until(self._entered.is_set)


async def woken(testbed: WorkflowHarness) -> Handle:
    """Woken during polls: before the start, while executing, and during a stop."""
    testbed.cluster.behaviour = Behaviour(waits=20, executes=None, heeds_stop_after=8)
    polls = HeldPolls(testbed)
    handle = await testbed.start({"crawler": "books"})
    await polls.wake_in_one(handle)
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation")
    await polls.wake_in_one(handle)
    await handle.signal("stop")
    await testbed.until(lambda: testbed.cluster.signals(1))
    await polls.wake_in_one(handle)
    return await _ended(handle, "cancelled")


async def woken_in_a_wave(testbed: WorkflowHarness) -> Handle:
    """Woken during a poll which finds that the next of three tasks may be deployed."""
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=50 if index < 2 else None
    )
    polls = HeldPolls(testbed)
    polls.let_go()
    handle = await testbed.start({"crawler": "books", "tasks": [{}] * 3, "max_parallel_tasks": 2})
    await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation")
    await polls.wake_in_one(handle)
    await testbed.snapshot_where(handle, lambda s: s.polls >= 2)
    await handle.signal("stop")
    return await _ended(handle, "cancelled")


async def counted(testbed: WorkflowHarness) -> Handle:
    """An end that another process records at once: the workflow counts it.

    Before that, its own poll finds one.
    """
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=50 if index == 0 else None
    )
    handle = await testbed.start({"crawler": "books", "tasks": [{}] * 3})
    await testbed.until(lambda: testbed.tasks(1).get(0) == "SUCCEEDED")
    row = testbed.store.runs.get_run(1)
    recorder = Recorder(
        testbed.store.polls, testbed.store.retries, testbed.cluster, testbed.parts.policies
    )
    for index in (1, 2):
        testbed.cluster.end_now(1, index, end=FINISHED)
        recorder.record(Fence(1, 1, row.owner_run_id, row.run_uid), "wake")
        await Workflows(testbed.client).poll_recorded(handle.id, recorded=True)
        await handle.query(names.QUERY_STATUS)  # a workflow that knows the signal responds
    return await _ended(handle, "finished")


async def never_started(testbed: WorkflowHarness) -> Handle:
    """The main task waits longer than ``start_timeout_s``."""
    testbed.cluster.behaviour = Behaviour(waits=10_000)
    handle = await testbed.start({"crawler": "books", "limits": {"start_timeout_s": 120}})
    return await _ended(handle, "start_timeout")


async def timed_out(testbed: WorkflowHarness) -> Handle:
    """Still executing at ``run_timeout_s``."""
    testbed.cluster.behaviour = Behaviour(executes=None)
    return await _ended(
        await testbed.start({"crawler": "books", "limits": {"run_timeout_s": 600}}), "timed_out"
    )


async def stalled(testbed: WorkflowHarness) -> Handle:
    """Executing without any progress in its counters."""
    testbed.cluster.behaviour = Behaviour(executes=None, counts_for=120)
    handle = await testbed.start({"crawler": "books", "limits": {"stall_timeout_s": 600}})
    return await _ended(handle, "cancelled (stalled)")


async def escalated(testbed: WorkflowHarness) -> Handle:
    """A plain stop that is ignored until it becomes a forced one."""
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await testbed.start({"crawler": "books", "limits": {"force_stop_after_s": 10}})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    await handle.signal("stop", {"requested_by": "ada"})
    return await _ended(handle, "cancelled")


async def cancelled(testbed: WorkflowHarness) -> Handle:
    """Temporal's cancel, which is a graceful stop."""
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    await handle.cancel()
    return await _ended(handle, "cancelled")


async def stopped_at_once(testbed: WorkflowHarness) -> Handle:
    """A stop that arrives before the first step."""
    handle = await testbed.start({"crawler": "books", "tasks": [{}] * 2}, start_signal="stop")
    return await _ended(handle, "cancelled")


async def stopped_deploying(testbed: WorkflowHarness) -> Handle:
    """A stop while the scheduler service is down."""
    testbed.cluster.fail_with(SchedulerUnavailable("not now"), "deploy")
    handle = await testbed.start({"crawler": "books", "poll_minutes": [600]})
    await testbed.until(lambda: testbed.scheduler.calls)
    await handle.signal("stop", {"requested_by": "ada"})
    return await _ended(handle, "cancelled")


async def stopped_waiting(testbed: WorkflowHarness) -> Handle:
    """A stop while the main task has not started."""
    testbed.cluster.behaviour = Behaviour(waits=10_000)
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.waiting_for == names.WAITING_FOR_START)
    await handle.signal("force_stop", {"requested_by": "ada"})
    return await _ended(handle, "cancelled")


async def stopped_pushing(testbed: WorkflowHarness) -> Handle:
    """A stop while the push of the start hangs."""
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=0)
    over = threading.Event()
    push = testbed.outside.push

    def hang(event: Event) -> None:
        if event.type == names.EVENT_RUN_STARTED:
            over.wait(120)
        push(event)

    testbed.outside.push = hang  # type: ignore[method-assign]
    handle = await testbed.start({"crawler": "books"})
    await testbed.until(
        lambda: (
            testbed.store.runs.list_runs() and testbed.store.runs.get_run(1).status == "PROCESSING"
        )
    )
    await handle.signal("stop", {"requested_by": "ada"})
    await testbed.until(lambda: testbed.store.runs.get_run(1).status.terminal)
    over.set()
    return await _ended(handle, "cancelled")


async def updated_for_long(testbed: WorkflowHarness) -> Handle:
    """An update that hangs until the history is long, with a stop meanwhile, on a server that
    suggests short histories.
    """
    testbed.cluster.behaviour = Behaviour(executes=None)
    begun, over = threading.Event(), threading.Event()
    add = testbed.store.additions.add_tasks

    def hang(*args: Any) -> Any:
        begun.set()
        over.wait(120)
        return add(*args)

    testbed.store.additions.add_tasks = hang
    try:
        handle = await testbed.start({"crawler": "books", "poll_minutes": [0.02]})
        await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
        stage = WorkflowUpdateStage.ACCEPTED
        await handle.start_update("add_tasks", {"tasks": [{}]}, wait_for_stage=stage)
        await testbed.until(begun.is_set)
        for n in range(20):
            await handle.signal(f"noise-{n}")
        polls = (await testbed.snapshot_where(handle, lambda s: s.notes)).polls
        await testbed.snapshot_where(handle, lambda s: s.polls > polls)
        await handle.signal("stop", {"requested_by": "ada"})
        await testbed.until(lambda: testbed.store.runs.get_run(1).status.terminal)
    finally:
        over.set()
        del testbed.store.additions.add_tasks
    return await _ended(handle, "cancelled")


async def looked_at_once(testbed: WorkflowHarness) -> Handle:
    """A requested poll: while waiting for the start, and between two polls."""
    testbed.cluster.behaviour = Behaviour(waits=30, executes=None)
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.waiting_for == names.WAITING_FOR_START)
    await handle.signal("poll_now")
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    testbed.cluster.end_now(1, 0, end=FINISHED)
    await handle.signal("poll_now")
    return await _ended(handle, "finished")


async def many(testbed: WorkflowHarness) -> Handle:
    """More tasks than fit into one deployment call."""
    testbed.cluster.behaviour = Behaviour(executes=200)
    return await _to_its_end(testbed, {"crawler": "books", "tasks": [{}] * 130})


async def confused(testbed: WorkflowHarness) -> Handle:
    """Unknown signals with unreadable payloads, which become notes."""
    testbed.cluster.behaviour = Behaviour(executes=100)
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    await handle.signal("dance", args=[1, "two"])
    await handle.signal("poll_now", args=[{"surplus": True}])
    return await _ended(handle, "finished")


async def rejected(testbed: WorkflowHarness) -> Handle:
    """An unreadable request: the workflow fails at once."""
    return await _failed(await testbed.start({"crawler": "books", "colour": "red"}))


async def refused_cron(testbed: WorkflowHarness) -> Handle:
    """Temporal's own cron: the chain ends with a second execution that fails."""
    return await _failed(await testbed.start({"crawler": "books"}, cron_schedule="@every 1s"))


async def not_ours(testbed: WorkflowHarness) -> Handle:
    """A run that another workflow owns: the workflow fails, and the run is not affected."""
    testbed.cluster.behaviour = Behaviour(executes=None)
    owner = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(owner, lambda s: s.polls >= 1)
    return await _failed(await testbed.start({"run_id": 1}))


async def rerun(testbed: WorkflowHarness) -> Handle:
    """A COMPLETED run once more."""
    await _to_its_end(testbed, {"crawler": "books", "tasks": [{}] * 2})
    return await _to_its_end(testbed, {"run_id": 1, "rerun": True})


async def nothing_to_prove(testbed: WorkflowHarness) -> Handle:
    """A stop of a run for which nothing was ever deployed: it ends without asking the cluster."""
    return await _ended(
        await testbed.start({"crawler": "books", "tasks": [{}] * 2}, start_signal="stop"),
        "cancelled",
    )


async def stopped_before_verdict(testbed: WorkflowHarness) -> Handle:
    """Two stops while the verdict of a finished crawl could not be written: both are recorded
    before it.
    """
    judge = testbed.store.completion.end_run

    def away(fence: Fence, *how: Any) -> Any:
        if len(testbed.store.runs.cancellations(fence.run_id)) < 2:
            raise StoreUnavailable("not now")
        return judge(fence, *how)

    testbed.store.completion.end_run = away
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.stage == "completion")
    for by in ("ada", "ben"):
        await handle.signal("stop", {"requested_by": by})
    return await _ended(handle, "finished")


async def stop_taken_over(testbed: WorkflowHarness) -> Handle:
    """A run whose workflow was terminated during a stop: the next workflow carries it out."""
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    first = await testbed.start({"crawler": "books", "tasks": [{}] * 2})
    await testbed.snapshot_where(first, lambda s: s.polls >= 1)
    await first.signal("stop", {"requested_by": "ada"})
    await testbed.until(lambda: testbed.cluster.signals(1))
    await first.terminate("by an operator")
    again = await testbed.start({"run_id": 1})
    await testbed.until(lambda: testbed.store.runs.get_run(1).attempt == 2)
    for index in (0, 1):
        testbed.cluster.end_now(1, index, end=SHUTDOWN)
    return await _ended(again, "cancelled")


async def repaired(testbed: WorkflowHarness) -> Handle:
    """The replacement of a lost workflow: one task failed, one ended unseen, one is executing, one
    is queued.
    """
    testbed.cluster.behaviour = lambda run, index, attempt: (
        Behaviour(end=End(exit_code=1, reason="Error"))
        if index == 0
        else Behaviour(executes=30 if attempt > 1 else None)
    )
    first = await testbed.start({"crawler": "books", "tasks": [{}] * 4, "max_parallel_tasks": 2})
    await testbed.until(
        lambda: testbed.tasks(1) == dict(enumerate(("FAILED", "RUNNING", "RUNNING", "QUEUED")))
    )
    await first.terminate("by an operator")
    testbed.cluster.end_now(1, 1, end=FINISHED)
    run_uid = testbed.store.runs.get_run(1).run_uid
    await asyncio.to_thread(
        testbed.parts.directory.begin, RunRequest(run_id=1), "testbed/repair", run_uid, repair=True
    )
    info = (
        await testbed.client.get_workflow_handle("testbed/repair").describe()
    ).raw_description.workflow_execution_info
    handle: Handle = testbed.client.get_workflow_handle_for(
        CrawlerLifecycleWorkflow.run, "testbed/repair", first_execution_run_id=info.first_run_id
    )
    await testbed.until(lambda: testbed.tasks(1)[3] == "SUCCEEDED")
    testbed.cluster.end_now(1, 2, end=FINISHED)
    return await _ended(handle, "partial")


async def audited(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """An audit that finds tasks without an owner, next to a sound run and one that has ended."""
    testbed.cluster.behaviour = Behaviour(executes=20)
    await _to_its_end(testbed, {"crawler": "books"})
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    task = QueuedTask(99, 0, {})
    soon = testbed.cluster.clock() + timedelta(minutes=1)
    testbed.cluster.deploy(
        Deployment(run_ref(99), 1, "books", {}, {}, [task], Resources(), Limits(), soon),
        CRAWLERS["books"],
    )
    report = await _audit(testbed)
    assert report.found == {"orphan": 1}, report
    return testbed.handles[-1]


async def audited_long(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """An audit with so many pages that it continues as new."""
    for n in range(30):
        testbed.store.initiation.reserve_run(RunRequest(crawler="books"), f"r{n}")
    audit.PAGE, page = 1, audit.PAGE
    try:
        report = await _audit(testbed)
    finally:
        audit.PAGE = page
    assert report.polled["open_runs"] == 30, report
    return testbed.handles[-1]


async def _audit(testbed: WorkflowHarness) -> AuditReport:
    handle: WorkflowHandle[Any, AuditReport] = await testbed.client.start_workflow(
        names.AUDIT_WORKFLOW,
        {"repair": True},
        id="testbed/audit",
        task_queue=names.QUEUE_AUDIT,
        result_type=AuditReport,
    )
    testbed.handles.append(handle)
    return await handle.result()


async def managed(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """A manager to the end of its source, with a job from outside, one with invalid arguments, and
    a late worker for its class.
    """
    testbed.cluster.behaviour = Behaviour(executes=0)
    m = manager_testbed(testbed, source=[quick(1), Job("nobody")], stays=True)
    handle = await m.start(parent="nobody")
    await m.snapshot_where(handle, lambda s: s.waiting is not None)
    async with m.user_code():
        await testbed.until(lambda: m.row().counts.bad == 1)
        await handle.execute_update(
            "add_job", {"jobs": [{"spider": "quick", "spider_args": {"n": "7"}}]}
        )
        await testbed.until(lambda: m.row().counts.good == 2)
        m.plan.stays = False
        await handle.signal("wake")
        await handle.result()
    return handle


async def managed_until_stopped(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """A manager that is stopped while its runs execute, finally by force."""
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    m = manager_testbed(testbed, source=[quick(n) for n in range(5)], window=2)
    async with m.user_code():
        handle = await m.start()
        await testbed.until(lambda: len(testbed.cluster.alive()) == 2)
        await handle.signal("stop", {"requested_by": "ada"})
        await testbed.until(lambda: all(testbed.cluster.signals(n) for n in (1, 2)))
        await handle.signal("force_stop")
        await handle.result()
    return handle


async def managed_for_long(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """A manager that continues as new."""
    testbed.cluster.behaviour = Behaviour(executes=0)
    m = manager_testbed(testbed, source=[quick(n) for n in range(8)], window=2)
    async with m.user_code():
        handle = await m.start()
        await testbed.client.get_workflow_handle(handle.id).result()
    return handle


def _graph_steps() -> list[StepSpec]:
    slow = StepSpec("slow", StepKind.CRAWL, {"crawler": "quick"}, ("s1",))
    later = utc_now() + timedelta(seconds=1)
    return [
        *chain(3),
        slow,
        step("late", not_before=later),
        step("long", "s0", timeout_s=600),
        step("shaky"),
    ]


async def graphed(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """A graph to its end: a crawl, a long function, a step cancelled, one retried, and one more."""
    testbed.cluster.behaviour = Behaviour(executes=None)
    g = graph_testbed(
        testbed,
        lambda work: StepState.DISCARDED if (work.path, work.attempt) == ("shaky", 1) else None,
    )
    g.functions.held["long"] = threading.Event()
    async with g.working():
        handle = await g.start(_graph_steps(), parent="nobody")
        await testbed.until(lambda: testbed.cluster.alive() and g.states()["shaky"] == "discarded")
        await handle.execute_update("cancel_steps", {"names": ["slow"], "requested_by": "ada"})
        await handle.execute_update("retry_steps", {"names": ["shaky"]})
        more = {"path": "more", "kind": "function", "job": {"call": "shop.steps:work"}}
        await handle.execute_update("append_steps", {"steps": [more]})
        await testbed.until(
            lambda: g.states()["more"] == "completed" and not g.steps()["slow"].ending
        )
        g.functions.held["long"].set()
        await handle.result()
    return handle


async def graphed_apart(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """One call of functions in its own workflow."""
    g = graph_testbed(testbed)
    async with g.working():
        handle = await g.start([step("long", timeout_s=600)])
        call = testbed.client.get_workflow_handle(names.graph_batch_workflow_id("nightly", 1))
        await handle.result()
        first = (await call.describe()).run_id
        return testbed.client.get_workflow_handle(
            call.id, run_id=first, first_execution_run_id=first
        )


async def graphed_until_stopped(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """A graph that is stopped while functions and a crawl execute, finally by force."""
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    g = graph_testbed(testbed)
    g.functions.held = {path: threading.Event() for path in ("s2", "long")}
    async with g.working():
        handle = await g.start(_graph_steps())
        await testbed.until(
            lambda: (
                testbed.cluster.alive() and g.functions.calls["s2"] and g.functions.calls["long"]
            )
        )
        await handle.signal("stop", {"requested_by": "ada"})
        await testbed.until(lambda: testbed.cluster.signals(1))
        await handle.signal("force_stop")
        await handle.result()
    return handle


async def graphed_approved(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """A graph with approvals: one is decided by a signal, one is not decided in time."""
    g = graph_testbed(testbed)
    async with g.working():
        steps = [approval("ask"), step("then", "ask"), approval("late", "then", timeout_s=2)]
        handle = await g.start(steps)
        await testbed.until(lambda: g.states()["ask"] == "executing")
        await handle.signal("approve_step", {"step": "ask", "requested_by": "ada", "note": "go"})
        await handle.result()
    return handle


async def graphed_for_long(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """A graph that continues as new while functions execute."""
    g = graph_testbed(testbed)
    g.functions.held["long"] = threading.Event()
    far = [
        step(f"x{n}", f"x{n - 1}" if n else "s0", queue="other" if n % 2 else None)
        for n in range(12)
    ]
    async with g.working(None, "other"):
        handle = await g.start([*chain(1), *far, step("long", timeout_s=600)])
        await testbed.until(lambda: g.states()["x11"] == "completed")
        g.functions.held["long"].set()
        await testbed.client.get_workflow_handle(handle.id).result()
    return handle


async def due(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """A due time whose previous run is stopped first."""
    testbed.cluster.behaviour = Behaviour(executes=None)
    run = {"crawler": "books", "poll_minutes": [0.002], "limits": {"start_check_s": 0.1}}
    spec = ScheduleSpec(run=run, every_s=60, overlap=Overlap.STOP_PREVIOUS)
    testbed.store.schedules.put("nightly", spec.document(), "ann")
    times = [utc_now().replace(microsecond=0) + timedelta(seconds=n) for n in range(2)]
    for at in times:
        await Workflows(testbed.client).start_for(
            DueOrder("nightly", at, 1), due_workflow_id("nightly", at)
        )
        await testbed.client.get_workflow_handle(due_workflow_id("nightly", at)).result()
    first = (
        await testbed.client.get_workflow_handle(due_workflow_id("nightly", times[1])).describe()
    ).run_id
    last = testbed.client.get_workflow_handle(
        names.workflow_id("books", due_request_id("nightly", times[1]))
    )
    await last.signal("stop")
    await last.result()
    return testbed.client.get_workflow_handle(
        due_workflow_id("nightly", times[1]), run_id=first, first_execution_run_id=first
    )


async def inspected(testbed: WorkflowHarness) -> Handle:
    """The spiders of a package that is being deployed are listed."""
    digest = put_package(testbed.parts.code, "books")
    async with AsyncExitStack() as stack:
        await start_workers(stack, testbed, roles=[USER_CODE])
        handle = await testbed.client.start_workflow(
            names.INSPECTION_WORKFLOW,
            InspectionOrder(digest),
            id=f"crawl-inspection/{digest}",
            task_queue=names.QUEUE_MAIN,
            result_type=Inspection,
        )
        found = await handle.result()
        assert found.spiders == [{"name": "books", "args": {}}], found
    return handle


async def hooked(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """A webhook that fails, is reported, paused, resumed and deleted."""
    receiver, hooks = Receiver(), testbed.store.webhooks
    receiver.answer = Answer(500, b"not yet")
    workflows, id = Workflows(testbed.client), webhook_workflow_id("shop")
    async with AsyncExitStack() as stack:
        stack.enter_context(serving(receiver))
        await start_workers(stack, testbed, roles=[WEBHOOKS])
        hooks.put("shop", WebhookSpec(receiver.url, ["env:CRAWL_HOOK"]).document(), "ann")
        event = hooks.test_webhook("shop", "ann")
        first = await workflows.start_for(
            WebhookOrder("shop"), webhook_workflow_id("shop"), wake=True
        )
        await testbed.until(lambda: hooks.get("shop").failing_since)
        receiver.answer = Answer(204, b"")
        await testbed.until(lambda: hooks.get("shop").through_seq >= event.seq)
        for reason in ("a migration", None):
            hooks.pause("shop", reason)
            await workflows.start_for(WebhookOrder("shop"), webhook_workflow_id("shop"), wake=True)
        await testbed.until(lambda: len(receiver.taken) > 1)
        hooks.delete("shop")
        await workflows.start_for(WebhookOrder("shop"), webhook_workflow_id("shop"), wake=True)
        handle = testbed.client.get_workflow_handle(id, run_id=first, first_execution_run_id=first)
        assert await handle.result() == "deleted"
    return handle


#: Managers, graphs and their runs are separate workflows, each with its own clock if time is
#: skipped.
IN_REAL_TIME: list[Callable[[WorkflowHarness], Awaitable[WorkflowHandle[Any, Any]]]] = [
    managed,
    managed_until_stopped,
    managed_for_long,
    graphed,
    graphed_apart,
    graphed_approved,
    graphed_until_stopped,
    graphed_for_long,
    due,
    deleted,
    deleted_files_first,
    delivered,
    hooked,
    inspected,
]

SCENARIOS: list[Callable[[WorkflowHarness], Awaitable[Handle]]] = [
    completed, waves, put_off, stopped, force_stopped, resumed, refused, corrected, retried, continued, grown, pushed,
    exported, never_started, timed_out, stalled, escalated, cancelled, stopped_at_once, stopped_deploying,
    stopped_waiting, stopped_pushing, updated_for_long,
    woken, woken_in_a_wave, counted, looked_at_once, many, confused, rejected, refused_cron, not_ours, rerun,
    stop_taken_over, nothing_to_prove, stopped_before_verdict,
    repaired, audited, audited_long,
    *IN_REAL_TIME,
]  # fmt: skip


async def _to_its_end(testbed: WorkflowHarness, request: dict[str, Any]) -> Handle:
    handle = await testbed.start(request)
    await testbed.client.get_workflow_handle(handle.id, result_type=RunResult).result()
    return handle


async def _failed(handle: Handle) -> Handle:
    try:
        result = await handle.result()
    except WorkflowFailureError:
        return handle
    raise AssertionError(f"did not fail: {result}")


async def _ended(handle: Handle, outcome: str) -> Handle:
    result = await handle.result()
    assert result.outcome == outcome, result
    return handle


def scrubbed(history: WorkflowHistory) -> History:
    """Return the history as JSON, without the names of the machine and processes that made it."""
    document: History = history.to_json_dict()

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            told = {k: v for k, v in value.items() if k != "stackTrace"}
            return {k: "worker" if k == "identity" else clean(v) for k, v in told.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
        if isinstance(value, str):
            return MACHINE.sub("worker", value)
        return value

    cleaned: History = clean(document)
    return cleaned


def fingerprint(file: Path) -> str:
    """Return the SHA-256 of a recording, as ``sha256sum`` prints it."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def promised() -> dict[str, str]:
    """Return the fingerprints of existing recordings, by name."""
    lines = SUMS.read_text().splitlines() if SUMS.exists() else []
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def promise(files: Iterable[Path]) -> None:
    """Write the fingerprints of these recordings, next to those of the others."""
    known = {name: digest for name, digest in promised().items() if (FOLDER / name).exists()}
    known |= {file.name: fingerprint(file) for file in files}
    SUMS.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(known.items())))


def recordings(name: str) -> list[Path]:
    """Return the files of a scenario, one for each execution of a chain."""
    return [
        f for f in sorted(FOLDER.glob(f"{name}*.json")) if re.fullmatch(rf"{name}(-\d+)?", f.stem)
    ]


def write(name: str, histories: list[WorkflowHistory]) -> Iterator[str]:
    """Write one file for each execution of a chain, and print what was written."""
    for number, history in enumerate(histories, 1):
        file = FOLDER / (f"{name}.json" if len(histories) == 1 else f"{name}-{number}.json")
        text = (
            json.dumps(
                {"workflowId": history.workflow_id, **scrubbed(history)}, separators=(",", ":")
            )
            + "\n"
        )
        assert len(text) <= SIZE_MAX, f"{file.name} has {len(text)} bytes"
        assert not MACHINE.search(text)
        file.write_text(text)
        yield f"{file.name}: {len(history.events)} events, {len(text):,} bytes"


async def main(wanted: list[str]) -> int:
    """Record the named scenarios, or those without a recording. Return the exit code."""
    known = {scenario.__name__: scenario for scenario in SCENARIOS}
    for name in wanted:
        if name not in known:
            print(f"{name}: no such scenario; there are {', '.join(known)}", file=sys.stderr)
            return 2
        if recordings(name):
            print(f"{name}: recorded already, and runs may depend on it; a new form needs a name of its own",
                  file=sys.stderr)  # fmt: skip
            return 2
    for name in wanted or [name for name in known if not recordings(name)]:
        await _record(name, known[name])
    return 0


async def _record(name: str, scenario: Callable[[WorkflowHarness], Awaitable[Handle]]) -> None:
    forgetful = (continued, audited_long, updated_for_long, managed_for_long, graphed_for_long)
    few = {"limit.historyCount.suggestContinueAsNew": "60"} if scenario in forgetful else None
    async with temporal_server(skipping=True, dynamic=few) as env:
        real = scenario in IN_REAL_TIME
        client, clock = (
            ((await in_real_time(env)).client, utc_now) if real else (env.client, workflow_clock)
        )
        with tempfile.TemporaryDirectory() as folder:
            async with open_testbed(client, Path(folder), clock=clock) as testbed:
                handle = await scenario(testbed)
                for line in write(name, await testbed.chain(handle)):
                    print(line)
                promise(recordings(name))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
