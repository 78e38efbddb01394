"""Tasks on the fake API server, and the adapter that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.clusters.kubernetes.jobs.finalizers import Finalizers
from crawler_lifecycle.clusters.kubernetes.polls import details
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.domain.task import Observation
from crawler_lifecycle.ports.polls import Poll
from crawler_lifecycle.ports.runs import Deployment, QueuedTask, TaskRef
from crawler_lifecycle.settings import ClusterSettings
from tests.support.kube_api import FakeApiServer
from tests.support.kube_api.clients import PATIENT_S, patient
from tests.support.run_refs import run_ref

RUN = 7
CRAWLER = CrawlerDefinition(
    "demo", CrawlerKind.COMMAND, image="crawl.test/crawler:1", command=["crawl"]
)


class Harness:
    """A namespace, its server, and a clock that can be advanced.

    Only a fault takes too long.
    """

    def __init__(self, folder: Path) -> None:
        self._patch = pytest.MonkeyPatch()
        for limit in ("POLL_S", "KEPT_S"):
            self._patch.setattr(details, limit, PATIENT_S)
        self.server = FakeApiServer(folder)
        self.server.controllers.kubelet_stops = None
        self.api = patient(self.server)
        self.later = timedelta()
        self._stands_at: datetime | None = None
        self.cluster = KubernetesCluster(self.api, clock=self.now)
        self.finalizers = Finalizers(self.api, self.now)
        self._deployer = KubernetesDeployer(self.api, ClusterSettings(kind="kubernetes"))
        self.uids: dict[int, str | None] = {}

    def close(self) -> None:
        self._deployer.close()
        self.api.close()
        self.server.close()
        self._patch.undo()

    def stand_still(self) -> None:
        """From now on, the clock moves only when it is advanced."""
        self._stands_at = datetime.now(UTC)

    def now(self) -> datetime:
        return (self._stands_at or datetime.now(UTC)) + self.later

    def deploy_more(self, index: int, *, started: bool = True) -> None:
        """Deploy one more task of the run."""
        self._deploy([index], RUN, started)

    def deploy(self, tasks: int = 1, *, run_id: int = RUN, started: bool = True) -> None:
        """Deploy tasks; with ``started``, their pods run."""
        self._deploy(list(range(tasks)), run_id, started)

    def _deploy(self, indexes: Sequence[int], run_id: int, started: bool) -> None:
        expires = datetime.now(UTC) + timedelta(minutes=5)
        queued = [QueuedTask(100 + index, index, {}) for index in indexes]
        deployment = Deployment(
            run_ref(run_id), 1, "demo", {}, {}, queued, Resources(), Limits(), expires
        )
        for answer in self._deployer.deploy(deployment, CRAWLER):
            assert answer.state == "created", answer
            if run_id == RUN:
                self.uids[answer.index] = answer.uid
            if started:
                self.server.pod_starts(self.name(answer.index, run_id))

    def name(self, index: int = 0, run_id: int = RUN) -> str:
        return f"crawl-{run_id}-{index}-1"

    def ref(
        self, index: int = 0, *, stopping: bool = False, missed_s: float | None = None
    ) -> TaskRef:
        missed = None if missed_s is None else self.now() - timedelta(seconds=missed_s)
        return TaskRef(100 + index, index, 1, self.uids.get(index), stopping, missed)

    def poll(self, *refs: TaskRef) -> Poll:
        return self.cluster.poll(
            run_ref(RUN), refs or [self.ref(index) for index in sorted(self.uids)]
        )

    def see(
        self, index: int = 0, *, stopping: bool = False, missed_s: float | None = None
    ) -> Observation:
        return self.poll(self.ref(index, stopping=stopping, missed_s=missed_s)).observations[0]

    def without_uid(self, index: int = 0) -> TaskRef:
        return replace(self.ref(index), uid=None)

    def calls(self, method: str = "*", pattern: str = "") -> int:
        return self.server.count(method, pattern)

    def forget_calls(self) -> None:
        self.server.requests.clear()

    def kept(self) -> Sequence[tuple[int, int, int]]:
        return [end.key for end in self.finalizers.kept()]
