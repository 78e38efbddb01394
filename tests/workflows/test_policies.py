"""The order when more calls wait than a worker has slots for."""

from __future__ import annotations

import pytest

from crawler_lifecycle.domain.names import QUEUE_CLUSTER, QUEUE_CONTROL, QUEUE_MAIN
from crawler_lifecycle.workflows.policies import CHANGED, LATER, POLLS, config
from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import WorkflowHarness


def _turn(name: str, queue: str, *, planned: bool = False) -> int:
    options = config(name, planned=planned)
    assert options["task_queue"] == queue, name
    turn = options["priority"].priority_key
    assert turn is not None, name  # it would be the workflow's
    return turn


def test_a_stop_comes_before_a_change_and_a_change_before_starts_and_planned_polls() -> None:
    change, start = _turn("sync_statuses", QUEUE_MAIN), _turn("create_history_id", QUEUE_MAIN)
    assert change == _turn("update_run_status", QUEUE_MAIN)
    assert change == _turn("get_active_running_tasks", QUEUE_MAIN)
    assert change < _turn("add_workflow_id", QUEUE_MAIN) < start
    assert (
        _turn("get_history_statuses_to_sync", QUEUE_CLUSTER)
        < _turn("run_onetime_crawler", QUEUE_CLUSTER)
        == start
    )
    # The control queue also has polls of stopped runs.
    for name in (
        "record_stop",
        "cancel_queued_tasks",
        "k8_stop_task",
        "k8_stop_pod",
        "record_graph_stop",
    ):
        assert _turn(name, QUEUE_CONTROL) < change


def test_planned_polls_come_before_no_start() -> None:
    """With the same priority, they are served in order of arrival, and in turns if the server knows
    fairness keys.
    """
    for name, queue, start in (
        ("get_active_running_tasks", QUEUE_MAIN, "create_history_id"),
        ("get_history_statuses_to_sync", QUEUE_CLUSTER, "get_main_job_status"),
    ):
        assert _turn(name, queue, planned=True) == _turn(start, queue)
        assert config(name, planned=True)["priority"].fairness_key == POLLS
        assert config(start)["priority"].fairness_key is None, "that of the workflow: its crawler"


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.troubles
async def test_a_planned_poll_waits_and_one_after_a_change_does_not(
    testbed: WorkflowHarness,
) -> None:
    testbed.cluster.behaviour = Behaviour(executes=100)
    handle = await testbed.start({"crawler": "books", "poll_minutes": [0.5]})
    await testbed.until(lambda: testbed.cluster.calls["poll"] > 1)
    await handle.signal("poll_now")
    assert (await testbed.ended(handle)).status == "COMPLETED"
    summaries: dict[str, set[int]] = {"look": set(), "wake": set()}
    for event in (await handle.fetch_history()).events:
        about = event.activity_task_scheduled_event_attributes
        if about.activity_type.name == "get_history_statuses_to_sync":
            text = event.user_metadata.summary.data.decode()
            summaries["wake" if "(wake)" in text else "look"].add(about.priority.priority_key)
    assert summaries == {"look": {LATER}, "wake": {CHANGED}}
