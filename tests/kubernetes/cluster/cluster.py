"""One complete cluster for tests, which fixtures provide and ``python -m tests.kubernetes.cluster
up`` runs.
"""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.kubernetes.cluster import binaries
from tests.kubernetes.cluster.admin import AdminError
from tests.kubernetes.cluster.control_plane import ControlPlane
from tests.kubernetes.cluster.kwok import Kwok, ready_nodes
from tests.kubernetes.cluster.node import Node
from tests.kubernetes.cluster.places import Slots
from tests.kubernetes.cluster.processes import ClusterFailed, Part, until

_ACCOUNT = "system:serviceaccount:"
_numbers = itertools.count(1)


class Cluster:
    """A control plane with ``kwok`` simulated nodes and ``nodes`` real ones; a context manager.

    ``extra`` adds flags to programs of the control plane by name. ``images`` are OCI archives for
    the real nodes, in addition to the test image of ``images.py``.
    """

    def __init__(
        self,
        *,
        kwok: int = 0,
        nodes: int = 0,
        folder: Path | None = None,
        extra: Mapping[str, Sequence[str]] | None = None,
        images: Sequence[Path] = (),
        prefix: str = "clk",
        network: str = "10.123",
    ) -> None:
        bin_ = binaries.available()
        self.places = Slots.take(folder, prefix, network)
        try:
            self.node_names = [f"{self.places.name}-node{number}" for number in range(1, nodes + 1)]
            self.plane = ControlPlane(self.places, bin_, self.node_names, extra)
            self.nodes = [
                Node(self.places, bin_, self.plane, name, n)
                for n, name in enumerate(self.node_names)
            ]
            self.kwok = Kwok(self.places, bin_, self.plane.kubeconfig, kwok) if kwok else None
        except BaseException:
            self.places.release(keep_folder=folder is not None)
            raise
        self._keep = folder is not None  # a caller that names a folder wants to read it afterwards
        self._images = tuple(images)
        self.kubeconfig, self.api, self.admin = (
            self.plane.kubeconfig,
            self.plane.api,
            self.plane.admin,
        )

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> Cluster:
        """Return when every node is ready. After a failure, nothing is left."""
        try:
            for node in self.nodes:
                # Containerd and the images start in parallel with the control plane.
                node.start(self._images)
            self.plane.start()
            if self.kwok:
                self.kwok.start(self.admin, tainted=bool(self.nodes))
            if self.nodes:
                watched = [*self.plane.parts.values(), *(node.part for node in self.nodes)]
                wanted = set(self.node_names)
                until(
                    lambda: wanted <= ready_nodes(self.admin), f"ready nodes {wanted}", 120, watched
                )
        except BaseException:
            self.end()
            raise
        return self

    def end(self) -> None:
        """End every process, then remove mounts, links, cgroups and the folder, unless the caller
        named it.

        A second call does nothing.
        """
        if not self.places.held:
            return
        for part in reversed(list(self.parts().values())):
            part.kill()
        for node in self.nodes:
            node.wait_gone()
        self.places.release(keep_folder=self._keep)

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    # --- parts ------------------------------------------------------------------------------------

    def parts(self) -> dict[str, Part]:
        """Return the processes by name: etcd, kube-apiserver, kube-controller-manager,
        kube-scheduler, kwok, the nodes.
        """
        found = dict(self.plane.parts)
        if self.kwok:
            found["kwok"] = self.kwok.part
        return found | {node.name: node.part for node in self.nodes}

    def kill(self, part: str) -> None:
        """Kill a part with SIGKILL and leave it dead.

        Also ``kubelet`` and ``containerd`` of the first real node.
        """
        if part in Node.INNER:
            self._node().signal(part, signal.SIGKILL)
        else:
            self._part(part).kill()

    def start_part(self, part: str) -> None:
        """Start a killed part again, unchanged, and wait until it works."""
        if part in Node.INNER:
            self._node().start_inner(part)
            return
        found = next((node for node in self.nodes if node.name == part), None)
        if found:
            found.start(self._images)
        elif self.kwok and part == self.kwok.part.name:
            self.kwok.start_again(self.admin)
        else:
            self._part(part).start()
        if part in ("etcd", "kube-apiserver"):
            self.plane.wait_api()

    def restart(self, part: str) -> None:
        """Kill a part, start it again and wait until it works."""
        self.kill(part)
        self.start_part(part)

    def freeze(self, part: str) -> None:
        """Stop a part with SIGSTOP: it keeps its connections and answers nothing."""
        if part in Node.INNER:
            self._node().signal(part, signal.SIGSTOP)
        else:
            self._part(part).signal(signal.SIGSTOP)

    def thaw(self, part: str) -> None:
        """Continue a part with SIGCONT."""
        if part in Node.INNER:
            self._node().signal(part, signal.SIGCONT)
        else:
            self._part(part).signal(signal.SIGCONT)

    def snapshot(self, name: str = "snapshot") -> Path:
        """Copy etcd's present data for ``restore``.

        Everything stays up; etcd stands still during the copy.
        """
        target = self.places.folder / name
        store = self.plane.parts["etcd"]
        store.signal(signal.SIGSTOP)
        try:
            until(store.stands_still, "an etcd that stands still", 150, pause_s=0.005)
            shutil.copytree(self.plane.data, target)
        finally:
            store.signal(signal.SIGCONT)
        return target

    def restore(self, snapshot: Path) -> None:
        """Return the cluster to a snapshot, as administrators do: stop everything, restore the
        copy, start.

        Resource versions go back, and are used again. Real nodes are left unchanged.
        """
        parts = [*self.plane.parts.values(), *([self.kwok.part] if self.kwok else [])]
        for part in reversed(parts):
            part.kill()
        shutil.rmtree(self.plane.data)
        shutil.copytree(snapshot, self.plane.data)
        self.plane.start()
        if self.kwok:
            self.kwok.start_again(self.admin)

    def _part(self, name: str) -> Part:
        parts = self.parts()
        if name not in parts:
            raise ClusterFailed(f"no part {name!r}; there are {', '.join([*parts, *Node.INNER])}")
        return parts[name]

    def _node(self) -> Node:
        if not self.nodes:
            raise ClusterFailed("this cluster has no real node")
        return self.nodes[0]

    # --- people and places ------------------------------------------------------------------------

    def token(self, user: str = "admin") -> str:
        """Return a bearer token: of ``admin``, or a real one of
        ``system:serviceaccount:NAMESPACE:NAME``.

        Missing service accounts and namespaces are created. A real token expires after an hour, and
        becomes invalid when its account is deleted. Raises ClusterFailed for any other user.
        """
        if user in self.plane.tokens:
            return self.plane.tokens[user]
        namespace, _, name = user.removeprefix(_ACCOUNT).partition(":")
        if not user.startswith(_ACCOUNT) or not name:
            raise ClusterFailed(f"no token for {user!r}: give admin or {_ACCOUNT}NAMESPACE:NAME")
        self.admin.ensure("/api/v1/namespaces", {"metadata": {"name": namespace}})
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.admin.ensure(accounts, {"metadata": {"name": name}})
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        return str(self.admin.post(f"{accounts}/{name}/token", body)["status"]["token"])

    def kubeconfig_of(self, user: str, namespace: str = "default") -> Path:
        """Return a kubeconfig with the token of ``user``."""
        path = self.places.folder / f"kubeconfig-{user.replace(':', '-')}-{namespace}"
        return self.plane.authority.kubeconfig(path, self.api, self.token(user), namespace)

    def namespace(self, name: str = "crawls", *, labels: Mapping[str, str] | None = None) -> str:
        """Create a namespace ``<name>-<number>``, ready for pods. It is deleted with the cluster."""
        full = f"{name}-{next(_numbers)}"
        self.admin.post(
            "/api/v1/namespaces", {"metadata": {"name": full, "labels": dict(labels or {})}}
        )
        path = f"/api/v1/namespaces/{full}/serviceaccounts/default"
        until(
            lambda: self.admin.find(path),
            f"the default service account of {full}",
            150,
            pause_s=0.05,
        )
        return full

    def quota(self, namespace: str, name: str, hard: Mapping[str, str]) -> None:
        """Create a quota and wait until it is in force: stored, counted, and known to the admission
        controller, which uses its own copy.

        A Secret, of which the quota allows none, shows whether this is the case.
        """
        path = f"/api/v1/namespaces/{namespace}"
        self.admin.post(
            f"{path}/resourcequotas",
            {"metadata": {"name": name}, "spec": {"hard": {**hard, "secrets": "0"}}},
        )
        secret, words = {"metadata": {"name": "none"}}, f"exceeded quota: {name}"
        until(
            lambda: self.refuses(f"{path}/secrets", secret, words),
            f"the quota {name} in force",
            150,
            pause_s=0.05,
        )

    def refuses(self, path: str, body: object, words: str) -> bool:
        """Return whether this would be refused with this message if it were created now."""
        try:
            self.admin.post(f"{path}?dryRun=All", body)
        except AdminError as error:
            return words in str(error)
        return False

    def describe(self) -> dict[str, str]:
        """Return what somebody else needs to use it."""
        return {"kubeconfig": str(self.kubeconfig), "api": self.api, "dir": str(self.places.folder)}
