"""The identity of the namespace that we read, which shows whether a missing task may execute in
another namespace.

A list of the wrong namespace is empty, and not an error. So the namespace of each task is recorded
before its Job is created, by its uid, which is unique in all clusters. A missing task counts as
gone only when we read its own namespace, or when that namespace no longer exists.

If a namespace has the recorded name but a different uid, it was deleted and created again, or it is
in another cluster. The uid of the namespace ``kube-system``, which cannot be deleted, identifies
the cluster; OpenTelemetry's ``k8s.cluster.uid`` has the same value. If we are not permitted to read
``kube-system``, an administrator must confirm with an annotation that the recorded namespace is
gone.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound, RequestRefused
from crawler_lifecycle.clusters.kubernetes.client.objects import Namespace, decode
from crawler_lifecycle.domain.errors import ClusterUnavailable, OtherPlace

#: The namespace whose uid is the cluster's identity.
SYSTEM = "kube-system"
_UNKNOWN = "-"
_SETTINGS = (
    "LIFECYCLE_CLUSTER__NAMESPACE, LIFECYCLE_CLUSTER__KUBECONFIG and LIFECYCLE_CLUSTER__CONTEXT"
)


def read_namespace(api: Api, name: str | None = None) -> Namespace:
    """Read the namespace ``name``, by default the namespace of the crawls.

    Raises ``NotFound`` and other ``ApiError``s.
    """
    return decode(
        Namespace, api.get(api.namespace_path() if name is None else f"/api/v1/namespaces/{name}")
    )


@dataclass(frozen=True, slots=True)
class NamespaceIdentity:
    """The identity of a namespace with tasks. A field that we may not read is ``None``."""

    name: str
    uid: str | None = None
    cluster: str | None = None
    """The uid of the cluster's ``kube-system``."""

    def __str__(self) -> str:
        """Return the string that is recorded in the database."""
        return f"{self.name}/{self.uid or _UNKNOWN}/{self.cluster or _UNKNOWN}"

    @property
    def words(self) -> str:
        """The name and uid in words."""
        return f"{self.name} (uid {self.uid or 'unknown'})"

    @classmethod
    def read(cls, recorded: str) -> NamespaceIdentity | None:
        """Read a recorded identity.

        Return ``None`` for a string that does not name a Kubernetes namespace.
        """
        name, *uids = recorded.split("/")
        if not name or len(uids) != 2:
            return None
        uid, cluster = (None if uid == _UNKNOWN else uid for uid in uids)
        return cls(name, uid, cluster)


def read_identity(api: Api) -> NamespaceIdentity:
    """Read the identity of the namespace in which we create and read tasks.

    Raises ``ApiError``, but not if we lack permission to read the namespace: then the identity
    contains only the name.
    """
    try:
        uid = read_namespace(api).metadata.uid
    except RequestRefused:
        uid = None
    return NamespaceIdentity(api.namespace, uid, _cluster(api))


def _cluster(api: Api) -> str | None:
    try:
        return read_namespace(api, SYSTEM).metadata.uid
    except (RequestRefused, NotFound):
        return None


def require_same(api: Api, recorded: str) -> None:
    """Raise ``OtherPlace`` when the caller certainly reads a namespace other than ours.

    Also raises ``ApiError``.
    """
    theirs = NamespaceIdentity.read(recorded)
    if theirs is not None and theirs.name == api.namespace:
        try:
            uid = read_namespace(api).metadata.uid
        except RequestRefused:
            return
        if theirs.uid in (None, uid):
            return
    else:
        uid = None
    whose = theirs.words if theirs is not None else recorded
    raise OtherPlace(
        f"the worker looks for its tasks in namespace {whose}, but this service creates them in "
        f"{NamespaceIdentity(api.namespace, uid).words}; give both the same {_SETTINGS}"
    )


class CurrentNamespace:
    """The namespace that we read. It is requested once, when it is first needed."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.name = api.namespace

    @functools.cached_property
    def found(self) -> Namespace | None:
        """The namespace at that time; ``None`` when it did not exist. Raises ``ApiError``."""
        try:
            return read_namespace(self._api)
        except NotFound:
            return None

    def gone_for_good(self, recorded: Collection[str | None]) -> set[str]:
        """Return those recorded namespaces that are certainly gone.

        If the method returns, every other recorded namespace is the one that we read.

        ``None`` stands for a task without a recorded namespace, and is ignored. Raises
        ``ClusterUnavailable`` when a task may execute in another namespace, and ``ApiError``.
        """
        return {
            uid
            for uid in sorted({uid for uid in recorded if uid is not None})
            if not self._is_ours(uid)
        }

    def _is_ours(self, recorded: str) -> bool:
        """Return true for the namespace that we read, and false for a namespace that is certainly
        gone.

        Raises ``ClusterUnavailable`` when it is not certain which of the two it is.
        """
        place = NamespaceIdentity.read(recorded)
        if place is None:
            raise ClusterUnavailable(
                f"a task of this run was created on another kind of cluster ({recorded}); "
                "set LIFECYCLE_CLUSTER__KIND to its previous value"
            )
        try:
            found = self.found
        except RequestRefused as error:
            raise ClusterUnavailable(
                f"tasks that are missing in namespace {self._api.namespace} cannot be proved to be "
                "gone, because we are not permitted to read this namespace; grant permission to "
                f"get it (see the roles in deploy/): {error}"
            ) from error
        same_name = place.name == self._api.namespace
        if found is not None and same_name and place.uid in (None, found.metadata.uid):
            return True
        if found is not None and (place.uid or place.name) in replaced(found):
            return False
        cluster = _cluster(self._api) if same_name and place.cluster is not None else None
        if cluster is not None and cluster == place.cluster:
            return False  # a cluster never has two namespaces with the same name at once
        raise ClusterUnavailable(self._elsewhere(place, found, cluster))

    def _elsewhere(
        self, place: NamespaceIdentity, found: Namespace | None, cluster: str | None
    ) -> str:
        name = self._api.namespace
        polled = (
            NamespaceIdentity(name, found.metadata.uid).words
            if found is not None
            else f"{name}, which does not exist"
        )
        if place.name == name:
            known = "of another cluster" if cluster is not None else "perhaps of another cluster"
            polled = f"{polled}, {known}"
        sure = (
            f"kubectl annotate --overwrite namespace {name} "
            f"{labels.REPLACES}={place.uid or place.name}"
        )
        made = "" if found is not None else f"kubectl create namespace {name} && "
        return (
            f"a task of this run was created in namespace {place.words}, but this process reads "
            f"{polled}: a task that "
            f"is missing here may still execute there. Set {_SETTINGS} of the workers and of the "
            "scheduler service to "
            "their previous values. If that namespace is gone permanently, with all tasks in it, "
            f"run: {made}{sure}"
        )


def replaced(namespace: Namespace) -> set[str]:
    """Return the namespaces that an administrator has declared permanently gone, by uid, or by name
    if the uid is unknown.
    """
    return set(namespace.metadata.annotations.get(labels.REPLACES, "").replace(",", " ").split())
