"""RBAC: what each component may do on the cluster, and the question to the API server whether it may.

``roles.yaml`` and ``cluster-id.yaml`` in ``deploy/base/crawls`` grant exactly this, and a test compares them. Whoever
adds a call to this package adds its right here and there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.looks.namespace_identity import SYSTEM

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
#: Questions to the API server at once.
THREADS = 8


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one kind of object, in the namespace of the crawls."""

    verb: str
    resource: str
    """With its sub-resource: ``pods/log``."""
    group: str = ""
    name: str = ""
    """Of a namespace: another one than that of the crawls."""

    def __str__(self) -> str:
        where = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{where}" + (f"/{self.name}" if self.name else "")


def _rights(group: str, resource: str, *verbs: str) -> tuple[Right, ...]:
    return tuple(Right(verb, resource, group) for verb in verbs)


#: Which namespace it is that one looks into, and on which cluster: without it nothing that is missing counts as gone.
_NAMESPACE = Right("get", "namespaces")
CLUSTER = Right("get", "namespaces", name=SYSTEM)

_READS = (
    *_rights("batch", "jobs", "get", "list"),
    *_rights("", "pods", "get", "list"),
    *_rights("", "pods/log", "get"),
    *_rights("", "events", "list"),
    *(_NAMESPACE, CLUSTER),
    *_rights("metrics.k8s.io", "pods", "list"),
)

#: Role -> what it grants. Who looks also lets go of what is recorded, and deletes nothing; who stops can do only that.
ROLES: Mapping[str, Sequence[Right]] = {
    "crawl-deployer": (
        *(*_rights("batch", "jobs", "create", "get", "list"), *_rights("", "secrets", "create")),
        _NAMESPACE,
    ),
    "crawl-looker": (*_READS, *_rights("batch", "jobs", "patch"), *_rights("", "pods", "patch")),
    "crawl-stopper": (*_READS, *_rights("batch", "jobs", "delete"), *_rights("", "pods", "delete")),
    "crawl-observer": (
        *(*_rights("batch", "jobs", "list", "watch"), *_rights("", "pods", "list", "watch")),
        *_rights("", "pods/log", "get"),
    ),
    "crawl-log-reader": (*_rights("", "pods", "get", "list"), *_rights("", "pods/log", "get")),
}

#: Service account -> its role. Those that are not here have no right on the cluster at all.
COMPONENTS: Mapping[str, str] = {
    "scheduler": "crawl-deployer",
    "worker-cluster": "crawl-looker",
    "worker-control": "crawl-stopper",
    "worker-audit": "crawl-stopper",
    "worker-observer": "crawl-observer",
    "gateway": "crawl-log-reader",
}

#: Those that ask the cluster nothing: no token is mounted for them, and one that is opens nothing.
RIGHTLESS = ("worker-workflows", "worker-export", "worker-plans", "worker-webhooks")

#: Rights without which things go on, and what is missing then.
DISPENSABLE: Mapping[Right, str] = {
    Right("list", "pods", "metrics.k8s.io"): "memory in use is not shown",
    CLUSTER: "a namespace that was deleted and made anew is not told from one of another cluster without a person",
    Right("list", "events"): "why a task waits is told in fewer words",
}


def who_am_i(api: Api) -> str | None:
    """The name under which the API server knows us; ``None`` when it keeps that to itself.

    Raises ``ApiError`` when it does not know us at all, or does not answer.
    """
    try:
        answer = api.post(_WHO, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
        return json.loads(answer)["status"]["userInfo"].get("username") or None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    except ApiError as error:
        if error.status in (403, 404):  # before 1.28 there is no such question
            return None
        raise


def component(name: str | None) -> str | None:
    """The component whose service account this name of the API server is; ``None`` for anybody else's."""
    if name is None or not name.startswith("system:serviceaccount:"):
        return None
    account = name.rpartition(":")[2]
    return account if account in COMPONENTS or account in RIGHTLESS else None


def granted(component: str) -> Sequence[Right]:
    """Return what the role of a component grants it; nothing for one without a role."""
    role = COMPONENTS.get(component)
    return ROLES[role] if role is not None else ()


def missing(api: Api, rights: Iterable[Right]) -> set[Right]:
    """Return the rights that we lack in the namespace of the crawls. Raises ``ApiError``."""
    wanted = sorted(set(rights))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="rights") as threads:
        return {
            right for right, has in zip(wanted, threads.map(lambda one: _has(api, one), wanted), strict=True) if not has
        }


def _has(api: Api, right: Right) -> bool:
    resource, _, sub = right.resource.partition("/")
    asked = {"namespace": api.namespace, "verb": right.verb, "group": right.group, "resource": resource}
    if sub:
        asked["subresource"] = sub
    if resource == "namespaces":
        asked["namespace"] = asked["name"] = right.name or api.namespace
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    return json.loads(api.post(_REVIEWS, body))["status"].get("allowed") is True
