"""Each activity on its own: its effect, a second execution, a crash at any of its calls, and a
caller that has lost the run.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity

from crawler_lifecycle.activities.shared import beating
from crawler_lifecycle.domain.errors import Fenced, NothingDeployed
from crawler_lifecycle.features.graphs.ports import GraphFence
from crawler_lifecycle.features.managers.ports import ManagerFence
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.workflows.policies import POLICIES
from tests.activities.cases import ANOTHER_PROCESS, GONE, WAITED, Case
from tests.activities.cases import CASES as OF_RUNS
from tests.activities.deletion_cases import DELETION
from tests.activities.due_cases import DUE
from tests.activities.graph_cases import GRAPHS
from tests.activities.harness import Harness, Tables, differences
from tests.activities.manager_cases import MANAGING
from tests.activities.package_cases import PACKAGES
from tests.activities.webhook_cases import WEBHOOKS
from tests.support.activity_modules import activity_modules

Prepared = Callable[[Case], tuple[Harness, Any]]

#: The activities in the specification.
SPECIFIED = {
    *(
        "create_history_id",
        "add_workflow_id",
        "run_scheduled_crawler",
        "run_onetime_crawler",
        "get_main_job_status",
    ),
    *(
        "update_run_started",
        "signal_pusher_started",
        "get_active_running_tasks",
        "get_history_statuses_to_sync",
    ),
    *(
        "get_bulk_task_history_data",
        "reconcile_tasks",
        "sync_statuses",
        "count_alive_tasks",
        "cancel_queued_tasks",
    ),
    *(
        "k8_stop_task",
        "k8_stop_pod",
        "add_cancellation_log_to_db",
        "signal_pusher_stopped",
        "update_run_status",
    ),
    *("initiate_export_signal", "export_supporting_files"),
}
#: If the first deployment call of a task took effect, the evidence of its transition is
#: ``existing``. A poll that was recorded twice has counted twice.
HOW_IT_WAS_FOUND = {"status_transition.evidence", "run_history.look_revision"}
#: These act outside before the database refuses them. This is harmless: an order to end names a
#: task of its attempt and needs a recorded stop, and an archive has the key of its attempt.
OUTSIDE_FIRST = {"k8_stop_task", "k8_stop_pod", "export_supporting_files"}

CASES = [*OF_RUNS, *DELETION, *MANAGING, *GRAPHS, *DUE, *WEBHOOKS, *PACKAGES]
#: With the scope of a module, all tests of one case are consecutive, and one process prepares its
#: harness.
every_case = pytest.mark.parametrize("case", CASES, ids=str, scope="module")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Return the harness of each case in the state before the call, and the input of its activity."""
    folder = tmp_path_factory.mktemp("originals")

    @functools.cache
    def original(case: Case) -> tuple[Harness, Any]:
        harness = Harness.over(folder / str(CASES.index(case)))
        argument = case.prepare(harness)
        harness.close()
        return harness, argument

    return original


@pytest.fixture(autouse=True)
def _lists_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crawler_lifecycle.activities.deletion.LIST_S", 0)


@pytest.fixture
def prepared(originals: Prepared, tmp_path: Path) -> Iterator[Prepared]:
    """Return a function that gives a new harness in the state of a case, and the input of its
    activity.
    """
    twins: list[Harness] = []

    def twin(case: Case) -> tuple[Harness, Any]:
        harness, argument = originals(case)
        twins.append(harness.twin(tmp_path / str(len(twins))))
        return twins[-1], argument

    yield twin
    for harness in twins:
        harness.close()


def test_the_activities_are_the_specifications_and_some_of_ours(harness: Harness) -> None:
    assert len(SPECIFIED) == 21
    assert set(harness.activities()) == set(POLICIES) > SPECIFIED


def test_each_is_tested_here_and_says_what_a_second_execution_does(harness: Harness) -> None:
    tested = {case.activity for case in CASES}
    for name, method in harness.activities().items():
        assert name in tested, name
        assert "second execution" in " ".join((method.__doc__ or "").lower().split()), name


def test_none_is_interrupted_at_any_instruction(harness: Harness) -> None:
    """An exception thrown into a thread could leave a lock of the whole worker held."""
    for name, method in harness.activities().items():
        assert activity._Definition.must_from_callable(method).no_thread_cancel_exception, name


@every_case
def test_effect_and_twice_in_a_row_is_once(
    prepared: Prepared, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An activity sends heartbeats if its policy requires them: without any, a heartbeat timeout
    would end every long call, and without a timeout they mean nothing. The second execution is
    seven seconds later, so that a time that must not be written again shows.
    """
    beaten = []

    @contextmanager
    def noted() -> Iterator[None]:
        beaten.append(case.activity)
        with beating():
            yield

    harness, argument = prepared(case)
    for module in (one for one in activity_modules() if hasattr(one, "beating")):
        monkeypatch.setattr(module, "beating", noted)
    first = harness.call(case.activity, argument)
    case.effect(harness, first)
    policy = POLICIES[case.activity]
    assert bool(beaten) == (policy.heartbeat_s is not None and not policy.beaten), (
        "one of the two beats, never both"
    )
    tables, outside = harness.tables(), harness.outside()
    harness.forward(7)
    second = harness.call(case.activity, argument)
    assert case.same(second) == case.same(first)
    assert harness.outside() == outside
    assert differences(tables, harness.tables()) <= case.renews


@pytest.mark.troubles
@every_case
def test_after_a_crash_at_any_call_the_second_execution_ends_the_same(
    prepared: Prepared, case: Case, tmp_path: Path
) -> None:
    """The worker dies directly after each external call.

    The state that the call leaves is copied, and the activity is executed again on the copy. A
    crash before a call equals a crash after the previous one, because nothing persistent happens
    between them.
    """
    calm, argument = prepared(case)
    left: list[tuple[str, Harness]] = []
    one_after_another = threading.RLock()

    def copying(name: str, call: Callable[[], Any]) -> Any:
        with one_after_another:
            try:
                return call()
            finally:
                left.append((name, calm.twin(tmp_path / f"after-{len(left)}")))

    answer = calm.call(case.activity, argument, copying)
    outside, tables = calm.outside(), _with_one_try(calm)
    assert left
    for number, (name, harness) in enumerate(left):
        again, waited = _again(harness, case, argument)
        where = f"crash after call {number}, {name}"
        assert case.same(again) == case.same(answer), where
        assert harness.outside() == outside, where
        assert (
            differences(tables, _with_one_try(harness))
            <= HOW_IT_WAS_FOUND | (case.renews & (GONE | ANOTHER_PROCESS)) | waited
        ), where
        harness.close()


def _with_one_try(harness: Harness) -> Tables:
    """Return every table; a delivery that was tried twice counts two tries."""
    tables = harness.tables()
    tables["outbox_delivery"] = [{**row, "tries": 1} for row in tables["outbox_delivery"]]
    return tables


def _again(harness: Harness, case: Case, argument: Any) -> tuple[Any, frozenset[str]]:
    """Return the result of a later execution, and what may differ because it had to wait."""
    try:
        return harness.call(case.activity, argument), frozenset()
    except NothingDeployed:
        if case.void_s is None:
            raise
    harness.forward(case.void_s)
    return harness.call(case.activity, argument), WAITED


def _with_fence(argument: Any, **changes: Any) -> Any:
    if isinstance(argument, Fence | ManagerFence | GraphFence):
        return dataclasses.replace(argument, **changes)
    return dataclasses.replace(argument, fence=dataclasses.replace(argument.fence, **changes))


def _is_fenced(case: Case) -> bool:
    return case.activity not in {
        # Takes the run: DuplicateRequest and RunIsLive refuse others.
        "create_history_id",
        "add_workflow_id",  # writes a property of its own attempt
        "get_active_running_tasks",  # reads
        "count_alive_tasks",  # reads
        "signal_pusher_changed",  # pushes what is recorded, whoever owns the run now
        "resend_pushes",  # the same
        "open_manager",  # takes the manager: its workflow id refuses others
        "add_manager_jobs",  # adds jobs, whoever owns the manager
        "record_manager_stop",  # a stop counts, whoever owns the manager
        "stop_manager_runs",  # carries out a stop that is on record
        "run_manager_cycle",  # its order has its own fence (test_manager_cycle.py)
        "follow_webhook",  # takes the webhook: the previous owner is fenced
        "open_graph",  # takes the graph: its workflow id refuses others
        "command_graph",  # a command counts, whoever owns the graph
        "closed_graph_batches",  # asks Temporal
        "record_graph_stop",  # a stop counts, whoever owns the graph
        "stop_graph_runs",  # carries out what is on record
        # The firing is identified by its row, which is unique.
        *("decide_due", "stop_previous_due", "begin_due"),
        *(name for name in POLICIES if "audit" in name),  # compares any existing runs
        # Pushes the stored event of its own attempt, whoever owns the run now.
        "signal_pusher_stopped",
        # Delivers the stored event of its own attempt, whoever owns the run now.
        "initiate_export_signal",
        "deliver_event",  # the same, for other subjects
        # Whoever owned the run, it has ended.
        *("delete_run_texts", "delete_run_histories", "delete_run_files"),
        "inspect_package",  # belongs to no run
    }


@pytest.mark.parametrize(
    "case", [case for case in CASES if _is_fenced(case)], ids=str, scope="module"
)
def test_who_lost_the_run_writes_nothing(prepared: Prepared, case: Case) -> None:
    harness, argument = prepared(case)
    before, outside = harness.tables(), harness.outside()
    lost: list[dict[str, Any]] = [{"attempt": 77}, {"owner_run_id": "chain-of-a-stranger"}]
    for changes in lost:
        with pytest.raises(Fenced):
            harness.call(case.activity, _with_fence(argument, **changes))
        assert harness.tables() == before, changes
        if case.activity not in OUTSIDE_FIRST:
            assert harness.outside() == outside, changes
