"""Build both images from their Dockerfiles with the engine of this machine. Each image becomes an
OCI archive with a digest and sizes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from tools.images import base

ROOT = Path(__file__).resolve().parents[2]
#: The folder for the archives.
DIST = ROOT / "dist" / "images"
#: The engines in the order in which they are tried. buildah and podman need no service. docker is
#: only a client, which may be installed without its service.
ENGINES = ("buildah", "podman", "docker")
#: The certificate authorities and package sources of this machine, which a build also uses.
_OF_THE_MACHINE = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")


@dataclass(frozen=True)
class Image:
    """One of our images."""

    name: str
    dockerfile: str
    most: int
    """Bytes, unpacked and with the base, that it may have."""
    packages: str
    """The location of Python packages in it."""
    ignore: str


_MB = 1_000_000
IMAGES = (
    Image(
        "crawler-lifecycle",
        "Dockerfile",
        350 * _MB,
        "opt/crawler-lifecycle/lib/python*/site-packages",
        ".dockerignore",
    ),
    Image(
        "crawlers",
        "images/crawler/Dockerfile",
        250 * _MB,
        "opt/crawl-packages",
        "images/crawler/Dockerfile.dockerignore",
    ),
)


@dataclass
class Plan:
    """Everything that determines a build."""

    engine: str
    build_id: str
    revision: str
    epoch: int
    bases: dict[str, str] = field(default_factory=dict)
    """Build arguments that name the bases; none: those of the Dockerfiles."""


def engine() -> str:
    """Return the engine that ``BUILDER`` names, or the first engine that is installed.

    Raises ``SystemExit`` if no engine is installed.
    """
    wanted = os.environ.get("BUILDER")
    for name in [wanted] if wanted else ENGINES:
        if shutil.which(name) and (name != "docker" or wanted or _answers()):
            return name
    raise SystemExit(
        f"images: {wanted or ', '.join(ENGINES)}: not found; on Debian run `python3 -m tools "
        "image-deps`"
    )


def _answers() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True).returncode == 0  # noqa: S607


def plan(*, fresh: bool = False) -> Plan:
    """Return the plan for the newest commit and the variables ``BUILDER``, ``BUILD_ID``,
    ``PYTHON_IMAGE``, ``RUNTIME_IMAGE`` and ``MIRROR``.
    """
    found = engine()
    bases = {
        name: os.environ[name] for name in ("PYTHON_IMAGE", "RUNTIME_IMAGE") if os.environ.get(name)
    }
    if not bases and found == "buildah":
        bases = {
            "PYTHON_IMAGE": load(found, "build", fresh),
            "RUNTIME_IMAGE": load(found, "runtime", fresh),
        }
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    build_id = os.environ.get("BUILD_ID") or _git("rev-parse", "--short=12", "HEAD")
    return Plan(found, build_id, _git("rev-parse", "HEAD"), int(epoch), bases)


def load(by: str, kind: str, fresh: bool) -> str:
    """Load our own base into the engine, and return its name there."""
    archive = base.made(kind, fresh=fresh, mirror=os.environ.get("MIRROR", ""))
    command = (
        [by, "pull", "--quiet", f"docker-archive:{archive}"]
        if by == "buildah"
        else [by, "load", "-i", str(archive)]
    )
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return base.reference(kind)


def _git(*words: str) -> str:
    asked = ["git", *words]
    return subprocess.run(
        asked, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def command(image: Image, made: Plan) -> list[str]:
    """Return the command line of the engine. Podman uses the options of buildah."""
    arguments = {
        "VERSION": version("crawler-lifecycle"),
        "BUILD_ID": made.build_id,
        "REVISION": made.revision,
    }
    given = {**(arguments if image.dockerfile == "Dockerfile" else {}), **made.bases}
    # Buildah 1.28 takes a layer from its cache even if a build argument in the layer has changed.
    # The image would then report the build id of the last build.
    options = ["--no-cache", "--file", image.dockerfile, "--tag", f"{image.name}:{made.build_id}"]
    options += [f"--build-arg={name}={value}" for name, value in given.items()]
    if made.engine != "docker":
        # The archive contains neither the time of the build nor anything about the engine, so that
        # the same sources and the same base give the same digest.
        options += [
            "--layers",
            "--format=oci",
            "--identity-label=false",
            f"--timestamp={made.epoch}",
        ]
        options += [f"--ignorefile={image.ignore}"]
        options += [f"--volume={path}:{path}:ro" for path in _OF_THE_MACHINE if Path(path).exists()]
    if made.engine == "buildah":
        options += ["--isolation", os.environ.get("BUILDAH_ISOLATION", "chroot")]
    return [made.engine, "build", *options, "."]


def build(image: Image, made: Plan, to: Path = DIST) -> Path:
    """Build the image, and write its archive."""
    clean = {**os.environ, "SOURCE_DATE_EPOCH": str(made.epoch)}
    subprocess.run(command(image, made), cwd=ROOT, check=True, env=clean)
    to.mkdir(parents=True, exist_ok=True)
    path = to / f"{image.name}.oci.tar"
    path.unlink(missing_ok=True)
    reference = f"{image.name}:{made.build_id}"
    saves = {
        "buildah": ["push", "--quiet", reference, f"oci-archive:{path}:{reference}"],
        "podman": ["save", "--quiet", "--format=oci-archive", f"--output={path}", reference],
        "docker": ["save", f"--output={path}", reference],
    }
    subprocess.run([made.engine, *saves[made.engine]], check=True, stdout=subprocess.DEVNULL)
    return path


# --- what an archive holds ------------------------------------------------------------------------


class Archive:
    """An OCI archive, opened for reading."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self.tar = tar
        [entry] = json.load(self._file("index.json"))["manifests"]
        self.digest: str = entry["digest"]
        """That of the manifest, by which a registry knows the image and a signature names it."""
        self.manifest: dict[str, Any] = json.load(self.blob(self.digest))
        self.config: dict[str, Any] = json.load(self.blob(self.manifest["config"]["digest"]))

    def _file(self, name: str) -> IO[bytes]:
        found = self.tar.extractfile(name)
        assert found is not None, name
        return found

    def blob(self, digest: str) -> IO[bytes]:
        """Return the content with this digest."""
        return self._file(f"blobs/{digest.replace(':', '/')}")

    def layers(self) -> Iterator[tuple[str, IO[bytes] | gzip.GzipFile]]:
        """Yield the command that made each layer, and the bytes of the layer as a plain tar file."""
        by = [
            one["created_by"]
            for one in self.config.get("history", ())
            if not one.get("empty_layer")
        ]
        for made_by, described in zip(by, self.manifest["layers"], strict=True):
            found = self.blob(described["digest"])
            if described["mediaType"].endswith("gzip"):
                with gzip.open(found) as plain:
                    yield made_by, plain
            else:
                yield made_by, found


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Read an archive."""
    with tarfile.open(path) as tar:
        yield Archive(tar)


def renamed(path: Path, to: Path, reference: str) -> Path:
    """Write a copy that containerd imports under another name.

    The image and its digest stay the same.
    """
    with tarfile.open(path) as old, tarfile.open(to, "w") as new:
        for entry in old:
            body = old.extractfile(entry) if entry.isfile() else None
            if body is not None and entry.name == "index.json":
                index = json.load(body)
                [image] = index["manifests"]
                image["annotations"] = {"io.containerd.image.name": reference}
                text = json.dumps(index).encode()
                entry.size, body = len(text), io.BytesIO(text)
            new.addfile(entry, body)
    return to


def sizes(path: Path) -> list[tuple[str, int]]:
    """Return the command that made each layer, and the bytes of its files."""
    found = []
    with opened(path) as archive:
        for made_by, layer in archive.layers():
            with tarfile.open(fileobj=layer) as files:
                found.append((made_by, sum(entry.size for entry in files)))
    return found


def unpacked(path: Path, folder: Path) -> None:
    """Return the root file system as a container sees it."""
    with opened(path) as archive:
        for _, layer in archive.layers():
            with tarfile.open(fileobj=layer) as files:
                for entry in files:
                    parent, _, name = entry.name.rpartition("/")
                    if name.startswith(".wh."):
                        _remove(folder / parent / name.removeprefix(".wh."))
                    elif not entry.isdev():
                        files.extract(
                            entry, folder, filter="fully_trusted", set_attrs=not entry.isdir()
                        )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def told(image: Image, path: Path) -> list[str]:
    """Return the digest and the sizes for people. Raises ``SystemExit`` if the image is too large."""
    with opened(path) as archive:
        lines = [f"{image.name} {archive.digest}, image id {archive.manifest['config']['digest']}"]
    found = sizes(path)
    lines += [f"  {size / _MB:6.1f} MB  {made_by[:100]}" for made_by, size in found]
    total = sum(size for _, size in found)
    lines += [
        (
            f"  {total / _MB:6.1f} MB  unpacked, base included; "
            f"{path.stat().st_size / _MB:.1f} MB as "
            "an archive"
        )
    ]
    if total > image.most:
        raise SystemExit("\n".join([*lines, f"{image.name}: more than {image.most / _MB:.0f} MB"]))
    return lines


def all_built(
    made: Plan, images: Sequence[Image] = IMAGES, to: Path = DIST
) -> Iterator[tuple[Image, Path]]:
    """Return one line for each image and its archive."""
    for image in images:
        path = build(image, made, to)
        print("\n".join(told(image, path)), flush=True)
        yield image, path
