"""A stop needs only the name of the Job: no readable row, no log, no final message of its crawler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.ports.runs import Deployment, Fence, QueuedTask
from crawler_lifecycle.store.migrations.schema_version import upgrade
from tests.activities.harness import Harness as Activities
from tests.activities.test_stops_of_unreadable_rows import ODD
from tests.clusters.kubernetes.polls.harness import CRAWLER, Harness
from tests.support.kube_api import Answer
from tests.support.run_refs import run_ref


def _started(harness: Harness, testbed: Activities) -> Fence:
    """A run whose two tasks execute in pods."""
    fence = testbed.started(tasks=2)
    queued = [QueuedTask(task.task_id, task.task_index, {}) for task in testbed.tasks()]
    expires = datetime.now(UTC) + timedelta(minutes=5)
    deployment = Deployment(run_ref(1), 1, "demo", {}, {}, queued, Resources(), Limits(), expires)
    with testbed.store.database.writing() as conn:
        for answer in harness._deployer.deploy(deployment, CRAWLER):
            harness.server.pod_starts(harness.name(answer.index, 1))
            uid = {"uid": answer.uid, "index": answer.index}
            conn.execute(
                sa.text("UPDATE task_history SET cluster_uid = :uid WHERE task_index = :index"), uid
            )
    testbed.cluster = harness.cluster  # type: ignore[assignment]
    return fence


def _stumble(*_: Any) -> Any:
    raise ValueError("a reader that stumbled over what a crawler printed")


@pytest.mark.parametrize("force", [False, True], ids=["stop", "kill"])
@pytest.mark.parametrize("trouble", ["rows", "log", "reader"])
def test_jobs_are_ended_by_their_names(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, force: bool
) -> None:
    upgrade(f"sqlite:///{tmp_path / 'state.db'}")
    testbed = Activities(tmp_path / "state.db", tmp_path)
    fence = _started(harness, testbed)
    if trouble == "log":
        harness.server.faults.add("GET", "/log", Answer(500), times=None)
    elif trouble == "reader":
        monkeypatch.setattr(harness.cluster, "details", _stumble)
    else:
        with testbed.store.database.writing() as conn:
            for table, column, value in ODD:
                conn.execute(sa.text(f"UPDATE {table} SET {column} = :value"), {"value": value})
    testbed.call("record_stop", testbed.stop(fence, force=force))
    testbed.call("k8_stop_pod" if force else "k8_stop_task", fence)
    for index in range(2):
        assert "deletionTimestamp" in harness.server.job(harness.name(index, 1))["metadata"]
    killed = {
        seen.path
        for seen in harness.server.requests
        if seen.method == "DELETE" and "/pods/" in seen.path
    }
    assert len(killed) == (2 if force else 0)
    testbed.close()
