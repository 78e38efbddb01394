"""etcd, API server, controllers and scheduler on loopback, with real admission and real service
account tokens.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kubernetes.cluster.admin import Admin
from tests.kubernetes.cluster.pki import Authority
from tests.kubernetes.cluster.places import Slots
from tests.kubernetes.cluster.processes import Part, until

#: Controllers that affect crawls, and those without which a namespace has no service account and a
#: claim no volume.
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
    "persistentvolume-protection-controller",
    "pod-garbage-collector-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
)
#: Controllers that make pods of Deployments, where nodes can run them, and that find the pods of
#: Services.
OF_SERVICES = ("deployment-controller", "endpointslice-controller", "replicaset-controller")
#: Without these, the controllers lag minutes behind a thousand pods that end at once.
_QPS = (
    "--kube-api-qps=2000",
    "--kube-api-burst=4000",
    "--leader-elect=false",
    "--bind-address=127.0.0.1",
)
PATIENCE_S = 150.0


class ControlPlane:
    """The four programs. ``extra`` adds or overrides flags of one of them, by its name."""

    def __init__(
        self,
        places: Slots,
        bin_: Path,
        nodes: Sequence[str] = (),
        extra: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._places, self._bin, self._extra = places, bin_, dict(extra or {})
        self._controlled = (*CONTROLLERS, *OF_SERVICES) if nodes else CONTROLLERS
        self.folder = places.folder
        self.data = self.folder / "etcd"
        self.authority = Authority(self.folder / "pki")
        self.api = f"https://127.0.0.1:{places.port()}"
        self.tokens = {
            user: secrets.token_hex(16) for user in ("admin", *(f"system:node:{n}" for n in nodes))
        }
        self.kubeconfig = self.authority.kubeconfig(
            self.folder / "kubeconfig", self.api, self.tokens["admin"]
        )
        self.admin = Admin(self.api, self.tokens["admin"], self.authority.certificate)
        self._etcd = f"http://127.0.0.1:{places.port()}"
        self.parts = {
            part.name: part
            for part in (self._store(), self._server(), self._controllers(), self._scheduler())
        }

    def start(self) -> None:
        """Start everything without waiting.

        Controllers wait for the API server themselves.
        """
        self.parts["etcd"].start()
        self.parts["kube-apiserver"].start()
        self.wait_api()
        for name in ("kube-controller-manager", "kube-scheduler"):
            self.parts[name].start()
        self.wait_ready()

    def wait_api(self) -> None:
        """Return when the API server reports that it is ready."""
        watched = [self.parts["etcd"], self.parts["kube-apiserver"]]
        until(self.admin.ready, "a ready API server", PATIENCE_S, watched)

    def wait_ready(self) -> None:
        """Return when a pod could be created: the controllers have created the default service
        account.
        """
        watched = list(self.parts.values())
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        until(lambda: self.admin.find(path), "the default service account", PATIENCE_S, watched)

    # --- the command lines ------------------------------------------------------------------------

    def _part(self, name: str, *flags: str) -> Part:
        command = [str(self._bin / name), *flags, *self._extra.get(name, ())]
        return Part(name, command, self.folder / f"{name}.log")

    def _store(self) -> Part:
        peer = f"http://127.0.0.1:{self._places.port()}"
        return self._part(
            "etcd",
            f"--data-dir={self.data}",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _server(self) -> Part:
        certificate, key = self.authority.issue(
            "apiserver", addresses=("127.0.0.1", self._places.api_service)
        )
        kubelet_certificate, kubelet_key = self.authority.issue(
            "apiserver-kubelet", group="system:masters"
        )
        front, front_key = self.authority.issue("front-proxy")
        signing, public = self.authority.key_pair("service-accounts")
        return self._part(
            "kube-apiserver",
            f"--etcd-servers={self._etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.api.rpartition(':')[2]}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.authority.certificate}",
            f"--cert-dir={self.folder}/certs",
            # For APIs that another server provides, such as Kueue's for its queues.
            f"--requestheader-client-ca-file={self.authority.certificate}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={front}",
            f"--proxy-client-key-file={front_key}",
            f"--service-cluster-ip-range={self._places.services}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={signing}",
            "--authorization-mode=Node,RBAC",
            f"--token-auth-file={self._token_file()}",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            "--anonymous-auth=false",
            f"--kubelet-client-certificate={kubelet_certificate}",
            f"--kubelet-client-key={kubelet_key}",
            "--kubelet-preferred-address-types=InternalIP",
        )

    def _token_file(self) -> Path:
        lines = []
        for number, (user, token) in enumerate(self.tokens.items()):
            group = "system:masters" if user == "admin" else "system:nodes"
            lines.append(f"{token},{user},{number},{group}\n")
        path = self.folder / "tokens.csv"
        path.touch(mode=0o600)
        path.write_text("".join(lines))
        return path

    def _controllers(self) -> Part:
        return self._part(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--root-ca-file={self.authority.certificate}",
            f"--controllers={','.join(self._controlled)}",
            f"--secure-port={self._places.port()}",
            "--node-monitor-grace-period=20s",
            "--concurrent-job-syncs=20",
            *_QPS,
        )

    def _scheduler(self) -> Part:
        flags = (f"--kubeconfig={self.kubeconfig}", f"--secure-port={self._places.port()}")
        return self._part("kube-scheduler", *flags, *_QPS)
