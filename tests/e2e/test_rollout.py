"""A worker that is asked to exit during a rollout finishes its work, and no run is affected."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.deploys import history, served_by
from tests.e2e.harness import ENDLESS, QUICK, Harness, until
from tests.support.builds import ROOT, Change, build

pytestmark = pytest.mark.slow

#: No limit passes before the test has seen what it needs, on any machine.
UNHURRIED = (
    Change(
        "workflows/policies.py",
        "DEPLOY = Policy(QUEUE_CLUSTER, 40,",
        "DEPLOY = Policy(QUEUE_CLUSTER, 900,",
    ),
    Change("activities/deployment.py", "DEPLOYMENT_LIFE_S = 25\n", "DEPLOYMENT_LIFE_S = 900\n"),
)
LIMITS = {"LIFECYCLE_SCHEDULER__TIMEOUT_S": "900", "LIFECYCLE_WORKER__GRACE_S": "900"}


@pytest.fixture
def ours(harness: Harness, tmp_path: Path) -> Iterator[Harness]:
    """The stack with a worker that has much time to exit; afterwards it has our own build again."""
    harness.deploy(build(tmp_path / "build", *UNHURRIED), **LIMITS)
    yield harness
    harness.deploy(ROOT)


def test_a_worker_leaves_in_order_while_an_activity_runs(ours: Harness) -> None:
    """The deployment of one run hangs in the scheduler service while another run is crawling."""
    harness = ours
    crawling = harness.gateway.start(
        {"crawler": "plain", "args": ENDLESS, **QUICK}, "rollout-crawling"
    )["run_id"]
    until(lambda: harness.status(crawling) == "PROCESSING", "a run that has started")
    harness.freeze("scheduler")
    try:
        request = {"crawler": "plain", "args": {"max_pages": "4", "delay": "0.05"}, **QUICK}
        hanging = harness.gateway.start(request, "rollout-hanging")["run_id"]
        sql = "SELECT offered_until FROM task_history WHERE run_id = ?"
        until(lambda: harness.query(sql, hanging)[0][0], "a deployment call on its way")
        starts = harness.stack.supervisor.starts("worker")
        leaver = harness.stack.supervisor.kill("worker", signal.SIGTERM)
        until(lambda: _leaves(harness), "that it is not ready any more")
        harness.cli_start("rollout/new", request)
        time.sleep(1.0)  # so that a worker that does not wait has exited
        assert harness.stack.supervisor.pids().get("worker") == leaver, (
            "it waits for the activity that runs"
        )
    finally:
        harness.thaw("scheduler")
    until(
        lambda: harness.stack.supervisor.starts("worker") > starts, "the next worker"
    )  # at once, and not after its grace period
    assert any(line.startswith("worker ended with 0;") for line in harness.said), harness.said[-3:]
    until(lambda: harness.closed([hanging]), "the end of the run")
    harness.prove(hanging, "COMPLETED", "finished")
    assert _tries(harness, "crawl/plain/rollout-hanging", "run_onetime_crawler") == [1], (
        "its answer was not lost"
    )
    assert harness.cli_result("rollout/new")["result"]["status"] == "COMPLETED"
    assert not served_by(harness, "rollout/new", leaver), (
        "who leaves takes no new work on any queue"
    )
    assert harness.status(crawling) == "PROCESSING"
    harness.gateway.stop(crawling, requested_by="ada")
    until(lambda: harness.closed([crawling]), "the end of the stop")
    harness.prove(crawling, "FAILED", "cancelled")


def _leaves(harness: Harness) -> bool:
    """Return whether the worker reports that it is exiting; a slow response does not count."""
    answer = httpx.get(f"{harness.stack.addresses['worker']}/readyz", timeout=60, trust_env=False)
    return answer.status_code == 503 and "is shutting down" in answer.text


def _tries(harness: Harness, workflow_id: str, activity: str) -> list[int]:
    """Return how often the calls of an activity were tried."""
    shown = history(harness, workflow_id)
    scheduled = {
        e["eventId"]
        for e in shown
        if e.get("activityTaskScheduledEventAttributes", {}).get("activityType", {}).get("name")
        == activity
    }
    started = [
        e["activityTaskStartedEventAttributes"]
        for e in shown
        if "activityTaskStartedEventAttributes" in e
    ]
    return [a["attempt"] for a in started if a["scheduledEventId"] in scheduled]
