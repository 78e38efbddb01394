"""Container images without a registry or an engine: OCI archives, written as plain tar files.

Two are made from this machine: ``pause`` (the sandbox of every pod) and a Python root (the
interpreter that runs the tests, its standard library, and the shared libraries that both need).
Other images add layers to the latter.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster import binaries

PAUSE = "crawl.test/pause:1"
PYTHON = "crawl.test/python:1"

_OCI = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: Parts of the standard library that no crawl needs; a third of its size.
_LEFT_OUT = (
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "__pycache__",
    "site-packages",
)
#: What wheels with compiled parts need in addition to Python itself.
_ALSO = (
    "librt.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "libutil.so.1",
    "libm.so.6",
    "libresolv.so.2",
)
_ALSO_CXX = ("libstdc++.so.6", "libgcc_s.so.1", "libnss_files.so.2", "libnss_dns.so.2")


@dataclass(frozen=True)
class Layer:
    """Folders of this machine, and the path of each in the image (``""`` is the root)."""

    folders: tuple[tuple[Path, str], ...]
    left_out: tuple[str, ...] = ("__pycache__",)
    owner: tuple[int, int] = (0, 0)


def write_archive(
    path: Path,
    reference: str,
    layers: Sequence[Layer],
    *,
    entrypoint: Sequence[str],
    env: Mapping[str, str] | None = None,
    user: str = "",
    workdir: str = "/",
) -> str:
    """Write an OCI archive that ``ctr images import`` accepts.

    Returns the manifest's digest. The same input gives the same bytes. ``reference`` is the name
    that a pod requests.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with tarfile.open(unfinished, "w") as archive:
            blobs = [_add_layer(archive, layer) for layer in layers]
            digest = _add_manifest(
                archive, reference, blobs, _config(blobs, entrypoint, env or {}, user, workdir)
            )
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return digest


def _config(
    blobs: Sequence[Mapping[str, Any]],
    entrypoint: Sequence[str],
    env: Mapping[str, str],
    user: str,
    workdir: str,
) -> dict[str, Any]:
    variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **env}
    settings = {"Env": [f"{k}={v}" for k, v in variables.items()], "Entrypoint": list(entrypoint)}
    return {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {**settings, "User": user, "WorkingDir": workdir},
        "rootfs": {"type": "layers", "diff_ids": [blob["digest"] for blob in blobs]},
    }


def _add_layer(archive: tarfile.TarFile, layer: Layer) -> dict[str, Any]:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.name.rpartition("/")[2] in layer.left_out or entry.isdev():
            return None
        entry.mtime = 0
        entry.uid, entry.gid = layer.owner
        entry.uname = entry.gname = ""
        return entry

    with tempfile.TemporaryFile(dir=os.environ.get("TMPDIR", "/tmp")) as body:
        with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for folder, place in layer.folders:
                if place:
                    tar.add(folder, arcname=place, filter=plain)
                else:
                    for child in sorted(folder.iterdir()):
                        tar.add(child, arcname=child.name, filter=plain)
        body.seek(0)
        digest = hashlib.file_digest(body, "sha256").hexdigest()
        entry = tarfile.TarInfo(f"blobs/sha256/{digest}")
        entry.size, entry.mode = body.seek(0, os.SEEK_END), 0o644
        body.seek(0)
        archive.addfile(entry, body)
    return {"mediaType": f"{_OCI}.layer.v1.tar", "digest": f"sha256:{digest}", "size": entry.size}


def _add_manifest(
    archive: tarfile.TarFile,
    reference: str,
    blobs: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
) -> str:
    described = _add_json(archive, None, config, f"{_OCI}.config.v1+json")
    kind = f"{_OCI}.manifest.v1+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": described, "layers": list(blobs)}
    entry = _add_json(archive, None, manifest, kind)
    entry["platform"] = {"architecture": config["architecture"], "os": "linux"}
    tag = reference.rpartition(":")[2]
    entry["annotations"] = {
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": tag,
    }
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [entry]}
    _add_json(archive, "index.json", index, "")
    _add_json(archive, "oci-layout", {"imageLayoutVersion": "1.0.0"}, "")
    return str(entry["digest"])


def _add_json(
    archive: tarfile.TarFile, name: str | None, content: object, kind: str
) -> dict[str, Any]:
    body = json.dumps(content, sort_keys=True).encode()
    digest = hashlib.sha256(body).hexdigest()
    entry = tarfile.TarInfo(name or f"blobs/sha256/{digest}")
    entry.size, entry.mode = len(body), 0o644
    archive.addfile(entry, io.BytesIO(body))
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(body)}


# --- the two images of this machine ---------------------------------------------------------------


def pause(bin_: Path) -> Path:
    """Return the archive of the sandbox image, made once from the built program."""
    key = hashlib.sha256((bin_ / "pause").read_bytes()).hexdigest()[:12]

    def write(path: Path, root: Path) -> None:
        shutil.copy2(bin_ / "pause", root / "pause")
        write_archive(
            path, PAUSE, [Layer(((root, ""),))], entrypoint=["/pause"], user="65535:65535"
        )

    return _kept(f"pause-{key}", write)


def python() -> Path:
    """Return the archive of the Python image, made once for each interpreter.

    Its entry point is ``python3``.
    """
    path = binaries.cache_root() / "images" / f"python-{python_key()}.tar"
    return path if path.exists() else with_python(path, PYTHON, [], workdir="/")


def with_python(
    path: Path,
    reference: str,
    layers: Sequence[Layer],
    *,
    entrypoint: Sequence[str] = ("/usr/local/bin/python3",),
    env: Mapping[str, str] | None = None,
    user: str = "",
    workdir: str = "/app",
) -> Path:
    """Write the archive of an image with ``layers`` on top of the Python root."""
    kept = binaries.cache_root() / "images" / f"python-{python_key()}"
    if not kept.is_dir():
        unfinished = Path(tempfile.mkdtemp(dir=kept.parent if kept.parent.is_dir() else None))
        unfinished.chmod(0o755)
        python_root(unfinished)
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.rename(kept)
        except OSError:  # somebody else made it meanwhile
            shutil.rmtree(unfinished)
    every = [Layer(((kept, ""),)), *layers]
    variables = {"PYTHONUNBUFFERED": "1", **(env or {})}
    write_archive(
        path, reference, every, entrypoint=entrypoint, env=variables, user=user, workdir=workdir
    )
    return path


def python_key() -> str:
    """Return a key that changes with the interpreter, the C library and this module."""
    parts = (sys.version, platform.libc_ver(), Path(__file__).read_text())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _kept(name: str, write: Callable[[Path, Path], None]) -> Path:
    path = binaries.cache_root() / "images" / f"{name}.tar"
    if not path.exists():
        with tempfile.TemporaryDirectory() as root:
            write(path, Path(root))
    return path


def python_root(root: Path) -> None:
    """Fill a folder with a root file system in which this interpreter runs, at /usr/local."""
    for name in (
        "usr/local/bin",
        "usr/lib",
        "usr/lib64",
        "usr/bin",
        "etc/ssl/certs",
        "proc",
        "sys",
        "dev",
        "run",
    ):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = Path(os.path.realpath(sys.executable))
    shutil.copy2(program, root / "usr/local/bin" / version)
    (root / "usr/local/bin/python3").symlink_to(version)
    library = Path(sysconfig.get_path("stdlib"))
    left_out = shutil.ignore_patterns(
        *_LEFT_OUT, f"config-{version.removeprefix('python')}*", "dist-packages"
    )
    shutil.copytree(library, root / "usr/local/lib" / version, symlinks=True, ignore=left_out)
    _copy_libraries(root, [program, *library.glob("lib-dynload/*.so")])
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/:/bin/false\ncrawler:x:1000:1000::/tmp:/bin/false\n"
    )
    (root / "etc/group").write_text("root:x:0:\ncrawler:x:1000:\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    authorities = Path("/etc/ssl/certs/ca-certificates.crt")
    if authorities.exists():
        shutil.copy2(authorities, root / "etc/ssl/certs")


def _copy_libraries(root: Path, programs: Sequence[Path]) -> None:
    found: set[Path] = set()
    for program in programs:
        said = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
        found |= {Path(p) for p in re.findall(r"(/\S+\.so\S*)", said)}
    for c_library in [p for p in found if p.name.startswith("libc.so")]:
        also = (c_library.parent / name for name in (*_ALSO, *_ALSO_CXX))
        found |= {path for path in also if path.exists()}
    for library in found:
        place = (
            Path("usr", *library.parts[1:])
            if library.parts[1] in ("lib", "lib64")
            else Path(*library.parts[1:])
        )
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library.resolve(), root / place)
