"""Our Jobs on a real kubelet: what a crawler finds in its container, and what ends it when none of
our processes is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.jobs import manifest
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.crawlers.pod import PodOptions, Sidecar
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from tests.kubernetes.cluster import images
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.harnesses import until
from tests.support.job_cases import Rules, crawler, deployment

IMAGE = "crawl.test/teller:1"
RUNNER = Path(__file__).parents[2] / "crawler_lifecycle" / "runner"
TELLER = """
import json, os, sys, time
shm = os.statvfs("/dev/shm")
folders = [os.environ["CRAWL_FILES_DIR"], os.environ["CRAWL_STATE_DIR"], "/tmp", os.environ["HOME"], "/app", "/opt"]
told = {
    "cwd": os.getcwd(), "argv": sys.argv[1:], "uid": os.getuid(), "writable": [os.access(f, os.W_OK) for f in folders],
    **{name: os.environ.get(name) for name in ("CRAWL_ARGS", "TEXT", "KEY", "CRAWL_TOKEN", "CRAWL_MEMORY_LIMIT")},
    "left": bool(os.environ.get("CRAWL_DEADLINE")), "account": os.path.exists("/var/run/secrets/kubernetes.io"),
    "shm": shm.f_frsize * shm.f_blocks,
}
stats = {"pages": 1, "finish_reason": "finished", "message": json.dumps(told)}
json.dump(stats, open(os.environ["CRAWL_STATS_FILE"], "w"))
time.sleep(float(os.environ["SLEEP"]))
"""


class Node:
    """A namespace of the real node, and our deployer for it."""

    def __init__(self, cluster: Cluster) -> None:
        self.admin = cluster.admin
        self.namespace = cluster.namespace(
            "real", labels={"pod-security.kubernetes.io/enforce": "restricted"}
        )
        self.core = f"/api/v1/namespaces/{self.namespace}"
        self.admin.post(f"{self.core}/serviceaccounts", {"metadata": {"name": "crawl"}})
        self.api = Api(kubeconfig=cluster.kubeconfig, namespace=self.namespace, read_timeout_s=20.0)
        self.deployer = KubernetesDeployer(
            self.api, Rules(), task_environment=lambda *_: {"CRAWL_TOKEN": "task.7.x"}
        )

    def deploy(self, of: CrawlerDefinition, **asked: Any) -> None:
        until = datetime.now(UTC) + timedelta(seconds=600)
        [answer] = self.deployer.deploy(deployment(of.name, expires_at=until, **asked), of)
        assert answer.state == "created", answer

    def pod(self) -> dict[str, Any] | None:
        return next(iter(self.admin.get(f"{self.core}/pods")["items"]), None)

    def container(self) -> dict[str, Any]:
        statuses = ((self.pod() or {}).get("status") or {}).get("containerStatuses") or [{}]
        found: dict[str, Any] = statuses[0].get("state") or {}
        return found


@pytest.fixture(scope="module")
def teller(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder = tmp_path_factory.mktemp("teller")
    program = folder / "teller.py"
    program.write_text(TELLER)
    layer = images.Layer(((RUNNER, "opt/crawl-runner"), (program, "app/jobs/teller.py")))
    real_cluster.nodes[0].load(images.with_python(folder / "teller.tar", IMAGE, [layer]))
    return real_cluster


@pytest.fixture
def node(teller: Cluster) -> Iterator[Node]:
    node = Node(teller)
    yield node
    node.deployer.close()
    node.api.close()


def _crawler(sleep_s: float = 0, **more: Any) -> CrawlerDefinition:
    command = {
        "kind": CrawlerKind.COMMAND,
        "command": ["python3", "teller.py", "$(HOME)", "$$", "a b", "Zürich 🐛"],
    }
    given = {
        "env": {"TEXT": "$(CRAWL_RUN_ID) $$ ${X} $", "SLEEP": str(sleep_s)},
        "args": {"a": Argument()},
        **more,
    }
    limits = Resources("500m", "64Mi")
    return crawler(
        "teller",
        image=IMAGE,
        resources=limits,
        kubernetes=PodOptions(project="/app/jobs"),
        **command,
        **given,
    )


def test_a_crawler_finds_exactly_what_was_written_for_it(node: Node) -> None:
    secret = {"metadata": {"name": "shops"}, "stringData": {"api.key": "$(HOME)"}}
    node.admin.post(f"{node.core}/secrets", secret)
    asked = {"args": {"a": "$(PATH) é"}, "limits": Limits(run_timeout_s=100)}
    node.deploy(_crawler(secrets={"KEY": "secret:shops/api.key"}), **asked)
    ended = until(lambda: node.container().get("terminated"))
    summary = json.loads(ended["message"])
    assert (ended["exitCode"], summary["finish_reason"], summary["pages"]) == (0, "finished", 1)
    assert json.loads(summary["message"]) == {
        **{"cwd": "/app/jobs", "argv": ["$(HOME)", "$$", "a b", "Zürich 🐛"], "uid": 1000},
        **{"CRAWL_ARGS": json.dumps({"a": "$(PATH) é"}), "TEXT": "$(CRAWL_RUN_ID) $$ ${X} $"},
        **{"KEY": "$(HOME)", "CRAWL_TOKEN": "task.7.x", "CRAWL_MEMORY_LIMIT": str(64 * 2**20)},
        **{
            "shm": 64 * 2**20,
            "left": True,
            "account": False,
            "writable": [True, True, True, True, False, False],
        },
    }


def test_sidecars_begin_before_the_crawler_and_do_not_outlive_it(node: Node) -> None:
    waits = "import signal, sys; signal.signal(15, lambda *_: sys.exit()); signal.pause()"
    beside = Sidecar("beside", IMAGE, ["python3", "-c", waits], resources=Resources("100m", "32Mi"))
    options = PodOptions(project="/app/jobs", shm="16Mi", sidecars=[beside])
    node.deploy(replace(_crawler(), kubernetes=options))
    pod = until(lambda: (found := node.pod()) and found["status"]["phase"] == "Succeeded" and found)
    [crawl], [other] = (
        pod["status"][kind] for kind in ("containerStatuses", "initContainerStatuses")
    )
    crawled, ran = (one["state"]["terminated"] for one in (crawl, other))
    assert ran["startedAt"] <= crawled["startedAt"] <= crawled["finishedAt"] <= ran["finishedAt"]
    assert json.loads(json.loads(crawled["message"])["message"])["shm"] == 16 * 2**20


def test_a_missing_secret_keeps_it_from_starting_until_it_is_there(node: Node) -> None:
    node.deploy(_crawler(secrets={"KEY": "secret:later/key"}))
    waiting = until(
        lambda: (
            (node.container().get("waiting") or {}).get("reason") == "CreateContainerConfigError"
        )
    )
    assert waiting
    node.admin.post(
        f"{node.core}/secrets", {"metadata": {"name": "later"}, "stringData": {"key": "found"}}
    )
    ended = until(lambda: node.container().get("terminated"))
    assert json.loads(json.loads(ended["message"])["message"])["KEY"] == "found"


def test_the_clusters_own_limit_ends_it_when_nobody_of_us_does(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "BACKSTOP_S", 0)
    node.deploy(_crawler(sleep_s=600), limits=Limits(run_timeout_s=2, stop_grace_s=1))
    pod = until(lambda: (found := node.pod()) and found["status"]["phase"] == "Failed" and found)
    assert pod["status"]["reason"] == "DeadlineExceeded"
    assert labels.FINALIZER in pod["metadata"]["finalizers"]

    def condition() -> Any:
        job = node.admin.get(f"/apis/batch/v1/namespaces/{node.namespace}/jobs/crawl-7-0-1")
        found = {c["type"]: c for c in job["status"].get("conditions", []) if c["status"] == "True"}
        return found.get("Failed")

    assert until(condition)["reason"] == "BackoffLimitExceeded", (
        "the pod alone tells of its deadline"
    )
