from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.adapters.kubernetes.api import Api
from crawler_lifecycle.adapters.kubernetes.deployer import KubernetesDeployer
from crawler_lifecycle.domain.crawler import CrawlerDefinition
from crawler_lifecycle.ports import Deployed, QueuedTask
from tests.support.job_cases import Rules, crawler, deployment
from tests.support.kube_api import FakeApiServer
from tests.support.kube_api.store import JOBS


@dataclass
class Bench:
    """A deployer on a fake API server, and a clock to be set."""

    server: FakeApiServer
    api: Api
    now: datetime = datetime(2026, 11, 20, tzinfo=UTC)
    crawler: CrawlerDefinition = field(default_factory=crawler)
    made: list[KubernetesDeployer] = field(default_factory=list)

    def impatient(self) -> None:
        """From now on half a second of silence is no answer."""
        self.api.close()
        self.api = connect(self.server, 0.5)

    def deployer(self, **more: Any) -> KubernetesDeployer:
        deployer = KubernetesDeployer(self.api, Rules(), **{"clock": lambda: self.now, **more})
        self.made.append(deployer)
        return deployer

    def deploy(self, tasks: int = 1, by: KubernetesDeployer | None = None, **asked: Any) -> list[Deployed]:
        page = [QueuedTask(70 + n, n, {}) for n in range(tasks)]
        whole = deployment(**{"tasks": page, "expires_at": self.now + timedelta(seconds=25), **asked})
        return (by or self.deployer()).deploy(whole, self.crawler)

    def one(self, **more: Any) -> Deployed:
        [answer] = self.deploy(**more)
        return answer

    @property
    def jobs(self) -> list[str]:
        return sorted(job["metadata"]["name"] for job in self.server.store.find(JOBS))


def connect(server: FakeApiServer, read_s: float) -> Api:
    return Api.connect(kubeconfig=server.kubeconfig(), namespace="crawls", connect_s=5.0, read_s=read_s)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with FakeApiServer(tmp_path) as server:
        bench = Bench(server, connect(server, 10.0))
        yield bench
        for deployer in bench.made:
            deployer.close()
        bench.api.close()
