"""A task that disappears or is replaced before it was seen executing, on a cluster that needs two
polls for proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.activities.deployment import MainJob, MainJobReport, StartReport
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.task import ALIVE
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, Fence
from crawler_lifecycle.settings import ClusterSettings
from tests.activities.harness import Harness
from tests.clusters.kubernetes.polls.harness import CRAWLER
from tests.clusters.kubernetes.polls.harness import Harness as Kubernetes
from tests.support.kube_api.store import JOBS

JOB = "crawl-1-0-1"


class Stage:
    """A run of the real store on the real Kubernetes adapter, with a fake API server."""

    def __init__(self, harness: Harness, kubernetes: Kubernetes) -> None:
        self.harness, self.kubernetes = harness, kubernetes
        self._deployer = KubernetesDeployer(kubernetes.api, ClusterSettings(kind="kubernetes"))
        harness.cluster = kubernetes.cluster  # type: ignore[assignment]
        harness.scheduler = self  # type: ignore[assignment]
        kubernetes.stand_still()
        self.forward(0)

    def deploy(self, deployment: Deployment) -> list[DeployedTask]:
        return self._deployer.deploy(deployment, CRAWLER)

    def close(self) -> None:
        self._deployer.close()
        self.kubernetes.close()

    def forward(self, seconds: float) -> None:
        self.kubernetes.later += timedelta(seconds=seconds)
        self.harness.now = self.kubernetes.now()

    def ask(self, fence: Fence) -> MainJobReport:
        report: MainJobReport = self.harness.call("get_main_job_status", MainJob(fence, 6))
        return report

    def waits(self, fence: Fence) -> float:
        """Ask without success. Return the seconds until the next try."""
        with pytest.raises(ApplicationError) as caught:
            self.ask(fence)
        assert caught.value.next_retry_delay is not None
        return caught.value.next_retry_delay.total_seconds()

    def missed(self) -> Any:
        return self.harness.store.tasks.task_page(1, ALIVE, limit=1)[0].missed_at

    def goes_on(self, fence: Fence) -> None:
        """Do what the workflow does when it need not wait for the main task any longer."""
        self.harness.call("update_run_started", StartReport(fence, None, self.harness.now))
        self.harness.round(fence)


@pytest.fixture
def stage(harness: Harness, tmp_path: Path) -> Iterator[Stage]:
    folder = tmp_path / "kubernetes"
    folder.mkdir()
    found = Stage(harness, Kubernetes(folder))
    yield found
    found.close()


def test_a_job_that_vanishes_before_its_start_is_lost_by_two_polls(stage: Stage) -> None:
    fence = stage.harness.deployed()
    assert stage.waits(fence) == 6
    stage.kubernetes.server.delete_behind(JOB)
    stage.forward(6)
    assert stage.waits(fence) == 30.1, "then the second poll can prove it"
    missed = stage.missed()
    assert missed is not None
    assert stage.harness.row().waiting_for == "It is not on the cluster any more"
    assert stage.harness.statuses() == ["PENDING"]
    stage.forward(10)
    assert stage.waits(fence) == 20.1
    assert stage.missed() == missed, "the first of the polls in a row"
    stage.forward(21)
    assert stage.ask(fence) == MainJobReport(None, ended=True)
    stage.goes_on(fence)
    assert stage.harness.statuses() == ["LOST"]
    assert [row.kind for row in stage.harness.store.corrections.list_corrections(1)] == [
        "vanished"
    ], "it was seen to wait"


def test_what_no_check_ever_saw_never_existed(stage: Stage) -> None:
    fence = stage.harness.deployed()
    stage.kubernetes.server.delete_behind(JOB)
    stage.waits(fence)
    stage.forward(31)
    assert stage.ask(fence).ended
    stage.goes_on(fence)
    assert [row.kind for row in stage.harness.store.corrections.list_corrections(1)] == [
        "never_existed"
    ]


def test_a_task_that_goes_on_waiting_is_written_down_once(stage: Stage) -> None:
    fence = stage.harness.deployed()
    assert stage.waits(fence) == 6
    seen = stage.harness.row().verified_at
    assert seen is not None
    stage.kubernetes.forget_calls()
    stage.forward(6)
    assert stage.waits(fence) == 6
    assert stage.harness.row().verified_at == seen
    assert stage.kubernetes.calls("GET", r"/jobs\?") == 1


def test_polls_that_missed_it_count_only_in_a_row(stage: Stage) -> None:
    """An API server may lag, or etcd may have been restored: an object that was missing once is
    there again.
    """
    fence = stage.harness.deployed()
    server = stage.kubernetes.server
    job = server.job(JOB)
    server.delete_behind(JOB)
    stage.waits(fence)
    assert stage.missed() is not None
    server.store.create(JOBS, (server.namespace, JOB), job)
    stage.forward(31)
    assert stage.waits(fence) == 6
    assert stage.missed() is None
    stage.kubernetes.server.delete_behind(JOB)
    stage.forward(60)
    assert stage.waits(fence) == 30.1, "the first poll that misses it again proves nothing"
    assert stage.harness.statuses() == ["PENDING"]


def test_a_cluster_that_fails_in_between_leaves_the_first_look_to_the_next_try(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = stage.harness.deployed()
    stage.kubernetes.server.delete_behind(JOB)
    poll, calls = stage.kubernetes.cluster.poll, []

    def once(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise ClusterUnavailable("503")
        return poll(*args)

    monkeypatch.setattr(stage.kubernetes.cluster, "poll", once)
    stage.waits(fence)
    assert (len(calls), stage.missed()) == (2, None)
    stage.waits(fence)
    assert stage.missed() is not None


@pytest.mark.parametrize("executes", [False, True])
def test_a_job_that_was_made_anew_is_not_waited_for(stage: Stage, executes: bool) -> None:
    fence = stage.harness.deployed()
    stage.waits(fence)
    stage.kubernetes.server.recreate_behind(JOB)
    if executes:
        stage.kubernetes.server.pod_starts(JOB)
    assert stage.ask(fence) == MainJobReport(None, ended=True), (
        "when the other one started says nothing of ours"
    )
    stage.goes_on(fence)
    assert stage.harness.statuses() == ["LOST"]
    assert [row.kind for row in stage.harness.store.corrections.list_corrections(1)] == ["not_ours"]
    assert stage.kubernetes.server.job(JOB)["metadata"].get("deletionTimestamp") is None
