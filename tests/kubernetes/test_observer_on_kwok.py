"""The observer's contract on the real API server, with pods that kwok's nodes simulate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from tests.contracts.observer.kubernetes_harness import KubernetesHarness
from tests.contracts.observer.test_observer_contract import *  # noqa: F403
from tests.kubernetes.cluster.cluster import Cluster

#: Of the node's 32 processors: one task fits, the second one waits.
ONE_SLOT = {"resources": {"requests": {"cpu": "20"}}}


class KwokHarness(KubernetesHarness):
    def __init__(self, cluster: Cluster, api: Api) -> None:
        super().__init__(
            api,
            lambda: cluster.kill("kube-apiserver"),
            lambda: cluster.start_part("kube-apiserver"),
        )
        assert cluster.kwok is not None
        self._node = {"kubernetes.io/hostname": cluster.kwok.nodes[0]}

    def start(self, seconds: float = 60, index: int = 0) -> None:
        life = {"crawl.test/run-for": f"{max(20, int(seconds * 1000))}ms"}  # kwok treats 0 as never
        self.post(index, life, container=ONE_SLOT, pod={"nodeSelector": self._node})

    def close(self) -> None:
        for index in set(self._uids) - self._taken:
            self.take_away(index)  # its slot belongs to the next test
        super().close()


@pytest.fixture
def harness(kwok_cluster: Cluster) -> Iterator[KwokHarness]:
    api = Api(kubeconfig=kwok_cluster.kubeconfig, namespace=kwok_cluster.namespace("observer"))
    made = KwokHarness(kwok_cluster, api)
    yield made
    made.close()
