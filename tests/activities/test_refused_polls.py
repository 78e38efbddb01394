"""A poll that the database rejects fails at once, and the rest of the run continues."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crawler_lifecycle.activities.deployment import MainJob
from crawler_lifecycle.activities.reconciliation import Sync
from crawler_lifecycle.domain.errors import StoreRefused
from crawler_lifecycle.ports.runs import Fence
from tests.activities.cases import UNTIL_STOPPED
from tests.activities.harness import Harness
from tests.support.filling import patient_engine


def refuse(harness: Harness, action: str, table: str) -> Callable[[], None]:
    """Let the database refuse these writes from now on. Return a function that ends this."""
    engine = patient_engine(harness.url)

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
    harness: Harness, step: str, action: str, table: str
) -> None:
    fence = harness.started(2)
    harness.forward(60)
    arguments = {"get_history_statuses_to_sync": harness.poll(fence), "sync_statuses": Sync(fence)}
    names = [name for name, _, _ in STEPS]
    for name in names[: names.index(step)]:
        harness.call(name, arguments.get(name, fence))
    mended = refuse(harness, action, table)
    with pytest.raises(StoreRefused):
        harness.call(step, arguments.get(step, fence))
    told = harness.row().look_error or ""
    assert told.startswith(f"The database refused a statement ({action}"), told
    assert f"{table})" in told
    assert harness.row().look_error_since == harness.now
    mended()
    harness.round(fence)
    assert (harness.row().look_error, harness.statuses()) == (None, ["SUCCEEDED", "SUCCEEDED"])


def test_a_stop_needs_no_poll_that_can_be_written(harness: Harness) -> None:
    """Stops and forced stops are carried out although every poll is refused."""
    harness.cluster.behaviour = UNTIL_STOPPED
    fence = harness.started(2)
    refuse(harness, "INSERT", "task_finding")
    harness.forward(1)
    harness.call("record_stop", harness.stop(fence))
    harness.call("cancel_queued_tasks", fence)
    harness.call("k8_stop_task", fence)
    harness.forward(5)
    assert not harness.cluster.alive()
    with pytest.raises(StoreRefused):
        harness.call("get_history_statuses_to_sync", harness.poll(fence))
    assert "task_finding" in (harness.row().look_error or "")
    assert harness.statuses() == ["STOPPING", "STOPPING"]


def test_a_fault_of_ours_is_told_by_its_kind_alone(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = harness.started()

    def fault(*_: object, **__: object) -> None:
        raise OverflowError("MARKER")

    monkeypatch.setattr(harness.store.polls, "record_poll", fault)
    with pytest.raises(OverflowError):
        harness.call("get_history_statuses_to_sync", harness.poll(fence))
    told = harness.row().look_error or ""
    assert ("OverflowError" in told, "MARKER" in told) == (True, False)


def test_the_wait_for_the_start_tells_it_as_well(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence: Fence = harness.deployed()
    harness.forward(1)
    refuse(harness, "INSERT", "task_finding")
    with pytest.raises(StoreRefused):
        harness.call("get_main_job_status", MainJob(fence, 6))
    assert "task_finding" in (harness.row().waiting_for or "")
