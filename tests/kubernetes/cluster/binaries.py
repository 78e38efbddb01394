"""The programs of the test cluster, built from pinned Go modules into a cache folder whose key is
made from the pins.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parents[1] / "binaries"

#: Reported by the API server; without it, the client libraries see version v0.0.0-master.
_VERSION = "k8s.io/component-base/version"
_KUBERNETES = (
    f"-s -w -X {_VERSION}.gitVersion=v1.36.3 -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=36"
)
_HELM = "-s -w -X helm.sh/helm/v3/internal/version.version=v3.21.4" + "".join(
    # The version that `helm template` assumes for a cluster.
    f" -X helm.sh/helm/v3/pkg/{where}.k8sVersion{part}={value}"
    for where in ("chartutil", "lint/rules")
    for part, value in (("Major", 1), ("Minor", 36))
)
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"


class NoBinaries(Exception):
    """The programs neither exist nor can be built; the text says what is missing."""


@dataclass(frozen=True)
class Program:
    """One program: its file name, the module that pins it, its package and how it is built."""

    name: str
    module: str
    package: str
    ldflags: str = "-s -w"
    tags: str = ""


PROGRAMS = (
    Program("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
    *(
        Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES)
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kubectl",
        )
    ),
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    *(
        Program(name, "containerd", f"{_CONTAINERD}/{name}", tags="no_btrfs,no_zfs,no_devmapper")
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    Program("pause", "pause", "."),
    Program("helm", "helm", "helm.sh/helm/v3/cmd/helm", _HELM),
)
#: Other projects' kinds of which the chart makes objects: files of modules from which nothing is
#: built.
KINDS = (
    ("github.com/kedacore/keda/v2", "config/crd/bases/keda.sh_scaledobjects.yaml"),
    ("github.com/kedacore/keda/v2", "config/crd/bases/keda.sh_triggerauthentications.yaml"),
    *(
        (
            "github.com/prometheus-operator/prometheus-operator",
            f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml",
        )
        for kind in ("podmonitors", "prometheusrules", "servicemonitors")
    ),
    *(
        ("sigs.k8s.io/gateway-api", f"config/crd/standard/gateway.networking.k8s.io_{kind}.yaml")
        for kind in ("backendtlspolicies", "gateways", "httproutes")
    ),
    *(
        ("sigs.k8s.io/kueue", f"config/components/crd/bases/kueue.x-k8s.io_{kind}.yaml")
        for kind in ("clusterqueues", "localqueues", "resourceflavors", "workloadpriorityclasses")
    ),
)
#: Built only by the task `test-kueue`, because it takes three more minutes. Its visibility server
#: would write below ``/``.
KUEUE = (
    Program(
        "kueue",
        "kueue",
        "sigs.k8s.io/kueue/cmd/kueue",
        "-s -w -X sigs.k8s.io/kueue/pkg/visibility.certDir=visibility",
    ),
)


def cache_root() -> Path:
    """Return the folder of everything that the test cluster keeps between runs; it is outside the
    tree and safe to delete.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "crawler-lifecycle" / "kube"


def key(programs: Sequence[Program] | None = None) -> str:
    """Return a key of the pins, the packages and the build flags: another key means another build."""
    programs = PROGRAMS if programs is None else programs
    kinds = KINDS if programs is PROGRAMS else ""
    digest = hashlib.sha256(f"{platform.machine()}{programs}{kinds}".encode())
    modules = {MODULES / one.module for one in programs} | ({MODULES / "kinds"} if kinds else set())
    for file in sorted(p for module in modules for p in module.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(MODULES)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def folder() -> Path:
    """Return where the programs are or will be: ``KUBE_BINARIES`` if set, else a folder of the
    cache.
    """
    given = os.environ.get("KUBE_BINARIES")
    return Path(given).absolute() if given else cache_root() / key()


def missing(where: Path | None = None) -> list[str]:
    """Return the names of the programs that are not in the folder."""
    where = where or folder()
    lacking = [p.name for p in PROGRAMS if not os.access(where / p.name, os.X_OK)]
    return lacking if (where / "kinds").is_dir() else [*lacking, "kinds"]


def available() -> Path:
    """Return the folder with all programs.

    Raises NoBinaries if one is missing: a build takes minutes, and never starts unasked.
    """
    where = folder()
    if lacking := missing(where):
        raise NoBinaries(
            f"{', '.join(lacking)} not found in {where}: run `make kube-binaries` (minutes, once)"
        )
    return where


def kueue_folder() -> Path:
    """Return where Kueue is or will be, with the folder ``config`` of its module."""
    return cache_root() / f"kueue-{key(KUEUE)}"


def build_kueue() -> Path:
    """Build Kueue and copy its manifests unless they are there; returns the folder.

    Raises NoBinaries.
    """
    where = kueue_folder()
    if not (where / "config").exists():
        if shutil.which("go") is None:
            raise NoBinaries("the Go toolchain is not on PATH (go.mod says which; apt or go.dev)")
        where.mkdir(parents=True, exist_ok=True)
        with (where / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _build(KUEUE[0], where, _say)
            listed = ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue"]
            of = subprocess.run(
                listed,
                cwd=MODULES / "kueue",
                env=_env(),
                capture_output=True,
                text=True,
                check=True,
            )
            manifests = Path(of.stdout.strip()) / "config" / "components"
            shutil.copytree(
                manifests, where / "half", copy_function=shutil.copyfile, dirs_exist_ok=True
            )
            (where / "half").rename(where / "config")
    return where


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def build(say: Callable[[str], None] = _say) -> Path:
    """Build what is missing.

    Returns the folder. An interrupted build continues where it was. Raises NoBinaries if
    ``KUBE_BINARIES`` names an incomplete folder, if Go is missing, and with the compiler's message
    if a build fails.
    """
    where = folder()
    if not missing(where):
        return where
    if os.environ.get("KUBE_BINARIES"):
        raise NoBinaries(
            f"KUBE_BINARIES={where} lacks {', '.join(missing(where))}: unset it to have them built"
        )
    if shutil.which("go") is None:
        raise NoBinaries("the Go toolchain is not on PATH (go.mod says which; apt or go.dev)")
    where.mkdir(parents=True, exist_ok=True)
    with (where / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build for two callers; the lock ends with its holder
        for program in PROGRAMS:
            if program.name in missing(where):
                _build(program, where, say)
        if "kinds" in missing(where):
            _copy_kinds(where)
    return where


def _copy_kinds(where: Path) -> None:
    unfinished = where / ".kinds.unfinished"
    unfinished.mkdir(exist_ok=True)
    names = sorted({module for module, _ in KINDS})
    command = ["go", "mod", "download", "-json", *names]
    done = subprocess.run(
        command, cwd=MODULES / "kinds", env=_env(), capture_output=True, text=True
    )
    if done.returncode:
        raise NoBinaries(
            f"kinds could not be downloaded: {(done.stderr or done.stdout).strip()[-2000:]}"
        )
    told = json.loads("[" + done.stdout.replace("}\n{", "},{") + "]")
    folders = {one["Path"]: Path(one["Dir"]) for one in told}
    for module, file in KINDS:
        shutil.copyfile(folders[module] / file, unfinished / Path(file).name)
    unfinished.rename(where / "kinds")


def _env() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


def _build(program: Program, where: Path, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    unfinished = where / f".{program.name}.unfinished"
    command = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags", program.ldflags]
    command += ["-tags", program.tags] if program.tags else []
    done = subprocess.run(
        [*command, "-o", str(unfinished), program.package],
        cwd=MODULES / program.module,
        env=_env(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise NoBinaries(f"{program.name} could not be built: {done.stderr.strip()[-2000:]}")
    unfinished.rename(where / program.name)
    say(f"built {program.name} in {time.monotonic() - began:.0f} s")
