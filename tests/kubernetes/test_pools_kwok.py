"""Caps and order of pools on a real API server while worker and Temporal are killed; the pods say who ran when."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.clusters.kubernetes import labels
from tests.contracts.cluster.kube_harness import FINISHED
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import until

QUICK = {"poll_minutes": [0.03], "limits": {"start_check_s": 0.3}}
POOLS = {"narrow": {"max": 2}, "single": {"max": 1}, "wide": {"weight": 1}}
SLOTS, TASKS = 5, 6
Json = dict[str, Any]


def begun(pod: Json) -> datetime:
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"])


def ended(pod: Json) -> datetime:
    return datetime.fromisoformat(pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"])


def most_at_once(pods: Iterable[Json]) -> int:
    """The most of these pods that were there at the same moment, from their creation to their end."""
    moves = [move for pod in pods for move in ((begun(pod), 1), (ended(pod), -1))]
    return max(accumulate(step for _, step in sorted(moves)))


@pytest.fixture
def stack(kwok_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A stack of three pools, whose crawls are pods of two seconds."""
    namespace = kwok_cluster.namespace("pools")
    kwok_cluster.admin.ensure(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "crawl"}})
    script = {"KWOK_RUN_FOR": "2s", "KWOK_MESSAGE": FINISHED}
    entry = {"name": "nap", "kind": "command", "command": ["nap"], "items": False, "env": script}
    (tmp_path / "crawlers.yaml").write_text(json.dumps([entry]))
    monkeypatch.setenv("LIFECYCLE_POOLS", json.dumps(POOLS))
    monkeypatch.setenv("LIFECYCLE_CLUSTER__SLOTS", str(SLOTS))
    place = ClusterAccess(kwok_cluster.kubeconfig, None, namespace, "crawl.test/crawlers:1")
    crawlers = tmp_path / "crawlers.yaml"
    return Stack(Layout(tmp_path / "state", only_free_ports=True, kubernetes=place, crawlers=crawlers))


def test_caps_and_order_hold_on_kubernetes(stack: Stack, kwok_cluster: Cluster) -> None:
    namespace = stack.layout.kubernetes.namespace if stack.layout.kubernetes else ""
    stack.start()
    try:
        with Gateway(str(stack.addresses["gateway"]), timeout_s=60) as gateway:

            def pods(*runs: int) -> list[Json]:
                found: list[Json] = kwok_cluster.admin.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
                return [pod for pod in found if not runs or int(pod["metadata"]["labels"][labels.RUN]) in runs]

            def start(pool: str, **more: object) -> int:
                body = {"crawler": "nap", "tasks": [{}] * TASKS, "pool": pool, **QUICK, **more}
                return int(str(gateway.start(body, f"{pool}-{more}")["run_id"]))

            slow, single, wide = start("narrow", priority=5), start("single"), start("wide")
            until(lambda: pods(slow), "the first pod of the pool", 150)
            runs = {slow: "narrow", single: "single", wide: "wide", (urgent := start("narrow", priority=1)): "narrow"}
            for part in ("worker", "temporal"):
                seen = len(pods())
                until(lambda seen=seen: len(pods()) > seen, f"work before the {part} is killed", 150)
                stack.kill_part(part, signal.SIGKILL)
                stack.wait_healthy()
            until(lambda: all(gateway.run(run)["ended_at"] for run in runs), "the end of all runs", 180)
            assert {gateway.run(run)["status"] for run in runs} == {"COMPLETED"}
            counts = Counter(int(pod["metadata"]["labels"][labels.RUN]) for pod in pods())
            assert counts == dict.fromkeys(runs, TASKS), "each task once"
            for pool, one in POOLS.items():
                assert most_at_once(pods(*(run for run, name in runs.items() if name == pool))) <= one.get("max", SLOTS)
            assert most_at_once(pods()) <= SLOTS
            times = sorted(map(begun, pods(urgent)))
            between = [pod for pod in pods(slow) if times[0] < begun(pod) < times[-1]]
            assert len(between) <= TASKS // 2, "who does not come while all is down is passed over"
    finally:
        stack.stop(kill_crawls=True)
