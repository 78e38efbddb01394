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
from collections.abc import Callable, Sequence
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
#: Built only for `make test-kueue`, since it takes three minutes more. Its visibility server would write below ``/``.
KUEUE = (
    Program(
        "kueue",
        "kueue",
        "sigs.k8s.io/kueue/cmd/kueue",
        "-s -w -X sigs.k8s.io/kueue/pkg/visibility.certDir=visibility",
    ),
)


def cache_root() -> Path:
    """The folder of everything the test cluster keeps between runs; outside the tree, safe to delete."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "crawler-lifecycle" / "kube"


def key(programs: Sequence[Program] | None = None) -> str:
    """Of the pins, the packages and the build flags: another key, another build."""
    programs = PROGRAMS if programs is None else programs
    digest = hashlib.sha256(f"{platform.machine()}{programs}".encode())
    modules = {MODULES / one.module for one in programs}
    for file in sorted(p for module in modules for p in module.rglob("*") if p.is_file()):
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


def kueue_folder() -> Path:
    """Where Kueue is or will be, with the folder ``config`` of its module."""
    return cache_root() / f"kueue-{key(KUEUE)}"


def build_kueue() -> Path:
    """Build Kueue and copy its manifests unless they are there; returns the folder. Raises NoBinaries."""
    where = kueue_folder()
    if not (where / "config").exists():
        if shutil.which("go") is None:
            raise NoBinaries("the Go toolchain is not on PATH (go.mod says which; apt or go.dev)")
        where.mkdir(parents=True, exist_ok=True)
        with (where / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _build(KUEUE[0], where, _say)
            listed = ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue"]
            of = subprocess.run(listed, cwd=MODULES / "kueue", env=_env(), capture_output=True, text=True, check=True)
            manifests = Path(of.stdout.strip()) / "config" / "components"
            shutil.copytree(manifests, where / "half", copy_function=shutil.copyfile, dirs_exist_ok=True)
            (where / "half").rename(where / "config")
    return where


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def build(say: Callable[[str], None] = _say) -> Path:
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
