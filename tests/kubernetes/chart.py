"""The chart of ``deploy/helm``, as Helm renders it, and the overlay that is equal to its production
values.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.cluster import binaries
from tests.support.manifests import DEPLOY, Document, parsed

CHART = DEPLOY / "helm"
SERVICES, CRAWLS = "crawler-lifecycle", "crawls"
#: Placeholders of overlays/production, with their values in ci/production-values.yaml.
FILLED = {
    "registry.example": "registry.corp.test",
    "0" * 64: "1" * 64,
    "temporal.example": "temporal.corp.test",
    "s3://example-": "s3://corp-",
    "203.0.113.10": "20.0.0.10",
    "198.51.100.": "20.0.1.",
}
#: Annotations for Helm in the chart, and for Flux in the overlay, that say how each is applied.
ADDED = re.compile(r"^(helm\.sh|checksum|kustomize\.toolkit\.fluxcd\.io)/")


def values(name: str) -> Path:
    """Return the values file of one kind of installation."""
    return CHART / "ci" / f"{name}-values.yaml"


def kinds_of_installations() -> list[str]:
    return sorted(file.name.removesuffix("-values.yaml") for file in (CHART / "ci").iterdir())


def helm(*words: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Call Helm, without a cluster unless one is given."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "HELM"))
    }
    clean["KUBECONFIG"] = str(kubeconfig or os.devnull)
    command = [str(binaries.available() / "helm"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, env=clean)


@functools.cache
def template(*words: str, namespace: str = SERVICES) -> subprocess.CompletedProcess[str]:
    """Return what Helm renders from the chart; each command is executed once, because nobody
    changes the chart.
    """
    return helm("template", "fleet", str(CHART), "--namespace", namespace, *words)


def rendered(name: str, *words: str, namespace: str = SERVICES) -> list[Document]:
    """Return the objects of one kind of installation."""
    done = template("--values", str(values(name)), *words, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def filled_in(folder: Path) -> Path:
    """Return a copy of ``deploy/`` with its placeholders replaced by the values of
    ci/production-values.yaml.
    """
    copy = folder / "deploy"
    shutil.copytree(DEPLOY, copy)
    for file in (copy / "overlays/production").rglob("*.*"):
        text = file.read_text()
        for placeholder, own in FILLED.items():
            text = text.replace(placeholder, own)
        file.write_text(text)
    return copy


def comparable(found: list[Document]) -> dict[tuple[str, str, str], Any]:
    """Return objects by kind, namespace and name, without hashes in names of ConfigMaps and without
    Helm's additions.
    """
    hashed = re.compile(r"^(crawler-lifecycle|crawler-catalogue)-[a-z0-9]{10}$")
    made = {}
    for one in found:
        plain = _plain(one, hashed)
        if one["kind"] == "ConfigMap" and "crawlers.yaml" in one["data"]:
            plain["data"]["crawlers.yaml"] = yaml.safe_load(one["data"]["crawlers.yaml"])
        meta = plain["metadata"]
        made[one["kind"], meta.get("namespace", ""), meta["name"]] = plain
    return made


def _plain(value: Any, hashed: re.Pattern[str]) -> Any:
    if isinstance(value, dict):
        plain = {key: _plain(below, hashed) for key, below in value.items() if not ADDED.match(key)}
        if plain.get("annotations") == {}:
            del plain["annotations"]
        return plain
    if isinstance(value, list):
        return [_plain(below, hashed) for below in value]
    return hashed.sub(r"\1", value) if isinstance(value, str) else value


def differences(left: Any, right: Any, at: str = "") -> Iterator[str]:
    """Return every field in which the two differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}, key=str):
            yield from differences(left.get(key), right.get(key), f"{at}.{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for n, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from differences(one, other, f"{at}[{n}]")
    elif left != right:
        yield f"{at}: {left!r:.200} of the chart, {right!r:.200} of the overlay"
