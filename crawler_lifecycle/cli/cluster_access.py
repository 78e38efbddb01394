"""The Kubernetes cluster that a command means, and a connection to it whose errors name a cure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .machine import LOOPBACK
from .problems import CommandFailed, Exit
from .session import load_settings

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
        given = {name: value.absolute() if isinstance(value, Path) else value for name, value in self._given().items()}
        return {f"{_SETTING}{name.upper()}": str(value) for name, value in given.items()}

    def settings(self) -> ClusterSettings:
        """The settings in force with what was given here. Raises ``CommandFailed`` that names a wrong one."""
        return load_settings().cluster.model_copy(update=self._given())

    def _given(self) -> dict[str, Any]:
        known = {name: value for name, value in asdict(self).items() if value is not None and name != "address"}
        return {"kind": "kubernetes", **known}


def connect(settings: ClusterSettings) -> Api:
    """A client of the cluster's API. Raises ``CommandFailed`` when its configuration cannot be read."""
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.domain.errors import LifecycleError

    try:
        return Api(
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
        again = "log in again: kubectl get namespaces"
        return CommandFailed(Exit.NOT_AUTHORISED, "the cluster does not know us", str(error), again)
    if status == 403:
        ask = "ask for the right (deploy/ holds the roles), or use another --context"
        return CommandFailed(Exit.NOT_AUTHORISED, "the cluster refuses this", str(error), ask)
    cure = "kubectl version, with the same kubeconfig and context, tells whether anybody reaches it"
    return CommandFailed(Exit.UNREACHABLE, "the cluster does not answer", str(error), cure)
