"""What the settings for a Kubernetes cluster configure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.kind import KINDS, kind_of
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.files.logs import PodLogs
from crawler_lifecycle.clusters.kubernetes.kind import api_of
from crawler_lifecycle.clusters.kubernetes.observer.observer import KubernetesObserver
from crawler_lifecycle.compose import build_bundles
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.settings import Settings
from tests.support.kube_api import FakeApiServer


def settings(**cluster: Any) -> Settings:
    return Settings.model_validate({"cluster": {"kind": "kubernetes", **cluster}})


def test_everything_shares_one_client(tmp_path: Path) -> None:
    with FakeApiServer(tmp_path) as server:
        given = settings(kubeconfig=server.kubeconfig(), namespace=server.namespace)
        api, kind = api_of(given.cluster), kind_of(given.cluster)
        try:
            again = settings(kubeconfig=server.kubeconfig(), namespace=server.namespace)
            assert api_of(again.cluster) is api
            cluster = kind.cluster()
            assert isinstance(cluster, KubernetesCluster)
            assert cluster.inventory() == []
            keeper = kind.keeper()
            assert keeper is not None
            assert keeper.kept() == []
            assert isinstance(kind.logs(), PodLogs)
            assert isinstance(kind.observer(), KubernetesObserver)
            assert {request.path.split("/")[-1] for request in server.requests} == {"jobs", "pods"}
        finally:
            api.close()


def test_a_local_cluster_keeps_nothing_for_evidence(tmp_path: Path) -> None:
    local = Settings.model_validate({"cluster": {"state_dir": tmp_path}})
    assert kind_of(local.cluster).keeper() is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kubeconfig": "missing"}, "missing"),
        ({"kubeconfig": "kubeconfig", "context": "nobody"}, "nobody"),
        ({"kubeconfig": "kubeconfig", "volume_claim": "crawls"}, "LIFECYCLE_CLUSTER__VOLUME_PATH"),
        ({"kubeconfig": "kubeconfig", "files_url": "ftp://x"}, "LIFECYCLE_CLUSTER__FILES_URL"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    with FakeApiServer(tmp_path) as server:
        server.kubeconfig()
        given = settings(**{**wrong, "kubeconfig": tmp_path / wrong["kubeconfig"]})
        with pytest.raises(InvalidRequest, match=said):
            [kind_of(given.cluster).files(build_bundles(given)), kind_of(given.cluster).cluster()]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "docker",
            f"'docker' is not a kind of cluster; give {', '.join(KINDS)}, or your own MODULE:CLASS",
        ),
        ("", "'' is not a kind of cluster"),
        ("no_such_package:Kind", "cannot be imported.*no_such_package"),
        ("crawler_lifecycle.clusters.kind:Nothing", "cannot be imported"),
        ("crawler_lifecycle.clusters.kind:kind_of", "is not a ClusterKind"),
    ],
)
def test_an_unknown_kind_is_refused_by_name(name: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"LIFECYCLE_CLUSTER__KIND: .*{said}"):
        kind_of(settings(kind=name).cluster)
