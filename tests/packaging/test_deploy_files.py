"""``deploy/`` as data, without a cluster: what it names exists, and what it grants is what the code
needs.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from crawler_lifecycle.activities import meters
from crawler_lifecycle.adapters.catalogue import load
from crawler_lifecycle.cli import main
from crawler_lifecycle.cli.admin import cluster_gc
from crawler_lifecycle.cli.doctor.checks import component as place
from crawler_lifecycle.clusters.kubernetes import labels, rbac
from crawler_lifecycle.clusters.kubernetes.jobs.container import resources_of
from crawler_lifecycle.compose import OBSERVER, ROLES
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.crawlers.pod import PodOptions
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.ports.runs import Deployment
from crawler_lifecycle.settings import Settings, variables
from crawler_lifecycle.web import listening
from crawler_lifecycle.worker.duties import Health
from tests.support.manifests import (
    DEPLOY,
    Document,
    Pod,
    allowed,
    documents,
    kustomizations,
    pod_of,
    resources,
    settings_of,
)
from tests.support.run_refs import run_ref

ROOT = DEPLOY.parent
BASE = list(resources(DEPLOY / "base"))
MIGRATION = list(resources(DEPLOY / "migration"))
WORKLOADS = [one for one in [*BASE, *MIGRATION] if pod_of(one) is not None]
#: With everything that overlays add; their patches are compared on a real API server
#: (tests/kubernetes).
EVERYTHING = [one for folder in kustomizations() for one in resources(folder)]
SERVICES, CRAWLS = "crawler-lifecycle", "crawls"
SYSTEM, CLUSTER_ID = "kube-system", "crawls-cluster-id"
DEPLOYMENT = ROOT / "docs/deployment-kubernetes.md"
PAGE = DEPLOYMENT.read_text(encoding="utf-8")


def name_of(one: Any) -> str:
    return f"{one['kind']}-{one['metadata']['name']}" if isinstance(one, dict) else str(one)


def containers(workload: Document) -> list[Document]:
    spec = (pod_of(workload) or {})["spec"]
    return [*(spec.get("initContainers") or []), *spec["containers"]]


def of_kind(*kinds: str, among: list[Document] = BASE) -> list[Document]:
    return [one for one in among if one["kind"] in kinds]


# --- the files ------------------------------------------------------------------------------------


def test_every_file_belongs_to_a_kustomization_or_is_a_template() -> None:
    used = {DEPLOY / "README.md", DEPLOY / "check.sh", DEPLOY / "images.txt"}
    for name in ("secrets", "database"):
        used |= set((DEPLOY / name).iterdir())
    # Another test renders it.
    used |= {file for file in (DEPLOY / "helm").rglob("*") if file.is_file()}
    for folder in kustomizations():
        used.add(folder / "kustomization.yaml")
        (own,) = documents(folder / "kustomization.yaml")
        named = [*(own.get("resources") or []), *(own.get("components") or [])]
        named += [patch["path"] for patch in own.get("patches") or [] if "path" in patch]
        for generator in own.get("configMapGenerator") or []:
            named += [*(generator.get("envs") or []), *(generator.get("files") or [])]
        for name in named:
            place = (folder / name).resolve()
            assert place.exists(), f"{folder.relative_to(ROOT)} names {name}"
            used.add(place)
    assert {file for file in DEPLOY.rglob("*") if file.is_file()} - used == set()


def test_every_object_is_named_once_and_has_its_namespace() -> None:
    for folder in kustomizations():
        found = list(resources(folder))
        keys = Counter(
            (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
            for one in found
        )
        assert [key for key, count in keys.items() if count > 1] == [], folder
        for one in found:
            cluster_wide = one["kind"] in ("Namespace", "PersistentVolume", "PriorityClass")
            # What identifies the cluster is there, and nowhere else.
            ours = (SYSTEM,) if one["metadata"]["name"] == CLUSTER_ID else (SERVICES, CRAWLS)
            assert one["metadata"].get("namespace") in ((None,) if cluster_wide else ours), name_of(
                one
            )
            assert one["metadata"]["labels"]["app.kubernetes.io/part-of"] == "crawler-lifecycle", (
                name_of(one)
            )


def test_an_overlay_and_its_migration_have_the_same_image_from_one_place() -> None:
    for overlay in sorted((DEPLOY / "overlays").iterdir()):
        (services,) = documents(overlay / "kustomization.yaml")
        (migration,) = documents(overlay / "migration" / "kustomization.yaml")
        assert "image" in services["components"]
        assert migration["components"] == ["../image"]
        ((image,),) = [one["images"] for one in documents(overlay / "image" / "kustomization.yaml")]
        assert image["name"] == "crawler-lifecycle"
    assert image["digest"], "production names what was tested, not a tag"


def test_the_whole_of_deploy_can_be_copied_and_nothing_less() -> None:
    for folder in kustomizations():
        (own,) = documents(folder / "kustomization.yaml")
        for name in [*(own.get("resources") or []), *(own.get("components") or [])]:
            assert (folder / name).resolve().is_relative_to(DEPLOY), (
                "a copy elsewhere still renders"
            )


def test_our_own_pods_of_production_have_the_login_of_the_registry() -> None:
    (image,) = documents(DEPLOY / "overlays/production/image/kustomization.yaml")
    (patch,) = image["patches"]
    assert patch["target"] == {"kind": "ServiceAccount", "namespace": SERVICES}
    (operation,) = yaml.safe_load(patch["patch"])
    assert (operation["op"], operation["path"]) == ("add", "/imagePullSecrets")
    crawls = json.loads(
        settings_of(DEPLOY / "overlays/production/settings.env")["LIFECYCLE_CLUSTER__PULL_SECRETS"]
    )
    assert [one["name"] for one in operation["value"]] == crawls, "one name, in both namespaces"
    assert f"docker-registry {crawls[0]} -n {SERVICES}" in PAGE
    assert f"docker-registry {crawls[0]} -n {CRAWLS}" in PAGE


def test_what_the_first_installation_leaves_out_are_the_processes() -> None:
    """What the migration needs (its account, its access to the database) exists before it."""
    assert "kubectl apply -k deploy/overlays/production -l '!app.kubernetes.io/name'" in PAGE
    later = {one["kind"] for one in BASE if "app.kubernetes.io/name" in one["metadata"]["labels"]}
    assert later == {"Deployment", "Service"}
    assert all("app.kubernetes.io/name" in one["metadata"]["labels"] for one in of_kind(*later))


def test_production_applies_where_there_is_no_prometheus_operator() -> None:
    (overlay,) = documents(DEPLOY / "overlays/production/kustomization.yaml")
    assert overlay["components"] == ["../../components/prune", "image"]
    kinds = {one["apiVersion"] for one in resources(DEPLOY / "overlays/production")}
    assert not [version for version in kinds if version.startswith("monitoring.coreos.com/")]


def test_production_loses_no_supporting_files() -> None:
    production, demo = (
        settings_of(DEPLOY / "overlays" / name / "settings.env") for name in ("production", "demo")
    )
    assert production["LIFECYCLE_CLUSTER__FILES_URL"].startswith("s3://")
    for workload in ("scheduler", "gateway"):
        (one,) = [one for one in WORKLOADS if one["metadata"]["name"] == workload]
        assert "LIFECYCLE_GATEWAY__TASK_KEY" in set(given(one)), "uploads go through the gateway"
    if "LIFECYCLE_CLUSTER__FILES_URL" not in demo:
        text = (DEPLOY / "overlays/demo/kustomization.yaml").read_text()
        assert "Supporting files are lost with their pods" in text


def test_no_image_is_whatever_is_newest() -> None:
    for one in EVERYTHING:
        for container in containers(one) if pod_of(one) else []:
            assert re.search(r":(?!latest$)[\w.-]+$|@sha256:", container["image"]), name_of(one)


# --- settings -------------------------------------------------------------------------------------

OVERLAYS = sorted(folder.name for folder in (DEPLOY / "overlays").iterdir())
FILES = [
    DEPLOY / "base/services/settings.env",
    *(DEPLOY / "overlays" / name / "settings.env" for name in OVERLAYS),
]


def given(workload: Document) -> Iterator[str]:
    for container in containers(workload):
        yield from (one["name"] for one in container.get("env") or [])


def test_every_variable_of_ours_is_a_setting() -> None:
    known = set(variables())
    names = {name for file in FILES for name in settings_of(file)} | {
        name for one in WORKLOADS for name in given(one)
    }
    (volume,) = documents(DEPLOY / "components/shared-volume/kustomization.yaml")
    names |= {literal.split("=")[0] for literal in volume["configMapGenerator"][0]["literals"]}
    assert {name for name in names if name.startswith("LIFECYCLE_")} - known == set()
    others = {name for name in names if not name.startswith("LIFECYCLE_")}
    assert others <= {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_API_KEY", "AWS_REGION", "AWS_ACCESS_KEY_ID",
                      "AWS_SECRET_ACCESS_KEY"}  # fmt: skip


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_settings_of_an_overlay_are_taken(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = settings_of(FILES[0]) | settings_of(DEPLOY / "overlays" / overlay / "settings.env")
    for name, value in merged.items():
        monkeypatch.setenv(name, value)
    loaded = Settings.load()
    assert (loaded.cluster.kind, loaded.cluster.namespace) == ("kubernetes", CRAWLS)
    assert (
        loaded.cluster.service_account
        == of_kind("ServiceAccount")[0]["metadata"]["name"]
        == "crawl"
    )
    assert loaded.cluster.kubeconfig is None, "services are their own service accounts"
    assert load(DEPLOY / "overlays" / overlay / "crawlers.yaml")
    assert str(loaded.catalogue.parent) == "/etc/crawler-lifecycle"
    assert str((loaded.gateway.callers_file or Path()).parent) == "/etc/crawler-lifecycle-tokens"


def ports(workload: Document) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for one in containers(workload)
        for port in one.get("ports") or []
    }


@pytest.fixture
def base_settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in settings_of(FILES[0]).items():
        monkeypatch.setenv(name, value)
    return Settings.load()


def test_ports_are_those_of_the_settings(base_settings: Settings) -> None:
    for one in of_kind("Deployment"):
        name = one["metadata"]["name"]
        if name.startswith("worker-"):
            expected = {
                "health": base_settings.worker.health_port,
                "metrics": base_settings.worker.metrics_port,
            }
        else:
            expected = {"http": getattr(base_settings, name).port}
        assert ports(one) == expected, name
    workloads = {one["metadata"]["name"]: one for one in of_kind("Deployment")}
    for service in of_kind("Service"):
        name = service["metadata"]["name"]
        (port,) = service["spec"]["ports"]
        assert ports(workloads[name])[port["targetPort"]] == port["port"]
        url = getattr(base_settings, name).url
        assert url == f"http://{name}.{SERVICES}.svc:{port['port']}", "where the others look for it"
        labels_of_pod = workloads[name]["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels_of_pod.items()


def routes(workload: str) -> set[str]:
    """Return the paths that a service answers on the port of its probes."""
    if workload.startswith("worker-"):
        return {route.path for route in Health(["workflows"]).app("127.0.0.1").routes}  # type: ignore[attr-defined]
    if workload == "gateway":
        return set(json.loads((ROOT / "docs/openapi.json").read_text())["paths"])
    return set(
        re.findall(
            r'@app\.get\("([^"]+)"', (ROOT / "crawler_lifecycle/scheduler/app.py").read_text()
        )
    )


def test_probes_ask_for_paths_that_are_answered() -> None:
    for workload in of_kind("Deployment"):
        name = workload["metadata"]["name"]
        (container,) = containers(workload)
        probes = {
            kind: container[f"{kind}Probe"]["httpGet"]
            for kind in ("startup", "liveness", "readiness")
        }
        assert {probe["path"] for probe in probes.values()} <= routes(name), name
        assert {probe["port"] for probe in probes.values()} <= set(ports(workload)), name
        assert probes["liveness"]["path"] == "/healthz", (
            "an outage of the database must not restart everything"
        )
        expected = "/healthz" if name == "gateway" else "/readyz"
        assert probes["readiness"]["path"] == expected, (
            "without Temporal the gateway still reads, and records stops"
        )


def test_a_process_gets_the_time_that_it_takes_to_leave(base_settings: Settings) -> None:
    for workload in of_kind("Deployment"):
        spec, name = workload["spec"]["template"]["spec"], workload["metadata"]["name"]
        own = base_settings.worker.grace_s if name.startswith("worker-") else listening.GRACE_S
        pause = (
            spec["containers"][0]
            .get("lifecycle", {})
            .get("preStop", {})
            .get("sleep", {})
            .get("seconds", 0)
        )
        assert spec["terminationGracePeriodSeconds"] >= own + pause + 10, name
        assert bool(pause) == (not name.startswith("worker-")), (
            "whoever is behind a Service is still sent requests"
        )


def test_there_is_a_workload_for_every_role_and_every_command_exists() -> None:
    asked = {tuple(containers(one)[0]["args"]) for one in WORKLOADS}
    assert asked == {
        *(("worker", role) for role in (*ROLES, OBSERVER)),
        *(("gateway",), ("scheduler",), ("db", "upgrade")),
    }
    (cluster,) = [one for one in WORKLOADS if one["metadata"]["name"] == "worker-cluster"]
    wake_ups = [
        one for one in containers(cluster)[0]["env"] if one["name"] == "LIFECYCLE_WORKER__WAKE_UPS"
    ]
    assert wake_ups == [{"name": "LIFECYCLE_WORKER__WAKE_UPS", "value": "false"}], (
        "its account may not watch"
    )


# --- secrets --------------------------------------------------------------------------------------


def secret_keys() -> dict[tuple[str, str], bool]:
    """Map (Secret, key) to whether it is optional."""
    found = {}
    for one in WORKLOADS:
        for container in containers(one):
            for variable in container.get("env") or []:
                if ref := (variable.get("valueFrom") or {}).get("secretKeyRef"):
                    found[ref["name"], ref["key"]] = bool(ref.get("optional"))
        for volume in one["spec"]["template"]["spec"].get("volumes") or []:
            for item in (volume.get("secret") or {}).get("items") or []:
                found[volume["secret"]["secretName"], item["key"]] = False
    for monitor in of_kind("ServiceMonitor", among=EVERYTHING):
        for endpoint in monitor["spec"]["endpoints"]:
            credentials = endpoint["authorization"]["credentials"]
            found[credentials["name"], credentials["key"]] = True
    return found


def test_templates_hold_what_is_asked_for_and_no_secret() -> None:
    templates = documents(DEPLOY / "secrets/secrets.yaml")
    held = {
        (one["metadata"]["name"], key): value
        for one in templates
        for key, value in one["stringData"].items()
    }
    assert set(held) == set(secret_keys())
    for value in held.values():
        assert re.fullmatch(
            r"[A-Z =]+|mysql\+pymysql://\w+:PASSWORD@DATABASE_HOST/lifecycle", value
        ), value
    assert {one["kind"] for one in EVERYTHING} & {"Secret"} == set()


def test_the_secrets_of_the_demo_are_complete() -> None:
    script = (DEPLOY / "secrets/make-demo.sh").read_text()
    secret = re.compile(
        r"name: ([\w-]+), namespace.*?\nstringData:\n(.*?)(?=^---|^END)", re.DOTALL | re.MULTILINE
    )
    made = {
        (name, key)
        for name, block in secret.findall(script)
        for key in re.findall(r"^  ([\w.-]+):", block, re.MULTILINE)
    }
    assert {key for key, optional in secret_keys().items() if not optional} <= made


def test_secrets_of_a_running_demo_are_never_written_over() -> None:
    """The database keeps its first password."""
    for file in (
        DEPLOY / "secrets/make-demo.sh",
        DEPLOY / "overlays/demo/kustomization.yaml",
        DEPLOYMENT,
    ):
        calls = re.findall(r"make-demo\.sh \| kubectl (\w+)", file.read_text())
        assert calls == ["create"], file.name
    order = [
        PAGE.index(one)
        for one in ("apply -k deploy/overlays/demo", "make-demo.sh |", "overlays/demo/migration |")
    ]
    assert order == sorted(order)


def test_only_the_migration_owns_the_schema() -> None:
    owners = [
        one["metadata"]["name"]
        for one in WORKLOADS
        if "crawler-lifecycle-database-owner" in json.dumps(one)
    ]
    assert owners == ["db-upgrade"]
    scheduler = next(one for one in WORKLOADS if one["metadata"]["name"] == "scheduler")
    assert "database" not in json.dumps(scheduler), "it never touches the database"


# --- S15: rights ----------------------------------------------------------------------------------


def test_each_role_grants_what_the_code_needs_and_nothing_else() -> None:
    granted = {}
    for role in of_kind("Role"):
        elsewhere = role["metadata"]["namespace"] != CRAWLS
        assert elsewhere == (role["metadata"]["name"] == CLUSTER_ID)
        granted[role["metadata"]["name"]] = {
            rbac.Right(verb, resource, group, SYSTEM if elsewhere else "")
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for rule in role["rules"]:
            assert set(rule) <= {"apiGroups", "resources", "verbs", "resourceNames"}
            if rule["resources"] == ["namespaces"]:
                assert rule["resourceNames"] == [role["metadata"]["namespace"]]
    assert granted.pop(CLUSTER_ID) == {rbac.CLUSTER}
    assert granted == {
        name: {one for one in those if not one.name} for name, those in rbac.ROLES.items()
    }


def test_each_account_has_its_role_and_the_others_have_none() -> None:
    bound = {}
    reads_system = set()
    for binding in of_kind("RoleBinding"):
        assert binding["roleRef"]["kind"] == "Role"
        for subject in binding["subjects"]:
            assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", SERVICES)
            if binding["roleRef"]["name"] == CLUSTER_ID:
                assert binding["metadata"]["namespace"] == SYSTEM
                reads_system.add(subject["name"])
                continue
            assert subject["name"] not in bound
            bound[subject["name"]] = binding["roleRef"]["name"]
    assert bound == dict(rbac.COMPONENTS)
    assert reads_system == {name for name in bound if rbac.CLUSTER in rbac.granted(name)}
    accounts = {
        one["metadata"]["name"]
        for one in of_kind("ServiceAccount")
        if one["metadata"]["namespace"] == SERVICES
    }
    assert set(bound) <= accounts
    used = {(pod_of(one) or {})["spec"]["serviceAccountName"] for one in WORKLOADS}
    assert used == accounts, "an account for each workload"
    assert {"ClusterRole", "ClusterRoleBinding"} & {one["kind"] for one in EVERYTHING} == set()


def test_nobody_has_what_nobody_needs() -> None:
    every = {right for those in rbac.ROLES.values() for right in those}
    assert not any("*" in (right.verb, right.resource, right.group) for right in every)
    assert {right.verb for right in every if right.resource == "secrets"} == {"create"}, (
        "no Secret is ever read"
    )
    forbidden = {
        "pods/exec",
        "pods/attach",
        "pods/portforward",
        "pods/ephemeralcontainers",
        "nodes",
        "roles",
    }
    assert {right.resource for right in every} & {
        *forbidden,
        "rolebindings",
        "serviceaccounts/token",
    } == set()
    assert {right.verb for right in every} & {
        "escalate",
        "bind",
        "impersonate",
        "deletecollection",
        "update",
    } == set()
    mounted = {
        one["metadata"]["name"]
        for one in WORKLOADS
        if (pod_of(one) or {})["spec"]["automountServiceAccountToken"]
    }
    assert mounted == set(rbac.COMPONENTS), (
        "a token for those that ask the cluster, and for nobody else"
    )
    for account in of_kind("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False, (
            "only a pod that says so gets a token"
        )


# --- S16: pods ------------------------------------------------------------------------------------


def test_every_pod_is_restricted() -> None:
    for workload in (one for one in EVERYTHING if pod_of(one)):
        spec, name = (pod_of(workload) or {})["spec"], name_of(workload)
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert spec["enableServiceLinks"] is False, name
        volumes = spec.get("volumes") or []
        assert all(
            {"emptyDir", "configMap", "secret", "persistentVolumeClaim"} & set(one)
            for one in volumes
        ), name
        assert all(one["emptyDir"].get("sizeLimit") for one in volumes if "emptyDir" in one), name
        for container in containers(workload):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert {"memory", "ephemeral-storage"} <= set(container["resources"]["limits"]), name
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert {mount["name"] for mount in container["volumeMounts"]} == {
                one["name"] for one in volumes
            }, name


def test_our_pods_run_as_the_image_does_and_write_where_it_says() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    user = re.search(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)
    assert user is not None
    for one in WORKLOADS:
        security = (pod_of(one) or {})["spec"]["securityContext"]
        assert (str(security["runAsUser"]), str(security["runAsGroup"])) == user.groups()
        paths = {
            mount["mountPath"]
            for mount in containers(one)[0]["volumeMounts"]
            if not mount.get("readOnly")
        }
        assert paths == {"/tmp", re.search(r"^WORKDIR (/var\S+)$", dockerfile, re.MULTILINE)[1]}  # type: ignore[index]


def test_namespaces_enforce_it() -> None:
    for namespace in of_kind("Namespace"):
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_drained_node_takes_one_of_each_at_a_time() -> None:
    budgets = {one["metadata"]["name"]: one["spec"] for one in of_kind("PodDisruptionBudget")}
    deployments = {one["metadata"]["name"]: one["spec"] for one in of_kind("Deployment")}
    assert set(budgets) == set(deployments)
    for name, budget in budgets.items():
        assert budget["maxUnavailable"] == 1
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow", (
            "an outage must not hold every drain up"
        )
        assert budget["selector"] == deployments[name]["selector"]
        assert (
            budget["selector"]["matchLabels"].items()
            <= deployments[name]["template"]["metadata"]["labels"].items()
        )
    assert all(
        deployments[f"worker-{role}"]["replicas"] >= 2
        for role in ("workflows", "control", "cluster")
    )


def test_a_cluster_grows_for_crawls_and_nothing_gives_way_to_them() -> None:
    """Pods below the Cluster Autoscaler's cutoff do not count; above 0, crawls would preempt
    others.
    """
    settings = dict(
        line.split("=", 1)
        for line in (DEPLOY / "overlays/production/settings.env").read_text().splitlines()
        if "PRIORITY_CLASS=" in line
    )
    values = {
        one["metadata"]["name"]: one["value"]
        for one in documents(DEPLOY / "overlays/production/priority.yaml")
    }
    # The Cluster Autoscaler adds no node for pods below -10 (its
    # --expendable-pods-priority-cutoff).
    assert all(-10 <= values[name] <= 0 for name in settings.values())
    assert len(settings) == 2


def test_crawls_cannot_take_the_whole_cluster() -> None:
    (quota,) = of_kind("ResourceQuota")
    assert {"pods", "requests.cpu", "requests.memory", "limits.memory", "count/jobs.batch"} <= set(
        quota["spec"]["hard"]
    )
    (limits,) = of_kind("LimitRange")
    (container,) = limits["spec"]["limits"]
    assert set(container["default"]) == {"memory"}, (
        "everything else is said by the manifest of each task"
    )
    assert "defaultRequest" not in container
    assert {"cpu", "memory", "ephemeral-storage"} <= set(container["max"])
    bare = Deployment(run_ref(7), 1, "shops", {}, {}, [], Resources(), Limits(), datetime.now(UTC))
    made: Any = resources_of(bare, CrawlerDefinition("shops"), shared=False)
    assert set(made["requests"]) == {"cpu", "memory", "ephemeral-storage"}
    assert set(made["limits"]) == {"ephemeral-storage"}


# --- S17: network ---------------------------------------------------------------------------------

CRAWL = Pod(CRAWLS, {labels.MANAGED_BY: labels.MANAGER, labels.RUN: "7"})
STRANGER = Pod("default", {"app": "anything"})
INGRESS = Pod("edge", {"app": "proxy"}, {"crawler-lifecycle/may-reach-gateway": "true"})
PROMETHEUS = Pod("watching", {"app": "prometheus"}, {"crawler-lifecycle/may-scrape": "true"})
DNS = Pod("kube-system", {"k8s-app": "kube-dns"})
WEBSITE, METADATA, API_SERVER, DATABASE = (
    "93.184.216.34",
    "169.254.169.254",
    "10.96.0.1",
    "10.20.0.5",
)


def ours(component: str) -> Pod:
    return Pod(
        SERVICES, {"app.kubernetes.io/name": SERVICES, "app.kubernetes.io/component": component}
    )


WORKERS = [f"worker-{role}" for role in (*ROLES, OBSERVER)]
ALLOWED = [
    (CRAWL, WEBSITE, 443), (CRAWL, WEBSITE, 80), (CRAWL, WEBSITE, 8443), (CRAWL, "2606:2800:220:1::1", 443),
    (CRAWL, ours("gateway"), 8500), (CRAWL, DNS, 53),
    *((ours(one), DATABASE, 3306) for one in (*WORKERS, "gateway", "db-upgrade")),
    *((ours(one), DATABASE, 7233) for one in (*WORKERS, "gateway")),
    *((ours(one), API_SERVER, 443) for one in rbac.COMPONENTS),
    *((ours(one), ours("scheduler"), 8600) for one in ("worker-cluster", "gateway")),
    *((ours(f"worker-{one}"), WEBSITE, 443) for one in ("export", "workflows", "webhooks", "user-code")),
    (ours("gateway"), WEBSITE, 443),
    *((ours(one), DNS, 53) for one in (*WORKERS, "gateway", "scheduler", "db-upgrade")),
    *((PROMETHEUS, ours(one), 9464) for one in WORKERS),
    (PROMETHEUS, ours("gateway"), 8500), (PROMETHEUS, ours("scheduler"), 8600), (INGRESS, ours("gateway"), 8500),
]  # fmt: skip
FORBIDDEN = [
    *((CRAWL, ours(one), port) for one in (*WORKERS, "scheduler") for port in (8600, 8700, 9464, 443)),
    (CRAWL, ours("gateway"), 22), (CRAWL, METADATA, 80), (CRAWL, API_SERVER, 443), (CRAWL, API_SERVER, 6443),
    (CRAWL, DATABASE, 3306), (CRAWL, DATABASE, 7233), (CRAWL, "192.168.1.1", 443), (CRAWL, "172.20.0.9", 443),
    (CRAWL, "100.64.3.3", 443), (CRAWL, "127.0.0.1", 8500), (CRAWL, "fd00::1", 443), (CRAWL, "64:ff9b::a00:1", 443),
    (CRAWL, CRAWL, 8080), (CRAWL, STRANGER, 80), (STRANGER, CRAWL, 80), (ours("gateway"), CRAWL, 80),
    (CRAWL, Pod("kube-system", {"app": "dashboard"}), 443),
    *((STRANGER, ours(one), port) for one in (*WORKERS, "gateway", "scheduler") for port in (8500, 8600, 8700, 9464)),
    *((INGRESS, ours(one), port) for one in (*WORKERS, "scheduler") for port in (8600, 8700, 9464)),
    (PROMETHEUS, ours("worker-control"), 8700), (ours("worker-export"), ours("scheduler"), 8600),
    (ours("scheduler"), DATABASE, 3306), (ours("scheduler"), DATABASE, 7233), (ours("db-upgrade"), API_SERVER, 443),
    *((ours("worker-webhooks"), one, 443) for one in (API_SERVER, METADATA, "192.168.1.1", "fd00::1")),
    (ours("worker-webhooks"), ours("scheduler"), 8600), (ours("worker-webhooks"), WEBSITE, 80),
    (ours("db-upgrade"), DATABASE, 7233), (ours("worker-control"), WEBSITE, 80), (ours("worker-control"), WEBSITE, 22),
]  # fmt: skip
POLICIES = of_kind("NetworkPolicy")


def end(one: Any) -> str:
    return (
        str(one)
        if not isinstance(one, Pod)
        else f"{one.namespace}/{one.labels.get('app.kubernetes.io/component', '')}"
    )


def test_what_has_to_reach_each_other_does() -> None:
    for source, target, port in ALLOWED:
        reached = allowed(POLICIES, source, target, port, "UDP" if port == 53 else "TCP")
        assert reached, (end(source), end(target), port)


def test_nothing_else_does() -> None:
    assert FORBIDDEN
    for source, target, port in FORBIDDEN:
        assert not allowed(POLICIES, source, target, port), (end(source), end(target), port)


def test_the_doctor_in_a_pod_asks_for_what_the_pod_can_reach() -> None:
    reached = {"database": (DATABASE, 3306), "temporal": (DATABASE, 7233),
               **dict.fromkeys(("archive", "events", "pushes", "files"), (WEBSITE, 443))}  # fmt: skip
    workloads = {one["metadata"]["name"]: one for one in of_kind("Deployment")}
    assert set(place.USES) == set(workloads)
    for name, checks in place.USES.items():
        for check in checks & set(reached):
            target, port = reached[check]
            assert allowed(POLICIES, ours(name), target, port), f"{name}: {check}"
        assert ("database" in checks) is (
            "LIFECYCLE_DATABASE__URL" in set(given(workloads[name]))
        ), name


def test_both_namespaces_begin_with_nothing() -> None:
    empty = [one for one in POLICIES if one["metadata"]["name"] == "nothing-unless-allowed"]
    assert {one["metadata"]["namespace"] for one in empty} == {SERVICES, CRAWLS}
    assert all(
        one["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} for one in empty
    )


def test_the_addresses_of_production_are_narrower_than_the_base_and_keep_crawls_away() -> None:
    patches = documents(DEPLOY / "overlays/production/network.yaml")
    by_name = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in POLICIES}
    for patch in patches:
        whole = by_name[patch["metadata"]["namespace"], patch["metadata"]["name"]]
        whole = yaml.safe_load(yaml.safe_dump(whole))
        whole["spec"]["egress"] = patch["spec"]["egress"]
        by_name[patch["metadata"]["namespace"], patch["metadata"]["name"]] = whole
    policies = list(by_name.values())
    assert allowed(policies, ours("worker-control"), "203.0.113.10", 6443)
    assert not allowed(policies, ours("worker-control"), WEBSITE, 443)
    assert not allowed(policies, CRAWL, "203.0.113.10", 443), "the API server has a public address"
    assert allowed(policies, CRAWL, WEBSITE, 443)


# --- clearing the volume --------------------------------------------------------------------------


def test_the_clearing_of_the_volume_is_who_wrote_there_and_may_do_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account, job = resources(DEPLOY / "components/gc")
    assert account["automountServiceAccountToken"] is False
    pod = (pod_of(job) or {})["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (
        account["metadata"]["name"],
        False,
    )
    assert account["metadata"]["name"] not in {*rbac.COMPONENTS, *rbac.RIGHTLESS}, "it has no role"
    security, user = pod["securityContext"], PodOptions().user
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (
        user,
        user,
        user,
    )
    (volume,) = documents(DEPLOY / "components/shared-volume/kustomization.yaml")
    named = dict(literal.split("=") for literal in volume["configMapGenerator"][0]["literals"])
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["crawl-files"] == {
        "name": "crawl-files",
        "mountPath": named["LIFECYCLE_CLUSTER__VOLUME_PATH"],
    }
    (claim,) = [
        one["persistentVolumeClaim"] for one in pod["volumes"] if "persistentVolumeClaim" in one
    ]
    assert claim == {"claimName": named["LIFECYCLE_CLUSTER__VOLUME_CLAIM"]}, "not read-only"
    asked = {
        (one["valueFrom"]["secretKeyRef"]["name"], one["valueFrom"]["secretKeyRef"]["key"])
        for one in container["env"]
    }
    assert asked <= set(secret_keys())
    assert set(given(job)) <= {*variables(), "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    called: list[dict[str, object]] = []
    monkeypatch.setattr(
        cluster_gc,
        "collect",
        functools.wraps(cluster_gc.collect)(lambda **given: called.append(given)),
    )
    assert main.run(container["args"]) == 0
    assert called == [{"older_than": "14d", "yes": True}]


# --- monitoring -----------------------------------------------------------------------------------


def known_metrics() -> set[str]:
    """Return our processes' metrics: from the code's tables, and from the page that is compared
    with them.
    """
    page = set(
        re.findall(r"^- `(\w+)`", (ROOT / "docs/observability.md").read_text(), re.MULTILINE)
    )
    page |= set(re.findall(r"`(temporal_\w+)`", (ROOT / "docs/observability.md").read_text()))
    return page | {f"{one.name}_total" for one in meters.INSTRUMENTS}


def test_alarms_speak_of_figures_that_exist() -> None:
    (rules,) = documents(DEPLOY / "components/monitoring/alerts.yaml")
    asked = set()
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            assert set(rule) >= {"alert", "expr", "labels", "annotations"}
            assert rule["annotations"]["summary"]
            asked |= set(
                re.findall(r"\b((?:lifecycle|crawler_lifecycle|temporal)_\w+)", rule["expr"])
            )
    assert asked
    assert {re.sub(r"_bucket$", "", name) for name in asked} - known_metrics() == set()
    names = [rule["alert"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    assert len(names) == len(set(names))


def test_the_chart_asks_for_figures_that_exist() -> None:
    """In its dashboard, and in its autoscaling."""
    board = json.loads((DEPLOY / "helm/files/dashboard.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += re.findall(
        r"query: (.*)", (DEPLOY / "helm/templates/extras/autoscaling.yaml").read_text()
    )
    names = {
        one
        for text in asked
        for one in re.findall(r"\b((?:lifecycle|crawler_lifecycle|temporal)_\w+)", text)
    }
    assert len(names) > 15
    assert {re.sub(r"_bucket$", "", name) for name in names} - known_metrics() == set()


def test_monitors_find_the_ports() -> None:
    monitors = documents(DEPLOY / "components/monitoring/monitors.yaml")
    workloads = of_kind("Deployment")
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        if monitor["kind"] == "PodMonitor":
            (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
            found = [
                w
                for w in workloads
                if wanted <= w["spec"]["template"]["metadata"]["labels"].items()
            ]
            scraped = {w["metadata"]["name"] for w in found if endpoint["port"] in ports(w)}
            assert scraped == set(WORKERS)
        else:
            (endpoint,) = monitor["spec"]["endpoints"]
            (service,) = [
                s for s in of_kind("Service") if wanted <= s["metadata"]["labels"].items()
            ]
            assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert endpoint["path"] == "/metrics"
