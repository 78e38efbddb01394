"""``deploy/helm``: the same objects as the ``production`` overlay, six kinds of installations, and
what is refused.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.settings import Settings, variables
from tests.kubernetes import chart
from tests.kubernetes.chart import CHART, CRAWLS, SERVICES
from tests.kubernetes.cluster import binaries
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.test_deploy import kustomized
from tests.support.manifests import DEPLOY, Document, Pod, allowed, documents, parsed, pod_of

INSTALLATIONS = chart.kinds_of_installations()
pytestmark = pytest.mark.usefixtures("kube_binaries")


def kubectl(*words: str, cluster: Cluster | None = None, stdin: str | None = None) -> str:
    command = [str(binaries.available() / "kubectl"), *words]
    command += ["--kubeconfig", str(cluster.kubeconfig)] if cluster else []
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_kind(kind: str, among: list[Document]) -> dict[str, Document]:
    return {one["metadata"]["name"]: one for one in among if one["kind"] == kind}


def ours(component: str) -> Pod:
    return Pod(
        SERVICES, {"app.kubernetes.io/name": SERVICES, "app.kubernetes.io/component": component}
    )


# --- one truth: the overlay and the chart ---------------------------------------------------------


def overlay(deploy: Path) -> dict[tuple[str, str, str], Any]:
    texts = [kustomized(deploy / f"overlays/production{below}") for below in ("", "/migration")]
    found = [one for text in texts for one in parsed(text)]
    # Helm requires that the release's namespace exists.
    return chart.comparable(
        [one for one in found if (one["kind"], one["metadata"]["name"]) != ("Namespace", SERVICES)]
    )


def compared(
    of_chart: dict[tuple[str, str, str], Any], of_overlay: dict[tuple[str, str, str], Any]
) -> list[str]:
    assert len(of_overlay) > 50
    keys = sorted({*of_chart, *of_overlay})
    return [
        f"{key}{one}"
        for key in keys
        for one in chart.differences(of_chart.get(key), of_overlay.get(key))
    ]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``deploy/`` with the values of production, which nobody changes."""
    return chart.filled_in(tmp_path_factory.mktemp("filled"))


def test_the_chart_makes_what_the_overlay_production_makes(filled: Path) -> None:
    of_overlay = overlay(filled)
    assert compared(chart.comparable(chart.rendered("production")), of_overlay) == []


def test_so_it_does_with_the_components(tmp_path: Path) -> None:
    deploy = chart.filled_in(tmp_path)
    file = deploy / "overlays/production/kustomization.yaml"
    file.write_text(re.sub(r"# (- \.\./\.\./components/)", r"\1", file.read_text()))
    settings = deploy / "overlays/production/settings.env"
    settings.write_text(re.sub(r"LIFECYCLE_CLUSTER__FILES_URL=.*\n", "", settings.read_text()))
    of_overlay = {
        key: one
        for key, one in overlay(deploy).items()
        if not key[0].startswith("PersistentVolume")
    }
    on = (
        "gc.enabled=true",
        "monitoring.enabled=true",
        "monitoring.alarms=true",
        "files.volumeClaim=crawl-files",
    )
    words = [word for one in (*on, "files.url=") for word in ("--set", one)]
    assert compared(chart.comparable(chart.rendered("production", *words)), of_overlay) == []


def test_the_namespace_of_the_release_is_that_of_the_base() -> None:
    made = chart.rendered("production", "--set", "createNamespace=true")
    (of_base,) = documents(DEPLOY / "base/services/namespace.yaml")
    assert of_kind("Namespace", made)[SERVICES] == of_base


# --- six kinds of installations -------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(kube_binaries: None) -> Iterator[Cluster]:
    """A cluster with all controllers, so that Deployments create pods, and with other projects'
    kinds that the chart may use.
    """
    extra = {"kube-controller-manager": ["--controllers=*"]}
    with Cluster(kwok=1, extra=extra) as cluster:
        kubectl("create", "-f", str(binaries.available() / "kinds"), cluster=cluster)
        yield cluster


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_an_installation_is_clean_and_taken_by_the_api_server(name: str, cluster: Cluster) -> None:
    done = chart.helm(
        "lint", str(CHART), "--strict", "--namespace", SERVICES, "--values", str(chart.values(name))
    )
    assert done.returncode == 0, done.stdout
    found = chart.rendered(name)
    places = {one["metadata"]["namespace"] for one in found if "namespace" in one["metadata"]} - {
        "kube-system"
    }
    for place in places:
        body = {
            "metadata": {
                "name": place,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
            }
        }
        cluster.admin.ensure("/api/v1/namespaces", body)
    text = yaml.dump_all(found, Dumper=yaml.CSafeDumper)
    kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", cluster=cluster, stdin=text
    )
    settings = of_kind("ConfigMap", found)["crawler-lifecycle"]["data"]
    assert {one for one in settings if one.startswith("LIFECYCLE_")} <= set(variables())


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_the_settings_of_an_installation_are_taken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in of_kind("ConfigMap", chart.rendered(name))["crawler-lifecycle"][
        "data"
    ].items():
        monkeypatch.setenv(key, value)
    loaded = Settings.load()
    assert loaded.cluster.kind == "kubernetes"
    assert loaded.cluster.namespace != SERVICES
    if name == "everything":
        assert loaded.pools["shop-a"].max == 20
        assert str(loaded.gateway.web_ui_url).rstrip("/") == "https://crawls.corp.test"


def test_a_small_one_has_one_of_each_but_of_what_a_stop_needs() -> None:
    found = chart.rendered("small")
    replicas = {name: one["spec"]["replicas"] for name, one in of_kind("Deployment", found).items()}
    assert (
        replicas["worker-workflows"],
        replicas["worker-control"],
        replicas["worker-user-code"],
    ) == (
        2,
        2,
        0,
    )
    assert replicas["gateway"] == 1
    assert not of_kind("NetworkPolicy", found)


def test_on_openshift_the_namespace_gives_the_users() -> None:
    found = chart.rendered("openshift")
    pods = [pod for one in found if (pod := pod_of(one))]
    assert len(pods) == 12
    for pod in pods:
        assert {*pod["spec"]["securityContext"]} == {"runAsNonRoot", "seccompProfile"}
    assert not {"Namespace", "PriorityClass"} & {one["kind"] for one in found}, "an administrator's"
    dns = Pod("openshift-dns", {"dns.operator.openshift.io/daemonset-dns": "default"})
    assert allowed([*of_kind("NetworkPolicy", found).values()], ours("gateway"), dns, 5353, "UDP")


def test_two_fleets_share_a_cluster() -> None:
    fleets = [chart.rendered(f"fleet-{one}", namespace=f"fleet-{one}") for one in "ab"]
    keys = [
        {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in made}
        for made in fleets
    ]
    assert keys[0] & keys[1] == set()
    text = json.dumps(fleets[0])
    assert "fleet-b" not in text
    assert f'"namespace": "{CRAWLS}"' not in text
    assert f".{SERVICES}.svc" not in text


def test_what_is_in_the_cluster_is_found_by_labels_and_kept_from_crawls() -> None:
    policies = [one for one in chart.rendered("in-cluster") if one["kind"] == "NetworkPolicy"]
    temporal = Pod("temporal", {"app.kubernetes.io/component": "frontend"})
    database = Pod("databases", {"app.kubernetes.io/name": "mariadb"})
    storage = Pod("storage", {"app": "minio"})
    crawl = Pod(CRAWLS, {labels.MANAGED_BY: labels.MANAGER, labels.RUN: "7"})
    assert allowed(policies, ours("worker-control"), temporal, 7233)
    assert allowed(policies, ours("db-upgrade"), database, 3307)
    assert allowed(policies, ours("worker-export"), storage, 9000)
    for other, port in (
        (Pod("temporal", {"app": "web"}), 7233),
        (database, 3306),
        ("20.0.0.1", 7233),
        ("20.0.0.1", 443),
    ):
        assert not allowed(policies, ours("worker-export"), other, port)
    for end, port in ((temporal, 7233), (database, 3307), (storage, 9000)):
        assert not allowed(policies, crawl, end, port)


def test_everything_at_once() -> None:
    found = chart.rendered("everything")
    workloads = of_kind("Deployment", found)
    spec = {name: one["spec"]["template"]["spec"] for name, one in workloads.items()}
    environment = of_kind("ConfigMap", found)["crawler-lifecycle"]["data"]
    for name, pod in spec.items():
        mounted = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        files = [
            value
            for value in environment.values()
            if value.startswith("/etc/") and "tokens" not in value
        ]
        if name not in ("gateway", "scheduler"):
            assert {str(Path(value).parent) for value in files} <= mounted, name
    assert spec["worker-user-code"]["containers"][0]["image"] == "registry.corp.test/user-code:7"
    assert {name for name, one in workloads.items() if "replicas" not in one["spec"]} == {
        *("worker-cluster", "worker-export", "worker-user-code")
    }
    scaled = of_kind("ScaledObject", found)
    kinds = {
        name: [one["type"] for one in each["spec"]["triggers"]] for name, each in scaled.items()
    }
    assert kinds.pop("worker-export") == ["temporal"], "by what waits for it alone"
    assert set(map(tuple, kinds.values())) == {("prometheus", "prometheus")}
    assert environment["LIFECYCLE_SCHEDULER__URL"] == f"https://scheduler.{SERVICES}.svc:8600"
    policies = [*of_kind("NetworkPolicy", found).values()]
    assert allowed(policies, ours("gateway"), ours("scheduler"), 8443)
    assert not allowed(policies, ours("gateway"), ours("scheduler"), 8600), "past its proxy"
    for name in ("gateway", "scheduler"):
        (proxy,) = spec[name]["initContainers"]
        assert proxy["restartPolicy"] == "Always"
        (port,) = of_kind("Service", found)[name]["spec"]["ports"]
        assert port["targetPort"] in {one["name"] for one in proxy["ports"]}
    (target,) = of_kind("BackendTLSPolicy", found)["gateway"]["spec"]["targetRefs"]
    assert target["name"] in of_kind("Service", found), "the Gateway speaks TLS with it"
    account = of_kind("ServiceAccount", found)["worker-export"]
    assert "eks.amazonaws.com/role-arn" in account["metadata"]["annotations"]
    assert of_kind("LocalQueue", found)["shops"]["metadata"]["namespace"] == CRAWLS
    board = json.loads(
        of_kind("ConfigMap", found)["crawler-lifecycle-dashboard"]["data"]["crawler-lifecycle.json"]
    )
    assert len(board["panels"]) >= 12


def test_an_adapter_of_external_metrics_in_place_of_keda() -> None:
    words = ["--set", "autoscaling.by=hpa"]
    for role in ("cluster", "export", "user-code"):
        words += ["--set", f"workers.{role}.autoscaling.metric=backlog"]
    found = chart.rendered("everything", *words)
    assert set(of_kind("HorizontalPodAutoscaler", found)) == {
        "worker-cluster",
        "worker-export",
        "worker-user-code",
    }
    assert not of_kind("ScaledObject", found)


# --- what is refused ------------------------------------------------------------------------------

NOTHING = "sha256:" + "0" * 64
#: Values in addition to those of production: the named value, and a word of the fix.
REFUSED = [
    (["image.repository="], "image.repository is empty", "REGISTRY/crawler-lifecycle"),
    (["image.digest="], "image.digest and image.tag are empty", "digest that was tested"),
    (["image.tag=latest"], 'image.tag is "latest"', "give a version"),
    (["temporal.address="], "temporal.address is empty", "HOST:PORT"),
    (["archive.url="], "archive.url is empty", "s3://BUCKET/PREFIX"),
    (["catalogue=null"], "catalogue and existingCatalogue are empty", "list your crawlers"),
    (["catalogue[0].name=shops", "catalogue[0].args.false.required=true"], "catalogue[shops].args has false", "quotes"),
    (["existingCatalogue=mine"], 'existingCatalogue is "mine"', "one of the two"),
    ([f"crawls.namespace={SERVICES}"], "crawls.namespace is", "namespace of their own"),
    (["settings.LIFECYCLE_CLUSTER__NAMESPACE=x"], "LIFECYCLE_CLUSTER__NAMESPACE is", "take it out of settings"),
    (["settings.LIFECYCLE_DATABASE__URL=x"], "settings.LIFECYCLE_DATABASE__URL is a secret", "into a Secret"),
    (["workers.control.replicas=0"], "workers.control.replicas is 0", "2 or more"),
    (
        ["workers.export.autoscaling.enabled=true", "workers.export.autoscaling.min=20"],
        *("autoscaling.min is 20", "at most max"),
    ),
    (["workers.user-code.autoscaling.enabled=true"], "autoscaling.prometheus is empty", "http://HOST:9090"),
    (["workers.user-code.autoscaling.enabled=true", "autoscaling.by=hpa"], "user-code.autoscaling.metric is empty", "keda"),
    (["files.volumeClaim=crawl-files"], 'files.volumeClaim is "crawl-files"', "one of the two"),
    (["gc.enabled=true"], "gc.enabled is true", "files.volumeClaim"),
    (["authorities.temporal=ca"], 'authorities.temporal is "ca"', "temporal.tls.enabled=true"),
    (["temporal.tls.clientSecret=own"], 'temporal.tls.clientSecret is "own"', "temporal.tls.enabled=true"),
    (["internalTls.enabled=true"], "internalTls.image is empty", "ghostunnel"),
    (
        ["internalTls.enabled=true", "internalTls.image=x:1", "internalTls.secret=s"],
        *("authorities.https is empty", "ca.crt"),
    ),
    (
        [*(f"internalTls.{one}" for one in ("enabled=true", "image=x:1", "secret=s")), "authorities.https=a",
         "ingress.enabled=true"],
        *("ingress.annotations are empty", "backend-protocol: HTTPS"),
    ),
    (
        [*(f"internalTls.{one}" for one in ("enabled=true", "image=x:1", "secret=s")), "authorities.https=a",
         "gatewayApi.enabled=true"],
        *("gatewayApi.backendAuthority is empty", "ca.crt"),
    ),
    (["oidc.issuer=https://id.corp.test"], 'oidc.issuer is "https://id.corp.test", and clientId', "give both"),
    (
        ["oidc.issuer=https://id.corp.test", "oidc.clientId=crawls", "oidc.roles.a.role=read"],
        *("the web UI has no address to lead back to", "enable ingress or gatewayApi"),
    ),
    (["ingress.enabled=true"], "ingress.host is empty", "people open the web UI"),
    (["ingress.enabled=true", "ingress.host=a.test"], "ingress.tlsSecret is empty", "kubernetes.io/tls"),
    (["ingress.enabled=true", "gatewayApi.enabled=true"], "gatewayApi.enabled is true", "one of the two"),
    (["gatewayApi.enabled=true", "gatewayApi.host=a.test"], "gatewayApi.parent.name and", "Gateway of yours"),
    (["priorityClasses.services.value=-10"], "priorityClasses.services.value is -10", "give the services more"),
    (["network.temporal.cidrs={0.0.0.0/0}"], 'network.temporal.cidrs has "0.0.0.0/0"', "empty list"),
    (["kueue.localQueues.a=b", "kueue.clusterQueues.c.x=1"], 'kueue.localQueues.a is "b"', "name one of these"),
    (["image.repository=registry.example/x"], "image.repository is", "put in your own"),
    ([f"image.digest={NOTHING}"], "image.digest is", "put in your own"),
    (["workers.user-code.image.repository=r.corp.test/plans"], "workers.user-code.image has no tag", "digest of that image"),
    (["workers.user-code.image.repository=registry.example/plans"], "workers.user-code.image.repository is", "put in your own"),
    (["archive.url=s3://example-crawl-archive/runs"], "archive.url is", "put in your own"),
    (["network.apiServer.cidrs={203.0.113.10/32}"], "network.apiServer.cidrs[0] is", "put in your own"),
    (
        ["catalogue[0].name=shops", f"catalogue[0].image=r.corp.test/x@{NOTHING}"],
        *("catalogue[shops].image is", "put in your own"),
    ),
]  # fmt: skip
#: By the schema, which names the value and its possible values.
MISTYPED = [
    ("image.tga=1", "tga"),
    ("image.repository=r.corp.test/x:1", "/image/repository"),
    ("workers.cluster=null", "cluster"),
    ("internalTls=null", "internalTls"),
    ("network.private=null", "private"),
    ("workers.user-code.replicas=two", "/workers/user-code/replicas"),
    ("workers.audit.autoscaling.enabled=true", "autoscaling"),
    ("temporal.address=http://temporal:7233", "/temporal/address"),
    ("archive.url=file:///archive", "/archive/url"),
    ("crawls.namespace=Crawls", "/crawls/namespace"),
    ("priorityClasses.crawls.value=-11", "/priorityClasses/crawls/value"),
    ("network.temporal.cidrs={everywhere}", "/network/temporal/cidrs/0"),
    ("userIds=root", "/userIds"),
    ("oidc.issuer=http://id.corp.test", "/oidc/issuer"),
    ("oidc.roles.a.role=root", "/oidc/roles/a/role"),
    ("unknown=1", "unknown"),
]


def refused(*sets: str) -> str:
    words = [word for one in sets for word in ("--set", one)]
    done = chart.template("--values", str(chart.values("production")), *words)
    assert done.returncode != 0, f"{sets} is taken"
    assert not done.stdout
    return done.stderr


@pytest.mark.parametrize(
    ("sets", "named", "fix"), REFUSED, ids=["+".join(sets) for sets, _, _ in REFUSED]
)
def test_what_cannot_work_is_refused_with_its_fix(sets: list[str], named: str, fix: str) -> None:
    said = refused(*sets)
    assert named in said
    assert fix in said.partition("Fix: ")[2]


@pytest.mark.parametrize(("given", "named"), MISTYPED, ids=[given for given, _ in MISTYPED])
def test_what_is_mistyped_is_refused_by_name(given: str, named: str) -> None:
    assert named in refused(given)


def test_placeholders_of_an_overlay_are_named_with_the_file_to_put_yours_into(filled: Path) -> None:
    def checked(folder: Path) -> subprocess.CompletedProcess[str]:
        text = kustomized(folder)
        return subprocess.run(
            ["sh", str(DEPLOY / "check.sh")], input=text, capture_output=True, text=True
        )

    shipped = checked(DEPLOY / "overlays/production")
    assert shipped.returncode == 1
    lines = [re.sub(r"-[a-z0-9]{10}:", ":", line, count=1) for line in shipped.stdout.splitlines()]
    for begins, file in (
        ("ConfigMap crawler-catalogue: image:", "crawlers.yaml"),
        ("ConfigMap crawler-lifecycle: TEMPORAL_ADDRESS:", "settings.env"),
        ("ConfigMap crawler-lifecycle: LIFECYCLE_ARCHIVE__URL:", "settings.env"),
        ("Deployment gateway: image:", "image/kustomization.yaml"),
        ("NetworkPolicy to-database: cidr: 198.51.100.16/28", "network.yaml"),
        ("NetworkPolicy crawls-to-the-internet: 203.0.113.10/32", "network.yaml"),
    ):
        assert [
            line
            for line in lines
            if line.startswith(begins) and line.endswith(f"put it into {file}")
        ], begins
    own = checked(filled / "overlays/production")
    assert (own.returncode, own.stdout) == (0, "")
    assert checked(DEPLOY / "overlays/demo").returncode == 0


# --- install, upgrade, rollback, uninstall --------------------------------------------------------


def test_a_release_comes_is_changed_goes_back_and_leaves(cluster: Cluster) -> None:
    place, crawls = "release-a", "release-a-crawls"
    body = {
        "metadata": {"name": place, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    }
    cluster.admin.ensure("/api/v1/namespaces", body)

    def release(verb: str, *words: str) -> str:
        given = ("--namespace", place, "--wait", "--timeout", "120s")
        done = chart.helm(verb, "fleet", *words, *given, kubeconfig=cluster.kubeconfig)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def images() -> set[str]:
        items = cluster.admin.get(f"/apis/apps/v1/namespaces/{place}/deployments")["items"]
        return {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in items}

    def migration() -> Document:
        job: Document = cluster.admin.get(f"/apis/batch/v1/namespaces/{place}/jobs/db-upgrade")
        return job

    def policies() -> set[str]:
        items = cluster.admin.get(
            f"/apis/networking.k8s.io/v1/namespaces/{crawls}/networkpolicies"
        )["items"]
        return {one["metadata"]["name"] for one in items}

    ends = r"migration.podAnnotations.crawl\.test/run-for=100ms"
    words = (
        str(CHART),
        "--values",
        str(chart.values("fleet-a")),
        "--set",
        f"crawls.namespace={crawls}",
        "--set",
        ends,
    )
    assert "The web UI, from this machine" in release("install", *words)
    first = migration()
    pods = cluster.admin.get(
        f"/api/v1/namespaces/{place}/pods?labelSelector=app.kubernetes.io%2Fcomponent%3Dgateway"
    )
    assert pods["items"]
    assert first["status"]["completionTime"] <= min(
        pod["metadata"]["creationTimestamp"] for pod in pods["items"]
    )

    release(
        "upgrade",
        *words,
        "--set",
        "image.tag=0.5.0",
        "--set-string",
        "settings.LIFECYCLE_AUDIT__INTERVAL_S=60",
    )
    assert images() == {"registry.corp.test/crawler-lifecycle:0.5.0"}
    second = migration()
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":0.5.0")

    release("rollback", "1")
    assert images() == {"registry.corp.test/crawler-lifecycle:1.0.0"}
    settings = cluster.admin.get(f"/api/v1/namespaces/{place}/configmaps/crawler-lifecycle")["data"]
    assert "LIFECYCLE_AUDIT__INTERVAL_S" not in settings
    assert migration()["metadata"]["uid"] == second["metadata"]["uid"], (
        "the schema does not go back"
    )

    kept = policies()
    release("uninstall")
    assert cluster.admin.get(f"/apis/apps/v1/namespaces/{place}/deployments")["items"] == []
    assert (
        policies()
        == kept
        == {
            *(
                "nothing-unless-allowed",
                "crawls-to-the-internet",
                "crawls-to-name-service",
                "crawls-to-gateway",
            )
        }
    ), "what still crawls stays closed"
    release("install", *words)
    assert images() == {"registry.corp.test/crawler-lifecycle:1.0.0"}, (
        "and it takes over what was kept"
    )


def test_a_schema_that_cannot_be_upgraded_leaves_the_processes_alone(cluster: Cluster) -> None:
    """The hook fails, and with it the upgrade, before anything else is changed."""
    place = "release-b"
    body = {
        "metadata": {"name": place, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    }
    cluster.admin.ensure("/api/v1/namespaces", body)
    fails = (
        f"crawls.namespace={place}-crawls",
        r"migration.podAnnotations.crawl\.test/run-for=100ms",
        r"migration.podAnnotations.crawl\.test/exit-code=1",
    )
    words = [word for one in fails for word in ("--set-string", one)]
    given = ("--namespace", place, "--values", str(chart.values("fleet-b")), "--timeout", "8s")
    done = chart.helm("install", "fleet", str(CHART), *given, *words, kubeconfig=cluster.kubeconfig)
    assert done.returncode != 0
    assert "pre-install" in done.stderr
    assert cluster.admin.get(f"/apis/apps/v1/namespaces/{place}/deployments")["items"] == []
