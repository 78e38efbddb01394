"""Checks of the Kubernetes cluster: connection, version, namespace, clock, and permissions."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from crawler_lifecycle.cli import cluster_access
from crawler_lifecycle.cli.doctor.report import Context, Line, bad, clock_line, ok, old, warn
from crawler_lifecycle.domain.errors import ClusterUnavailable, InvalidRequest

from . import component

if TYPE_CHECKING:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.clusters.kubernetes.rbac import Right

#: The uncertainty of the server's clock in seconds, because the server's Date header contains only
#: whole seconds.
DATE_S = 0.6
#: The oldest supported Kubernetes version, and the problem with older versions.
LEAST = (1, 30)
LACKS = "it starts another pod for a Job while the last pod is still executing"

#: Never suggest applying the base alone, because this would undo the changes that an overlay makes.
APPLY = "apply your overlay of deploy/ again, as an administrator"
ASK_AGAIN = "try again; kubectl get --raw /readyz shows the state of the API server"


def check_cluster(context: Context) -> Sequence[Line]:
    """Check connection, version, clock, namespace and permissions."""
    from crawler_lifecycle.clusters.kubernetes import rbac
    from crawler_lifecycle.clusters.kubernetes.kind import api_of

    if (mine := component.component()) in rbac.RIGHTLESS:
        return [ok("cluster", f"{mine} does not use the cluster's API, and has no token for it")]
    try:
        api = api_of(context.known.cluster)
        version = json.loads(api.get("/version")).get("gitVersion", "version unknown")
    except InvalidRequest as error:
        fix = (
            "set LIFECYCLE_CLUSTER__KUBECONFIG and LIFECYCLE_CLUSTER__CONTEXT; kubectl config "
            "get-contexts"
        )
        return [bad("cluster", str(error), fix)]
    except ClusterUnavailable as error:
        return [bad("cluster", str(error), cluster_access.failed(error).next_step)]
    lines = [
        ok("cluster", f"{api.host} answers, {version}"),
        *old("cluster", "Kubernetes", version, LEAST, LACKS),
    ]
    if api.skew_s is not None:
        lines.append(clock_line("the Kubernetes API", api.skew_s, DATE_S))
    try:
        lines.append(_namespace(api))
        if lines[-1].level != "bad":
            lines += (
                _rights(api)
                if context.services is None
                else _rights_of_accounts(api, context.services)
            )
    except ClusterUnavailable as error:
        lines.append(bad("cluster", str(error), ASK_AGAIN))
    return lines


def _namespace(api: Api) -> Line:
    from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound, RequestRefused
    from crawler_lifecycle.clusters.kubernetes.polls.namespace_identity import read_namespace

    name = api.namespace
    try:
        found = read_namespace(api)
    except NotFound:
        fix = f"{APPLY}; create its Secrets and volume claims separately"
        return bad("namespace", f"the cluster has no namespace {name!r}", fix)
    except RequestRefused:
        return _unreadable(api)
    if found.leaving:
        fix = f"as an administrator: crawlctl cluster release --namespace {name}"
        return bad(
            "namespace",
            f"{name!r} is being deleted, and is waiting for pods with our finalizer",
            fix,
        )
    return ok("namespace", f"{name!r} is active")


def _unreadable(api: Api) -> Line:
    """Return the finding about a namespace that we are not permitted to read.

    Some components do not need this permission.
    """
    from crawler_lifecycle.clusters.kubernetes import rbac

    mine = rbac.component(rbac.who_am_i(api))
    text = f"this account may not read {api.namespace!r}, so it was not checked"
    if mine is not None and rbac.Right("get", "namespaces") not in rbac.granted(mine):
        return ok("namespace", f"{text}; {mine} does not need this permission")
    return warn("namespace", text, APPLY)


def _rights(api: Api) -> list[Line]:
    """Check the permissions of every component. If we run under the service account of one
    component, check only that component.
    """
    from crawler_lifecycle.clusters.kubernetes import rbac

    me = rbac.who_am_i(api)
    mine = rbac.component(me)
    components = {name: role for name, role in rbac.COMPONENTS.items() if mine in (name, None)}
    lacking = rbac.missing(
        api, [right for role in components.values() for right in rbac.ROLES[role]]
    )
    lines = []
    for role in dict.fromkeys(components.values()):
        who = (
            f"{', '.join(name for name, its in components.items() if its == role)}: "
            f"{me or 'this account'}"
        )
        lines += _lacking(api, who, role, lacking)
    whom = "every component has its permissions" if mine is None else f"{mine} has its permissions"
    return lines or [ok("rights", f"{whom}, checked as {me or 'an unknown account'}")]


def _rights_of_accounts(api: Api, services: str) -> list[Line]:
    """Ask the API server which permissions each component's service account in the namespace
    ``services`` has.
    """
    from crawler_lifecycle.clusters.kubernetes import rbac
    from crawler_lifecycle.clusters.kubernetes.client.errors import RequestRefused

    lines = []
    for name, role in rbac.COMPONENTS.items():
        user = f"system:serviceaccount:{services}:{name}"
        try:
            lacking = rbac.missing(api, rbac.ROLES[role], user)
        except RequestRefused:
            fix = (
                "run this as an administrator, or in the pod of each component: kubectl exec … "
                "-- crawlctl doctor"
            )
            text = "this account can check only its own permissions, not those of other accounts"
            return [warn("rights", text, fix), *_rights(api)]
        lines += _lacking(api, user, role, lacking)
    return lines or [
        ok("rights", f"every service account of {services} has its permissions in {api.namespace}")
    ]


def _lacking(api: Api, who: str, role: str, lacking: Collection[Right]) -> list[Line]:
    """Return findings about the permissions in ``lacking`` that a role needs."""
    from crawler_lifecycle.clusters.kubernetes import rbac

    those = sorted(right for right in rbac.ROLES[role] if right in lacking)
    lines = []
    if needed := ", ".join(str(lacked) for lacked in those if lacked not in rbac.DISPENSABLE):
        text = f"{who} may not {needed} in {api.namespace}"
        lines.append(bad("rights", text, f"{APPLY} (Role {role} and its binding)"))
    for lacked in those:
        if lacked in rbac.DISPENSABLE:
            lines.append(
                warn(
                    "rights",
                    f"{who} may not {lacked}: {rbac.DISPENSABLE[lacked]}",
                    f"{APPLY} (Role {role})",
                )
            )
    return lines
