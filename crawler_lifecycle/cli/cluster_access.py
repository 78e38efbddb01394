"""The Kubernetes cluster that a command means, and a connection to it whose errors name a cure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .addresses import LOOPBACK
from .problems import CommandFailed, Exit

if TYPE_CHECKING:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.settings import ClusterSettings

_SETTING = "LIFECYCLE_CLUSTER__"


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """A Kubernetes cluster, as the options of a command name it. What is ``None`` is left to the settings."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    image: str | None = None
    """The image of crawlers whose catalogue entry names none."""
    address: str = LOOPBACK
    """An address of this machine that pods can reach: what they crawl of ours listens there."""

    def environment(self) -> dict[str, str]:
        """The variables that make our processes use this cluster, over what the environment says already."""
        given = {
            "KUBECONFIG": None if self.kubeconfig is None else str(self.kubeconfig.absolute()),
            "CONTEXT": self.context,
            "NAMESPACE": self.namespace,
            "IMAGE": self.image,
        }
        found = {f"{_SETTING}KIND": "kubernetes"}
        return found | {f"{_SETTING}{name}": value for name, value in given.items() if value is not None}

    def settings(self, environment: Mapping[str, str] = os.environ) -> ClusterSettings:
        """The settings in force with this place. Raises ``CommandFailed`` that names a wrong one."""
        from pydantic import ValidationError  # not for every call

        from crawler_lifecycle.settings import ClusterSettings

        known = {**environment, **self.environment()}
        fields = {name: known.get(f"{_SETTING}{name.upper()}") for name in _FIELDS}
        try:
            return ClusterSettings.model_validate({name: value for name, value in fields.items() if value})
        except ValidationError as error:
            item = error.errors()[0]
            name = f"{_SETTING}{str(item['loc'][0]).upper()}"
            raise CommandFailed(Exit.USAGE, f"{name}: {item.get('input')!r} is not allowed; {item['msg']}") from None

    def over(self, settings: ClusterSettings) -> ClusterSettings:
        """These settings with what was given here."""
        given = {"kubeconfig": self.kubeconfig, "context": self.context, "namespace": self.namespace}
        return settings.model_copy(update={name: value for name, value in given.items() if value is not None})


#: What tells how the API server is reached.
_FIELDS = ("kind", "namespace", "kubeconfig", "context", "image", "connect_s", "read_s")


def connect(settings: ClusterSettings) -> Api:
    """A client of the cluster's API. Raises ``CommandFailed`` when its configuration cannot be read."""
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.domain.errors import LifecycleError

    try:
        return Api.connect(
            kubeconfig=settings.kubeconfig,
            context=settings.context,
            namespace=settings.namespace,
            connect_s=settings.connect_s,
            read_s=settings.read_s,
        )
    except LifecycleError as error:
        cure = "--kubeconfig FILE and --context NAME, or LIFECYCLE_CLUSTER__KUBECONFIG; kubectl config get-contexts"
        raise CommandFailed(Exit.USAGE, "no cluster is known", str(error), cure) from None


def check_namespace(api: Api) -> None:
    """Return when the cluster answers and has our namespace. Raises ``CommandFailed`` that names the cure."""
    if namespace_phase(api) != "Terminating":
        return
    name = api.namespace
    why = "nothing can be created in it; what it still holds may wait for our finalizer"
    cure = f"crawlctl cluster release --namespace {name}, or --namespace for another one"
    raise CommandFailed(Exit.NOT_IN_THIS_STATE, f"the namespace {name!r} is being deleted", why, cure)


def namespace_phase(api: Api) -> str | None:
    """``Active`` or ``Terminating``; ``None`` for those who may not read it, which is no reason that they may not work
    in it.

    Raises ``CommandFailed`` when there is none, or the cluster does not answer.
    """
    from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound, Refused
    from crawler_lifecycle.clusters.kubernetes.looks.namespace_identity import read_namespace
    from crawler_lifecycle.domain.errors import ClusterUnavailable

    name = api.namespace
    try:
        return "Terminating" if read_namespace(api).leaving else "Active"
    except NotFound:
        cure = f"kubectl create namespace {name}; --namespace names another"
        raise CommandFailed(Exit.NOT_FOUND, f"the cluster has no namespace {name!r}", None, cure) from None
    except Refused:
        return None
    except ClusterUnavailable as error:
        raise failed(error) from None


def failed(error: Exception) -> CommandFailed:
    """The failure of a command that got no answer."""
    status = getattr(error, "status", None)
    if status == 401:
        return CommandFailed(
            Exit.NOT_AUTHORISED, "the cluster does not know us", str(error), "log in again: kubectl get namespaces"
        )
    if status == 403:
        return CommandFailed(
            Exit.NOT_AUTHORISED,
            "the cluster refuses this",
            str(error),
            "ask for the right (deploy/ holds the roles), or use another --context",
        )
    cure = "kubectl version, with the same kubeconfig and context, tells whether anybody reaches it"
    return CommandFailed(Exit.UNREACHABLE, "the cluster does not answer", str(error), cure)
