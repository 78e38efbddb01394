"""The files of ``deploy/`` as plain data: documents by kustomization, and what a network policy
permits.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"


def parsed(text: str) -> list[Document]:
    """Return the documents of a YAML text."""
    # The parser in C, which takes an eighth of the time: every test process reads all of
    # ``deploy/`` before its first test.
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one is not None]


def documents(file: Path) -> list[Document]:
    """Return the documents of a YAML file."""
    return parsed(file.read_text(encoding="utf-8"))


def kustomizations() -> list[Path]:
    """Return every folder with a kustomization."""
    return sorted(file.parent for file in DEPLOY.rglob("kustomization.yaml"))


def resources(folder: Path) -> Iterator[Document]:
    """Return what a kustomization contains before patches: its own resources and those that it
    includes.
    """
    (own,) = documents(folder / "kustomization.yaml")
    for name in [*(own.get("resources") or []), *(own.get("components") or [])]:
        place = (folder / name).resolve()
        if place.is_dir():
            yield from resources(place)
        else:
            yield from documents(place)


def pod_of(document: Document) -> Document | None:
    """Return the pod that a workload creates."""
    if document["kind"] == "CronJob":
        return pod_of({"kind": "Job", "spec": document["spec"]["jobTemplate"]["spec"]})
    if document["kind"] in ("Deployment", "Job"):
        template: Document = document["spec"]["template"]
        return template
    return None


def settings_of(file: Path) -> dict[str, str]:
    """Return names and values of an ``.env`` file as kustomize reads it."""
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


# --- network policies -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Pod:
    """An end of a connection that is a pod."""

    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_namespace_labels(self) -> dict[str, str]:
        return {"kubernetes.io/metadata.name": self.namespace, **self.namespace_labels}


End = Pod | str
"""A pod, or an address outside of the cluster's pods."""


def allowed(
    policies: Sequence[Document], source: End, target: End, port: int, protocol: str = "TCP"
) -> bool:
    """Return whether these policies permit a connection, by the rules of networking.k8s.io/v1:
    without a policy that selects an end in a direction, everything is permitted there, and
    otherwise one of these policies is enough.
    """
    out = not isinstance(source, Pod) or _lets(policies, source, target, "Egress", port, protocol)
    into = not isinstance(target, Pod) or _lets(policies, target, source, "Ingress", port, protocol)
    return out and into


def _lets(
    policies: Sequence[Document], own: Pod, other: End, direction: str, port: int, protocol: str
) -> bool:
    chosen = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == own.namespace
        and direction in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], own.labels)
    ]
    if not chosen:
        return True
    key, peers = ("egress", "to") if direction == "Egress" else ("ingress", "from")
    return any(
        _port(rule.get("ports"), port, protocol) and _peer(rule.get(peers), other, own.namespace)
        for spec in chosen
        for rule in spec.get(key) or []
    )


def _port(ports: Sequence[Document] | None, port: int, protocol: str) -> bool:
    return not ports or any(
        one.get("protocol", "TCP") == protocol
        and ("port" not in one or one["port"] <= port <= one.get("endPort", one["port"]))
        for one in ports
    )


def _peer(peers: Sequence[Document] | None, other: End, namespace: str) -> bool:
    return not peers or any(_is(peer, other, namespace) for peer in peers)


def _is(peer: Document, other: End, namespace: str) -> bool:
    if "ipBlock" in peer:
        return isinstance(other, str) and _within(peer["ipBlock"], other)
    if not isinstance(other, Pod):
        return False
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], other.all_namespace_labels):
            return False
    elif other.namespace != namespace:
        return False
    return selects(peer.get("podSelector") or {}, other.labels)


def _within(block: Document, address: str) -> bool:
    at = ipaddress.ip_address(address)

    def holds(text: str) -> bool:
        network = ipaddress.ip_network(text)
        return at.version == network.version and at in network

    return holds(block["cidr"]) and not any(holds(text) for text in block.get("except") or [])


def selects(selector: Document, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches; an empty one matches everything."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for one in selector.get("matchExpressions") or []:
        has, value = one["key"] in labels, labels.get(one["key"])
        fits = {
            "In": has and value in one.get("values", []),
            "NotIn": not has or value not in one.get("values", []),
            "Exists": has,
            "DoesNotExist": not has,
        }
        if not fits[one["operator"]]:
            return False
    return True
