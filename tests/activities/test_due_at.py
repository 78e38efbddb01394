"""Everything that a schedule starts gets the due time, as an argument and in the environment of
each task.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from crawler_lifecycle.activities.child_runs import Claim
from crawler_lifecycle.activities.deployment import Deploy
from crawler_lifecycle.domain.names import graph_workflow_id, manager_workflow_id
from crawler_lifecycle.features.graphs.activities.graphs import AdvanceGraph
from crawler_lifecycle.features.graphs.ports import GraphFence
from crawler_lifecycle.features.managers.domain.manager import AddedJob, Decision, Job, PickedJob
from crawler_lifecycle.features.managers.ports import ManagerFence
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from crawler_lifecycle.features.schedules.ports import DueOrder
from crawler_lifecycle.ports.runs import Deployment, Fence, Owner, RunRow
from crawler_lifecycle.process_contract import contract_of
from tests.activities.harness import CRAWLERS, START, Harness

RUN = {"crawler": "books", "args": {"shelf": "{due:%Y-%m-%d}"}}
MANAGER = {"name": "stream", "plan": "shop:Stream", "options": {"argv": ["{due:%d}"]}}


def due(w: Harness, days: int = 0, **target: Any) -> None:
    """The schedule is due a few days later; a catch-up or a backfill gives the same requests."""
    spec = ScheduleSpec(
        every_s=24 * 3600, offset_s=12 * 3600, catch_up_s=9 * 24 * 3600, overlap="allow", **target
    )
    w.store.schedules.put("nightly", spec.document(), "ann", "shop-a")
    w.call("decide_due", DueOrder("nightly", START - timedelta(days=days)))


def environment(w: Harness, run: RunRow) -> dict[str, str]:
    """Return the environment that the run's task gets when it is deployed."""
    owner = Owner(f"crawl/books/{run.request_id}", f"chain-{run.run_id}")
    handle = w.call("create_history_id", w.order(crawler="books", run_id=run.run_id, owner=owner))
    w.call(
        "run_onetime_crawler",
        Deploy(Fence(handle.run_id, handle.attempt, owner.first_run_id, handle.run_uid)),
    )
    deployment: Deployment = w.scheduler.calls[-1]
    return contract_of(deployment, CRAWLERS[0], deployment.tasks[0])


def test_three_due_times_that_are_caught_up_are_three_different_crawls(harness: Harness) -> None:
    for days in (3, 2, 1):
        due(harness, days, run=RUN)
    runs = sorted(harness.store.runs.list_runs(), key=lambda run: run.run_id)
    assert [run.request["args"]["shelf"] for run in runs] == [
        "2026-02-26",
        "2026-02-27",
        "2026-02-28",
    ]
    found = [environment(harness, run)["CRAWL_DUE_AT"] for run in runs]
    assert found == ["2026-02-26T12:00:00Z", "2026-02-27T12:00:00Z", "2026-02-28T12:00:00Z"]


def test_the_runs_of_a_manager_have_its_due_time(harness: Harness) -> None:
    due(harness, manager=MANAGER)
    row = harness.store.managers.get_manager(1)
    assert row is not None
    assert row.options["argv"] == ["01"]
    manage(harness)
    [run] = harness.store.runs.list_runs()
    assert environment(harness, run)["CRAWL_DUE_AT"] == "2026-03-01T12:00:00Z"


def manage(w: Harness) -> None:
    """Let the manager begin one run."""
    row = w.store.managers.get_manager(1)
    assert row is not None
    owner = Owner(manager_workflow_id(row.name, row.flow_id), "chain-m")
    w.call("open_manager", Claim(1, owner))
    fence = ManagerFence(1, 1, owner.first_run_id)
    w.store.managers.new_generation(fence, "print", 0)
    job = Job("books")
    w.store.managers.commit_decision(
        fence, Decision(added=[AddedJob(-1, job)], picked=[PickedJob(-1, 1, job)])
    )
    w.call("begin_manager_runs", fence)


def test_the_runs_of_a_graph_and_of_its_managers_have_its_due_time(harness: Harness) -> None:
    steps = [
        {"path": "one", "kind": "crawl", "job": RUN},
        {"path": "two", "kind": "manager", "job": MANAGER},
    ]
    due(harness, graph={"steps": steps})
    owner = Owner(graph_workflow_id("schedule.nightly.2026-03-01T12:00:00Z"), "chain-g")
    harness.call("open_graph", Claim(1, owner))
    fence = GraphFence(1, 1, owner.first_run_id)
    harness.call("advance_graph", AdvanceGraph(fence, room=9))
    harness.call("begin_graph_runs", fence)
    manage(harness)
    runs = sorted(harness.store.runs.list_runs(), key=lambda run: run.run_id)
    assert [run.request["args"] for run in runs] == [{"shelf": "2026-03-01"}, {}]
    assert {environment(harness, run)["CRAWL_DUE_AT"] for run in runs} == {"2026-03-01T12:00:00Z"}


def test_a_run_that_no_schedule_started_has_none(harness: Harness) -> None:
    harness.deployed()
    deployment: Deployment = harness.scheduler.calls[-1]
    assert "CRAWL_DUE_AT" not in contract_of(deployment, CRAWLERS[0], deployment.tasks[0])
