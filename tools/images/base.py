"""Debian with Python and little else, made from packages. It is the base of the images if no
registry is reachable.

There are two archives: ``runtime`` is shipped, and ``build``, which also has pip, is only used to
build. mmdebstrap makes them, because it installs the essential packages without apt, leaves no
lists, logs or caches, and makes the same bytes from the same packages. The archives are kept
outside the tree until the recipe changes. ``--fresh`` fetches Debian's updates.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path

SUITE, PYTHON = "bookworm", "3.11"
#: The newest time of a file. It is not the time of a commit, so that images of two commits share
#: their base.
EPOCH = 1_686_355_200
#: Days after which Debian probably has updates.
OLD_DAYS = 7
RUNTIME = (
    "python3-minimal",
    "libpython3-stdlib",
    "ca-certificates",
    "tzdata",
    "netbase",
    "libstdc++6",
)
PACKAGES = {"runtime": RUNTIME, "build": (*RUNTIME, "python3-pip")}
#: Licences stay, because everyone who redistributes an image must include them.
_LEFT_OUT = ("doc/*", "man/*", "info/*", "locale/*", "lintian/*", "groff/*")
_HOOKS = (
    # The path in the official Python image, which our Dockerfiles use.
    f'ln -s /usr/bin/python{PYTHON} "$1/usr/local/bin/python3" && ln -s python3 '
    '"$1/usr/local/bin/python"',
    # Processes in a container do not switch to another user.
    'find "$1/usr" -xdev -type f -perm /6000 -exec chmod a-s {} +',
    # Answers to questions of packages during their installation. Nothing is installed later.
    'rm -rf "$1"/var/cache/debconf/* "$1"/var/cache/apt "$1"/var/lib/apt "$1"/var/log/*',
)
_ENV = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8")


def cache() -> Path:
    """Return the folder that contains bases and tools."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "crawler-lifecycle" / "images"


def command(kind: str, path: Path, mirror: str = "") -> list[str]:
    """Return the command line of mmdebstrap. Without a mirror, it uses the machine's own sources of
    Debian.
    """
    options = [f"--dpkgopt=path-exclude=/usr/share/{what}" for what in _LEFT_OUT]
    options += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    options += [f"--customize-hook={hook}" for hook in _HOOKS]
    # Without this line, the package usrmerge would be installed, with all of Perl.
    options += ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"]
    what = ["--variant=essential", "--format=tar", f"--include={','.join(PACKAGES[kind])}"]
    return [
        "mmdebstrap",
        "--quiet",
        *what,
        *options,
        SUITE,
        str(path),
        *([mirror] if mirror else []),
    ]


def made(kind: str, *, fresh: bool = False, mirror: str = "") -> Path:
    """Return the archive of this base, for ``buildah pull docker-archive:`` or ``docker load``. It
    is made if it does not exist.
    """
    architecture = _architecture()
    key = hashlib.sha256(repr((command(kind, Path()), _ENV, EPOCH)).encode()).hexdigest()[:12]
    kept = cache() / f"base-{SUITE}-{architecture}-{kind}-{key}.tar"
    if kept.exists() and not fresh:
        days = (time.time() - kept.stat().st_mtime) / 86_400
        print(
            f"base: {kept}, {days:.0f} days old",
            "(FRESH=1 fetches Debian's updates)" if days > OLD_DAYS else "",
        )
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    print(
        f"base: {kept.name} is being built from Debian's packages, which takes a minute", flush=True
    )
    root = kept.with_suffix(f".{os.getpid()}.root")
    try:
        clean = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
        subprocess.run(
            command(kind, root, mirror), check=True, env=clean, stdout=subprocess.DEVNULL
        )
        pack(root, kept, reference(kind), architecture)
    finally:
        root.unlink(missing_ok=True)
    return kept


def reference(kind: str) -> str:
    """Return the name of the base in an engine."""
    return f"localhost/crawler-lifecycle-base:{SUITE}-{kind}"


def _architecture() -> str:
    asked = ["dpkg", "--print-architecture"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def pack(root: Path, path: Path, name: str, architecture: str) -> None:
    """Write an archive with one layer, ``root``, which every engine can load."""
    with root.open("rb") as layer:
        digest = hashlib.file_digest(layer, "sha256").hexdigest()
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH)),
        "config": {"Env": list(_ENV), "Cmd": ["python3"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": f"Debian {SUITE} and Python {PYTHON}, tools/images/base.py"}],
    }
    body = json.dumps(config, sort_keys=True).encode()
    names = f"{hashlib.sha256(body).hexdigest()}.json", f"{digest}.tar"
    manifest = [{"Config": names[0], "RepoTags": [name], "Layers": [names[1]]}]
    unfinished = path.with_suffix(f".{os.getpid()}")
    with tarfile.open(unfinished, "w") as archive:
        _add(archive, [(names[0], body), ("manifest.json", json.dumps(manifest).encode())])
        archive.add(root, names[1], filter=_plain)
    unfinished.rename(path)


def _add(archive: tarfile.TarFile, files: Iterable[tuple[str, bytes]]) -> None:
    for name, body in files:
        entry = tarfile.TarInfo(name)
        entry.size = len(body)
        archive.addfile(entry, io.BytesIO(body))


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
