"""Checks of the Kubernetes cluster: reachable, usable, with room, and nothing of ours left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from crawler_lifecycle.cli.doctor.line import Line
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.domain.errors import ClusterUnavailable, InvalidRequest

from . import cluster_objects as objects
from . import component
from .clock import clock_line
from .cluster_objects import APPLY, ASK_AGAIN

if TYPE_CHECKING:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.clusters.kubernetes.rbac import Right
    from crawler_lifecycle.settings import Settings

#: The server's Date header has whole seconds.
DATE_S = 0.6


def check_cluster(context: Context) -> Sequence[Line]:
    """Connection and version, namespace, rights, room, what pods refer to, clocks, leftovers."""
    settings = context.known
    from crawler_lifecycle.clusters.kubernetes.client.errors import Unauthorised
    from crawler_lifecycle.clusters.kubernetes.kind import api_of

    if (mine := component.tokenless(settings)) is not None:
        return [Line("cluster", "ok", f"{mine} asks the cluster nothing, and has no token for it")]
    try:
        api = api_of(settings.cluster)
        version = json.loads(api.get("/version"))
    except InvalidRequest as error:
        cure = "set LIFECYCLE_CLUSTER__KUBECONFIG and LIFECYCLE_CLUSTER__CONTEXT; kubectl config get-contexts"
        return [Line("cluster", "bad", str(error), cure)]
    except Unauthorised as error:
        return [Line("cluster", "bad", str(error), "log in again: kubectl get namespaces")]
    except ClusterUnavailable as error:
        cure = "kubectl version, with the same kubeconfig and context, tells whether anybody reaches it"
        return [Line("cluster", "bad", str(error), cure)]
    return [
        Line("cluster", "ok", f"{api.host} answers, {version.get('gitVersion', 'version unknown')}"),
        *_of(api, settings),
    ]


def _of(api: Api, settings: Settings) -> list[Line]:
    lines = [] if api.skew_s is None else [clock_line("the Kubernetes API", api.skew_s, DATE_S)]
    namespace = _namespace(api)
    lines += namespace
    if any(line.level == "bad" for line in namespace):
        return [*lines, *objects.left_over(api)]
    checks: Sequence[Callable[[], Sequence[Line]]] = (
        lambda: _rights(api),
        lambda: objects.room(api),
        lambda: objects.account(api, settings.cluster.service_account),
        lambda: objects.pull_secrets(api, settings),
        lambda: objects.priority(api, settings),
        lambda: objects.queues(api, settings),
        lambda: objects.claim(api, settings.cluster.volume_claim),
        lambda: objects.left_over(api),
    )
    with ThreadPoolExecutor(len(checks), thread_name_prefix="doctor-cluster") as threads:
        for found in threads.map(_answered, checks):
            lines += found
    return lines


def _answered(check: Callable[[], Sequence[Line]]) -> Sequence[Line]:
    """What a check found; when the cluster fell silent in the middle of it, that."""
    try:
        return check()
    except ClusterUnavailable as error:
        return [Line("cluster", "bad", str(error), ASK_AGAIN)]


# --- namespace -----------------------------------------------------------------------------------------------------


def _namespace(api: Api) -> list[Line]:
    from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound, Refused
    from crawler_lifecycle.clusters.kubernetes.looks.namespace_identity import read_namespace

    name = api.namespace
    try:
        found = read_namespace(api)
    except NotFound:
        return [
            Line(
                "namespace",
                "bad",
                f"the cluster has no namespace {name!r}",
                f"{APPLY}; its Secrets and claims are made apart",
            )
        ]
    except Refused:
        return [_unreadable(api)]
    except ClusterUnavailable as error:
        return [Line("namespace", "bad", str(error), ASK_AGAIN)]
    if found.leaving:
        cure = f"as an administrator: crawlctl cluster release --namespace {name}"
        return [
            Line("namespace", "bad", f"{name!r} is being deleted, and waits for pods that our finalizer holds", cure)
        ]
    level = found.metadata.labels.get("pod-security.kubernetes.io/enforce")
    if level != "restricted":
        cure = f"kubectl label namespace {name} pod-security.kubernetes.io/enforce=restricted --overwrite"
        words = "enforces no Pod Security level" if level is None else f"enforces Pod Security level {level!r} only"
        return [Line("namespace", "warn", f"{name!r} {words}; our manifests keep 'restricted'", cure)]
    return [Line("namespace", "ok", f"{name!r} is active and enforces Pod Security level 'restricted'")]


def _unreadable(api: Api) -> Line:
    """A namespace that we may not read: as it should be for a component whose role does not say so."""
    from crawler_lifecycle.clusters.kubernetes import rbac

    try:
        mine = rbac.component(rbac.who_am_i(api))
    except ClusterUnavailable as error:
        return Line("namespace", "bad", str(error), ASK_AGAIN)
    text = f"{api.namespace!r} is not ours to read, so nothing is known about it"
    if mine is not None and rbac.Right("get", "namespaces") not in rbac.granted(mine):
        return Line("namespace", "ok", f"{text}; {mine} need not")
    return Line("namespace", "warn", text, APPLY)


# --- rights --------------------------------------------------------------------------------------------------------


def _rights(api: Api) -> list[Line]:
    """Whether we have the rights of every component; of one alone, when we are its service account."""
    from crawler_lifecycle.clusters.kubernetes import rbac

    me = rbac.who_am_i(api)
    mine = rbac.component(me)
    if mine in rbac.RIGHTLESS:
        return [Line("rights", "ok", f"{mine} has none and needs none, as {me}")]
    components = dict(rbac.COMPONENTS) if mine is None else {mine: rbac.COMPONENTS[mine]}
    lacking = rbac.missing(api, [right for role in components.values() for right in rbac.ROLES[role]])
    lines = []
    for role in dict.fromkeys(components.values()):
        those = sorted(right for right in rbac.ROLES[role] if right in lacking)
        users = ", ".join(name for name, its in components.items() if its == role)
        lines += _lacking(me, role, users, [one for one in those if one not in rbac.DISPENSABLE], api.namespace)
        lines += [
            Line(
                "rights",
                "warn",
                f"{users}: {me or 'we'} may not {one}: {rbac.DISPENSABLE[one]}",
                f"{APPLY} (Role {role})",
            )
            for one in those
            if one in rbac.DISPENSABLE
        ]
    if not lines:
        whom = "the rights of every component are there" if mine is None else f"{mine} has its rights"
        lines = [Line("rights", "ok", f"{whom}, as {me or 'whoever we are'}")]
    return lines


def _lacking(me: str | None, role: str, users: str, those: Sequence[Right], namespace: str) -> list[Line]:
    if not those:
        return []
    what = ", ".join(str(one) for one in those)
    return [
        Line(
            "rights",
            "bad",
            f"{users}: {me or 'we'} may not {what} in {namespace}",
            f"{APPLY} (Role {role} and its binding)",
        )
    ]
