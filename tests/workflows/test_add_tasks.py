"""Child tasks that the update ``add_tasks`` adds to a live run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.domain.run import TasksAdded
from crawler_lifecycle.domain.task import End
from tests.support.fakes.cluster import FINISHED, SHUTDOWN, Behaviour
from tests.support.testbed import WorkflowHarness

SOON = {"start_check_s": 0.1}

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def add(handle: WorkflowHandle[Any, Any], *shelves: str, **more: Any) -> TasksAdded:
    page = {"tasks": [{"args": {"shelf": shelf}} for shelf in shelves]}
    return await handle.execute_update("add_tasks", page, result_type=TasksAdded, **more)


def refusal(error: pytest.ExceptionInfo[WorkflowUpdateFailedError]) -> tuple[str | None, str]:
    cause = error.value.cause
    assert isinstance(cause, ApplicationError)
    return cause.type, cause.message


async def test_added_tasks_are_deployed_and_count(real_testbed: WorkflowHarness) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=None if index == 0 else 0.2
    )
    handle = await testbed.start({"crawler": "books", "limits": SOON, "poll_minutes": [0.02]})
    await testbed.until(lambda: testbed.tasks(1).get(0) == "RUNNING")
    added = await add(handle, "7", "8")
    assert (added.run_id, [task.index for task in added.tasks]) == (1, [1, 2])
    assert [t.args for t in testbed.store.tasks.list_tasks(1)] == [
        {},
        {"shelf": "7"},
        {"shelf": "8"},
    ]
    await testbed.until(lambda: testbed.tasks(1) == {0: "RUNNING", 1: "SUCCEEDED", 2: "SUCCEEDED"})
    assert testbed.store.runs.get_run(1).multi
    await handle.signal("stop")
    result = await handle.result()
    assert result.tasks == {"CANCELLED": 1, "SUCCEEDED": 2}


async def test_the_same_update_or_request_again_adds_nothing(real_testbed: WorkflowHarness) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start({"crawler": "books", "limits": SOON})
    await testbed.until(lambda: testbed.tasks(1).get(0) == "RUNNING")
    first = await add(handle, "7", id="u1")
    assert await add(handle, "7", id="u1") == first
    page = {"tasks": [{"args": {"shelf": "9"}}], "request_id": "mine"}
    answers = await asyncio.gather(
        *(handle.execute_update("add_tasks", page, result_type=TasksAdded) for _ in range(5))
    )
    assert len({str(answer) for answer in answers}) == 1
    assert len(testbed.tasks(1)) == 3
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await handle.execute_update("add_tasks", {"tasks": [{}, {}], "request_id": "mine"})
    assert refusal(error)[0] == "DuplicateRequest"
    await handle.signal("force_stop")
    assert (await handle.result()).tasks == {"CANCELLED": 3}


@pytest.mark.troubles
async def test_what_a_quota_has_no_room_for_is_refused_at_once(
    real_testbed: WorkflowHarness,
) -> None:
    """Repeating the call until there is a slot would delay the end of the run."""
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(executes=None)
    testbed.store.initiation._quotas = testbed.store.additions._quotas = {
        "pool:default": {"live_tasks": 1}
    }
    handle = await testbed.start({"crawler": "books", "limits": SOON})
    await testbed.until(lambda: testbed.tasks(1).get(0) == "RUNNING")
    full = "quota live_tasks of pool default: 1 of 1 in use, and 1 more requested; tasks must end first: try again in 60 s"
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await add(handle, "7")
    assert refusal(error) == ("QuotaReached", full)
    second = await testbed.start({"crawler": "books"})
    with pytest.raises(WorkflowFailureError) as failed:
        await second.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert (failed.value.cause.type, failed.value.cause.message) == ("QuotaReached", full)
    await handle.signal("stop")
    assert (await handle.result()).tasks == {"CANCELLED": 1}


REFUSED: list[tuple[list[Any], str]] = [
    ([], "tasks: missing"),
    ([{}], "tasks: []"),
    ([{"tasks": []}], "tasks: []"),
    ([{"tasks": [{"args": {"shelf": 7}}]}], "shelf"),
    ([{"tasks": [{}], "taks": 1}], "unknown field"),
    ([{"tasks": [{}] * 501}], "501"),
    ([{"tasks": [{"args": {"shelf": "x" * 140_000}}]}], "bytes"),
    (
        [{"tasks": [{"args": {"shelf": "x" * 65_600}}]}],
        "tasks[0].args: 65613 bytes of arguments and settings",
    ),
    (["nonsense"], "nonsense"),
    ([{"tasks": [{}]}, "surplus"], ""),
    ([{"tasks": [{"args": {"colour": "red"}}]}], "tasks[0].args.colour: unknown argument"),
]


@pytest.mark.troubles
async def test_what_cannot_be_added_is_refused_and_the_run_goes_on(
    real_testbed: WorkflowHarness,
) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(executes=None)
    handle = await testbed.start({"crawler": "books", "limits": SOON})
    await testbed.until(lambda: testbed.tasks(1).get(0) == "RUNNING")
    for payload, words in REFUSED:
        with pytest.raises(WorkflowUpdateFailedError) as error:
            await handle.execute_update("add_tasks", args=payload)
        assert words in refusal(error)[1]
        assert testbed.tasks(1) == {0: "RUNNING"}, words
    await handle.signal("force_stop")
    assert (await handle.result()).outcome == "cancelled"


async def test_under_a_stop_and_after_the_end_nothing_is_added(
    real_testbed: WorkflowHarness,
) -> None:
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await testbed.start(
        {"crawler": "books", "limits": {**SOON, "force_stop_after_s": None}}
    )
    await testbed.until(lambda: testbed.tasks(1).get(0) == "RUNNING")
    await handle.signal("stop")
    await testbed.until(lambda: testbed.cluster.signals(1))
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await add(handle, "7")
    assert refusal(error)[0] == "NotInThisState"
    testbed.cluster.end_now(1, end=SHUTDOWN)
    assert (await handle.result()).tasks == {"CANCELLED": 1}


@pytest.mark.troubles
async def test_what_comes_together_with_a_cancel_is_refused_or_ends_with_the_run(
    real_testbed_without_workers: WorkflowHarness,
) -> None:
    """In one workflow task, Temporal passes updates on before a cancel: such tasks get rows, and
    are cancelled.
    """
    testbed = real_testbed_without_workers
    testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    async with testbed.working():
        limits = {**SOON, "force_stop_after_s": None}
        handle = await testbed.start({"crawler": "books", "limits": limits, "poll_minutes": [600]})
        await testbed.snapshot_where(handle, lambda s: s.stage == "reconciliation")
        # A call that dies with the workers would hold the run until it times out.
        await testbed.until(lambda: [e.type for e in testbed.outside.pushed] == ["run.started"])
    await handle.cancel()
    adding = asyncio.create_task(add(handle, "7"))
    await asyncio.sleep(0.5)  # no worker is running: the run finds both when it continues
    async with testbed.working(), asyncio.timeout(120):
        (answer,) = await asyncio.gather(adding, return_exceptions=True)
        await testbed.until(lambda: testbed.cluster.signals(1))
        testbed.cluster.end_now(1, end=SHUTDOWN)  # an ended run could not respond
        result = await handle.result()
    if isinstance(answer, TasksAdded):
        assert [task.index for task in answer.tasks] == [1]
    else:
        assert isinstance(answer, WorkflowUpdateFailedError)
        assert isinstance(answer.cause, ApplicationError)
        assert answer.cause.type == "NotInThisState"
    added = int(isinstance(answer, TasksAdded))
    assert (result.outcome, result.tasks) == ("cancelled", {"CANCELLED": 1 + added})


async def test_tasks_that_come_with_the_last_poll_keep_the_run_alive(
    real_testbed: WorkflowHarness,
) -> None:
    """The verdict is refused while a task is alive: the run goes back to reconciliation and deploys
    it.
    """
    testbed = real_testbed
    testbed.cluster.behaviour = Behaviour(executes=0.3)
    judge, added = testbed.store.completion.end_run, []

    def meanwhile(fence: Any, *how: Any) -> Any:
        if not added:
            added.extend(testbed.store.additions.add_tasks(fence.run_id, "late", [{"shelf": "9"}]))
        return judge(fence, *how)

    testbed.store.completion.end_run = meanwhile
    result = await testbed.run({"crawler": "books", "limits": SOON, "poll_minutes": [0.02]})
    assert (result.status, result.tasks) == ("COMPLETED", {"SUCCEEDED": 2})


@pytest.mark.troubles
async def test_added_tasks_wait_for_free_slots_and_one_that_fails_makes_the_run_partial(
    real_testbed: WorkflowHarness,
) -> None:
    testbed = real_testbed
    most = 0

    def count(_: object) -> None:
        nonlocal most
        most = max(most, testbed.store.tasks.count_tasks(1).active + 1)

    testbed.scheduler.before = count
    bad = End(exit_code=1, reason="Error")
    testbed.cluster.behaviour = lambda run, index, attempt: Behaviour(
        executes=None if index == 0 else 0.05, end=bad if index == 3 else FINISHED
    )
    handle = await testbed.start(
        {
            "crawler": "books",
            "limits": SOON,
            "tasks": [{}],
            "max_parallel_tasks": 2,
            "poll_minutes": [0.01],
        }
    )
    await testbed.until(lambda: testbed.tasks(1).get(0) == "RUNNING")
    await add(handle, "1", "2", "3")
    await testbed.until(
        lambda: testbed.tasks(1) == {0: "RUNNING", 1: "SUCCEEDED", 2: "SUCCEEDED", 3: "FAILED"}
    )
    testbed.cluster.end_now(1, end=FINISHED)
    result = await handle.result()
    assert (result.outcome, result.tasks) == ("partial", {"SUCCEEDED": 3, "FAILED": 1})
    assert most <= 2


@pytest.mark.troubles
async def test_changes_are_pushed_to_a_front_end_that_wants_them(testbed: WorkflowHarness) -> None:
    testbed.outside.sends = True
    testbed.cluster.behaviour = Behaviour(executes=100)
    handle = await testbed.start({"crawler": "books", "limits": SOON})
    assert (await handle.result()).status == "COMPLETED"
    assert "signal_pusher_changed" in await testbed.events(handle)
    await testbed.until(lambda: "run.changed" in [e.type for e in testbed.outside.pushed])
    assert testbed.outside.pushed[-1].body["status"] == "COMPLETED", "the end is pushed as well"
