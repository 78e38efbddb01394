"""Our Jobs on the real API server: what it accepts, what it refuses, and with which messages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import RequestRefused
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod, decode
from crawler_lifecycle.clusters.kubernetes.client.odd_values import GRACE_MAX_S
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.clusters.kubernetes.jobs.manifest import _listed
from crawler_lifecycle.clusters.kubernetes.polls.predicates import deletion_is_dated
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.crawlers.pod import PodOptions, Toleration
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.ports.runs import DeployedTask, QueuedTask
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.harnesses import until
from tests.support.job_cases import Case, Rules, cases, crawler, deployment

RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}


def _tokens(*_: object) -> dict[str, str]:
    return {"CRAWL_GATEWAY_URL": "http://gateway.example", "CRAWL_TOKEN": "task.7.secret"}


@dataclass
class Place:
    """A namespace of the real cluster, and clients for it."""

    cluster: Cluster
    namespace: str
    opened: list[Any]

    @property
    def core(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    def api(self, kubeconfig: Path | None = None) -> Api:
        api = Api(
            kubeconfig=kubeconfig or self.cluster.kubeconfig,
            namespace=self.namespace,
            read_timeout_s=20.0,
        )
        self.opened.append(api)
        return api

    def deployer(self, api: Api | None = None, **more: Any) -> KubernetesDeployer:
        made = KubernetesDeployer(api or self.api(), Rules(), **more)
        self.opened.append(made)
        return made

    def deploy(
        self,
        tasks: int | list[QueuedTask] = 1,
        of: CrawlerDefinition | None = None,
        by: KubernetesDeployer | None = None,
        **asked: Any,
    ) -> list[DeployedTask]:
        page = (
            [QueuedTask(70 + n, n, {}) for n in range(tasks)] if isinstance(tasks, int) else tasks
        )
        until = datetime.now(UTC) + timedelta(seconds=600)
        whole = deployment(**{"tasks": page, "expires_at": until, **asked})
        return (by or self.deployer()).deploy(whole, of or crawler())

    def make(self, plural: str, body: dict[str, Any]) -> None:
        self.cluster.admin.post(f"{self.core}/{plural}", body)

    def job(self, name: str = "crawl-7-0-1") -> dict[str, Any]:
        return self.cluster.admin.get(f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{name}")

    def pods(self) -> list[dict[str, Any]]:
        return list(self.cluster.admin.get(f"{self.core}/pods")["items"])

    def events(self, reason: str) -> list[str]:
        found = self.cluster.admin.get(f"{self.core}/events?fieldSelector=reason%3D{reason}")[
            "items"
        ]
        return [event["message"] for event in found]


@pytest.fixture
def place(kwok_cluster: Cluster) -> Iterator[Place]:
    place = Place(kwok_cluster, kwok_cluster.namespace("manifests", labels=RESTRICTED), [])
    place.make("serviceaccounts", {"metadata": {"name": "crawl"}})
    yield place
    for opened in place.opened:
        opened.close()


@pytest.fixture(scope="module")
def classes(kwok_cluster: Cluster) -> None:
    body = {"metadata": {"name": "crawl-low"}, "value": -5}
    kwok_cluster.admin.ensure("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    body = {"metadata": {"name": "sandboxed"}, "handler": "runsc"}
    kwok_cluster.admin.ensure("/apis/node.k8s.io/v1/runtimeclasses", body)


def _pod(job: dict[str, Any]) -> dict[str, Any]:
    template = copy.deepcopy(job["spec"]["template"])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        **template,
        "metadata": {**template["metadata"], "name": "probe"},
    }


# --- what it takes --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases())
def test_the_server_takes_every_job_and_its_pod_under_pod_security_restricted(
    place: Place, classes: None, name: str
) -> None:
    made, api = cases()[name].job(), place.api()
    place.make("serviceaccounts", {"metadata": {"name": "shops"}})
    # Field validation is strict: an unknown field is an error.
    job = api.post(api.jobs_path(), made, dry_run=True)
    api.post(api.pods_path(), _pod(made), dry_run=True)
    # Except for a status, these are the server's additions: see MANIFEST_MAX.
    assert len(job) - _listed(made) < 14 * 1024


@pytest.mark.parametrize("text", ["x", "<", ">", "&", '"', "é", "漢", "\n", "$"])
def test_a_large_job_weighs_what_we_reckon(place: Place, text: str) -> None:
    of = crawler(env={f"E{n}": text * 500 for n in range(20)})
    made, api = Case(of, deployment()).job(), place.api()
    assert abs(len(api.post(api.jobs_path(), made, dry_run=True)) - _listed(made)) < 14 * 1024


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pod: pod["securityContext"].pop("seccompProfile"),
        lambda pod: pod["securityContext"].update(runAsUser=0),
        lambda pod: pod["containers"][0]["securityContext"].pop("capabilities"),
        lambda pod: pod["containers"][0]["securityContext"].update(allowPrivilegeEscalation=True),
        lambda pod: pod["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
    ],
    ids=["seccomp", "root", "capabilities", "escalation", "host"],
)
def test_the_server_does_enforce_it(
    place: Place, spoil: Callable[[dict[str, Any]], object]
) -> None:
    api, pod = place.api(), _pod(cases()["plain"].job())
    spoil(pod["spec"])
    with pytest.raises(RequestRefused, match='violates PodSecurity "restricted'):
        api.post(api.pods_path(), pod, dry_run=True)


def test_what_the_server_makes_of_it_is_what_was_meant(place: Place) -> None:
    assert [
        answer.state for answer in place.deploy(by=place.deployer(task_environment=_tokens))
    ] == ["created"]
    job = place.job()
    wanted = replace(cases()["plain"], secret_names=["CRAWL_TOKEN"]).job()
    assert job["metadata"]["labels"].items() >= wanted["metadata"]["labels"].items()
    assert (
        job["spec"].items() >= {k: v for k, v in wanted["spec"].items() if k != "template"}.items()
    )
    assert "podFailurePolicy" not in job["spec"]
    [pod] = until(place.pods)
    assert pod["metadata"]["labels"].items() >= wanted["metadata"]["labels"].items()
    assert labels.FINALIZER in pod["metadata"]["finalizers"]
    assert (
        pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]
        == labels.CONTAINER
    )
    mounts = [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]
    assert mounts == ["/crawl/files", "/crawl/state", "/tmp"], "a service account token was mounted"
    requests = pod["spec"]["containers"][0]["resources"]["requests"]
    assert (requests["cpu"], requests["memory"], requests["ephemeral-storage"]) == (
        "50m",
        "128Mi",
        "0",
    )
    secret = place.cluster.admin.get(f"{place.core}/secrets/crawl-7-0-1")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert set(secret["data"]) == {"CRAWL_TOKEN"}


def test_a_node_that_is_avoided_is_taken_where_it_is_the_only_one(place: Place) -> None:
    assert place.cluster.kwok is not None
    avoided, *others = place.cluster.kwok.nodes
    only = {"kubernetes.io/hostname": avoided}
    page = [
        QueuedTask(70, 0, {}, attempt=2, retry=1, avoid_node=avoided, node_selector=only),
        QueuedTask(71, 1, {}, attempt=2, retry=1, avoid_node=avoided),
    ]
    assert [answer.state for answer in place.deploy(page)] == ["created"] * 2

    def placed() -> Any:
        found = {
            pod["metadata"]["labels"][labels.TASK]: pod["spec"].get("nodeName")
            for pod in place.pods()
        }
        return found if len(found) == 2 and all(found.values()) else None

    found = until(placed)
    assert found["0"] == avoided
    assert found["1"] in others


def test_a_second_call_knows_what_the_server_made_of_it(place: Place) -> None:
    by = place.deployer(task_environment=_tokens)
    [first], [again] = place.deploy(by=by), place.deploy(by=by)
    assert (first.state, again.state, again.uid) == ("created", "existing", first.uid)
    [other] = place.deploy(by=by, settings={"DEPTH_LIMIT": "1"})
    assert other.state == "refused"
    assert labels.SPEC_HASH in (other.reason or "")


def test_replicas_that_race_make_each_job_once(place: Place) -> None:
    replicas = [place.deployer(place.api()) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda by: place.deploy(25, by=by), replicas))
    for same in zip(*answers, strict=True):
        assert len({answer.uid for answer in same}) == 1
        assert sorted(answer.state for answer in same) == ["created", "existing", "existing"]


def test_the_secret_goes_with_its_job(place: Place) -> None:
    place.deploy(by=place.deployer(task_environment=_tokens))
    [pod] = until(place.pods)
    admin = place.cluster.admin
    admin.patch(f"{place.core}/pods/{pod['metadata']['name']}", {"metadata": {"finalizers": None}})
    admin.delete(
        f"/apis/batch/v1/namespaces/{place.namespace}/jobs/crawl-7-0-1",
        {"propagationPolicy": "Foreground"},
    )
    until(lambda: not admin.get(f"{place.core}/secrets")["items"])


def test_a_queue_holds_the_job_before_it_has_a_pod(place: Place) -> None:
    place.deploy(of=crawler(kubernetes=PodOptions(queue="crawls")))

    def held() -> Any:
        conditions = place.job().get("status", {}).get("conditions", [])
        return [c for c in conditions if c["type"] == "Suspended" and c["status"] == "True"]

    until(held)
    assert not place.pods()


# --- what it refuses ------------------------------------------------------------------------------


def _quota(place: Place, name: str, **hard: str) -> None:
    limits = {key.replace("__", "/").replace("_", "."): value for key, value in hard.items()}
    place.cluster.quota(place.namespace, name, limits)


def test_a_quota_on_jobs_defers_in_the_servers_words(place: Place) -> None:
    _quota(place, "crawls", count__jobs_batch="2")
    answers = place.deploy(5)
    assert sorted(answer.state for answer in answers) == ["created"] * 2 + ["deferred"] * 3
    told = {answer.reason for answer in answers if answer.state == "deferred"}
    assert all(
        "exceeded quota: crawls, requested: count/jobs.batch=1" in (text or "") for text in told
    )


def test_a_quota_of_zero_pods_lets_the_job_stand_and_says_so_in_an_event(place: Place) -> None:
    _quota(place, "none", pods="0")
    assert place.deploy()[0].state == "created"
    assert "exceeded quota: none" in until(lambda: place.events("FailedCreate"))[0]


def test_a_limit_range_that_the_crawler_exceeds_is_an_event(place: Place) -> None:
    limits = [{"type": "Container", "max": {"memory": "256Mi"}}]
    place.make("limitranges", {"metadata": {"name": "small"}, "spec": {"limits": limits}})
    assert place.deploy(of=crawler(resources=Resources("1", "512Mi")))[0].state == "created"
    assert (
        "maximum memory usage per Container is 256Mi"
        in until(lambda: place.events("FailedCreate"))[0]
    )


def test_a_limit_range_fills_in_limits_that_nobody_gave(place: Place) -> None:
    limits = [{"type": "Container", "default": {"memory": "1Gi", "cpu": "1"}}]
    place.make("limitranges", {"metadata": {"name": "defaults"}, "spec": {"limits": limits}})
    place.deploy()
    [pod] = until(place.pods)
    resources = pod["spec"]["containers"][0]["resources"]
    assert (resources["limits"]["memory"], resources["limits"]["cpu"]) == ("1Gi", "1")
    assert resources["requests"]["cpu"] == "50m", "a limit became the request"


def test_a_missing_service_account_is_an_event(place: Place) -> None:
    place.cluster.admin.delete(f"{place.core}/serviceaccounts/crawl")
    assert place.deploy()[0].state == "created"
    assert 'serviceaccount "crawl" not found' in until(lambda: place.events("FailedCreate"))[0]


def test_a_namespace_that_our_finalizer_keeps_from_going_takes_nothing_and_says_so(
    place: Place,
) -> None:
    place.deploy()
    [pod] = until(place.pods)
    admin = place.cluster.admin
    admin.delete(f"/api/v1/namespaces/{place.namespace}")
    [answer] = place.deploy(run_id=8)
    assert answer.state == "deferred"
    assert f"the namespace {place.namespace} is being deleted" in (answer.reason or "")
    path = f"{place.core}/pods/{pod['metadata']['name']}"
    until(lambda: "deletionTimestamp" in admin.get(path)["metadata"])
    assert labels.FINALIZER in admin.get(path)["metadata"]["finalizers"]
    admin.patch(path, {"metadata": {"finalizers": None}})
    until(lambda: admin.find(f"/api/v1/namespaces/{place.namespace}") is None)


def test_a_namespace_that_does_not_exist_is_an_outage_in_words(place: Place) -> None:
    place.namespace = "nowhere"
    with pytest.raises(Exception, match='namespaces "nowhere" not found'):
        place.deploy()


def test_what_only_the_server_finds_wrong_is_refused_in_its_words(place: Place) -> None:
    options = PodOptions(tolerations=[Toleration("level", "Gt", "high", "NoSchedule")])
    [answer] = place.deploy(of=crawler(kubernetes=options))
    assert (answer.state, answer.uid) == ("refused", None)
    assert "spec.template.spec.tolerations[0]" in (answer.reason or "")


def test_the_rights_that_it_needs_are_these_and_no_more(place: Place) -> None:
    user = f"system:serviceaccount:{place.namespace}:scheduler"
    api = place.api(place.cluster.kubeconfig_of(user, place.namespace))
    by = place.deployer(api, task_environment=_tokens)
    with pytest.raises(RequestRefused, match="needs permission to create jobs"):
        place.deploy(by=by)
    rules = [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "list"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    ]
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{place.namespace}"
    place.cluster.admin.post(f"{rbac}/roles", {"metadata": {"name": "scheduler"}, "rules": rules})
    binding = {
        "metadata": {"name": "scheduler"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "scheduler"},
        "subjects": [{"kind": "ServiceAccount", "name": "scheduler", "namespace": place.namespace}],
    }
    place.cluster.admin.post(f"{rbac}/rolebindings", binding)

    def answered() -> Any:  # the authorizer learns of a binding a moment later
        try:
            return place.deploy(3, by=by)
        except RequestRefused:
            return None

    states = [answer.state for answer in until(answered)]
    assert set(states) <= {"created", "existing"}
    assert [answer.state for answer in place.deploy(3, by=by)] == ["existing"] * 3


# --- what it tells --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "told"),
    [("0000-01-01T00:00:00Z", "0000-01-01"), ("9999-12-31T23:59:59-12:00", "10000-01-01")],
)
@pytest.mark.parametrize("grace", [10**14, 2**63 - 1])
def test_a_time_and_a_grace_that_no_clock_knows_are_taken_by_the_server_and_hide_no_pod(
    place: Place, at: str, told: str, grace: int
) -> None:
    api, made = place.api(), Case(crawler(), deployment()).job()
    for name in ("odd", "usual"):
        pod = _pod(made)
        pod["metadata"]["name"] = name
        pod["spec"] |= {
            "nodeName": "nowhere",
            "terminationGracePeriodSeconds": grace if name == "odd" else 5,
        }
        api.post(api.pods_path(), pod)
    mark = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": at}
    answer = api.patch(api.pods_path("odd", "status"), {"status": {"conditions": [mark]}})
    assert told in answer.decode(), "the server passes it on"
    api.delete(api.pods_path("odd"), {"propagationPolicy": "Background"})
    assert sorted(pod.metadata.name for pod in api.listing(api.pods_path(), Pod).items) == [
        "odd",
        "usual",
    ]
    odd = decode(Pod, api.get(api.pods_path("odd")))
    assert (odd.metadata.deletion_grace_period_seconds, deletion_is_dated(odd)) == (
        GRACE_MAX_S,
        False,
    )
