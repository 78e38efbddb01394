"""A poll that the database does not take says so at once, and the rest of the run goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crawler_lifecycle.activities.deployment import MainJob
from crawler_lifecycle.activities.reconciliation import Sync
from crawler_lifecycle.domain.errors import StoreRefused
from crawler_lifecycle.ports.runs import Fence
from tests.activities.cases import UNTIL_STOPPED
from tests.activities.world import World
from tests.support.filling import patient_engine


def refuse(world: World, action: str, table: str) -> Callable[[], None]:
    """Let the database refuse this from now on, and how to end that."""
    engine = patient_engine(world.url)

    def execute(statement: str) -> None:
        with engine.begin() as conn:
            conn.exec_driver_sql(statement)

    execute(
        f"CREATE TRIGGER refused BEFORE {action} ON {table} BEGIN SELECT RAISE(ABORT, 'refused'); END"
    )
    return lambda: execute("DROP TRIGGER refused")


STEPS: list[tuple[str, str, str]] = [
    ("get_history_statuses_to_sync", "INSERT", "task_finding"),
    ("get_bulk_task_history_data", "DELETE", "task_observation"),
    ("reconcile_tasks", "INSERT", "task_log"),
    ("sync_statuses", "INSERT", "status_transition"),
]


@pytest.mark.parametrize(("step", "action", "table"), STEPS)
def test_a_step_of_a_poll_that_is_refused_tells_why_and_goes_on_by_itself(
    world: World, step: str, action: str, table: str
) -> None:
    fence = world.started(2)
    world.forward(60)
    arguments = {"get_history_statuses_to_sync": world.poll(fence), "sync_statuses": Sync(fence)}
    names = [name for name, _, _ in STEPS]
    for name in names[: names.index(step)]:
        world.call(name, arguments.get(name, fence))
    mended = refuse(world, action, table)
    with pytest.raises(StoreRefused):
        world.call(step, arguments.get(step, fence))
    told = world.row().look_error or ""
    assert told.startswith(f"The database refused a statement ({action}"), told
    assert f"{table})" in told
    assert world.row().look_error_since == world.now
    mended()
    world.round(fence)
    assert (world.row().look_error, world.statuses()) == (None, ["SUCCEEDED", "SUCCEEDED"])


def test_a_stop_needs_no_poll_that_can_be_written(world: World) -> None:
    """Asking the tasks to end, and forcing them, goes on while every poll is refused."""
    world.cluster.behaviour = UNTIL_STOPPED
    fence = world.started(2)
    refuse(world, "INSERT", "task_finding")
    world.forward(1)
    world.call("record_stop", world.stop(fence))
    world.call("cancel_queued_tasks", fence)
    world.call("k8_stop_task", fence)
    world.forward(5)
    assert not world.cluster.alive()
    with pytest.raises(StoreRefused):
        world.call("get_history_statuses_to_sync", world.poll(fence))
    assert "task_finding" in (world.row().look_error or "")
    assert world.statuses() == ["STOPPING", "STOPPING"]


def test_a_fault_of_ours_is_told_by_its_kind_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = world.started()

    def fault(*_: object, **__: object) -> None:
        raise OverflowError("MARKER")

    monkeypatch.setattr(world.store.polls, "record_poll", fault)
    with pytest.raises(OverflowError):
        world.call("get_history_statuses_to_sync", world.poll(fence))
    told = world.row().look_error or ""
    assert ("OverflowError" in told, "MARKER" in told) == (True, False)


def test_the_wait_for_the_start_tells_it_as_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence: Fence = world.deployed()
    world.forward(1)
    refuse(world, "INSERT", "task_finding")
    with pytest.raises(StoreRefused):
        world.call("get_main_job_status", MainJob(fence, 6))
    assert "task_finding" in (world.row().waiting_for or "")
