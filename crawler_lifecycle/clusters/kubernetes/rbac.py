"""RBAC: the permissions of each component on the cluster, and a check with the API server whether
we have these permissions.

``roles.yaml`` and ``cluster-id.yaml`` in ``deploy/base/crawls`` grant exactly these permissions,
and a test compares them. A new call in this package needs its permission both here and in these
files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.polls.namespace_identity import SYSTEM

_REVIEWS = "/apis/authorization.k8s.io/v1"
_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
#: The number of parallel requests to the API server.
THREADS = 8


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """Permission to use one verb on one kind of object, by default in the namespace of the
    crawls.
    """

    verb: str
    resource: str
    """The resource, with its subresource if there is one: ``pods/log``."""
    group: str = ""
    name: str = ""
    """The namespace, if it is not the namespace of the crawls."""

    def __str__(self) -> str:
        where = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{where}" + (f"/{self.name}" if self.name else "")


def _rights(group: str, resource: str, *verbs: str) -> tuple[Right, ...]:
    return tuple(Right(verb, resource, group) for verb in verbs)


#: Permissions that identify the namespace and its cluster. Without the first one, no missing task
#: counts as gone.
_NAMESPACE = Right("get", "namespaces")
CLUSTER = Right("get", "namespaces", name=SYSTEM)

_WORKLOADS = Right("list", "workloads", "kueue.x-k8s.io")
_POSITIONS = Right("get", "localqueues/pendingworkloads", "visibility.kueue.x-k8s.io")

_READS = (
    *_rights("batch", "jobs", "get", "list"),
    *_rights("", "pods", "get", "list"),
    *_rights("", "pods/log", "get"),
    *_rights("", "events", "list"),
    _NAMESPACE,
    CLUSTER,
    *_rights("metrics.k8s.io", "pods", "list"),
    _WORKLOADS,
    _POSITIONS,
)

#: Role -> its permissions. ``crawl-looker`` can also remove the finalizer after an end was
#: recorded, but it deletes nothing. ``crawl-stopper`` can read and stop, but it changes nothing
#: else.
ROLES: Mapping[str, Sequence[Right]] = {
    "crawl-deployer": (
        *_rights("batch", "jobs", "create", "get", "list"),
        *_rights("", "secrets", "create"),
        _NAMESPACE,
    ),
    "crawl-looker": (*_READS, *_rights("batch", "jobs", "patch"), *_rights("", "pods", "patch")),
    "crawl-stopper": (*_READS, *_rights("batch", "jobs", "delete"), *_rights("", "pods", "delete")),
    "crawl-observer": (*_READS, *_rights("batch", "jobs", "watch"), *_rights("", "pods", "watch")),
    "crawl-log-reader": (*_rights("", "pods", "get", "list"), *_rights("", "pods/log", "get")),
}

#: Service account -> its role. Accounts that are not listed have no permissions on the cluster.
COMPONENTS: Mapping[str, str] = {
    "scheduler": "crawl-deployer",
    "worker-cluster": "crawl-looker",
    "worker-control": "crawl-stopper",
    "worker-audit": "crawl-stopper",
    "worker-observer": "crawl-observer",
    "gateway": "crawl-log-reader",
}

#: Components that never call the cluster: they have no token.
RIGHTLESS = ("worker-workflows", "worker-export", "worker-user-code", "worker-webhooks")

#: Each optional permission, and the consequence if a component lacks it.
DISPENSABLE: Mapping[Right, str] = {
    Right("list", "pods", "metrics.k8s.io"): "memory in use is not shown",
    CLUSTER: (
        "an administrator must decide whether a namespace was deleted and created again, or is in "
        "another cluster"
    ),
    _WORKLOADS: "the reason why a Job is waiting in its queue is not shown",
    _POSITIONS: "the position of a Job in its queue is not shown",
    Right("list", "events"): "the reason why a task is waiting is reported in less detail",
}


def who_am_i(api: Api) -> str | None:
    """Return our user name on the API server; ``None`` when the server does not report it.

    Raises ``ApiError`` when the server rejects our credentials or does not respond.
    """
    try:
        answer = api.post(
            _WHO, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        )
        return json.loads(answer)["status"]["userInfo"].get("username") or None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    except ApiError as error:
        if error.status in (403, 404):  # Kubernetes before 1.28 does not support this request
            return None
        raise


def component(name: str | None) -> str | None:
    """Return the component whose service account has this user name; ``None`` for any other
    name.
    """
    if name is None or not name.startswith("system:serviceaccount:"):
        return None
    account = name.rpartition(":")[2]
    return account if account in COMPONENTS or account in RIGHTLESS else None


def granted(component: str) -> Sequence[Right]:
    """Return the permissions of a component's role, or none if it has no role."""
    role = COMPONENTS.get(component)
    return ROLES[role] if role is not None else ()


def missing(api: Api, rights: Iterable[Right], user: str | None = None) -> set[Right]:
    """Return the permissions that ``user`` lacks in the namespace of the crawls; if ``user`` is
    ``None``, return the permissions that we lack.

    Raises ``ApiError``, with status 403 when we are not permitted to check other users.
    """
    wanted = sorted(set(rights))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="rights") as threads:
        return {
            right
            for right, has in zip(
                wanted, threads.map(lambda one: _has(api, one, user), wanted), strict=True
            )
            if not has
        }


def _has(api: Api, right: Right, user: str | None) -> bool:
    resource, _, sub = right.resource.partition("/")
    asked = {
        "namespace": api.namespace,
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
    }
    if sub:
        asked["subresource"] = sub
    if resource == "namespaces":
        asked["namespace"] = asked["name"] = right.name or api.namespace
    kind = "SelfSubjectAccessReview"
    spec: dict[str, Any] = {"resourceAttributes": asked}
    if user is not None:
        kind = "SubjectAccessReview"
        # A review considers only the groups that it lists.
        group = "system:serviceaccounts"
        groups = ["system:authenticated", group, f"{group}:{user.split(':')[2]}"]
        spec |= {"user": user, "groups": groups}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    return (
        json.loads(api.post(f"{_REVIEWS}/{kind.lower()}s", body))["status"].get("allowed") is True
    )
