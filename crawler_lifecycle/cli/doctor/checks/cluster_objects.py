"""Checks of the Kubernetes namespace: quota, objects that pods refer to, leftovers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from crawler_lifecycle.adapters.catalogue import load
from crawler_lifecycle.cli.doctor.line import Level, Line, counted
from crawler_lifecycle.clusters.kubernetes.client.odd_values import amount
from crawler_lifecycle.domain.errors import ClusterUnavailable, LifecycleError

if TYPE_CHECKING:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
    from crawler_lifecycle.settings import Settings

#: An end is recorded, and its pod released, at the next look at the latest; the ladder ends at fifteen minutes.
LEFT_OVER_S = 3600.0
#: Above this share of a quota tasks begin to wait.
NEARLY = Decimal("0.9")
#: The Cluster Autoscaler's default of --expendable-pods-priority-cutoff: pods below it count as nothing.
EXPENDABLE = -10

#: Never the base alone: that would take back what an overlay changed.
APPLY = "apply your overlay of deploy/ again, as an administrator"
ASK_AGAIN = "try again; kubectl get --raw /readyz says how the API server is"


# --- room ----------------------------------------------------------------------------------------------------------


def room(api: Api) -> list[Line]:
    """Whether the quotas of the namespace have room."""
    found = _items(api, api.path("resourcequotas"))
    if found is None:
        return [Line("quota", "ok", "quotas are not ours to read; a full one is told as the reason why tasks wait")]
    lines = [line for quota in found for line in quota_lines(quota)]
    if not found:
        cure = f"{APPLY} (base/crawls/quota.yaml has one)"
        return [Line("quota", "warn", f"{api.namespace} has no quota: crawls may take the whole cluster", cure)]
    return lines or [Line("quota", "ok", f"there is room in {counted(len(found), 'quota')}")]


def quota_lines(quota: dict[str, Any]) -> list[Line]:
    """What is used up of a ResourceQuota, of what pods and Jobs need."""
    status, name, namespace = quota.get("status") or {}, quota["metadata"]["name"], quota["metadata"].get("namespace")
    hard = status.get("hard") or (quota.get("spec") or {}).get("hard") or {}
    lines = []
    for what, limit in hard.items():
        most, used = amount(limit), amount((status.get("used") or {}).get(what, "0"))
        if most is None or used is None or not _concerns_crawls(what):
            continue
        told = f"quota {name}: {what} {(status.get('used') or {}).get(what, '0')} of {limit}"
        edit = " ".join(["kubectl edit resourcequota", name, *(["-n", namespace] if namespace else [])])
        cure = f"raise it in your overlay, or for now by {edit}; waiting tasks go on by themselves"
        if most == 0:
            lines.append(Line("quota", "bad", f"{told}: no crawl can start", cure))
        elif used >= NEARLY * most:
            word = "it is full, tasks wait" if used >= most else "it is nearly full"
            lines.append(Line("quota", "warn", f"{told}: {word}", cure))
    return lines


def _concerns_crawls(what: str) -> bool:
    jobs = ("pods", "count/pods", "count/jobs.batch")
    return what in jobs or what.removeprefix("requests.").removeprefix("limits.") in (
        "cpu",
        "memory",
        "ephemeral-storage",
    )


# --- what pods refer to --------------------------------------------------------------------------------------------


def account(api: Api, name: str) -> list[Line]:
    """Whether the service account of crawl pods is there, and powerless."""
    found = _object(api, "serviceaccounts", name)
    if found is None:
        return [Line("account", "ok", f"service account {name!r} is not ours to read")]
    if not found:
        return [Line("account", "bad", f"there is no service account {name!r}: no crawl pod can be made", APPLY)]
    if found.get("automountServiceAccountToken") is not False:
        cure = f"kubectl patch serviceaccount {name} -n {api.namespace} -p '{{\"automountServiceAccountToken\":false}}'"
        return [Line("account", "warn", f"service account {name!r} mounts its token where a pod does not say no", cure)]
    return [Line("account", "ok", f"service account {name!r} is there and mounts no token")]


def pull_secrets(api: Api, settings: Settings) -> list[Line]:
    """Whether the image pull secrets of settings and catalogue are there, as far as they are ours to read."""
    wanted: dict[str, list[str]] = {name: ["LIFECYCLE_CLUSTER__PULL_SECRETS"] for name in settings.cluster.pull_secrets}
    for crawler in _crawlers(settings):
        for name in crawler.kubernetes.pull_secrets:
            wanted.setdefault(name, []).append(f"crawler {crawler.name}")
    lines, unread = [], []
    for name, users in wanted.items():
        found = _object(api, "secrets", name)
        if found is None:
            unread.append(name)
        elif not found:
            text = f"there is no image pull secret {name!r} ({', '.join(users[:3])})"
            lines.append(
                Line("pull secrets", "bad", text, f"kubectl create secret docker-registry {name} -n {api.namespace} …")
            )
        elif found.get("type") not in ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"):
            text = f"secret {name!r} is of type {found.get('type')!r} and holds no login of a registry"
            lines.append(
                Line("pull secrets", "bad", text, f"kubectl create secret docker-registry {name} -n {api.namespace} …")
            )
    if unread:
        lines.append(Line("pull secrets", "ok", f"not ours to read, as it should be: {', '.join(unread)}"))
    if wanted and not lines:
        lines.append(Line("pull secrets", "ok", f"there: {', '.join(wanted)}"))
    return lines


def claim(api: Api, name: str | None) -> list[Line]:
    """Whether the shared volume's claim is bound."""
    if name is None:
        return []
    found = _object(api, "persistentvolumeclaims", name)
    if found is None:
        return [Line("volume", "ok", f"claim {name!r} is not ours to read")]
    if not found:
        return [
            Line(
                "volume",
                "bad",
                f"there is no claim {name!r}: no crawl pod can start",
                "deploy/components/shared-volume",
            )
        ]
    phase, modes = (found.get("status") or {}).get("phase"), (found.get("spec") or {}).get("accessModes") or []
    if phase != "Bound":
        cure = f"kubectl describe pvc {name} -n {api.namespace} says what it waits for"
        level: Level = "bad" if phase == "Lost" else "warn"
        return [Line("volume", level, f"claim {name!r} is {phase}, not bound: pods wait for it", cure)]
    if "ReadWriteMany" not in modes:
        cure = "use a claim with ReadWriteMany, or object storage (LIFECYCLE_CLUSTER__FILES_URL)"
        return [Line("volume", "warn", f"claim {name!r} is {', '.join(modes)}: pods of one node only can use it", cure)]
    return [Line("volume", "ok", f"claim {name!r} is bound, {', '.join(modes)}")]


def priority(api: Api, settings: Settings) -> list[Line]:
    """Whether the priority classes of crawl pods are there, and none is so low that no node is added for them."""
    chosen = settings.cluster
    wanted: dict[str, str] = {}
    if chosen.scheduled_priority_class is not None:
        wanted[chosen.scheduled_priority_class] = "LIFECYCLE_CLUSTER__SCHEDULED_PRIORITY_CLASS"
    if chosen.onetime_priority_class is not None:
        wanted[chosen.onetime_priority_class] = "LIFECYCLE_CLUSTER__ONETIME_PRIORITY_CLASS"
    for crawler in _crawlers(settings):
        if crawler.kubernetes.priority_class is not None:
            wanted.setdefault(crawler.kubernetes.priority_class, f"crawler {crawler.name}")
    lines, well = [], []
    for name, user in wanted.items():
        found = _read(api, f"/apis/scheduling.k8s.io/v1/priorityclasses/{quote(name, safe='')}")
        value = (found or {}).get("value") or 0
        if found is None:
            well.append(f"{name!r} is not ours to read")
        elif not found:
            text = f"there is no priority class {name!r} ({user}): no pod that names it can be made"
            lines.append(Line("priority", "bad", text, f"make it, or name another one in {user}"))
        elif value < EXPENDABLE:
            text = (
                f"priority class {name!r} ({user}) is {value}: below {EXPENDABLE} the Cluster Autoscaler adds no node "
                "for pods that wait, and takes nodes away under those that run"
            )
            cure = f"delete the class and make it again with {EXPENDABLE} or more; a value cannot be changed"
            lines.append(Line("priority", "warn", text, cure))
        else:
            well.append(f"{name!r} is {value}")
    return [*lines, *([Line("priority", "ok", f"priority class {', '.join(well)}")] if well else [])]


def queues(api: Api, settings: Settings) -> list[Line]:
    """Queues that give Jobs to other clusters, as far as we may try to make a Job. None is made."""
    from crawler_lifecycle.clusters.kubernetes.jobs.deployer import given_away
    from crawler_lifecycle.clusters.kubernetes.looks.pod_waits import QUEUE_NAME

    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "probe"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True, "template": template}}
    lines = []
    for queue in sorted({name for crawler in _crawlers(settings) if (name := crawler.kubernetes.queue) is not None}):
        told = given_away(api, {**job, "metadata": {"name": "doctor-probe", "labels": {QUEUE_NAME: queue}}})
        if told is not None:
            why, _, cure = told.partition("; ")
            lines.append(Line("queue", "bad", why, cure))
    return lines


def _crawlers(settings: Settings) -> list[CrawlerDefinition]:
    try:
        return load(settings.crawlers) if settings.crawlers.exists() else []
    except LifecycleError:
        return []  # told by the check of the catalogue


# --- leftovers -----------------------------------------------------------------------------------------------------


def left_over(api: Api) -> list[Line]:
    """Whether pods wait for our finalizer for longer than anything of ours takes."""
    from crawler_lifecycle.clusters.kubernetes.client.errors import Refused
    from crawler_lifecycle.clusters.kubernetes.jobs import finalizers

    try:
        found = finalizers.list_held(api)
    except Refused:
        return []  # told as a right that is missing
    except ClusterUnavailable as error:
        return [Line("finalizers", "bad", str(error), ASK_AGAIN)]
    old = finalizers.waiting_longer_than(found, datetime.now(UTC), LEFT_OVER_S)
    if not old:
        return [
            Line(
                "finalizers",
                "ok",
                f"no pod waits for ours longer than it should ({counted(len(found), 'pod')} with it)",
            )
        ]
    runs = sorted({pod.run_id for pod in old if pod.run_id is not None})
    named = f" (runs {', '.join(map(str, runs[:5]))}{' …' if len(runs) > 5 else ''})" if runs else ""
    cure = (
        "look whether workers of the roles cluster and control are ready; when nobody will record them: "
        f"crawlctl cluster release --namespace {api.namespace}"
    )
    word = "pod that ended long ago is" if len(old) == 1 else "pods that ended long ago are"
    return [Line("finalizers", "warn", f"{len(old):,} {word} still held by our finalizer{named}", cure)]


# --- reading -------------------------------------------------------------------------------------------------------


def _object(api: Api, resource: str, name: str) -> dict[str, Any] | None:
    """An object of the namespace; empty when there is none, ``None`` when it is not ours to read."""
    return _read(api, api.path(resource, name))


def _read(api: Api, path: str) -> dict[str, Any] | None:
    from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound, Refused

    try:
        found: dict[str, Any] = json.loads(api.get(path))
    except NotFound:
        return {}
    except Refused:
        return None
    return found


def _items(api: Api, path: str) -> list[dict[str, Any]] | None:
    """The objects of a short list; ``None`` when it is not ours to read."""
    from crawler_lifecycle.clusters.kubernetes.client.errors import Refused

    try:
        found: list[dict[str, Any]] = json.loads(api.get(path)).get("items") or []
    except Refused:
        return None
    return found
