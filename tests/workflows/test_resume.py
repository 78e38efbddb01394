"""Resuming a run by its id: after a termination, a failure, a stop; never next to a live workflow."""

from __future__ import annotations

import threading
from itertools import product
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from crawler_lifecycle.activities import deployment
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.run import RunRequest, StopIntent
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.ports.runs import Deployment, Event
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.testbed import WorkflowHarness, each_at_once

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNTIL_STOPPED = Behaviour(executes=None)
FAILS = Behaviour(end=End(exit_code=1, reason="Error"))


async def refused(testbed: WorkflowHarness, request: dict[str, Any]) -> tuple[str, str]:
    """Return type and text of the error with which the workflow fails at once."""
    with pytest.raises(WorkflowFailureError) as caught:
        await testbed.run(request)
    cause: Any = caught.value.cause
    return cause.type, cause.message


async def test_a_terminated_run_goes_on_without_repeating_what_was_done(
    testbed: WorkflowHarness,
) -> None:
    """Of five tasks, one finished before, one while nobody polled, one is executing, one failed,
    one never started.
    """
    testbed.cluster.behaviour = lambda run, index, attempt: (
        Behaviour() if index == 0 or attempt == 2 else (FAILS if index == 3 else UNTIL_STOPPED)
    )
    handle = await testbed.start({"crawler": "books", "tasks": [{}] * 5, "max_parallel_tasks": 3})
    await testbed.until(lambda: testbed.tasks(1).get(3) == "FAILED")
    await handle.terminate("by an operator")
    before = testbed.tasks(1)
    assert before == {0: "SUCCEEDED", 1: "RUNNING", 2: "RUNNING", 3: "FAILED", 4: before[4]}
    testbed.cluster.end_now(1, 1, end=FINISHED)
    again = await testbed.start({"run_id": 1})
    await testbed.until(lambda: testbed.tasks(1)[1] == "SUCCEEDED")
    await testbed.snapshot_where(again, lambda s: s.stage == "reconciliation" and s.polls >= 2)
    rows = {
        (t.task_index, t.attempt): t for t in testbed.store.tasks.list_tasks(1, superseded=True)
    }
    assert rows[2, 1].status == "RUNNING", "what executes is adopted as it is"
    assert rows[3, 1].superseded_by == rows[3, 2].task_id
    assert (0, 2) not in rows
    assert (1, 2) not in rows
    for index in (2, 4):
        attempt = 1 if (index, 1) in rows else 2
        if testbed.tasks(1)[index] in ("RUNNING", "PENDING"):
            testbed.cluster.end_now(1, index, attempt, FINISHED)
    result = await again.result()
    assert (result.status, result.attempt, result.tasks) == ("COMPLETED", 2, {"SUCCEEDED": 5})
    assert [c.attempt for c in testbed.scheduler.calls if any(t.index == 0 for t in c.tasks)] == [1]


async def test_a_failed_run_gets_a_new_task_and_its_old_end_stays_on_record(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: FAILS if attempt == 1 else Behaviour()
    first = await testbed.run({"crawler": "books", "args": {"shelf": "b"}})
    assert (first.status, first.outcome) == ("FAILED", "failed")
    second = await testbed.run({"run_id": first.run_id, "crawler": "books"})
    assert (second.status, second.attempt, second.run_id) == ("COMPLETED", 2, first.run_id)
    rows = testbed.store.tasks.list_tasks(first.run_id, superseded=True)
    assert [(t.attempt, str(t.status)) for t in rows] == [(1, "FAILED"), (2, "SUCCEEDED")]
    assert rows[0].superseded_by == rows[1].task_id
    assert testbed.scheduler.calls[1].resume
    assert testbed.scheduler.calls[1].args == {"shelf": "b"}
    ended = [e for e in testbed.outside.sent if e.type == "run.ended"]
    assert [(e.attempt, e.body["status"]) for e in ended] == [(1, "FAILED"), (2, "COMPLETED")]


async def test_a_completed_run_runs_again_only_on_demand(testbed: WorkflowHarness) -> None:
    first = await testbed.run({"crawler": "books"})
    kind, text = await refused(testbed, {"run_id": first.run_id})
    assert kind == "AlreadyCompleted"
    assert "rerun" in text
    again = await testbed.run({"run_id": first.run_id, "rerun": True})
    assert (again.status, again.attempt) == ("COMPLETED", 2)
    assert not testbed.scheduler.calls[-1].resume, (
        "a rerun begins anew, not with the state of a finished crawl"
    )


@pytest.mark.troubles
async def test_the_same_workflow_id_may_resume_its_own_run(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: FAILS if attempt == 1 else Behaviour()
    await testbed.run({"crawler": "books", "request_id": "q"}, id="crawl/books/q")
    result = await testbed.run({"run_id": 1}, id="crawl/books/q")
    assert (result.status, result.attempt) == ("COMPLETED", 2)


async def test_what_does_not_fit_is_refused_without_a_trace(testbed: WorkflowHarness) -> None:
    assert (await refused(testbed, {"run_id": 77}))[0] == "RunNotFound"
    first = await testbed.run({"crawler": "books", "request_id": "once"})
    assert (await refused(testbed, {"run_id": first.run_id, "crawler": "shops"}))[
        0
    ] == "InvalidRequest"
    assert (await refused(testbed, {"crawler": "books", "request_id": "once"}))[
        0
    ] == "DuplicateRequest"
    for bad in (
        {},
        {"crawler": "books", "colour": 1},
        {"crawler": "books", "limits": {"run_timeout_s": -1}},
        5,
        "x",
    ):
        kind, text = await refused(testbed, bad)  # type: ignore[arg-type]
        assert kind == "InvalidRequest"
        assert text
    assert len(testbed.store.runs.list_runs()) == 1


@pytest.mark.troubles
async def test_only_what_the_contract_names_counts_of_a_resuming_request(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = lambda run, index, attempt: FAILS if attempt == 1 else Behaviour()
    first = await testbed.run({"crawler": "books", "args": {"shelf": "b"}, "priority": 2})
    again = {
        "run_id": first.run_id,
        "args": {"shelf": "z"},
        "priority": 5,
        "poll_minutes": [2],
        "requested_by": "bob",
    }
    await testbed.run(again)
    stored = testbed.store.runs.request_of(first.run_id)
    assert (stored.args, stored.priority) == ({"shelf": "b"}, 2)
    assert (stored.poll_minutes, stored.requested_by) == ([2], "bob")


@pytest.mark.troubles
async def test_a_reserved_run_is_claimed_as_it_is(testbed: WorkflowHarness) -> None:
    row, new = testbed.store.initiation.reserve_run(
        RunRequest(crawler="books"), "res", [{"shelf": str(n)} for n in range(510)]
    )
    assert new
    result = await testbed.run({"run_id": row.run_id, "crawler": "books"})
    assert (result.status, result.attempt, result.tasks) == ("COMPLETED", 1, {"SUCCEEDED": 510})


@pytest.mark.troubles
@pytest.mark.parametrize("in_time", [True, False], ids=["created late", "expired"])
async def test_a_deployment_call_of_the_former_attempt_never_makes_a_second_task(
    real_testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    """The worker hangs in the call, the workflow is terminated and resumed, and then the call goes
    through.
    """
    testbed = real_testbed
    monkeypatch.setattr(deployment, "DEPLOYMENT_LIFE_S", 3600 if in_time else 2)
    monkeypatch.setattr(deployment, "CLOCK_MARGIN_S", 0)
    under_way, go_on = threading.Event(), threading.Event()

    def hang(call: Deployment) -> None:
        if call.attempt == 1:
            under_way.set()
            assert go_on.wait(120)

    testbed.scheduler.before = hang
    request = {"crawler": "books", "limits": {"start_check_s": 0.1}, "poll_minutes": [0.02]}
    handle = await testbed.start(request)
    await testbed.until(under_way.is_set)
    await handle.terminate("by an operator")
    again = await testbed.start({"run_id": 1})
    await testbed.until(
        lambda: (
            testbed.store.runs.get_run(1).attempt == 2 and testbed.store.runs.get_run(1).verified_at
        )
    )
    if not in_time:
        await testbed.until(lambda: len(testbed.scheduler.calls) > 1)
    go_on.set()
    result = await again.result()
    assert (result.status, result.attempt, result.tasks) == ("COMPLETED", 2, {"SUCCEEDED": 1})
    assert list(testbed.cluster._tasks) == [(1, 0, 1 if in_time else 2)]


@pytest.mark.troubles
async def test_an_export_goes_on_beside_the_attempt_that_follows(testbed: WorkflowHarness) -> None:
    """The bus was down when attempt 1 failed; its event is still delivered, although attempt 2 now
    owns the run.
    """
    testbed.cluster.behaviour = lambda run, index, attempt: FAILS if attempt == 1 else Behaviour()
    refused_first: list[int] = []
    send = testbed.outside.send

    def late_bus(event: Event) -> None:
        if event.attempt == 1 and len(refused_first) < 5:
            refused_first.append(event.seq)
            raise NotDelivered("the bus is away")
        send(event)

    testbed.outside.send = late_bus  # type: ignore[method-assign]
    first = await testbed.start({"crawler": "books"})
    await testbed.until(lambda: refused_first)
    second = await testbed.start({"run_id": 1})
    assert ((await first.result()).attempt, (await second.result()).attempt) == (1, 2)
    assert sorted((e.attempt, e.body["status"]) for e in testbed.outside.sent) == [
        (1, "FAILED"),
        (2, "COMPLETED"),
    ]
    assert {x["attempt"]: x["status"] for x in testbed.store.exports.list_exports(1)} == {
        1: "empty",
        2: "empty",
    }


@pytest.mark.troubles
async def test_a_stop_between_the_accepted_resume_and_its_claim_stops_it(
    testbed: WorkflowHarness,
) -> None:
    async def play(case: tuple[int | None, bool]) -> None:
        tasks, by_signal = case
        first = await testbed.run(
            {"crawler": "books", **({"tasks": [{}] * tasks} if tasks else {})}
        )
        row, _ = testbed.store.initiation.resume_run(
            RunRequest(run_id=first.run_id), f"resumed {first.run_id}", 1
        )
        if by_signal:
            handle = await testbed.start(
                {"run_id": first.run_id}, start_signal="stop", start_signal_args=[]
            )
        else:
            testbed.store.stops.record_stop(
                first.run_id, StopIntent(row.updated_at, requested_by="ada"), "s1"
            )
            handle = await testbed.start({"run_id": first.run_id})
        result = await handle.result()
        assert (result.status, result.outcome, result.attempt) == ("FAILED", "cancelled", 2)
        calls = [call for call in testbed.scheduler.calls if call.run_id == first.run_id]
        assert len(calls) == 1, "nothing of the second attempt was deployed"
        assert testbed.cluster.alive(first.run_id) == []
        assert [c["attempt"] for c in testbed.store.runs.cancellations(first.run_id)] == [2]
        pushed = [
            e.type for e in testbed.outside.pushed if (e.run_id, e.attempt) == (first.run_id, 2)
        ]
        assert "run.stopped" in pushed

    testbed.cluster.behaviour = lambda run, index, attempt: FAILS if attempt == 1 else UNTIL_STOPPED
    await each_at_once(play, product([None, 3], [False, True]))


@pytest.mark.troubles
async def test_an_accepted_resume_is_claimed_as_it_was_accepted(testbed: WorkflowHarness) -> None:
    first = await testbed.run({"crawler": "books"})
    testbed.store.initiation.resume_run(RunRequest(run_id=first.run_id, rerun=True), "resumed", 1)
    second = await testbed.run({"run_id": first.run_id})
    assert (second.status, second.attempt) == ("COMPLETED", 2)
    assert [call.attempt for call in testbed.scheduler.calls] == [1, 2]
