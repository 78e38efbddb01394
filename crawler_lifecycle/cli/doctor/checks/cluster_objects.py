"""Checks of the Kubernetes namespace: quota, objects that pods refer to, leftovers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from crawler_lifecycle.adapters.catalogue import load
from crawler_lifecycle.cli.doctor.report import Line, bad, counted, of_error, ok, warn
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.clusters.kubernetes.client.odd_values import amount
from crawler_lifecycle.domain.errors import ClusterUnavailable, LifecycleError

if TYPE_CHECKING:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
    from crawler_lifecycle.settings import Settings

#: Seconds after its end from which a pod counts as left over. Looks are at most 15 minutes apart and release it.
LEFT_OVER_S = 3600.0
#: Share of a quota from which it counts as nearly full.
NEARLY = Decimal("0.9")
#: Default of the Cluster Autoscaler's --expendable-pods-priority-cutoff. It ignores pods with a lower priority.
EXPENDABLE = -10
#: Resources of a quota that crawls use.
_PODS = ("pods", "count/pods", "count/jobs.batch")
_AMOUNTS = ("cpu", "memory", "ephemeral-storage")
_LOGINS = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")

#: The base alone must not be applied, because it would undo the changes of an overlay.
APPLY = "apply your overlay of deploy/ again, as an administrator"
ASK_AGAIN = "try again; kubectl get --raw /readyz shows the state of the API server"

Found = Mapping[str, Any]


# --- quotas --------------------------------------------------------------------------------------------------------


def quotas(api: Api) -> list[Line]:
    """Check that the quotas of the namespace have free capacity."""
    answer = _read(api, api.path("resourcequotas"))
    if answer is None:
        return [ok("quota", "this account may not read quotas; waiting tasks report a full quota as their reason")]
    found = answer.get("items") or []
    if not found:
        cure = f"{APPLY} (base/crawls/quota.yaml contains a quota)"
        return [warn("quota", f"{api.namespace} has no quota: crawls may use the whole cluster", cure)]
    lines = [line for quota in found for line in quota_lines(quota)]
    return lines or [ok("quota", f"{counted(len(found), 'quota')} with free capacity")]


def quota_lines(quota: Found) -> list[Line]:
    """Return a finding for each resource of crawls of which a ResourceQuota is full or nearly full."""
    status, name, namespace = quota.get("status") or {}, quota["metadata"]["name"], quota["metadata"].get("namespace")
    hard = status.get("hard") or (quota.get("spec") or {}).get("hard") or {}
    edit = " ".join(["kubectl edit resourcequota", name, *(["-n", namespace] if namespace else [])])
    cure = f"raise it in your overlay, or for now with {edit}; waiting tasks then continue by themselves"
    lines = []
    for what, limit in hard.items():
        said = (status.get("used") or {}).get(what, "0")
        most, used = amount(limit), amount(said)
        ours = what in _PODS or what.removeprefix("requests.").removeprefix("limits.") in _AMOUNTS
        if most is None or used is None or not ours:
            continue
        text = f"quota {name}: {what} {said} of {limit}"
        if most == 0:
            lines.append(bad("quota", f"{text}: no crawl can start", cure))
        elif used >= NEARLY * most:
            word = "it is full, tasks wait" if used >= most else "it is nearly full"
            lines.append(warn("quota", f"{text}: {word}", cure))
    return lines


# --- what pods refer to --------------------------------------------------------------------------------------------


def accounts(api: Api, settings: Settings) -> list[Line]:
    """Check that the service accounts of crawl pods exist, and mount no token."""
    named = [settings.cluster.service_account, *(crawler.kubernetes.service_account for crawler in _crawlers(settings))]
    return [_account(api, name) for name in dict.fromkeys(named) if name is not None]


def _account(api: Api, name: str) -> Line:
    def judge(found: Found, what: str) -> Line:
        if found.get("automountServiceAccountToken") is False:
            return ok("account", f"{what} exists and mounts no token")
        patch = "-p '{\"automountServiceAccountToken\":false}'"
        cure = f"kubectl patch serviceaccount {name} -n {api.namespace} {patch}"
        return warn("account", f"{what} mounts its token into every pod that does not forbid it", cure)

    missing = (": no crawl pod can be created", f"{APPLY}, or create the account that an entry of the catalogue names")
    return _referred(api, "account", f"service account {name!r}", api.path("serviceaccounts", name), missing, judge)


def runtimes(api: Api, settings: Settings) -> list[Line]:
    """Check that the runtime classes of the catalogue exist."""
    lines = []
    for name, user in {crawler.kubernetes.runtime_class: crawler.name for crawler in _crawlers(settings)}.items():
        if name is not None:
            what, path = (
                f"runtime class {name!r} (crawler {user})",
                f"/apis/node.k8s.io/v1/runtimeclasses/{quote(name)}",
            )
            missing = (": no pod with it can be created", "create it, or set another one in the catalogue")
            lines.append(
                _referred(api, "runtime", what, path, missing, lambda _, what: ok("runtime", f"{what} exists"))
            )
    return lines


def pull_secrets(api: Api, settings: Settings) -> list[Line]:
    """Check that the image pull secrets of settings and catalogue exist, if this account may read them."""
    wanted = dict.fromkeys(settings.cluster.pull_secrets, "LIFECYCLE_CLUSTER__PULL_SECRETS")
    for crawler in _crawlers(settings):
        wanted = dict.fromkeys(crawler.kubernetes.pull_secrets, f"crawler {crawler.name}") | wanted
    lines = []
    for name, user in wanted.items():
        cure = f"kubectl create secret docker-registry {name} -n {api.namespace} …"

        def judge(found: Found, what: str, cure: str = cure) -> Line:
            if found.get("type") in _LOGINS:
                return ok("pull secrets", f"{what} exists")
            text = f"{what} is of type {found.get('type')!r}, and has no login for a registry"
            return bad("pull secrets", text, cure)

        what = f"image pull secret {name!r}"
        path = api.path("secrets", name)
        lines.append(_referred(api, "pull secrets", what, path, (f" ({user})", cure), judge, ", which is correct"))
    return lines


def claim(api: Api, name: str | None) -> list[Line]:
    """Check that the shared volume's claim is bound."""
    if name is None:
        return []

    def judge(found: Found, what: str) -> Line:
        phase = (found.get("status") or {}).get("phase")
        modes = (found.get("spec") or {}).get("accessModes") or []
        if phase != "Bound":
            cure = f"kubectl describe pvc {name} -n {api.namespace} shows what it waits for"
            said = bad if phase == "Lost" else warn
            return said("volume", f"{what} is {phase}, not bound: pods wait for it", cure)
        if "ReadWriteMany" not in modes:
            cure = "use a claim with ReadWriteMany, or object storage (LIFECYCLE_CLUSTER__FILES_URL)"
            return warn("volume", f"{what} is {', '.join(modes)}: only pods of one node can use it", cure)
        return ok("volume", f"{what} is bound, {', '.join(modes)}")

    missing = (": no crawl pod can start", "apply deploy/components/shared-volume")
    return [_referred(api, "volume", f"claim {name!r}", api.path("persistentvolumeclaims", name), missing, judge)]


def priority(api: Api, settings: Settings) -> list[Line]:
    """Check that the priority classes of crawl pods exist, and are high enough for the Cluster Autoscaler."""
    chosen = settings.cluster
    wanted = {crawler.kubernetes.priority_class: f"crawler {crawler.name}" for crawler in _crawlers(settings)}
    wanted[chosen.scheduled_priority_class] = "LIFECYCLE_CLUSTER__SCHEDULED_PRIORITY_CLASS"
    wanted[chosen.onetime_priority_class] = "LIFECYCLE_CLUSTER__ONETIME_PRIORITY_CLASS"
    wanted |= dict.fromkeys(chosen.priority_classes.values(), "LIFECYCLE_CLUSTER__PRIORITY_CLASSES")

    def judge(found: Found, what: str) -> Line:
        value = found.get("value") or 0
        if value >= EXPENDABLE:
            return ok("priority", f"{what} is {value}")
        text = (
            f"{what} is {value}: below {EXPENDABLE} the Cluster Autoscaler adds no node "
            "for waiting pods, and removes nodes of running pods"
        )
        cure = f"delete the class and create it with {EXPENDABLE} or more; a value cannot be changed"
        return warn("priority", text, cure)

    lines = []
    for name, user in wanted.items():
        if name is not None:
            path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{quote(name, safe='')}"
            missing = (": no pod with it can be created", f"create it, or set another one in {user}")
            lines.append(_referred(api, "priority", f"priority class {name!r} ({user})", path, missing, judge))
    return lines


def _referred(
    api: Api,
    check: str,
    what: str,
    path: str,
    missing: tuple[str, str],
    judge: Callable[[Found, str], Line],
    unread: str = "",
) -> Line:
    """Return the finding about an object that pods refer to.

    ``missing`` has a text to add and the cure, for an object that does not exist.
    """
    found = _read(api, path)
    if found is None:
        return ok(check, f"this account may not read {what}{unread}")
    return judge(found, what) if found else bad(check, f"there is no {what}{missing[0]}", missing[1])


def queues(api: Api, settings: Settings) -> list[Line]:
    """Report queues that send Jobs to other clusters. A dry run creates no Job, and needs the right to create one."""
    from crawler_lifecycle.clusters.kubernetes import labels
    from crawler_lifecycle.clusters.kubernetes.jobs.deployer import given_away

    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "probe"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True, "template": template}}
    lines = []
    named = [
        *(crawler.kubernetes.queue for crawler in _crawlers(settings)),
        *(p.queue for p in settings.pools.values()),
    ]
    for queue in sorted({name for name in named if name is not None}):
        error = given_away(api, {**job, "metadata": {"name": "doctor-probe", "labels": {labels.QUEUE: queue}}})
        if error is not None:
            lines.append(of_error("queue", error))
    return lines


def _crawlers(settings: Settings) -> list[CrawlerDefinition]:
    try:
        return load(settings.crawlers) if settings.crawlers.exists() else []
    except LifecycleError:
        return []  # the check of the catalogue reports it


# --- leftovers -----------------------------------------------------------------------------------------------------


def left_over(api: Api) -> list[Line]:
    """Check that no pod waits too long for the removal of our finalizer."""
    from crawler_lifecycle.clusters.kubernetes.client.errors import Refused
    from crawler_lifecycle.clusters.kubernetes.jobs import finalizers
    from crawler_lifecycle.clusters.kubernetes.looks.listing import numbers_of

    try:
        found = finalizers.list_held(api)
    except Refused:
        return []  # the check of rights reports it
    except ClusterUnavailable as error:
        return [bad("finalizers", str(error), ASK_AGAIN)]
    old = finalizers.waiting_longer_than(found, utc_now(), LEFT_OVER_S)
    if not old:
        number = counted(len(found), "pod")
        return [ok("finalizers", f"no pod waits too long for our finalizer ({number} with it)")]
    runs = sorted({run for pod in old if (run := numbers_of(pod.metadata)[0]) is not None})
    named = f" (runs {', '.join(map(str, runs[:5]))}{' …' if len(runs) > 5 else ''})" if runs else ""
    cure = (
        "check that workers of the roles cluster and control are ready; if nothing will record these pods: "
        f"crawlctl cluster release --namespace {api.namespace}"
    )
    word = "pod that ended long ago still has" if len(old) == 1 else "pods that ended long ago still have"
    return [warn("finalizers", f"{len(old):,} {word} our finalizer{named}", cure)]


def _read(api: Api, path: str) -> dict[str, Any] | None:
    """Return an object or a short list; empty if it does not exist, ``None`` if this account may not read it."""
    from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound, Refused

    try:
        found: dict[str, Any] = json.loads(api.get(path))
    except NotFound:
        return {}
    except Refused:
        return None
    return found
