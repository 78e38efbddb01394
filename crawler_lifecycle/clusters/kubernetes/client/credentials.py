"""The address and credentials for the Kubernetes API, and the connection pool.

The official client's loaders read the addresses, certificates and credentials. So every kubeconfig
that works with other programs works here. Requests use that client's connection pools. A proxy is
used only when the kubeconfig names one (``proxy-url``), never because of an environment variable.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.domain.errors import InvalidRequest

from .deadlines import tracked

if TYPE_CHECKING:
    import urllib3

log = logging.getLogger(__name__)

#: If the peer disappears, we notice it after IDLE + COUNT * INTERVAL seconds, even when nothing is
#: sent.
KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]

#: The default path of a kubeconfig, as in kubectl.
HOME_CONFIG = Path("~/.kube/config")


@dataclass(frozen=True, slots=True)
class Source:
    """The source of address and credentials: our own pod, or a kubeconfig (several paths, as in
    ``KUBECONFIG``).
    """

    kubeconfig: str | None
    context: str | None

    @property
    def words(self) -> str:
        if self.kubeconfig is None:
            return "the service account of this pod"
        return f"kubeconfig {self.kubeconfig}" + (
            f", context {self.context}" if self.context else ""
        )


def find(kubeconfig: Path | None, context: str | None) -> Source:
    """Return the first source that exists.

    The order is: the given kubeconfig, ``KUBECONFIG``, our own pod's account, ``~/.kube/config``.
    Raises ``InvalidRequest`` when none exists.
    """
    if kubeconfig is not None:
        if not kubeconfig.is_file():
            raise InvalidRequest(
                f"kubeconfig: {str(kubeconfig)!r} is not a file; give the path of a kubeconfig"
            )
        return Source(str(kubeconfig), context)
    if named := os.environ.get("KUBECONFIG"):
        return Source(named, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and context is None:
        return Source(None, None)
    if (home := HOME_CONFIG.expanduser()).is_file():
        return Source(str(home), context)
    raise InvalidRequest(
        "kubeconfig: none is given, KUBECONFIG is not set, this process is not in a pod, and "
        "there is no "
        f"{HOME_CONFIG}; set LIFECYCLE_CLUSTER__KUBECONFIG to the path of a kubeconfig"
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that we present to the server, and the connections that use it."""

    host: str
    pools: urllib3.PoolManager
    configuration: Any
    certificates: tuple[bytes, ...]


class Access:
    """The current credentials, which can be renewed. Thread-safe."""

    def __init__(self, source: Source, connections: int) -> None:
        """Load the credentials. Raises ``InvalidRequest`` for a kubeconfig that cannot be used."""
        self.source = source
        self._connections = connections
        self._lock = threading.Lock()
        self._renewed_at = 0.0
        self._identity = load(source, connections)
        self.host = self._identity.host

    def current(self) -> tuple[Identity, str | None]:
        """Return the identity for a request, and its ``Authorization`` header.

        Renew expired credentials first.

        Raises ``InvalidRequest`` when a plugin that the kubeconfig names fails.
        """
        with self._lock:
            return self._identity, _authorization(self._identity)

    def renew(self, who: Identity, refused: str | None, asked_at: float) -> bool:
        """Load the credentials again after the server refused them, and return whether they have
        changed.

        The refused request used the identity ``who`` and the header ``refused``, and was sent at
        ``asked_at`` (monotonic). Several threads may report the same refusal; only the first one
        loads the credentials. Raises ``InvalidRequest``, for example when the source now names a
        different server: a poll that began on one cluster must not end on a different cluster,
        which has none of our tasks.
        """
        with self._lock:
            if self._renewed_at < asked_at:
                found = load(self.source, self._connections)
                if found.host != self.host:
                    raise InvalidRequest(
                        f"{self.source.words}: names the server {found.host} now, but this process "
                        "began with "
                        f"{self.host}; restart this process, or set LIFECYCLE_CLUSTER__CONTEXT"
                    )
                self._identity = found
                self._renewed_at = time.monotonic()
            return (
                self._identity.certificates != who.certificates
                or _authorization(self._identity) != refused
            )

    def close(self) -> None:
        with self._lock:
            self._identity.pools.clear()


def _authorization(identity: Identity) -> str | None:
    """Return the ``Authorization`` header.

    In a pod, the official client reads the token's file again each minute.
    """
    found = identity.configuration.auth_settings().get("BearerToken")
    return str(found["value"]).strip() if found and found["value"] else None


def load(source: Source, connections: int) -> Identity:
    """Read the source, and create the connection pools without connecting.

    Raises ``InvalidRequest``.
    """
    from kubernetes import client, config
    from urllib3.exceptions import InsecureRequestWarning

    configuration = client.Configuration()
    proxy = None
    try:
        if source.kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(
                config_file=source.kubeconfig,
                context=source.context,
                client_configuration=configuration,
                persist_config=False,
            )
            proxy = _proxy(source)
    except Exception as error:  # the loader, yaml and the plugins raise many kinds of errors
        raise InvalidRequest(
            f"{source.words}: cannot be used; {type(error).__name__}: {error}"
        ) from error
    configuration.proxy = proxy
    configuration.no_proxy = None
    configuration.retries = False
    configuration.socket_options = KEEPALIVE
    configuration.connection_pool_maxsize = connections
    if not configuration.verify_ssl:
        log.warning(
            "%s: insecure-skip-tls-verify is set, so the certificate of the server is not checked",
            source.words,
        )
        # urllib3 would repeat our warning.
        warnings.filterwarnings("ignore", category=InsecureRequestWarning)
    pools = client.ApiClient(configuration).rest_client.pool_manager
    host = str(configuration.host).rstrip("/")
    pool = pools.connection_from_url(host)
    pool.ConnectionCls = tracked(pool.ConnectionCls)
    return Identity(host, pools, configuration, _certificates(configuration))


def _proxy(source: Source) -> str | None:
    """Return the proxy that the kubeconfig names.

    The loader of the official client 36 ignores it.
    """
    from kubernetes.config.kube_config import KubeConfigMerger

    merged: Any = KubeConfigMerger(source.kubeconfig).config
    context = merged["contexts"].get_with_name(source.context or merged["current-context"])[
        "context"
    ]
    proxy: str | None = (
        merged["clusters"].get_with_name(context["cluster"])["cluster"].safe_get("proxy-url")
    )
    return proxy


def _certificates(configuration: Any) -> tuple[bytes, ...]:
    """Return the contents of the client's certificates and key, because a rotation can replace the
    files without changing their paths.
    """
    files = (configuration.cert_file, configuration.key_file, configuration.ssl_ca_cert)
    return tuple(Path(file).read_bytes() for file in files if file and Path(file).is_file())
