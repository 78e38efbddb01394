"""Two builds serve the same queues for any length of time: twenty runs in every phase, without a
broken rule.

The other build has different code: it waits and retries differently, and with worker versions,
which keep the runs of the two apart, it has an additional step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.cli.problems import CommandFailed
from tests.e2e.deploys import served_by
from tests.e2e.harness import ENDLESS, QUICK, Harness, Row, until
from tests.e2e.test_worker_versions import documented
from tests.support.builds import ROOT, Change, build

RETRIES = Change(
    "workflows/policies.py",
    "DATABASE = Policy(QUEUE_MAIN, 16, _retry(1, 30), ",
    "DATABASE = Policy(QUEUE_MAIN, 12, _retry(2, 20), ",
)
#: Once executed, only builds that know the step can continue the run, so both builds may no longer
#: share runs.
STEP = Change(
    "workflows/lifecycle.py",
    "        due = await self._wait()\n",
    '        if workflow.patched("a-step-of-its-own"):\n            await workflow.sleep(0.05)\n'
    "        due = await self._wait()\n",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SHORT = {"max_pages": "12", "delay": "0.2"}
#: What each run is asked to do, and its expected end.
SHORT_RUN: Row = {"crawler": "plain", "args": SHORT, **QUICK}
WAVES: Row = {**SHORT_RUN, "tasks": [{}] * 3, "max_parallel_tasks": 1}
ENDLESS_RUN: Row = {"crawler": "plain", "args": ENDLESS, **QUICK}
STOPPED: Row = {**ENDLESS_RUN, "tasks": [{}] * 2, "max_parallel_tasks": 1}


@pytest.fixture
def ours(harness: Harness) -> Iterator[Harness]:
    """The stack, which has one worker of our own build without a version afterwards."""
    yield harness
    harness.deploy(ROOT)
    harness.undeploy("other")


def drill(harness: Harness, key: str, each: int, *, share: bool) -> None:
    """Runs that finish, deploy in waves, are stopped, forced and resumed, with both workers; then
    the proof.
    """
    kinds = {
        "short": SHORT_RUN,
        "waves": WAVES,
        "stopped": STOPPED,
        "forced": ENDLESS_RUN,
        "resumed": ENDLESS_RUN,
    }
    ids: dict[str, list[int]] = {
        kind: [harness.gateway.start(request, f"{key}-{kind}-{n}")["run_id"] for n in range(each)]
        for kind, request in kinds.items()
    }
    live = ids["stopped"] + ids["forced"] + ids["resumed"]
    until(
        lambda: all(harness.tasks(run_id).get("RUNNING") for run_id in live), "tasks that run", 150
    )
    for run_id in ids["stopped"] + ids["resumed"]:
        harness.gateway.stop(run_id, requested_by="ada", request_id=f"{key}-{run_id}")
    for run_id in ids["forced"]:
        harness.gateway.stop(run_id, force=True, requested_by="ada", request_id=f"{key}-{run_id}")
    until(lambda: harness.closed(ids["resumed"]), "the end of those that are resumed", 150)
    for run_id in ids["resumed"]:
        assert harness.gateway.resume(run_id)["attempt"] in (1, 2)
    until(
        lambda: all(harness.tasks(run_id).get("RUNNING") for run_id in ids["resumed"]),
        "the second attempts",
        150,
    )
    for run_id in ids["resumed"]:
        with pytest.raises(CommandFailed):
            harness.gateway.resume(run_id)
        harness.gateway.stop(run_id, requested_by="eve", request_id=f"{key}-{run_id}-again")
    everything = [run_id for group in ids.values() for run_id in group]
    until(lambda: harness.closed(everything), "the end of all", 240)
    _prove(harness, ids)
    _both_worked(harness, everything, share=share)


def _prove(harness: Harness, ids: dict[str, list[int]]) -> None:
    """Check that everything is true in the end; with that many crawls on a small machine, ends may
    be found late, which is on record.
    """
    for run_id in ids["short"] + ids["waves"]:
        harness.prove(run_id, "COMPLETED", "finished")
    for run_id in ids["stopped"] + ids["forced"]:
        harness.prove(run_id, "FAILED", "cancelled")
    for run_id in ids["resumed"]:
        harness.prove(run_id, "FAILED", "cancelled", attempt=2)
    for run_id in ids["stopped"] + ids["forced"] + ids["resumed"]:
        logged = harness.query(
            "SELECT attempt, request_id FROM cancellation_log WHERE run_id = ?", run_id
        )
        assert len(logged) == len(set(logged)) == (2 if run_id in ids["resumed"] else 1)


def _both_worked(harness: Harness, run_ids: list[int], *, share: bool) -> None:
    """Check that each worker has executed steps of workflows and activities, and both some of the
    same run if they share runs.
    """
    pids = [harness.stack.supervisor.pids()[name] for name in ("worker", "other")]
    shared, kinds = 0, [set[str](), set[str]()]
    for run_id in run_ids:
        workflow_id = harness.gateway.run(run_id)["workflow_id"]
        taken = [served_by(harness, workflow_id, pid) for pid in pids]
        for found, events in zip(kinds, taken, strict=True):
            found |= {event["eventType"] for event in events}
        shared += all(taken)
    for found in kinds:
        assert {"EVENT_TYPE_WORKFLOW_TASK_COMPLETED", "EVENT_TYPE_ACTIVITY_TASK_STARTED"} <= found
    assert bool(shared) == share, f"{shared} runs were served by both"


def test_two_builds_without_versions(ours: Harness, tmp_path: Path) -> None:
    ours.deploy(build(tmp_path / "build", RETRIES), "other")
    drill(ours, "unversioned", 4, share=True)


def test_two_versions_while_one_ramps_up(ours: Harness, tmp_path: Path) -> None:
    """Half of the runs get the new version and keep it, so that it may have steps that the old one
    lacks.
    """
    ours.deploy(ROOT, LIFECYCLE_WORKER__BUILD_ID="old")
    ours.deploy(build(tmp_path / "build", RETRIES, STEP), "other", LIFECYCLE_WORKER__BUILD_ID="new")
    documented(ours, "set-current-version", "--build-id NEW", NEW="old")
    try:
        _ramp(ours)
    finally:
        documented(ours, "set-current-version", "--unversioned")


def _ramp(ours: Harness) -> None:
    documented(
        ours,
        "set-ramping-version",
        "--percentage 20",
        NEW="new",
        **{"--percentage 20": "--percentage 50"},
    )
    drill(ours, "versioned", 2, share=False)
    documented(ours, "set-current-version", "--build-id NEW", NEW="new")
