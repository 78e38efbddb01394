"""Address and credentials of the Kubernetes API, and the connection pool.

Addresses, certificates and credentials come from the official client's loaders, so that every kubeconfig works that
works elsewhere; requests go over that client's own connection pools. Proxies are used only where the kubeconfig names
one (``proxy-url``), never because an environment variable happens to be set.
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

#: A connection whose peer vanished is noticed after IDLE + COUNT * INTERVAL seconds, even while nothing is sent.
KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]

#: Where a kubeconfig is looked for last, as kubectl does.
HOME_CONFIG = Path("~/.kube/config")


@dataclass(frozen=True, slots=True)
class Source:
    """The source of the access data: a kubeconfig (several, joined as ``KUBECONFIG`` joins them), or our own pod."""

    kubeconfig: str | None
    context: str | None

    @property
    def words(self) -> str:
        if self.kubeconfig is None:
            return "the service account of this pod"
        return f"kubeconfig {self.kubeconfig}" + (f", context {self.context}" if self.context else "")


def find(kubeconfig: Path | None, context: str | None) -> Source:
    """The given kubeconfig, that of ``KUBECONFIG``, our own pod's account, or ``~/.kube/config``: the first that
    exists.

    Raises ``InvalidRequest`` when there is none.
    """
    if kubeconfig is not None:
        if not kubeconfig.is_file():
            raise InvalidRequest(f"kubeconfig: {str(kubeconfig)!r} is no file; give the path of a kubeconfig")
        return Source(str(kubeconfig), context)
    if named := os.environ.get("KUBECONFIG"):
        return Source(named, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and context is None:
        return Source(None, None)
    if (home := HOME_CONFIG.expanduser()).is_file():
        return Source(str(home), context)
    raise InvalidRequest(
        "kubeconfig: none is given, KUBECONFIG is not set, this is no pod of a cluster, and there is no "
        f"{HOME_CONFIG}; set LIFECYCLE_CLUSTER__KUBECONFIG to the path of a kubeconfig"
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """Our identity to the server, and the connections that belong to it."""

    host: str
    pools: urllib3.PoolManager
    configuration: Any
    certificates: tuple[bytes, ...]


class Access:
    """Credentials as they are now, and how to renew them. Thread-safe."""

    def __init__(self, source: Source, connections: int) -> None:
        """Raises ``InvalidRequest`` for a kubeconfig that cannot be used."""
        self.source = source
        self._connections = connections
        self._lock = threading.Lock()
        self._renewed_at = 0.0
        self._identity = load(source, connections)
        self.host = self._identity.host

    def current(self) -> tuple[Identity, str | None]:
        """The identity for a request, and its ``Authorization`` header.

        Renews expired credentials. Raises ``InvalidRequest`` when a plugin of the kubeconfig fails.
        """
        with self._lock:
            return self._identity, _authorization(self._identity)

    def renew(self, who: Identity, refused: str | None, asked_at: float) -> bool:
        """Read everything again, because the server refused ``who`` and ``refused``, sent at ``asked_at`` (monotonic).

        Returns whether the credentials are different now. Several threads may report the same refusal; only the first
        of them reads. Raises ``InvalidRequest``, also when another server is named now: a look that began on one
        cluster must not end on another, where nothing of ours is.
        """
        with self._lock:
            if self._renewed_at < asked_at:
                found = load(self.source, self._connections)
                if found.host != self.host:
                    raise InvalidRequest(
                        f"{self.source.words}: names the server {found.host} now, and this process began with "
                        f"{self.host}; start it again, or set LIFECYCLE_CLUSTER__CONTEXT"
                    )
                self._identity, self._renewed_at = found, time.monotonic()
            return self._identity.certificates != who.certificates or _authorization(self._identity) != refused

    def close(self) -> None:
        with self._lock:
            self._identity.pools.clear()


def _authorization(identity: Identity) -> str | None:
    """The header, by the client's own rules: in a pod it reads the token's file again each minute."""
    found = identity.configuration.auth_settings().get("BearerToken")
    return str(found["value"]).strip() if found and found["value"] else None


def load(source: Source, connections: int) -> Identity:
    """Read the source and make the connections' pools; nothing is connected yet. Raises ``InvalidRequest``."""
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
    except Exception as error:  # errors of the loader, of yaml and of a plugin: they describe the content of the file
        raise InvalidRequest(f"{source.words}: cannot be used; {type(error).__name__}: {error}") from error
    configuration.proxy, configuration.no_proxy = proxy, None
    configuration.retries = False
    configuration.socket_options = KEEPALIVE
    configuration.connection_pool_maxsize = connections
    if not configuration.verify_ssl:
        log.warning(
            "%s: insecure-skip-tls-verify is set, so nobody checks that the server is the right one", source.words
        )
        warnings.filterwarnings("ignore", category=InsecureRequestWarning)  # said once; not again at each request
    pools = client.ApiClient(configuration).rest_client.pool_manager
    host = str(configuration.host).rstrip("/")
    pool = pools.connection_from_url(host)
    pool.ConnectionCls = tracked(pool.ConnectionCls)
    return Identity(host, pools, configuration, _certificates(configuration))


def _proxy(source: Source) -> str | None:
    """The proxy that the kubeconfig names, which its loader (of client 36) does not read."""
    from kubernetes.config.kube_config import KubeConfigMerger

    merged: Any = KubeConfigMerger(source.kubeconfig).config
    context = merged["contexts"].get_with_name(source.context or merged["current-context"])["context"]
    proxy: str | None = merged["clusters"].get_with_name(context["cluster"])["cluster"].safe_get("proxy-url")
    return proxy


def _certificates(configuration: Any) -> tuple[bytes, ...]:
    """The client's certificate and key as they are now: the loader's copies have the same names after a rotation."""
    files = (configuration.cert_file, configuration.key_file, configuration.ssl_ca_cert)
    return tuple(Path(file).read_bytes() for file in files if file and Path(file).is_file())
