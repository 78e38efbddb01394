"""``crawlctl dev --cluster kubernetes``: the embedded stack whose crawls are Jobs of a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.clusters.kubernetes import labels
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import until

QUICK = {"poll_minutes": [0.03], "limits": {"start_check_s": 0.3}}


def test_a_run_from_start_to_stop_and_a_doctor_without_complaints(kwok_cluster: Cluster, tmp_path: Path) -> None:
    namespace = kwok_cluster.namespace("dev", labels={"pod-security.kubernetes.io/enforce": "restricted"})
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    kwok_cluster.admin.ensure(accounts, {"metadata": {"name": "crawl"}, "automountServiceAccountToken": False})
    place = ClusterAccess(kwok_cluster.kubeconfig, None, namespace, "crawl.test/crawlers:1")
    said: list[str] = []
    stack = Stack(Layout(tmp_path / "state", services=4, only_free_ports=True, kubernetes=place), say=said.append)
    stack.start()
    try:
        with Gateway(str(stack.addresses["gateway"]), timeout_s=60) as gateway:
            run_id = int(gateway.start({"crawler": "plain", **QUICK}, "once")["run_id"])
            until(lambda: gateway.run(run_id)["status"] == "PROCESSING", "the run executes", 150)
            pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector={labels.RUN}%3D{run_id}"
            (pod,) = kwok_cluster.admin.get(pods)["items"]
            assert pod["spec"]["containers"][0]["image"] == "crawl.test/crawlers:1"
            assert "CRAWL_TOKEN" not in json.dumps(pod), "the gateway on our loopback cannot be reached from there"
            checked = _doctor(tmp_path)
            gateway.stop(run_id, reason="seen enough")
            until(lambda: gateway.run(run_id)["status"] == "FAILED", "the run was stopped", 150)
            assert gateway.run(run_id)["outcome"] == "cancelled"
            until(lambda: kwok_cluster.admin.get(pods)["items"] == [], "the pod is let go of, and gone", 150)
    finally:
        left = stack.stop(kill_crawls=True)
    assert left == 0
    bad = [one for one in checked if one["level"] == "bad"]
    assert bad == []
    assert {"cluster", "rights", "account"} <= {one["check"] for one in checked}


def _doctor(folder: Path) -> list[dict[str, str]]:
    """What the doctor finds, for whom ``dev.json`` names the cluster."""
    command = [sys.executable, "-m", "crawler_lifecycle.cli", "doctor", "--state-dir", str(folder / "state")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIFECYCLE_")}
    done = subprocess.run(
        [*command, "-o", "json", "--timeout", "60s"], capture_output=True, text=True, cwd=folder, timeout=180, env=env
    )
    found: list[dict[str, str]] = json.loads(done.stdout)["checks"]
    return found
