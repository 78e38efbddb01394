"""Namespace identity: which namespace we read, and whether a missing task may live in another one.

A list of the wrong namespace is empty and no error. So the namespace is recorded with the task before its Job is
requested, by its uid, which is unique in all clusters. A missing task counts as gone only in its own namespace, or when
that namespace is gone itself.

A namespace that has the name and another uid is "deleted and made anew" on the same cluster only. Clusters are told
apart by the uid of their namespace ``kube-system``, which nobody can delete; other projects also use it as the identity
of a cluster (OpenTelemetry's ``k8s.cluster.uid``). Without the right to read it, a person has to confirm by an
annotation that a namespace is gone.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound, Refused
from crawler_lifecycle.clusters.kubernetes.client.objects import Namespace, decode
from crawler_lifecycle.domain.errors import ClusterUnavailable, OtherPlace

#: The namespace whose uid is the cluster's identity.
SYSTEM = "kube-system"
_UNKNOWN = "-"
_SETTINGS = "LIFECYCLE_CLUSTER__NAMESPACE, LIFECYCLE_CLUSTER__KUBECONFIG and LIFECYCLE_CLUSTER__CONTEXT"


def read_namespace(api: Api, name: str | None = None) -> Namespace:
    """The namespace of the crawls, or the namespace of that name. Raises ``ApiError``; ``NotFound`` when there is
    none.
    """
    return decode(Namespace, api.get(api.namespace_path() if name is None else f"/api/v1/namespaces/{name}"))


@dataclass(frozen=True, slots=True)
class NamespaceIdentity:
    """The namespace in which tasks live; a field that we may not read is ``None``."""

    name: str
    uid: str | None = None
    cluster: str | None = None
    """The uid of the cluster's ``kube-system``."""

    def __str__(self) -> str:
        """The text that is recorded."""
        return f"{self.name}/{self.uid or _UNKNOWN}/{self.cluster or _UNKNOWN}"

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.name} (uid {self.uid or 'unknown'})"

    @classmethod
    def read(cls, recorded: str) -> NamespaceIdentity | None:
        """Read the recorded identity; ``None`` for any text that is no namespace of Kubernetes."""
        name, *uids = recorded.split("/")
        if not name or len(uids) != 2:
            return None
        uid, cluster = (None if one == _UNKNOWN else one for one in uids)
        return cls(name, uid, cluster)


def read_identity(api: Api) -> NamespaceIdentity:
    """Read the identity of the namespace in which we create and read tasks.

    Raises ``ApiError``, but not for a missing right: the name is known.
    """
    try:
        uid = read_namespace(api).metadata.uid
    except Refused:
        uid = None
    return NamespaceIdentity(api.namespace, uid, _cluster(api))


def _cluster(api: Api) -> str | None:
    try:
        return read_namespace(api, SYSTEM).metadata.uid
    except (Refused, NotFound):
        return None


def require_same(api: Api, recorded: str) -> None:
    """Raise ``OtherPlace`` when the caller reads another namespace than ours, as far as this is known.

    Raises ``ApiError`` too.
    """
    theirs = NamespaceIdentity.read(recorded)
    if theirs is not None and theirs.name == api.namespace:
        try:
            uid = read_namespace(api).metadata.uid
        except Refused:
            return
        if theirs.uid in (None, uid):
            return
    else:
        uid = None
    whose = theirs.words if theirs is not None else recorded
    raise OtherPlace(
        f"the worker looks for its tasks in namespace {whose}, and this service creates them in "
        f"{NamespaceIdentity(api.namespace, uid).words}; set {_SETTINGS} of both alike"
    )


class CurrentNamespace:
    """The namespace we look into, read once: at the first question that needs it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.name = api.namespace

    @functools.cached_property
    def found(self) -> Namespace | None:
        """The namespace at that time; ``None`` when there was none. Raises ``ApiError``."""
        try:
            return read_namespace(self._api)
        except NotFound:
            return None

    def gone_for_good(self, recorded: Collection[str | None]) -> set[str]:
        """The namespaces of these that are certainly gone; the others are the one that we read.

        ``None``: a task without a recorded namespace, about which nothing is known. Raises ``ClusterUnavailable`` when
        a task may live in another namespace, and ``ApiError``.
        """
        return {one for one in sorted({one for one in recorded if one is not None}) if not self._is_ours(one)}

    def _is_ours(self, recorded: str) -> bool:
        """Return whether it is the namespace that we read; ``False`` when it is certainly gone. Raises
        ``ClusterUnavailable``.
        """
        place = NamespaceIdentity.read(recorded)
        if place is None:
            raise ClusterUnavailable(
                f"it was put onto another kind of cluster ({recorded}): set LIFECYCLE_CLUSTER__KIND back"
            )
        try:
            found = self.found
        except Refused as error:
            raise ClusterUnavailable(
                f"what is missing in namespace {self._api.namespace} cannot be proved to be gone, because we may not "
                f"read which namespace that is; grant the right to get it (deploy/ holds the roles): {error}"
            ) from error
        same_name = place.name == self._api.namespace
        if found is not None and same_name and place.uid in (None, found.metadata.uid):
            return True
        if found is not None and (place.uid or place.name) in replaced(found):
            return False
        cluster = _cluster(self._api) if same_name and place.cluster is not None else None
        if cluster is not None and cluster == place.cluster:
            return False  # two namespaces of one name are never on one cluster at a time
        raise ClusterUnavailable(self._elsewhere(place, found, cluster))

    def _elsewhere(self, place: NamespaceIdentity, found: Namespace | None, cluster: str | None) -> str:
        name = self._api.namespace
        looked = (
            NamespaceIdentity(name, found.metadata.uid).words if found is not None else f"{name}, which does not exist"
        )
        if place.name == name:
            known = "of another cluster" if cluster is not None else "perhaps of another cluster"
            looked = f"{looked}, {known}"
        sure = f"kubectl annotate --overwrite namespace {name} {labels.REPLACES}={place.uid or place.name}"
        made = "" if found is not None else f"kubectl create namespace {name} && "
        return (
            f"a task of this run was put into namespace {place.words}, and we look into {looked}: what is not found "
            f"here may live on there. Set {_SETTINGS} of the workers and of the scheduler service back; if that "
            f"namespace is gone for good, with all that ran in it: {made}{sure}"
        )


def replaced(namespace: Namespace) -> set[str]:
    """Namespaces that a person has declared gone for good, by uid (or by name, if the uid is unknown)."""
    return set(namespace.metadata.annotations.get(labels.REPLACES, "").replace(",", " ").split())
