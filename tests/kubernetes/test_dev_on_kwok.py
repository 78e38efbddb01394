"""``crawlctl dev --cluster kubernetes``: the embedded stack whose crawls are Jobs of a cluster.

Limits and order of its pools hold while worker and Temporal are killed; the pods show what ran
when.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
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
from tests.support import in_process

QUICK = {"poll_minutes": [0.03], "limits": {"start_check_s": 0.3}}
POOLS = {"narrow": {"max": 2}, "single": {"max": 1}, "wide": {"weight": 1}}
SLOTS, TASKS = 5, 6
Json = dict[str, Any]


def begun(pod: Json) -> datetime:
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"])


def ended(pod: Json) -> datetime:
    return datetime.fromisoformat(
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    )


def most_at_once(pods: Iterable[Json]) -> int:
    """Return the maximum number of these pods that existed at the same time."""
    moves = [move for pod in pods for move in ((begun(pod), 1), (ended(pod), -1))]
    return max(accumulate(step for _, step in sorted(moves)))


@pytest.fixture(scope="module")
def stack(kwok_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with three pools in a namespace that enforces Pod Security; crawls are pods that run
    for two seconds, or stay.
    """
    folder = tmp_path_factory.mktemp("dev")
    namespace = kwok_cluster.namespace(
        "dev", labels={"pod-security.kubernetes.io/enforce": "restricted"}
    )
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    kwok_cluster.admin.ensure(
        accounts, {"metadata": {"name": "crawl"}, "automountServiceAccountToken": False}
    )
    script = {"KWOK_RUN_FOR": "2s", "KWOK_MESSAGE": FINISHED}
    entry = {"kind": "command", "command": ["nap"], "items": False}
    crawlers = [entry | {"name": "nap", "env": script}, entry | {"name": "stays"}]
    (folder / "crawlers.yaml").write_text(json.dumps(crawlers))
    place = ClusterAccess(kwok_cluster.kubeconfig, None, namespace, "crawl.test/crawlers:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFECYCLE_POOLS", json.dumps(POOLS))
        patch.setenv("LIFECYCLE_CLUSTER__SLOTS", str(SLOTS))
        layout = Layout(
            folder / "state",
            only_free_ports=True,
            kubernetes=place,
            crawlers=folder / "crawlers.yaml",
        )
        stack = Stack(layout)
        stack.start()
        try:
            yield stack
        finally:
            assert stack.stop(kill_crawls=True) == 0


def namespace_of(stack: Stack) -> str:
    found = stack.layout.kubernetes
    assert found is not None
    return str(found.namespace)


def test_a_run_from_start_to_stop_and_a_doctor_without_complaints(
    stack: Stack, kwok_cluster: Cluster
) -> None:
    with Gateway(str(stack.addresses["gateway"]), timeout_s=60) as gateway:
        run_id = int(str(gateway.start({"crawler": "stays", **QUICK}, "once")["run_id"]))
        until(lambda: gateway.run(run_id)["status"] == "PROCESSING", "the run executes", 150)
        pods = (
            f"/api/v1/namespaces/{namespace_of(stack)}/pods?labelSelector={labels.RUN}%3D{run_id}"
        )
        (pod,) = kwok_cluster.admin.get(pods)["items"]
        assert pod["spec"]["containers"][0]["image"] == "crawl.test/crawlers:1"
        assert "CRAWL_TOKEN" not in json.dumps(pod), (
            "the gateway on our loopback cannot be reached from there"
        )
        checked = _doctor(stack.state_dir)
        gateway.stop(run_id, reason="seen enough")
        until(lambda: gateway.run(run_id)["status"] == "FAILED", "the run was stopped", 150)
        assert gateway.run(run_id)["outcome"] == "cancelled"
        until(
            lambda: kwok_cluster.admin.get(pods)["items"] == [],
            "the pod is let go of, and gone",
            150,
        )
    assert [one for one in checked if one["level"] == "bad"] == []
    assert {"cluster", "rights"} <= {one["check"] for one in checked}


def _doctor(state: Path) -> list[dict[str, str]]:
    """Return what the doctor finds, with the cluster from ``dev.json``."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIFECYCLE_")}
    words = ("doctor", "--state-dir", str(state), "-o", "json", "--timeout", "60s")
    done = in_process.crawlctl(*words, env=env, folder=state.parent)
    found: list[dict[str, str]] = json.loads(done.stdout)["checks"]
    return found


def test_caps_and_order_hold_on_kubernetes(stack: Stack, kwok_cluster: Cluster) -> None:
    namespace = namespace_of(stack)
    with Gateway(str(stack.addresses["gateway"]), timeout_s=60) as gateway:

        def pods(*runs: int) -> list[Json]:
            found: list[Json] = kwok_cluster.admin.get(f"/api/v1/namespaces/{namespace}/pods")[
                "items"
            ]
            return [
                pod
                for pod in found
                if not runs or int(pod["metadata"]["labels"][labels.RUN]) in runs
            ]

        def start(pool: str, **more: object) -> int:
            body = {"crawler": "nap", "tasks": [{}] * TASKS, "pool": pool, **QUICK, **more}
            return int(str(gateway.start(body, f"{pool}-{more}")["run_id"]))

        slow, single, wide = start("narrow", priority=5), start("single"), start("wide")
        until(lambda: pods(slow), "the first pod of the pool", 150)
        runs = {
            slow: "narrow",
            single: "single",
            wide: "wide",
            (urgent := start("narrow", priority=1)): "narrow",
        }
        for part in ("worker", "temporal"):
            seen = len(pods())
            until(lambda seen=seen: len(pods()) > seen, f"work before the {part} is killed", 150)
            stack.supervisor.kill(part, signal.SIGKILL)
            stack.supervisor.wait_healthy()
        until(lambda: all(gateway.run(run)["ended_at"] for run in runs), "the end of all runs", 180)
        assert {gateway.run(run)["status"] for run in runs} == {"COMPLETED"}
        counts = Counter(int(pod["metadata"]["labels"][labels.RUN]) for pod in pods())
        assert counts == dict.fromkeys(runs, TASKS), "each task once"
        for pool, one in POOLS.items():
            assert most_at_once(
                pods(*(run for run, name in runs.items() if name == pool))
            ) <= one.get("max", SLOTS)
        assert most_at_once(pods()) <= SLOTS
        times = sorted(map(begun, pods(urgent)))
        between = [pod for pod in pods(slow) if times[0] < begun(pod) < times[-1]]
        assert len(between) <= TASKS // 2, "who does not come while all is down is passed over"
