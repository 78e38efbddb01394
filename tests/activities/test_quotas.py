"""What quotas refuse to managers, graphs and schedules waits; a person's own request is refused at
once.
"""

from __future__ import annotations

import pytest
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.activities.initiation import AddToRun
from crawler_lifecycle.domain.errors import QuotaReached
from crawler_lifecycle.domain.run import ChildTask
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec
from crawler_lifecycle.features.schedules.domain.decision import Decision
from crawler_lifecycle.store.store import open_store
from tests.activities import due_cases, graph_cases, manager_cases
from tests.activities.harness import Harness

#: A project is not told how much others use of a shared pool.
FULL = r"^quota starts_per_hour of pool default: no capacity for this now; try again in 60 s$"


def _quoted(w: Harness, **limits: int) -> None:
    w.store.close()
    w.store = open_store(w.url, pool_size=2, clock=w.clock, quotas={"pool:default": limits})


def test_jobs_of_a_manager_wait(harness: Harness) -> None:
    fence = manager_cases._picked(harness)
    _quoted(harness, starts_per_hour=1)
    for _ in range(2):
        with pytest.raises(QuotaReached, match=FULL) as refused:
            harness.call("begin_manager_runs", fence)
        assert manager_cases._row(harness).waiting_for == str(refused.value)
        assert [job.state for job in harness.store.managers.list_jobs(1)] == [
            "started",
            "starting",
            "started",
        ]
    harness.forward(3600)
    assert harness.call("begin_manager_runs", fence).begun == 1
    assert [job.run_id for job in harness.store.managers.list_jobs(1)] == [1, 2, None]
    assert manager_cases._row(harness).waiting_for is None


def test_crawls_of_a_graph_wait_unless_they_never_fit(harness: Harness) -> None:
    tasks = [{"args": {"shelf": str(n)}} for n in range(3)]
    large = StepSpec("large", StepKind.CRAWL, {"crawler": "books", "tasks": tasks})
    fence = graph_cases._claimed(
        harness, graph_cases._crawl("one"), large, graph_cases._crawl("two")
    )
    graph_cases._advance(harness, fence)
    _quoted(harness, starts_per_hour=1, tasks_per_run=2)
    with pytest.raises(QuotaReached, match=FULL):
        harness.call("begin_graph_runs", fence)
    steps = {step.path: step for step in harness.store.graphs.list_steps(1)}
    assert (steps["one"].run_id, steps["two"].run_id, steps["large"].outcome) == (
        1,
        None,
        "deploy_failed",
    )
    assert "tasks: 3 tasks are not allowed; quota tasks_per_run of pool default is 2" in str(
        steps["large"].reason
    )
    harness.forward(3600)
    assert harness.call("begin_graph_runs", fence).begun == 1


def test_a_due_time_waits(harness: Harness) -> None:
    harness.created()
    order = due_cases._decide(harness)
    _quoted(harness, starts_per_hour=1)
    with pytest.raises(QuotaReached, match=FULL):
        harness.call("decide_due", order)
    assert (due_cases._line(harness).decision, due_cases._line(harness).target) == (
        Decision.STARTED,
        None,
    )
    harness.forward(3600)
    assert harness.call("decide_due", order).begun.id == 2


def test_a_workflow_that_is_started_directly_is_refused_at_once(harness: Harness) -> None:
    _quoted(harness, starts_per_hour=1, live_tasks=2)
    fence = harness.created(2)
    assert harness.created(2) == fence  # its second execution
    for name, argument in (
        ("create_history_id", harness.order(request_id="r2")),
        ("add_tasks", AddToRun(fence, "more", [ChildTask({"shelf": "8"})])),
    ):
        with pytest.raises(
            ApplicationError, match=r"^QuotaReached: quota \w+ of pool default: \d of \d in use"
        ) as refused:
            harness.call(name, argument)
        assert (refused.value.type, refused.value.non_retryable) == ("QuotaReached", True)
    assert len(harness.store.runs.list_runs()) == 1
