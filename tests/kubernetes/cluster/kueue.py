"""Kueue next to the cluster: its own program, installed with the manifests of its module, on
loopback.

Its services are names for this machine (``ExternalName: localhost``), so that the API server finds
its webhooks and its visibility server as on any cluster. Its certificates are mounted here, as the
kubelet would do.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.cluster import binaries
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import Part, until

Object = dict[str, Any]
NAMESPACE, SECRET, SERVICE = "kueue-system", "kueue-webhook-server-cert", "kueue-webhook-service"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
#: The kinds of the webhooks that are installed; Kueue has more, for objects that do not exist here.
_KINDS = ("batch-v1-job", "clusterqueue", "cohort", "resourceflavor", "workload")


class Kueue:
    """The manager of one cluster. ``more`` is added to its configuration."""

    def __init__(self, cluster: Cluster, **more: Any) -> None:
        where = binaries.kueue_folder()
        if not (where / "config").exists():
            raise binaries.NoBinaries(
                f"no kueue in {where}: `python3 -m tools test-kueue` builds it (minutes, once)"
            )
        self.cluster, self._admin, self._config = cluster, cluster.admin, where / "config"
        folder = cluster.places.folder
        self._certificates = folder / "kueue-certificates"
        self._webhooks, self._visibility, self._health = (cluster.places.port() for _ in range(3))
        config = folder / "kueue.json"
        config.write_text(json.dumps(self._configuration() | more))
        command = [str(where / "kueue"), f"--config={config}", f"--kubeconfig={cluster.kubeconfig}"]
        self.part = Part("kueue", [*command, "--zap-log-level=2"], folder / "kueue.log")

    def _configuration(self) -> Object:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {
                "host": "127.0.0.1",
                "port": self._webhooks,
                "certDir": str(self._certificates),
            },
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 2000, "burst": 4000},
            "integrations": {"frameworks": ["batch/job"]},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": SERVICE,
                "webhookSecretName": SECRET,
            },
            "visibilityServer": {"bindAddress": "127.0.0.1", "bindPort": self._visibility},
        }

    def start(self) -> None:
        """Install it, and return when its webhooks and its visibility server respond."""
        self._admin.ensure("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for name in (SERVICE, "kueue-visibility-server"):
            spec = {"type": "ExternalName", "externalName": "localhost"}
            self._admin.ensure(
                f"/api/v1/namespaces/{NAMESPACE}/services",
                {"metadata": {"name": name}, "spec": spec},
            )
        self._admin.ensure(
            f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": SECRET}}
        )
        for path, found in self._objects():
            self._admin.ensure(path, found)
        self.start_again()
        group = "/apis/visibility.kueue.x-k8s.io/v1beta2"
        until(lambda: self._admin.find(group), "Kueue's visibility server", 150, [self.part])

    def start_again(self) -> None:
        """Start the program and return when it is ready."""
        self.part.start()
        until(self._mounted, "Kueue's certificates", 150, [self.part])
        until(self._ready, "a ready Kueue", 150, [self.part])

    def _mounted(self) -> bool:
        """Return whether the certificates are where the kubelet would mount them."""
        secret = (
            self._admin.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}").get("data") or {}
        )
        self._certificates.mkdir(exist_ok=True)
        for name, value in secret.items():
            (self._certificates / name).write_bytes(base64.b64decode(value))
        return "tls.crt" in secret

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._health}/readyz", timeout=5
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    # --- what its module installs -----------------------------------------------------------------

    def _objects(self) -> Iterator[tuple[str, Object]]:
        """Return the definitions with their conversion, the webhooks, and the visibility server's
        API, with their paths.
        """
        patches = {
            one["metadata"]["name"]: one["spec"]
            for one in self._read("crd/patches/webhook_in_*.yaml")
        }
        for crd in self._read("crd/bases/*.yaml"):
            crd["spec"] |= patches.get(crd["metadata"]["name"], {})
            self._called(crd["spec"].get("conversion", {}).get("webhook", {}).get("clientConfig"))
            yield "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd
        for hooks in self._read("webhook/manifests.yaml"):
            hooks["metadata"]["name"] = f"kueue-{hooks['metadata']['name']}"
            hooks["webhooks"] = [
                one
                for one in hooks["webhooks"]
                if one["clientConfig"]["service"]["path"].endswith(_KINDS)
            ]
            for one in hooks["webhooks"]:
                self._called(one["clientConfig"])
            yield f"/apis/admissionregistration.k8s.io/v1/{hooks['kind'].lower()}s", hooks
        for api in self._read("visibility/apiservice_*.yaml"):
            api["spec"]["service"] |= {"name": "kueue-visibility-server", "port": self._visibility}
            yield "/apis/apiregistration.k8s.io/v1/apiservices", api

    def _called(self, client: Object | None) -> None:
        if client is not None:
            client["service"] |= {"name": SERVICE, "namespace": NAMESPACE, "port": self._webhooks}

    def _read(self, pattern: str) -> list[Object]:
        files: list[Path] = sorted(self._config.glob(pattern))
        return [
            one
            for file in files
            for one in yaml.load_all(file.read_text(), yaml.CSafeLoader)
            if one
        ]

    # --- queues -----------------------------------------------------------------------------------

    def make(self, kind: str, name: str, namespace: str | None = None, **fields: Any) -> None:
        """Create one of Kueue's objects unless it exists."""
        where = f"{QUEUES}/namespaces/{namespace}" if namespace else QUEUES
        suffix = "es" if kind.endswith("s") else "s"
        body = {
            "apiVersion": QUEUES.removeprefix("/apis/"),
            "kind": kind,
            "metadata": {"name": name},
            **fields,
        }
        self._admin.ensure(f"{where}/{kind.lower()}{suffix}", body)
