"""The run's record is true although everything around it is wrong, late or down."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory, WorkflowUpdateFailedError, WorkflowUpdateStage
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.activities import cancellation
from crawler_lifecycle.domain.errors import NotDelivered, StoreUnavailable
from crawler_lifecycle.domain.run import RunResult
from crawler_lifecycle.workflows import calls
from tests.support.fakes.cluster import Behaviour
from tests.support.store_ports import port_of
from tests.support.testbed import WorkflowHarness, open_testbed

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

UNTIL_STOPPED = Behaviour(executes=None)


async def test_a_saturated_cluster_costs_no_history_and_its_reason_is_visible(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = Behaviour(
        waits=600, executes=30, wait_reason="waiting: 4 of 4 slots in use"
    )
    handle = await testbed.start({"crawler": "books"})
    await testbed.until(
        lambda: (
            (r := testbed.store.runs.get_run(1)) and r.waiting_for == "waiting: 4 of 4 slots in use"
        )
    )
    first = (await handle.fetch_history()).events
    at_first = len([e for e in first if "TIME_SKIPPING" not in EventType.Name(e.event_type)])
    result = await handle.result()
    assert result.status == "COMPLETED"
    history = await handle.fetch_history()
    events = [e for e in history.events if "TIME_SKIPPING" not in EventType.Name(e.event_type)]
    started = next(
        n
        for n, e in enumerate(events)
        if e.HasField("activity_task_scheduled_event_attributes")
        and e.activity_task_scheduled_event_attributes.activity_type.name == "update_run_started"
    )
    assert started - at_first <= 12, "ten minutes of waiting"
    assert testbed.cluster.calls["poll"] > 15
    assert testbed.store.runs.get_run(1).waiting_for is None


async def test_a_process_killed_behind_our_back_is_corrected_on_record(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    testbed.cluster.end_now(1)
    result = await handle.result()
    assert (result.status, result.outcome) == ("FAILED", "failed")
    assert "SIGKILL" in result.cause
    (correction,) = testbed.store.corrections.list_corrections(1)
    assert (correction.kind, correction.believed, correction.truth) == (
        "killed",
        "RUNNING",
        "FAILED",
    )
    assert correction.lag_ms is not None
    assert correction.truth_since is not None


async def test_what_vanished_is_lost_and_never_a_success(testbed: WorkflowHarness) -> None:
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    testbed.cluster.vanish(1)
    result = await handle.result()
    assert (result.status, result.outcome, result.tasks) == ("FAILED", "lost", {"LOST": 1})
    assert [c.kind for c in testbed.store.corrections.list_corrections(1)] == ["vanished"]


async def test_a_cluster_that_takes_nothing_yet_is_asked_again(testbed: WorkflowHarness) -> None:
    answers = iter(["deferred"] * 5)
    testbed.cluster.behaviour = lambda *_: Behaviour(
        deployed=next(answers, "created"), deploy_reason="33 tasks wait"
    )
    result = await testbed.run({"crawler": "books"})
    assert result.status == "COMPLETED"
    assert len(testbed.scheduler.calls) == 6


async def test_a_refused_deployment_is_a_failed_run_with_its_reason(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = Behaviour(deployed="refused", deploy_reason="no such image")
    for crawler, words in (("nobody", "not in the catalogue"), ("books", "no such image")):
        result = await testbed.run({"crawler": crawler})
        assert (result.status, result.outcome) == ("FAILED", "deploy_failed")
        assert words in result.cause
        (pushed,) = [event for event in testbed.outside.pushed if event.run_id == result.run_id]
        assert (pushed.type, pushed.body["started"]) == ("run.started", False)
        assert pushed.body["cause"]


async def test_a_push_is_tried_three_times_and_forgotten(testbed: WorkflowHarness) -> None:
    testbed.outside.fail = {"push": NotDelivered("refused")}
    handle = await testbed.start({"crawler": "books"})
    assert (await handle.result()).status == "COMPLETED"
    notes = (await testbed.snapshot_where(handle, lambda s: True)).notes
    assert any("signal_pusher_started gave up" in n for n in notes)


async def test_a_database_that_is_away_for_minutes_fails_no_run(
    testbed: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = testbed.store
    testbed.cluster.behaviour = Behaviour(executes=600)
    calls = 0

    def broken(*_: Any, **__: Any) -> Any:
        nonlocal calls
        calls += 1
        raise StoreUnavailable("the database went away")

    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    with monkeypatch.context() as patch:
        for name in ("found_state", "count_tasks", "apply_findings", "end_run"):
            patch.setattr(port_of(store, name), name, broken)
        # At most 30 s between tries: minutes of virtual time.
        await testbed.until(lambda: calls > 20, 120)
    assert (await handle.result()).status == "COMPLETED"


# --- continue-as-new ------------------------------------------------------------------------------


@pytest.fixture
def forgetful(
    skipping: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> WorkflowEnvironment:
    """Let executions continue as new after a few steps, as if the server suggested it, as in
    recorded histories.
    """
    monkeypatch.setattr(calls, "HISTORY_MAX", 60)
    return skipping


async def test_a_long_run_continues_as_new_and_forgets_nothing(
    forgetful: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with open_testbed(forgetful.client, tmp_path) as testbed:
        testbed.cluster.behaviour = Behaviour(executes=2 * 3600)
        handle = await testbed.start({"crawler": "books", "tasks": [{}] * 3, "parent": "nobody"})
        result = await testbed.ended(
            testbed.client.get_workflow_handle(handle.id, result_type=RunResult)
        )
        assert (result.status, result.attempt, result.tasks) == ("COMPLETED", 1, {"SUCCEEDED": 3})
        assert len(await testbed.chain(handle)) > 2
        steps = [t.committed_at for t in testbed.store.runs.transitions(1)]
        assert steps[-1] - steps[0] >= timedelta(hours=2)


#: Events that a round of signals may add, before the execution can continue as new.
MARGIN = 500


async def test_an_execution_goes_on_as_another_one_while_it_is_flooded_with_signals(
    monkeypatch: pytest.MonkeyPatch, testbed: WorkflowHarness
) -> None:
    # Also while the testbed replays, so it is requested after that.
    monkeypatch.setattr(calls, "HISTORY_MAX", 150)
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start({"crawler": "books"})
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    latest = testbed.client.get_workflow_handle(handle.id)
    for _ in range(calls.HISTORY_MAX // 100 + 1):
        await asyncio.gather(*(latest.signal("poll_now") for _ in range(100)))
        # It has accepted them all: a slow worker would fall behind.
        await testbed.snapshot_where(latest, lambda _: True)
    await latest.signal("stop")
    await testbed.ended(testbed.client.get_workflow_handle(handle.id, result_type=RunResult))
    chain = await testbed.chain(handle)
    assert len(chain) > 1
    for history in chain:
        assert len(history.events) < calls.HISTORY_MAX + MARGIN
        tasks = [e.workflow_task_started_event_attributes for e in history.events]
        assert not any(task.suggest_continue_as_new for task in tasks)


@pytest.mark.parametrize(
    "force", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "forced"]
)
async def test_a_stop_of_many_tasks_goes_on_in_the_next_execution(
    forgetful: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    """Even between two pages: each activity has time for one task here."""
    monkeypatch.setattr(cancellation, "PASS_S", 0.0)
    async with open_testbed(forgetful.client, tmp_path) as testbed:
        testbed.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=2)
        # Without force: on a busy machine, this server skips minutes when an execution with work
        # begins.
        handle = await testbed.start(
            {"crawler": "books", "tasks": [{}] * 20, "limits": {"force_stop_after_s": None}}
        )
        await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
        await testbed.client.get_workflow_handle(handle.id).signal("stop", {"force": force})
        result = await testbed.ended(
            testbed.client.get_workflow_handle(handle.id, result_type=RunResult)
        )
        assert (result.outcome, result.tasks) == ("cancelled", {"CANCELLED": 20})
        calls = testbed.cluster.calls["kill" if force else "stop"]
        assert calls == 20 or (force and 20 < calls < 40), (
            "each once; what was killed and is still there, again"
        )
        asked = [
            _called(history, "k8_stop_pod" if force else "k8_stop_task")
            for history in await testbed.chain(handle)
        ]
        assert len([one for one in asked if one]) > 1


def _called(history: WorkflowHistory, activity: str) -> int:
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    return sum(attributes.activity_type.name == activity for attributes in scheduled)


async def test_no_stop_is_lost_between_two_executions(
    forgetful: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with open_testbed(forgetful.client, tmp_path) as testbed:
        testbed.cluster.behaviour = UNTIL_STOPPED
        handles = [
            await testbed.start({"crawler": "books", "poll_minutes": [0.02]}) for _ in range(4)
        ]
        for n, handle in enumerate(handles):
            await asyncio.sleep(0.05 * n)
            await testbed.client.get_workflow_handle(handle.id).signal(
                "stop", {"request_id": f"s{n}"}
            )
        for n, handle in enumerate(handles):
            await testbed.ended(
                testbed.client.get_workflow_handle(handle.id, result_type=RunResult)
            )
            row = next(
                r for r in testbed.store.runs.list_runs() if r.owner_workflow_id == handle.id
            )
            assert (row.status, row.outcome) == ("FAILED", "cancelled")
            assert [c["request_id"] for c in testbed.store.runs.cancellations(row.run_id)] == [
                f"s{n}"
            ]
            assert testbed.cluster.signals(row.run_id) <= 1


async def test_an_update_that_hangs_holds_up_neither_polls_nor_a_stop(
    forgetful: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when the workflow is asked to continue as new, for which it would have to wait for the
    update.
    """
    async with open_testbed(forgetful.client, tmp_path) as testbed:
        testbed.cluster.behaviour = UNTIL_STOPPED
        begun, over = threading.Event(), threading.Event()
        add = testbed.store.additions.add_tasks

        def hang(*args: Any) -> Any:
            begun.set()
            over.wait(120)
            return add(*args)

        monkeypatch.setattr(testbed.store.additions, "add_tasks", hang)
        handle = await testbed.start({"crawler": "books", "poll_minutes": [0.02]})
        await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
        latest = testbed.client.get_workflow_handle(handle.id)
        update = await latest.start_update(
            "add_tasks", {"tasks": [{}]}, wait_for_stage=WorkflowUpdateStage.ACCEPTED
        )
        await testbed.until(begun.is_set)
        for n in range(60):
            await latest.signal(f"noise-{n}")
        polls = (await testbed.snapshot_where(handle, lambda s: s.notes)).polls
        await testbed.snapshot_where(handle, lambda s: s.polls > polls)
        await latest.signal("stop", {"request_id": "s"})
        await testbed.until(lambda: testbed.store.runs.get_run(1).status.terminal)
        assert not over.is_set()
        over.set()
        with pytest.raises(WorkflowUpdateFailedError):
            await update.result()
        assert (await handle.result()).outcome == "cancelled"
