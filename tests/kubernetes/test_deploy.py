"""``deploy/`` rendered, applied to a real API server, and each component at work with only its own
rights.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from crawler_lifecycle.cli.doctor.checks import cluster as doctor
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.cli.doctor.sources import Sources
from crawler_lifecycle.clusters.kubernetes import kind, labels, rbac
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import RequestRefused
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.files.logs import PodLogs
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.clusters.kubernetes.jobs.finalizers import Finalizers
from crawler_lifecycle.clusters.kubernetes.observer.observer import KubernetesObserver
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask, TaskRef
from crawler_lifecycle.redaction import Redactor
from crawler_lifecycle.settings import ClusterSettings, Settings
from tests.kubernetes.cluster import binaries
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import until
from tests.support import in_process
from tests.support.manifests import DEPLOY, Document, Pod, allowed, documents, parsed, pod_of
from tests.support.run_refs import run_ref

SERVICES, CRAWLS = "crawler-lifecycle", "crawls"
#: Kinds of the Prometheus operator, which a cluster without it does not know.
FOREIGN = "monitoring.coreos.com/"
NOBODYS = (*rbac.RIGHTLESS, "db-upgrade")
FORBIDDEN = [
    *(rbac.Right("get", "secrets"), rbac.Right("list", "secrets"), rbac.Right("create", "pods")),
    *(
        rbac.Right("create", "pods/exec"),
        rbac.Right("get", "pods/exec"),
        rbac.Right("create", "pods/attach"),
    ),
    *(rbac.Right("patch", "pods/ephemeralcontainers"), rbac.Right("delete", "namespaces")),
    *(rbac.Right("list", "nodes"), rbac.Right("create", "serviceaccounts/token")),
    *(
        rbac.Right("update", "pods"),
        rbac.Right("update", "jobs", "batch"),
        rbac.Right("patch", "jobs/status", "batch"),
    ),
    *(rbac.Right("deletecollection", "pods"), rbac.Right("deletecollection", "jobs", "batch")),
    *(
        rbac.Right("create", "rolebindings", "rbac.authorization.k8s.io"),
        rbac.Right("create", "deployments", "apps"),
    ),
]


def kubectl(
    *words: str, cluster: Cluster | None = None, stdin: str | None = None, check: bool = True
) -> str:
    """Call kubectl. Return its output."""
    command = [str(binaries.available() / "kubectl"), *words]
    if cluster is not None:
        command += ["--kubeconfig", str(cluster.kubeconfig)]
    clean = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, env=clean
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def kustomized(folder: Path) -> str:
    """Return what ``kubectl kustomize`` makes of a folder; called once, because nobody changes the
    folder.
    """
    return kubectl("kustomize", str(folder))


def rendered(folder: str) -> list[Document]:
    """Return the same for a folder of ``deploy/``."""
    return parsed(kustomized(DEPLOY / folder))


def text(found: list[Document]) -> str:
    return yaml.dump_all(
        [one for one in found if not one["apiVersion"].startswith(FOREIGN)], Dumper=yaml.CSafeDumper
    )


@dataclass
class Deployed_:
    """The ``demo`` overlay on a cluster, and clients that act as its components."""

    cluster: Cluster
    overlay: list[Document]
    clients: dict[str, Api] = field(default_factory=dict)
    runs: int = 0

    def api(self, account: str, namespace: str = SERVICES) -> Api:
        """Return a client of the API as this service account, with its own token."""
        key = f"{namespace}:{account}"
        if key not in self.clients:
            kubeconfig = self.cluster.kubeconfig_of(f"system:serviceaccount:{key}", CRAWLS)
            self.clients[key] = Api(kubeconfig=kubeconfig, namespace=CRAWLS)
        return self.clients[key]

    def admin(self) -> Api:
        if "admin" not in self.clients:
            self.clients["admin"] = Api(kubeconfig=self.cluster.kubeconfig, namespace=CRAWLS)
        return self.clients["admin"]

    def task(self, tasks: int = 1, **env: str) -> tuple[int, list[DeployedTask]]:
        """A run that the scheduler service deploys with its own rights."""
        self.runs += 1
        given = {"CRAWL_GATEWAY_URL": "http://gateway", "CRAWL_TOKEN": "only-for-this-task"}
        deployer = KubernetesDeployer(
            self.api("scheduler"),
            ClusterSettings(kind="kubernetes"),
            task_environment=lambda deployment, task: given,
        )
        try:
            crawler = CrawlerDefinition(
                "shops", image="crawl.test/crawler:1", env=env, resources=Resources("100m", "64Mi")
            )
            page = [QueuedTask(100 * self.runs + n, n, {}) for n in range(tasks)]
            soon = datetime.now(UTC) + timedelta(seconds=600)
            asked = Deployment(
                run_ref(self.runs),
                1,
                "shops",
                {},
                {},
                page,
                Resources(),
                Limits(stop_grace_s=2),
                soon,
            )
            return self.runs, deployer.deploy(asked, crawler)
        finally:
            deployer.close()


def ref(task: DeployedTask, run_id: int) -> TaskRef:
    return TaskRef(100 * run_id + task.index, task.index, 1, task.uid)


@pytest.fixture(scope="module")
def demo(kwok_cluster: Cluster) -> Iterator[Deployed_]:
    """The overlay, applied as an administrator does, and finally removed, including held pods."""
    found = rendered("overlays/demo")
    kubectl("apply", "--validate=strict", "-f", "-", cluster=kwok_cluster, stdin=text(found))
    made = Deployed_(kwok_cluster, found)
    accounts = f"/api/v1/namespaces/{CRAWLS}/serviceaccounts"
    until(
        lambda: kwok_cluster.admin.find(f"{accounts}/crawl"), "the service account of crawls", 150
    )
    quota = f"/api/v1/namespaces/{CRAWLS}/resourcequotas/crawls"
    until(
        lambda: (kwok_cluster.admin.get(quota).get("status") or {}).get("used"),
        "the quota is counted",
        150,
    )
    yield made
    for api in made.clients.values():
        api.close()
    kubectl("delete", "namespace", CRAWLS, SERVICES, "--wait=false", cluster=kwok_cluster)
    until(lambda: _released(kwok_cluster), "the namespaces are gone", 150, pause_s=0.5)


def _released(cluster: Cluster) -> bool:
    crawlctl(cluster, "cluster", "release", "--namespace", CRAWLS, "--all", "--yes", check=False)
    return all(
        cluster.admin.find(f"/api/v1/namespaces/{name}") is None for name in (CRAWLS, SERVICES)
    )


def crawlctl(cluster: Cluster, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = in_process.crawlctl(
        *words, "--kubeconfig", str(cluster.kubeconfig), env=os.environ, folder=Path()
    )
    assert not check or done.returncode == 0, done.stderr
    return done


# --- rendering and applying -----------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["overlays/demo", "overlays/production"])
def test_an_overlay_is_complete(folder: str, demo: Deployed_) -> None:
    found = rendered(folder)
    maps = {one["metadata"]["name"] for one in found if one["kind"] == "ConfigMap"}
    assert len(maps) == 2
    accounts = {one["metadata"]["name"] for one in found if one["kind"] == "ServiceAccount"}
    for one in found:
        if (pod := pod_of(one)) is None:
            continue
        image = pod["spec"]["containers"][0]["image"]
        assert "set-by-overlay" not in image
        used = {v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v}
        sources = pod["spec"]["containers"][0].get("envFrom") or []
        used |= {source["configMapRef"]["name"] for source in sources if "configMapRef" in source}
        assert used <= maps, "names with a hash, so that a change rolls out"
        assert pod["spec"].get("serviceAccountName", "default") in {*accounts, "default"}
    ours = {one["metadata"]["name"]: one for one in found if one["kind"] == "Deployment"}
    (job,) = rendered(f"{folder}/migration")
    assert (
        job["spec"]["template"]["spec"]["containers"][0]["image"]
        == ours["gateway"]["spec"]["template"]["spec"]["containers"][0]["image"]
    )
    # Everything at once, as it will be applied; the namespaces already exist.
    kubectl(
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        cluster=demo.cluster,
        stdin=text([*found, job]),
    )


@pytest.mark.usefixtures("demo")
def test_the_shared_volume_can_be_added(tmp_path: Path) -> None:
    copy = tmp_path / "deploy"
    subprocess.run(["cp", "-r", str(DEPLOY), str(copy)], check=True)
    file = copy / "overlays/production/kustomization.yaml"
    file.write_text(
        file.read_text().replace(
            "# - ../../components/shared-volume", "- ../../components/shared-volume"
        )
    )
    found = parsed(kubectl("kustomize", str(file.parent)))
    (settings,) = [
        one["data"]
        for one in found
        if one["kind"] == "ConfigMap" and "LIFECYCLE_CLUSTER__KIND" in one["data"]
    ]
    assert settings["LIFECYCLE_CLUSTER__VOLUME_CLAIM"] == "crawl-files"
    for one in found:
        if one["kind"] == "Deployment":
            mounts = [
                m["mountPath"]
                for m in one["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
            ]
            expected = one["metadata"]["name"] == "worker-export"
            assert (settings["LIFECYCLE_CLUSTER__VOLUME_PATH"] in mounts) is expected


def test_the_clearing_of_that_volume_can_be_added(demo: Deployed_, tmp_path: Path) -> None:
    copy = tmp_path / "deploy"
    subprocess.run(["cp", "-r", str(DEPLOY), str(copy)], check=True)
    file = copy / "overlays/production/kustomization.yaml"
    wanted = file.read_text()
    for name in ("shared-volume", "gc"):
        assert f"# - ../../components/{name}" in wanted
        wanted = wanted.replace(f"# - ../../components/{name}", f"- ../../components/{name}")
    file.write_text(wanted)
    found = parsed(kubectl("kustomize", str(file.parent)))
    (job,) = [one for one in found if one["kind"] == "CronJob" and one["metadata"]["name"] == "gc"]
    template = pod_of(job) or {}
    (container,) = template["spec"]["containers"]
    others = {
        (
            (pod_of(one) or {})["spec"]["containers"][0]["image"],
            json.dumps(account.get("imagePullSecrets")),
        )
        for one in found
        if one["kind"] in ("Deployment", "CronJob")
        for account in found
        if account["kind"] == "ServiceAccount" and account["metadata"]["namespace"] == SERVICES
    }
    assert len(others) == 1, "one image and one login for all of ours"
    (settings,) = [
        one
        for one in found
        if one["kind"] == "ConfigMap" and "LIFECYCLE_CLUSTER__KIND" in one["data"]
    ]
    assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    assert settings["data"]["LIFECYCLE_CLUSTER__VOLUME_PATH"] in {
        m["mountPath"] for m in container["volumeMounts"]
    }
    policies = [one for one in found if one["kind"] == "NetworkPolicy"]
    gc = Pod(SERVICES, template["metadata"]["labels"])
    assert allowed(policies, gc, "198.51.100.17", 3306)
    assert allowed(policies, gc, "93.184.216.34", 443), "object storage"
    assert not allowed(policies, gc, "203.0.113.10", 6443), "the API server"
    assert not allowed(policies, gc, "198.51.100.1", 7233), "Temporal"
    kubectl(
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        cluster=demo.cluster,
        stdin=text(found),
    )
    pod = {
        "metadata": {"name": "try", "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
    }
    account = next(
        one for one in found if one["kind"] == "ServiceAccount" and one["metadata"]["name"] == "gc"
    )
    kubectl("apply", "-f", "-", cluster=demo.cluster, stdin=text([account]))
    demo.cluster.admin.post(
        f"/api/v1/namespaces/{SERVICES}/pods?dryRun=All&fieldValidation=Strict", pod
    )
    every = {*FORBIDDEN, *(one for those in rbac.ROLES.values() for one in those)}
    assert rbac.missing(demo.api("gc"), every) == every


def test_production_prunes_the_database(demo: Deployed_) -> None:
    found = rendered("overlays/production")
    (job,) = [
        one for one in found if one["kind"] == "CronJob" and one["metadata"]["name"] == "prune"
    ]
    template = pod_of(job) or {}
    (container,) = template["spec"]["containers"]
    images = {
        (pod_of(one) or {})["spec"]["containers"][0]["image"]
        for one in found
        if one["kind"] == "Deployment"
    }
    assert {container["image"]} == images
    (settings,) = [
        one
        for one in found
        if one["kind"] == "ConfigMap" and "LIFECYCLE_CLUSTER__KIND" in one["data"]
    ]
    assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    policies = [one for one in found if one["kind"] == "NetworkPolicy"]
    prune = Pod(SERVICES, template["metadata"]["labels"])
    assert allowed(policies, prune, "198.51.100.17", 3306)
    for address, port in (("93.184.216.34", 443), ("203.0.113.10", 6443), ("198.51.100.1", 7233)):
        assert not allowed(policies, prune, address, port), (
            "it reaches the database and nothing else"
        )
    account = next(
        one
        for one in found
        if one["kind"] == "ServiceAccount" and one["metadata"]["name"] == "prune"
    )
    kubectl("apply", "-f", "-", cluster=demo.cluster, stdin=text([account]))
    pod = {
        "metadata": {"name": "try", "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
    }
    demo.cluster.admin.post(
        f"/api/v1/namespaces/{SERVICES}/pods?dryRun=All&fieldValidation=Strict", pod
    )
    every = {*FORBIDDEN, *(one for those in rbac.ROLES.values() for one in those)}
    assert rbac.missing(demo.api("prune"), every) == every


def test_monitoring_can_be_added(tmp_path: Path) -> None:
    copy = tmp_path / "deploy"
    subprocess.run(["cp", "-r", str(DEPLOY), str(copy)], check=True)
    file = copy / "overlays/production/kustomization.yaml"
    file.write_text(
        file.read_text().replace("# - ../../components/monitoring", "- ../../components/monitoring")
    )
    found = parsed(kubectl("kustomize", str(file.parent)))
    assert {one["kind"] for one in found if one["apiVersion"].startswith(FOREIGN)} == {
        *("PodMonitor", "PrometheusRule", "ServiceMonitor")
    }


def test_the_first_installation_leaves_the_processes_out(demo: Deployed_) -> None:
    """What docs/deployment.md applies before the migration: its account and its network, and
    nothing that executes.
    """
    words = ("apply", "--dry-run=server", "-o", "name", "-k", str(DEPLOY / "overlays/production"))
    kinds = {
        line.partition("/")[0]
        for line in kubectl(*words, "-l", "!app.kubernetes.io/name", cluster=demo.cluster).split()
    }
    assert {
        "namespace",
        "serviceaccount",
        "networkpolicy.networking.k8s.io",
        "configmap",
        "limitrange",
    } <= kinds
    assert not {"deployment.apps", "service"} & kinds


def test_the_upgrade_of_the_schema_replaces_the_one_before(demo: Deployed_) -> None:
    path = f"/apis/batch/v1/namespaces/{SERVICES}/jobs/db-upgrade"
    uids = set()
    for _ in range(2):
        job = kustomized(DEPLOY / "overlays/demo/migration")
        kubectl("replace", "--force", "-f", "-", cluster=demo.cluster, stdin=job)
        uids.add(demo.cluster.admin.get(path)["metadata"]["uid"])
    assert len(uids) == 2, "the first time there is none, and the second time it is another one"


def test_the_secrets_of_the_demo_and_the_templates_are_objects(demo: Deployed_) -> None:
    made = subprocess.run(
        ["sh", str(DEPLOY / "secrets/make-demo.sh")], capture_output=True, text=True, check=True
    )
    kubectl("create", "--validate=strict", "-f", "-", cluster=demo.cluster, stdin=made.stdout)
    token = made.stderr.strip().partition("=")[2]
    stored = demo.cluster.admin.get(
        f"/api/v1/namespaces/{SERVICES}/secrets/crawler-lifecycle-gateway"
    )
    assert stored["data"]["tokens.toml"]
    assert token
    assert token not in made.stdout, "only its digest is kept"
    again = subprocess.run(
        ["sh", str(DEPLOY / "secrets/make-demo.sh")], capture_output=True, text=True, check=True
    )
    kubectl("create", "-f", "-", cluster=demo.cluster, stdin=again.stdout, check=False)
    kept = demo.cluster.admin.get(
        f"/api/v1/namespaces/{SERVICES}/secrets/crawler-lifecycle-gateway"
    )
    assert kept["data"] == stored["data"], "a second time changes nothing"
    templates = text(documents(DEPLOY / "secrets/secrets.yaml"))
    kubectl(
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        cluster=demo.cluster,
        stdin=templates,
    )


def test_pod_security_takes_every_pod_of_ours_and_refuses_any_other(demo: Deployed_) -> None:
    priorities = text(
        [one for one in rendered("overlays/production") if one["kind"] == "PriorityClass"]
    )
    kubectl("apply", "-f", "-", cluster=demo.cluster, stdin=priorities)
    everything = [
        one
        for folder in ("demo", "demo/migration", "production")
        for one in rendered(f"overlays/{folder}")
    ]
    taken = 0
    for one in everything:
        if (template := pod_of(one)) is not None:
            pod = {
                "metadata": {"name": "try", "labels": template["metadata"]["labels"]},
                "spec": template["spec"],
            }
            demo.cluster.admin.post(
                f"/api/v1/namespaces/{SERVICES}/pods?dryRun=All&fieldValidation=Strict", pod
            )
            taken += 1
    assert taken >= 19
    for namespace in (SERVICES, CRAWLS):
        pod = {"metadata": {"name": "try"}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
        with pytest.raises(Exception, match=r"violates PodSecurity .*restricted"):
            demo.cluster.admin.post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
    kubectl("delete", "-f", "-", cluster=demo.cluster, stdin=priorities)


# --- the table of rights --------------------------------------------------------------------------


@pytest.mark.parametrize("account", [*rbac.COMPONENTS, *NOBODYS])
def test_an_account_can_what_it_needs_and_nothing_else(demo: Deployed_, account: str) -> None:
    granted = set(rbac.ROLES[rbac.COMPONENTS[account]]) if account in rbac.COMPONENTS else set()
    asked = {*FORBIDDEN, *(one for those in rbac.ROLES.values() for one in those)}
    api = demo.api(account)
    assert rbac.missing(api, asked) == asked - granted
    assert rbac.who_am_i(api) == f"system:serviceaccount:{SERVICES}:{account}"


def test_a_crawl_can_nothing(demo: Deployed_) -> None:
    asked = {*FORBIDDEN, *(one for those in rbac.ROLES.values() for one in those)}
    assert rbac.missing(demo.api("crawl", CRAWLS), asked) == asked


def test_no_account_reaches_beyond_the_namespace_of_the_crawls(demo: Deployed_) -> None:
    every = {one for those in rbac.ROLES.values() for one in those}
    for account in rbac.COMPONENTS:
        # The only object outside: kube-system itself, which identifies the cluster, and nothing in
        # it.
        own = {rbac.CLUSTER} & set(rbac.granted(account))
        for elsewhere in ("default", "kube-system", SERVICES):
            kubeconfig = demo.cluster.kubeconfig_of(
                f"system:serviceaccount:{SERVICES}:{account}", elsewhere
            )
            api = Api(kubeconfig=kubeconfig, namespace=elsewhere)
            same = (
                {rbac.Right("get", "namespaces")} if own and elsewhere == "kube-system" else set()
            )
            assert rbac.missing(api, every) == every - own - same, f"{account} in {elsewhere}"
            api.close()


# --- each one at its work -------------------------------------------------------------------------


def polled(
    demo: Deployed_, account: str, run_id: int, task: TaskRef, phase: Phase, seconds: float = 150
) -> None:
    """Wait until polls of this account see the task like this."""
    cluster = KubernetesCluster(demo.api(account))
    until(
        lambda: cluster.poll(run_ref(run_id), [task]).observations[0].phase is phase,
        f"{phase} seen by {account}",
        seconds,
    )


def test_a_life_with_each_components_own_rights(demo: Deployed_) -> None:
    run_id, (task,) = demo.task()
    assert task.state == "created"
    one = ref(task, run_id)
    polled(demo, "worker-cluster", run_id, one, Phase.EXECUTING)
    list(KubernetesCluster(demo.api("worker-cluster")).details(run_ref(run_id), [one]))
    control = KubernetesCluster(demo.api("worker-control"))
    control.stop(run_ref(run_id), one)
    polled(demo, "worker-control", run_id, one, Phase.ENDED)
    finalizers = Finalizers(demo.api("worker-cluster"))
    assert (run_id, 0, 1) in [end.key for end in finalizers.kept()]
    finalizers.release(run_ref(run_id), [one])
    name = cluster_name(run_id, 0, 1)
    until(
        lambda: demo.cluster.admin.find(f"/apis/batch/v1/namespaces/{CRAWLS}/jobs/{name}") is None,
        "the Job is gone",
        60,
    )
    until(
        lambda: demo.cluster.admin.find(f"/api/v1/namespaces/{CRAWLS}/secrets/{name}") is None,
        "and its Secret",
        150,
    )


def test_a_job_leaves_soon_after_its_end_is_on_record(demo: Deployed_) -> None:
    """Ended Jobs count for the quota. Nothing of them is removed until somebody has recorded the
    end.
    """
    run_id, (task,) = demo.task(KWOK_RUN_FOR="200ms")
    one, name = ref(task, run_id), cluster_name(run_id, 0, 1)
    polled(demo, "worker-cluster", run_id, one, Phase.ENDED)
    finalizers = Finalizers(demo.api("worker-cluster"), ttl_s=1)
    finalizers.release(run_ref(run_id), [one])
    job, pods = (
        f"/apis/batch/v1/namespaces/{CRAWLS}/jobs/{name}",
        f"/api/v1/namespaces/{CRAWLS}/pods",
    )
    until(lambda: demo.cluster.admin.find(job) is None, "the Job is gone", 60)
    until(
        lambda: not demo.cluster.admin.get(f"{pods}?labelSelector=job-name%3D{name}")["items"],
        "so is its pod",
        60,
    )


def test_force_and_audit_with_their_own_rights(demo: Deployed_) -> None:
    run_id, (first, second) = demo.task(tasks=2, KWOK_STOP_AFTER="4s")
    audit = KubernetesCluster(demo.api("worker-audit"))
    until(lambda: len(audit.inventory(run_id=run_id)) == 2, "both in the inventory", 150)
    polled(demo, "worker-cluster", run_id, ref(first, run_id), Phase.EXECUTING)
    audit.stop(run_ref(run_id), ref(second, run_id))
    KubernetesCluster(demo.api("worker-control")).kill(run_ref(run_id), ref(first, run_id))
    path = f"/api/v1/namespaces/{CRAWLS}/pods?labelSelector={labels.RUN}%3D{run_id}"
    until(
        lambda: all(
            pod["metadata"].get("deletionTimestamp")
            for pod in demo.cluster.admin.get(path)["items"]
        ),
        "both are being deleted",
        60,
    )


def test_the_observer_with_its_own_rights(demo: Deployed_) -> None:
    observer, over, seen = (
        KubernetesObserver(demo.api("worker-observer")),
        threading.Event(),
        set[int](),
    )
    thread = threading.Thread(
        target=observer.watch, args=(lambda run_id, *_: seen.add(run_id), over)
    )
    thread.start()
    try:
        until(lambda: observer.health().up, "it sees", 150)
        run_id, _ = demo.task(KWOK_RUN_FOR="200ms")
        until(lambda: run_id in seen, "it notices", 150)
    finally:
        over.set()
        thread.join(60)
    assert not thread.is_alive()


def test_logs_with_the_gateways_own_rights(demo: Deployed_) -> None:
    """A simulated node has no log; the request itself shows that the right exists."""
    run_id, (task,) = demo.task(KWOK_RUN_FOR="200ms")
    polled(demo, "worker-cluster", run_id, ref(task, run_id), Phase.ENDED)
    path = f"/api/v1/namespaces/{CRAWLS}/pods?labelSelector={labels.RUN}%3D{run_id}"
    (pod,) = demo.cluster.admin.get(path)["items"]
    for account, may in (
        ("gateway", True),
        ("worker-cluster", True),
        ("worker-observer", True),
        ("scheduler", False),
    ):
        api = demo.api(account)
        with pytest.raises(ClusterUnavailable) as caught:
            api.read(api.pods_path(pod["metadata"]["name"], "log"))
        assert (getattr(caught.value, "status", None) == 403) is not may, account
    with pytest.raises(ClusterUnavailable, match="no preferred addresses"):
        PodLogs(demo.api("gateway")).read(run_ref(run_id), ref(task, run_id), None, 1000)


REFUSED: list[tuple[str, str, Callable[[Api, str, TaskRef, int], object]]] = [
    ("scheduler", "list pods", lambda api, name, one, run: api.get(api.pods_path())),
    ("scheduler", "delete", lambda api, name, one, run: api.delete(api.jobs_path(name), {})),
    (
        "worker-cluster",
        "delete jobs",
        lambda api, name, one, run: KubernetesCluster(api).stop(run_ref(run), one),
    ),
    (
        "worker-control",
        "patch",
        lambda api, name, one, run: api.patch(api.jobs_path(name), {"metadata": {}}),
    ),
    (
        "worker-control",
        "create",
        lambda api, name, one, run: api.post(api.jobs_path(), {"metadata": {"name": "x"}}),
    ),
    (
        "worker-observer",
        "delete jobs",
        lambda api, name, one, run: api.delete(api.jobs_path(name), {}),
    ),
    (
        "gateway",
        "list jobs",
        lambda api, name, one, run: KubernetesCluster(api).poll(run_ref(run), [one]),
    ),
    ("gateway", "delete", lambda api, name, one, run: api.delete(api.jobs_path(name), {})),
    (
        "worker-export",
        "list",
        lambda api, name, one, run: KubernetesCluster(api).poll(run_ref(run), [one]),
    ),
    (
        "worker-workflows",
        "list",
        lambda api, name, one, run: KubernetesCluster(api).poll(run_ref(run), [one]),
    ),
]


@pytest.mark.parametrize(
    ("account", "what", "act"), REFUSED, ids=[f"{who}-{what}" for who, what, _ in REFUSED]
)
def test_what_an_account_must_not_do_is_refused(
    demo: Deployed_,
    running: tuple[int, TaskRef],
    account: str,
    what: str,
    act: Callable[..., object],
) -> None:
    run_id, one = running
    with pytest.raises(RequestRefused, match=f"needs permission to {what}") as caught:
        act(demo.api(account), cluster_name(run_id, 0, 1), one, run_id)
    assert caught.value.status == 403
    polled(demo, "worker-cluster", run_id, one, Phase.EXECUTING)


@pytest.fixture(scope="module")
def running(demo: Deployed_) -> tuple[int, TaskRef]:
    """A task that nobody ends."""
    run_id, (task,) = demo.task()
    polled(demo, "worker-cluster", run_id, ref(task, run_id), Phase.EXECUTING)
    return run_id, ref(task, run_id)


def test_rights_that_are_removed_are_no_observation(
    demo: Deployed_, running: tuple[int, TaskRef]
) -> None:
    run_id, one = running
    binding = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{CRAWLS}/rolebindings/crawl-looker"
    cluster = KubernetesCluster(demo.api("worker-cluster"))
    demo.cluster.admin.delete(binding, {})
    try:
        said = "needs permission to list"
        until(lambda: said in _trouble(cluster, run_id, one), "a poll is refused", 150)
    finally:
        kubectl("apply", "-k", str(DEPLOY / "base/crawls"), cluster=demo.cluster)
        kubectl("apply", "-f", "-", cluster=demo.cluster, stdin=text(demo.overlay))
    polled(demo, "worker-cluster", run_id, one, Phase.EXECUTING)


def _trouble(cluster: KubernetesCluster, run_id: int, one: TaskRef) -> str:
    try:
        cluster.poll(run_ref(run_id), [one])
    except ClusterUnavailable as error:
        return str(error)
    return ""


# --- doctor and release ---------------------------------------------------------------------------


def examined(kubeconfig: Path, **more: Any) -> list[tuple[str, str, str]]:
    known = Settings.model_validate(
        {"cluster": {"kind": "kubernetes", "kubeconfig": kubeconfig, **more}}
    )
    lines = doctor.check_cluster(Context(known, Sources({}), Redactor(set())))
    kind._api.cache_clear()
    return [(line.check, line.level, line.text) for line in lines]


def test_the_doctor_finds_nothing_wrong_with_what_deploy_makes(demo: Deployed_) -> None:
    found = examined(demo.cluster.kubeconfig)
    assert [one for one in found if one[1] != "ok"] == []
    assert ("rights", "ok", "every component has its permissions, checked as admin") in found


@pytest.mark.parametrize("account", list(rbac.COMPONENTS))
def test_the_doctor_in_a_components_place(demo: Deployed_, account: str) -> None:
    found = examined(
        demo.cluster.kubeconfig_of(f"system:serviceaccount:{SERVICES}:{account}", CRAWLS)
    )
    assert [one for one in found if one[1] == "bad"] == []
    assert (
        "rights",
        "ok",
        f"{account} has its permissions, checked as system:serviceaccount:{SERVICES}:{account}",
    ) in found


def test_the_doctor_as_somebody_without_rights(demo: Deployed_) -> None:
    found = examined(demo.cluster.kubeconfig_of(f"system:serviceaccount:{CRAWLS}:crawl", CRAWLS))
    bad = [words for check, level, words in found if (check, level) == ("rights", "bad")]
    assert len(bad) == len(rbac.ROLES)


def test_a_namespace_that_waits_for_our_finalizer_goes_after_a_release(
    kwok_cluster: Cluster,
) -> None:
    namespace = kwok_cluster.namespace("leaving")
    own = {
        labels.MANAGED_BY: labels.MANAGER,
        labels.RUN: "7",
        labels.TASK: "0",
        labels.ATTEMPT: "1",
    }
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for n in range(3):
        meta = {"name": f"held-{n}", "labels": own, "finalizers": [labels.FINALIZER]}
        meta["annotations"] = {"crawl.test/run-for": "100ms"}  # type: ignore[assignment]
        spec = {
            "restartPolicy": "Never",
            "containers": [{"name": labels.CONTAINER, "image": "crawl.test/x"}],
        }
        kwok_cluster.admin.post(pods, {"metadata": meta, "spec": spec})
    until(
        lambda: (
            {p["status"].get("phase") for p in kwok_cluster.admin.get(pods)["items"]}
            == {"Succeeded"}
        ),
        "ended",
        60,
    )
    kwok_cluster.admin.delete(f"/api/v1/namespaces/{namespace}", {})
    time.sleep(1)
    assert (
        kwok_cluster.admin.get(f"/api/v1/namespaces/{namespace}")["status"]["phase"]
        == "Terminating"
    )
    assert ("namespace", "bad") in [
        one[:2] for one in examined(kwok_cluster.kubeconfig, namespace=namespace)
    ]
    told = crawlctl(kwok_cluster, "cluster", "release", "--namespace", namespace, "-o", "json")
    assert [pod["released"] for pod in json.loads(told.stdout)["pods"]] == [None] * 3
    done = crawlctl(
        kwok_cluster, "cluster", "release", "--namespace", namespace, "--yes", "-o", "json"
    )
    assert json.loads(done.stdout)["released"] == 3
    until(
        lambda: kwok_cluster.admin.find(f"/api/v1/namespaces/{namespace}") is None,
        "the namespace is gone",
        150,
    )


def test_a_cluster_is_refused_or_used_before_anything_is_started(
    kwok_cluster: Cluster, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "crawler_lifecycle.cli",
        "dev",
        "--state-dir",
        str(tmp_path / "state"),
    ]
    command += [
        "--ports",
        "free",
        "--cluster",
        "kubernetes",
        "--kubeconfig",
        str(kwok_cluster.kubeconfig),
    ]
    command += ["--namespace", "nowhere"]
    missing = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert missing.returncode == 3
    assert "the cluster has no namespace 'nowhere'" in missing.stderr
    assert "kubectl create namespace nowhere" in missing.stderr
    assert not (tmp_path / "state" / "dev.json").exists()
