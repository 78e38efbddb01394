"""The programs of the test cluster, built from pinned Go modules into a cache folder that is keyed by the pins."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parents[1] / "binaries"

#: Reported by the API server; without it the client libraries meet version v0.0.0-master.
_VERSION = "k8s.io/component-base/version"
_KUBERNETES = f"-s -w -X {_VERSION}.gitVersion=v1.36.3 -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=36"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"


class NoBinaries(Exception):
    """The programs are neither there nor can they be built; the text says what is missing."""


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
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
    ),
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    *(
        Program(name, "containerd", f"{_CONTAINERD}/{name}", tags="no_btrfs,no_zfs,no_devmapper")
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    Program("pause", "pause", "."),
)


def cache_root() -> Path:
    """The folder of everything the test cluster keeps between runs; outside the tree, safe to delete."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "crawler-lifecycle" / "kube"


def key() -> str:
    """Of the pins, the packages and the build flags: another key, another build."""
    digest = hashlib.sha256(f"{platform.machine()}{PROGRAMS}".encode())
    for file in sorted(p for p in MODULES.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(MODULES)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def folder() -> Path:
    """Where the programs are or will be: ``KUBE_BINARIES`` when set, else a folder of the cache."""
    given = os.environ.get("KUBE_BINARIES")
    return Path(given).absolute() if given else cache_root() / key()


def missing(where: Path | None = None) -> list[str]:
    """The names of the programs that are not in the folder."""
    where = where or folder()
    return [p.name for p in PROGRAMS if not os.access(where / p.name, os.X_OK)]


def available() -> Path:
    """The folder with all programs.

    Raises NoBinaries when one is missing: building takes minutes, so that is asked for and never a surprise.
    """
    where = folder()
    if lacking := missing(where):
        raise NoBinaries(f"{', '.join(lacking)} not found in {where}: run `make kube-binaries` (minutes, once)")
    return where


def build(say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)) -> Path:
    """Build what is missing; returns the folder. An interrupted build goes on where it was.

    Raises NoBinaries when ``KUBE_BINARIES`` names a folder that is not complete, when there is no Go, and with the
    compiler's words when a build fails.
    """
    where = folder()
    if not missing(where):
        return where
    if os.environ.get("KUBE_BINARIES"):
        raise NoBinaries(f"KUBE_BINARIES={where} lacks {', '.join(missing(where))}: unset it to have them built")
    if shutil.which("go") is None:
        raise NoBinaries("the Go toolchain is not on PATH (go.mod says which; apt or go.dev)")
    where.mkdir(parents=True, exist_ok=True)
    with (where / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two callers, one build; the lock ends with its holder
        for program in PROGRAMS:
            if program.name in missing(where):
                _build(program, where, say)
    return where


def _build(program: Program, where: Path, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    unfinished = where / f".{program.name}.unfinished"
    command = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags", program.ldflags]
    command += ["-tags", program.tags] if program.tags else []
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    done = subprocess.run(
        [*command, "-o", str(unfinished), program.package],
        cwd=MODULES / program.module,
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise NoBinaries(f"{program.name} could not be built: {done.stderr.strip()[-2000:]}")
    unfinished.rename(where / program.name)
    say(f"built {program.name} in {time.monotonic() - began:.0f} s")
