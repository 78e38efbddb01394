from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.ports.runs import DeployedTask, QueuedTask
from tests.clusters.local.local_fixture import wait_until
from tests.support.job_cases import Rules, crawler, deployment
from tests.support.kube_api import FakeApiServer, Silence
from tests.support.kube_api.clients import patient
from tests.support.kube_api.store import JOBS


@dataclass
class Fixture:
    """A deployer on a fake API server, and a clock that tests set."""

    server: FakeApiServer
    api: Api
    now: datetime = datetime(2026, 11, 20, tzinfo=UTC)
    crawler: CrawlerDefinition = field(default_factory=crawler)
    made: list[KubernetesDeployer] = field(default_factory=list)

    def without_answer(self, fault: Silence, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next creation of a Job gets no response, before or after its effect, and times out."""
        self.server.faults.add("POST", r"/jobs(\?|$)", fault)
        send, silent = self.api._wire._send, iter([True])

        def sent(request: Any, *who: Any) -> Any:
            if request.asked.method != "POST" or not next(silent, False):
                return send(request, *who)
            try:
                return send(replace(request, silence_s=0.3), *who)
            finally:  # nobody knows that the server has done this, but it has
                wait_until(
                    lambda: (
                        self.server.store.find(JOBS) if fault.after_effect else self.server.requests
                    )
                )

        monkeypatch.setattr(self.api._wire, "_send", sent)

    def deployer(self, **more: Any) -> KubernetesDeployer:
        deployer = KubernetesDeployer(self.api, Rules(), **{"clock": lambda: self.now, **more})
        self.made.append(deployer)
        return deployer

    def deploy(
        self, tasks: int | list[QueuedTask] = 1, by: KubernetesDeployer | None = None, **asked: Any
    ) -> list[DeployedTask]:
        page = (
            [QueuedTask(70 + n, n, {}) for n in range(tasks)] if isinstance(tasks, int) else tasks
        )
        whole = deployment(
            **{"tasks": page, "expires_at": self.now + timedelta(seconds=25), **asked}
        )
        return (by or self.deployer()).deploy(whole, self.crawler)

    def one(self, **more: Any) -> DeployedTask:
        [answer] = self.deploy(**more)
        return answer

    @property
    def jobs(self) -> list[str]:
        return sorted(job["metadata"]["name"] for job in self.server.store.find(JOBS))


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[Fixture]:
    with FakeApiServer(tmp_path) as server:
        fixture = Fixture(server, patient(server))
        yield fixture
        for deployer in fixture.made:
            deployer.close()
        fixture.api.close()
