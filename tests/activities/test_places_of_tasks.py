"""Workers or the scheduler service use another namespace or folder than the tasks: nothing is
concluded, and the run recovers.
"""

from __future__ import annotations

import pytest

from crawler_lifecycle.activities.deployment import Deploy
from crawler_lifecycle.activities.reconciliation import Sync
from crawler_lifecycle.domain.errors import ClusterUnavailable, SchedulerUnavailable
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports.runs import Fence
from tests.activities.harness import Harness
from tests.support.fakes.cluster import Behaviour, FakeCluster

UNTIL_STOPPED = Behaviour(executes=None)


@pytest.fixture
def placed(harness: Harness) -> Harness:
    harness.cluster.here = "day"
    harness.cluster.behaviour = UNTIL_STOPPED
    return harness


def poll(harness: Harness, fence: Fence) -> None:
    harness.call("get_history_statuses_to_sync", harness.poll(fence))
    harness.call("sync_statuses", Sync(fence))


def test_where_a_task_is_put_is_on_record_before_it_is_asked_for(placed: Harness) -> None:
    fence = placed.created(2)
    placed.scheduler.faults.add(SchedulerUnavailable("no answer"))
    with pytest.raises(SchedulerUnavailable):
        placed.call("run_onetime_crawler", Deploy(fence, 1))
    assert placed.store.deployment.places(1) == ["day"]
    assert [task.place for task in placed.store.tasks.task_page(1, [TaskStatus.QUEUED])] == [
        "day",
        None,
    ]
    assert placed.scheduler.calls[0].place == "day"


def test_a_living_task_is_not_lost_to_a_wrong_setting(placed: Harness) -> None:
    fence = placed.started()
    placed.cluster.here = "night"
    for _ in range(3):
        placed.forward(60)
        with pytest.raises(
            ClusterUnavailable, match="a task was put into day, and we look into night"
        ):
            poll(placed, fence)
        assert placed.statuses() == ["RUNNING"]
    assert placed.row().look_error == "a task was put into day, and we look into night"
    placed.cluster.here = "day"
    placed.round(fence)
    assert (placed.statuses(), placed.row().look_error) == (["RUNNING"], None)


def test_a_stop_is_not_done_where_nothing_was_found(placed: Harness) -> None:
    fence = placed.stopping()
    placed.cluster.here = "night"
    placed.call("cancel_queued_tasks", fence)
    with pytest.raises(ClusterUnavailable):
        poll(placed, fence)
    assert placed.row().status == "STOPPING"
    assert placed.cluster.signals(1) == 0


def test_what_a_lost_call_may_have_made_elsewhere_is_not_cancelled(placed: Harness) -> None:
    """The call took effect, its response was lost, and since then the workers poll elsewhere."""
    fence = placed.created()
    placed.scheduler.lost_answers = 1
    with pytest.raises(SchedulerUnavailable):
        placed.call("run_onetime_crawler", Deploy(fence))
    placed.cluster.here = "night"
    placed.call("record_stop", placed.stop(fence))
    for _ in range(3):
        placed.forward(60)
        with pytest.raises(ClusterUnavailable):
            poll(placed, fence)
        assert placed.call("cancel_queued_tasks", fence).queued == 1
    placed.cluster.here = "day"
    poll(placed, fence)
    assert placed.statuses() == ["RUNNING"], "it is found, and can be stopped like any other"


def test_a_later_wave_waits_rather_than_go_where_the_first_is_not(placed: Harness) -> None:
    fence = placed.started(2, max_parallel=1)
    placed.cluster.here = "night"
    with pytest.raises(ClusterUnavailable):
        placed.call("deploy_queued_tasks", Deploy(fence, 2))
    assert placed.row().waiting_for == "cluster: a task was put into day, and we look into night"
    assert placed.statuses() == ["RUNNING", "QUEUED"]
    placed.cluster.here = "day"
    assert placed.call("deploy_queued_tasks", Deploy(fence, 2)).offered == 1


@pytest.mark.parametrize("wrong", ["service", "worker"])
def test_a_scheduler_service_with_another_setting_creates_nothing(
    placed: Harness, wrong: str
) -> None:
    """The service learns where the worker will poll. The run continues when either setting is
    changed to match the other.
    """
    fence = placed.created()
    service = placed.scheduler.deployer = FakeCluster(clock=placed.clock, here="night")
    with pytest.raises(SchedulerUnavailable, match="the caller looks into day, this is night"):
        placed.call("run_onetime_crawler", Deploy(fence))
    assert service.alive() == []
    assert placed.row().waiting_for == "scheduler service: the caller looks into day, this is night"
    assert placed.store.deployment.places(1) == [], "they have never been where the worker polled"
    if wrong == "service":
        placed.scheduler.deployer = placed.cluster
    else:
        placed.cluster = service
    placed.call("run_onetime_crawler", Deploy(fence))
    assert placed.statuses() == ["PENDING"]


def test_a_place_that_is_gone_for_good_holds_nobody_up(placed: Harness) -> None:
    fence = placed.started(2, max_parallel=1)
    placed.cluster.here, placed.cluster.gone_places = "night", {"day"}
    placed.forward(60)
    placed.round(fence)
    assert placed.statuses() == ["LOST", "QUEUED"]
    placed.call("deploy_queued_tasks", Deploy(fence, 1))
    assert placed.store.deployment.places(1) == ["night"]


def test_a_task_that_was_put_off_is_nowhere(placed: Harness) -> None:
    """The task may be deployed anywhere later."""
    fence = placed.started(2, max_parallel=1)
    placed.cluster.behaviour = Behaviour(deployed="deferred", deploy_reason="quota")
    placed.call("deploy_queued_tasks", Deploy(fence, 2))
    placed.cluster.end_now(1)
    placed.round(fence)
    assert placed.store.deployment.places(1) == []
    placed.cluster.here, placed.cluster.behaviour = "night", UNTIL_STOPPED
    placed.call("deploy_queued_tasks", Deploy(fence, 2))
    assert placed.store.deployment.places(1) == ["night"]
