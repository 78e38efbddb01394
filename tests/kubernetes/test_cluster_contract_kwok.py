"""The contract of clusters on a real API server with its controllers; kwok simulates the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from tests.contracts.cluster.kube_harness import KubernetesHarness
from tests.contracts.cluster.test_another_run_contract import *  # noqa: F403
from tests.contracts.cluster.test_cluster_contract import *  # noqa: F403
from tests.kubernetes.cluster.cluster import Cluster


class KwokHarness(KubernetesHarness):
    """Simulated pods, which print nothing."""

    logs = False

    def break_it(self) -> None:
        """Make the server unreachable."""
        dead = Api(
            kubeconfig=self._nobody,
            namespace=self.cluster.api.namespace,
            connect_timeout_s=0.5,
            read_timeout_s=0.5,
        )
        KubernetesCluster.__init__(self.cluster, dead)

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        namespace = cluster.namespace("contract")
        cluster.quota(namespace, "one-slot", {"pods": "1"})
        self._nobody = folder / "nobody"
        self._nobody.write_text(
            cluster.kubeconfig.read_text().replace(cluster.api, "https://127.0.0.1:9")
        )
        super().__init__(Api(kubeconfig=cluster.kubeconfig, namespace=namespace), folder)


@pytest.fixture
def harness(kwok_cluster: Cluster, tmp_path: Path) -> Iterator[KwokHarness]:
    harness = KwokHarness(kwok_cluster, tmp_path)
    api = harness.cluster.api
    yield harness
    api.close()
