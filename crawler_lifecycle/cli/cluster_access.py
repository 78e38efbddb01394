"""Access to the Kubernetes cluster that a command names, and connection errors with a fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .machine import LOOPBACK
from .problems import CommandFailed, Exit, WrongUsage
from .session import load_settings

if TYPE_CHECKING:
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.settings import ClusterSettings

_SETTING = "LIFECYCLE_CLUSTER__"


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The Kubernetes cluster that a command's options name.

    For each option that is ``None``, the setting applies.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    image: str | None = None
    """The image for crawlers whose catalogue entry names no image."""
    address: str = LOOPBACK
    """An address of this machine that pods can reach. The demo site listens on this address."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make our processes use this cluster."""
        given = {
            name: value.absolute() if isinstance(value, Path) else value
            for name, value in self._given().items()
        }
        return {f"{_SETTING}{name.upper()}": str(value) for name, value in given.items()}

    def settings(self) -> ClusterSettings:
        """Return the settings with these options applied.

        Raises ``CommandFailed``, which names a wrong setting.
        """
        return load_settings().cluster.model_copy(update=self._given())

    def _given(self) -> dict[str, Any]:
        known = {
            name: value
            for name, value in asdict(self).items()
            if value is not None and name != "address"
        }
        return {"kind": "kubernetes", **known}


def connect(settings: ClusterSettings) -> Api:
    """Return a client of the cluster's API.

    Raises ``CommandFailed`` if its configuration cannot be read.
    """
    from crawler_lifecycle.clusters.kubernetes.client.connection import Api
    from crawler_lifecycle.domain.errors import LifecycleError

    try:
        return Api(
            kubeconfig=settings.kubeconfig,
            context=settings.context,
            namespace=settings.namespace,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
        )
    except LifecycleError as error:
        raise WrongUsage(
            "no Kubernetes cluster is configured",
            "--kubeconfig FILE and --context NAME, or LIFECYCLE_CLUSTER__KUBECONFIG; kubectl "
            "config get-contexts",
            why=str(error),
        ) from None


def check_namespace(api: Api) -> None:
    """Check that the cluster responds and has our namespace.

    Raises ``CommandFailed``, which names the fix.
    """
    if namespace_phase(api) != "Terminating":
        return
    name = api.namespace
    raise CommandFailed(
        Exit.NOT_IN_THIS_STATE,
        f"the namespace {name!r} is being deleted",
        "nothing can be created in it; remaining pods may be waiting for our finalizer",
        f"crawlctl cluster release --namespace {name}, or use --namespace with another name",
    )


def namespace_phase(api: Api) -> str | None:
    """Return ``Active`` or ``Terminating``; ``None`` if this account may not read the namespace.

    Such an account may still be allowed to work in the namespace. Raises ``CommandFailed`` if the
    namespace does not exist or the cluster does not respond.
    """
    from crawler_lifecycle.clusters.kubernetes.client.errors import NotFound, RequestRefused
    from crawler_lifecycle.clusters.kubernetes.polls.namespace_identity import read_namespace
    from crawler_lifecycle.domain.errors import ClusterUnavailable

    name = api.namespace
    try:
        return "Terminating" if read_namespace(api).leaving else "Active"
    except NotFound:
        raise CommandFailed(
            Exit.NOT_FOUND,
            f"the cluster has no namespace {name!r}",
            None,
            f"kubectl create namespace {name}, or use --namespace with another name",
        ) from None
    except RequestRefused:
        return None
    except ClusterUnavailable as error:
        raise failed(error) from None


def failed(error: Exception) -> CommandFailed:
    """Return the error for a request that the cluster refused or did not respond to."""
    status = getattr(error, "status", None)
    if status == 401:
        again = "log in again: kubectl get namespaces"
        return CommandFailed(
            Exit.NOT_AUTHORISED, "the cluster does not accept these credentials", str(error), again
        )
    if status == 403:
        ask = "ask for the permission (deploy/ has the roles), or use another --context"
        return CommandFailed(
            Exit.NOT_AUTHORISED, "the cluster does not allow this", str(error), ask
        )
    fix = "check it with kubectl version, with the same kubeconfig and context"
    return CommandFailed(Exit.UNREACHABLE, "the cluster does not respond", str(error), fix)
