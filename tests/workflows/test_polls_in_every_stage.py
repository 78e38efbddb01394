"""A run is polled from its first task on, whatever it waits for: start, deployment, limits, the
scheduler service.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from crawler_lifecycle.domain.errors import ClusterUnavailable, SchedulerUnavailable
from crawler_lifecycle.domain.run import RunResult
from crawler_lifecycle.ports.runs import Deployment
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.testbed import WorkflowHarness, workflow_clock

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

HOUR = 3600.0
#: The first steps of the polling schedule, and the maximum duration of a step.
LAG_S, POLL_S = 65.0, 905.0


class Away:
    """The scheduler service is down from one time to another of the run's own time, in seconds from
    its first call.

    With ``creates``, it still creates, and only its responses are lost.
    """

    def __init__(
        self, testbed: WorkflowHarness, begins: float, ends: float, *, creates: bool = False
    ) -> None:
        self._testbed, self._away, self._creates = testbed, (begins, ends), creates
        self._began: datetime | None = None
        self.failed = 0
        testbed.scheduler.before = self

    def __call__(self, deployment: Deployment) -> None:
        now = workflow_clock()
        self._began = self._began or now
        if self._away[0] <= (now - self._began).total_seconds() < self._away[1]:
            self.failed += 1
            if self._creates:
                self._testbed.cluster.deploy(
                    deployment, self._testbed.parts.catalogue.get(deployment.crawler)
                )  # type: ignore[arg-type]
            raise SchedulerUnavailable("503")


def lags(testbed: WorkflowHarness, run_id: int) -> dict[int, float]:
    """Return, by index, how many seconds after its end each task's end was recorded."""
    index = {task.task_id: task.task_index for task in testbed.store.tasks.list_tasks(run_id)}
    ends = [
        t
        for t in testbed.store.runs.transitions(run_id)
        if t.task_id and t.to_status == "SUCCEEDED"
    ]
    return {index[t.task_id]: (t.committed_at - t.cluster_time).total_seconds() for t in ends}


def status_at(testbed: WorkflowHarness, run_id: int, status: str) -> datetime:
    """Return when the run got this status."""
    at: datetime = next(
        t.committed_at
        for t in testbed.store.runs.transitions(run_id)
        if t.task_id is None and t.to_status == status
    )
    return at


def deferring(testbed: WorkflowHarness, indexes: set[int], seconds: float, does: Behaviour) -> None:
    """A cluster without slots for these tasks for this many seconds from the first call."""
    began: list[datetime] = []

    def behaviour(run: int, index: int, attempt: int) -> Behaviour:
        began.append(workflow_clock())
        full = index in indexes and (began[-1] - began[0]).total_seconds() < seconds
        return Behaviour(deployed="deferred", deploy_reason="quota exceeded") if full else does

    testbed.cluster.behaviour = behaviour


async def test_the_lowest_task_is_put_off_and_others_are_created(testbed: WorkflowHarness) -> None:
    deferring(testbed, {0}, 600, Behaviour(executes=100))
    result = await testbed.ended(await testbed.start({"crawler": "books", "tasks": [{}] * 3}))
    assert result.tasks == {"SUCCEEDED": 3}
    assert testbed.corrections(1) == []
    created = testbed.store.runs.get_run(1).created_at
    assert status_at(testbed, 1, "PROCESSING") - created < timedelta(seconds=LAG_S), (
        "another than the main one has started"
    )
    assert max(lags(testbed, 1)[n] for n in (1, 2)) < 2 * LAG_S


async def test_what_was_put_off_is_offered_again_although_nothing_has_started(
    testbed: WorkflowHarness,
) -> None:
    """As when all tasks of a run wait for each other."""
    testbed.cluster.behaviour = lambda run, index, attempt: (
        Behaviour(deployed="deferred", deploy_reason="quota exceeded")
        if index == 1 and len(testbed.scheduler.calls) < 2
        else Behaviour(waits=1e6)
    )
    handle = await testbed.start({"crawler": "books", "tasks": [{}] * 2})
    await testbed.until(
        lambda: len(testbed.scheduler.calls) > 1 and len(testbed.cluster.alive()) == 2
    )
    await handle.signal("force_stop")
    await testbed.ended(handle)


async def test_tasks_execute_and_end_while_the_main_one_waits(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        waits=900 if index == 0 else 200, executes=300
    )
    result = await testbed.ended(await testbed.start({"crawler": "books", "tasks": [{}] * 3}))
    assert result.tasks == {"SUCCEEDED": 3}
    assert testbed.store.corrections.list_corrections(1) == []
    created = testbed.store.runs.get_run(1).created_at
    assert status_at(testbed, 1, "PROCESSING") - created < timedelta(seconds=200 + 6 * LAG_S)
    assert max(lags(testbed, 1).values()) < POLL_S


@pytest.mark.parametrize("creates", [False, True], ids=["it does nothing", "its answers are lost"])
async def test_the_scheduler_service_is_away_and_polls_go_on(
    testbed: WorkflowHarness, creates: bool
) -> None:
    """For the second wave; tasks that execute meanwhile end, and their ends are recorded."""
    away = Away(testbed, 30, HOUR / 4, creates=creates)
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=100 if index == 0 else 700
    )
    handle = await testbed.start({"crawler": "books", "tasks": [{}] * 3, "max_parallel_tasks": 2})
    result = await testbed.ended(handle)
    assert result.tasks == {"SUCCEEDED": 3}
    assert away.failed > (2 if creates else 5)
    assert lags(testbed, 1)[0] < 2 * LAG_S, "while the service is away"
    assert max(lags(testbed, 1).values()) < POLL_S
    assert testbed.store.corrections.list_corrections(1) == [], (
        "every end was found by the poll that was due"
    )
    events = (await handle.fetch_history()).events
    assert len([e for e in events if "TIME_SKIPPING" not in EventType.Name(e.event_type)]) < 450


async def test_a_single_task_whose_answer_is_lost_is_found_without_the_scheduler_service(
    testbed: WorkflowHarness,
) -> None:
    Away(testbed, 0, 1e9, creates=True)
    testbed.cluster.behaviour = Behaviour(executes=100)
    result = await testbed.ended(await testbed.start({"crawler": "books"}))
    assert (result.status, result.outcome) == ("COMPLETED", "finished")
    assert lags(testbed, 1)[0] < 2 * LAG_S + 15
    assert testbed.store.runs.get_run(1).started_at is not None


LIMIT = 300.0
LIMITED: dict[str, tuple[dict[str, float], Callable[[WorkflowHarness], Any], str]] = {
    "the deployment hangs before the start": (
        {"start_timeout_s": LIMIT}, lambda testbed: Away(testbed, 0, 1e9), "start_timeout",
    ),
    "nothing is ever taken": (
        {"start_timeout_s": LIMIT}, lambda testbed: deferring(testbed, {0, 1, 2}, 1e9, Behaviour()), "start_timeout",
    ),
    "later waves hang": ({"run_timeout_s": LIMIT}, lambda testbed: Away(testbed, 30, 1e9), "timed_out"),
    "the main task waits": ({"run_timeout_s": LIMIT}, lambda testbed: None, "timed_out"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITED)
async def test_limits_of_time_count_while(testbed: WorkflowHarness, name: str) -> None:
    limits, trouble, outcome = LIMITED[name]
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        waits=1e7 if index == 0 and name == "the main task waits" else 0,
        executes=100 if index == 1 else None,
    )
    trouble(testbed)
    request = {"crawler": "books", "tasks": [{}] * 3, "limits": limits}
    result: RunResult = await testbed.ended(
        await testbed.start(request | ({"max_parallel_tasks": 2} if "waves" in name else {}))
    )
    assert (result.status, result.outcome) == (
        "FAILED",
        "partial" if result.tasks.get("SUCCEEDED") else outcome,
    )
    row = testbed.store.runs.get_run(1)
    assert row.stop.limit == outcome
    late = (row.stop.requested_at - row.created_at).total_seconds() - LIMIT
    assert -5 <= late < LAG_S, "the limit itself, and no poll, ended it"
    assert testbed.cluster.alive(1) == []


async def test_an_end_that_the_wait_for_the_start_found_late_is_a_correction(
    testbed: WorkflowHarness,
) -> None:
    """The cluster was down while the only task began and ended."""
    testbed.cluster.behaviour = Behaviour(waits=60, executes=60)
    poll, began = testbed.cluster.poll, list[datetime]()

    def failing(*args: Any) -> Any:
        began.append(workflow_clock())
        if 20 <= (began[-1] - began[0]).total_seconds() < 300:
            raise ClusterUnavailable("503")
        return poll(*args)

    testbed.cluster.poll = failing  # type: ignore[method-assign]
    result = await testbed.ended(await testbed.start({"crawler": "books"}))
    assert result.status == "COMPLETED"
    assert [c.kind for c in testbed.store.corrections.list_corrections(1)] == ["late"]


async def test_many_added_tasks_are_deployed_at_once(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=3 * HOUR if index == 0 else 100
    )
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    for page in range(3):
        await handle.execute_update("add_tasks", {"tasks": [{}] * 20, "request_id": f"p{page}"})
    await testbed.until(
        lambda: (
            testbed.store.tasks.count_tasks(1).queued == 0
            or testbed.store.runs.get_run(1).status.terminal
        )
    )
    deployed = [t.deployed_at for t in testbed.store.tasks.list_tasks(1, limit=1000)]
    assert None not in deployed
    sizes = [len(call.tasks) for call in testbed.scheduler.calls[1:]]
    assert sum(sizes) == 60
    assert max(deployed[1:]) - min(deployed[1:]) < timedelta(seconds=60)  # type: ignore[type-var, operator]
    await handle.signal("stop")
    await testbed.ended(handle)


async def test_tasks_added_while_the_deployment_hangs_come_with_it(
    testbed: WorkflowHarness,
) -> None:
    away = Away(testbed, 0, 200)
    testbed.cluster.behaviour = Behaviour(executes=100)
    handle = await testbed.start({"crawler": "books"})
    await testbed.until(lambda: away.failed > 1)
    await handle.execute_update("add_tasks", {"tasks": [{}] * 2, "request_id": "a"})
    result = await testbed.ended(handle)
    assert result.tasks == {"SUCCEEDED": 3}
    assert testbed.store.corrections.list_corrections(1) == []


async def test_a_wake_up_polls_while_the_deployment_hangs(testbed: WorkflowHarness) -> None:
    Away(testbed, 30, 1e9)
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=0)
    handle = await testbed.start(
        {"crawler": "books", "tasks": [{}] * 2, "max_parallel_tasks": 1, "poll_minutes": [1, 600]}
    )
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    testbed.cluster.end_now(1, 0)
    polls = (await handle.query("status"))["polls"]
    await handle.signal("poll_now")
    snapshot = await testbed.snapshot_where(handle, lambda s: s.polls > polls)
    await testbed.until(lambda: testbed.tasks(1)[0] == "FAILED")
    assert snapshot.stage == "reconciliation"
    await testbed.snapshot_where(handle, lambda s: s.waiting_for == "the scheduler service")
    await handle.signal("stop")
    assert (await testbed.ended(handle)).outcome == "cancelled"


async def test_a_resumed_run_is_polled_at_while_its_tasks_wait(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = Behaviour(executes=None)
    first = await testbed.start({"crawler": "books", "tasks": [{}] * 2})
    await testbed.snapshot_where(first, lambda s: s.polls >= 1)
    await first.terminate("lost")
    testbed.cluster.end_now(1, 0)
    Away(testbed, 0, 600)
    testbed.cluster.behaviour = Behaviour(executes=60)
    again = await testbed.start({"run_id": 1})
    await testbed.until(
        lambda: (
            testbed.store.runs.get_run(1).attempt == 2
            and testbed.store.runs.get_run(1).status == "PROCESSING"
        )
    )
    testbed.cluster.end_now(1, 1, end=FINISHED)
    result = await testbed.ended(again)
    assert result.tasks == {"SUCCEEDED": 2}
    assert lags(testbed, 1)[1] < POLL_S


async def test_overdue_polls_of_a_run_never_pile_up(testbed: WorkflowHarness) -> None:
    """However many intervals pass without a response of the cluster, one poll makes up for them,
    and the schedule continues.
    """
    poll, away = testbed.cluster.poll, list[datetime]()

    def answers(*about: Any) -> Any:
        if testbed.store.runs.get_run(1).verified_at is not None:
            away.append(workflow_clock())
            if (away[-1] - away[0]).total_seconds() < HOUR:
                raise ClusterUnavailable("503")
        return poll(*about)

    testbed.cluster.poll = answers  # type: ignore[method-assign]
    testbed.cluster.behaviour = Behaviour(executes=1.5 * HOUR)
    handle = await testbed.start({"crawler": "books", "poll_minutes": [5]})
    assert (await testbed.ended(handle)).status == "COMPLETED"
    named = [
        (e, e.activity_task_scheduled_event_attributes)
        for e in (await handle.fetch_history()).events
    ]
    polls = [
        e.event_time.ToSeconds()
        for e, one in named
        if one.activity_type.name == "get_history_statuses_to_sync"
    ]
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(polls))
    assert gaps[-1] >= HOUR
    assert gaps[0] >= 299
    assert len(gaps) <= 8
