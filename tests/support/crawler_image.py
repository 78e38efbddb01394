"""The image of images/crawler/Dockerfile as an OCI archive, without an engine or a registry.

The Dockerfile is parsed and its final stage executed, so that both cannot diverge; an unknown
instruction is an error. The Python of this machine replaces the base image. Instead of ``pip
install``, the exact versions of the lock are taken from the environment of the tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

from tests.kubernetes.cluster import images
from tools.images.build import renamed

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "images" / "crawler"
REFERENCE = "crawl.test/crawler:1"
#: What the build stage makes, and from which lock.
PACKAGES = "/opt/crawl-packages"
_LOCK = FOLDER / "requirements.lock"
#: Instructions that do not change what a container executes here: the base image has no pip to
#: remove.
_WITHOUT_EFFECT = ("ARG", "LABEL", "STOPSIGNAL", "CMD")
_REMOVES_PIP = (
    "if python -m pip --version; then python -m pip uninstall --yes pip setuptools wheel; fi"
)


@dataclass
class Recipe:
    """The final stage of the Dockerfile."""

    copies: list[tuple[str, str]] = field(default_factory=list)
    """Source below the root of the repository, or ``PACKAGES``, and place in the image."""
    env: dict[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    base: str = ""


def steps(path: Path = FOLDER / "Dockerfile") -> list[tuple[str, str]]:
    """Return instructions and arguments, with continued lines joined and without comments."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [
        (name, rest.strip())
        for name, _, rest in (line.partition(" ") for line in lines if line.strip())
    ]


def recipe(found: list[tuple[str, str]] | None = None) -> Recipe:
    """Return the final stage.

    Raises ``ValueError`` for an unknown instruction.
    """
    found = steps() if found is None else found
    last = max(n for n, (name, _) in enumerate(found) if name == "FROM")
    made = Recipe(base=found[last][1])
    for name, rest in found[last + 1 :]:
        if name == "COPY":
            made.copies.append(_copy(rest))
        elif name == "ENV":
            pairs = re.findall(r"(\w+)=(\S+)", rest)
            made.env.update(pairs)
        elif name == "USER":
            made.user = rest
        elif name == "WORKDIR":
            made.workdir = rest
        elif name == "ENTRYPOINT":
            made.entrypoint = json.loads(rest)
        elif name not in _WITHOUT_EFFECT and (name, rest) != ("RUN", _REMOVES_PIP):
            raise ValueError(f"{name} {rest}: not understood; carry it out in {__name__} as well")
    return made


def _copy(rest: str) -> tuple[str, str]:
    words = rest.split()
    if words[0] == "--from=build" and words[1:] == [PACKAGES, PACKAGES]:
        return PACKAGES, PACKAGES
    if len(words) != 2 or words[0].startswith("--"):
        raise ValueError(f"COPY {rest}: not understood; carry it out in {__name__} as well")
    return words[0], words[1]


def assemble(path: Path, reference: str = REFERENCE) -> Path:
    """Write the archive; with ``CRAWL_IMAGES``, it is the one that ``make image`` built there."""
    if built := os.environ.get("CRAWL_IMAGES"):
        return renamed(Path(built, "crawlers.oci.tar"), path, reference)
    made = recipe()
    packages = path.with_name(f"{path.name}.packages")
    folders = []
    for source, place in made.copies:
        if source == PACKAGES:
            install(packages)
        folders.append((packages if source == PACKAGES else ROOT / source, place.lstrip("/")))
    try:
        return images.with_python(
            path,
            reference,
            [images.Layer(tuple(folders))],
            entrypoint=made.entrypoint,
            env=made.env,
            user=made.user,
            workdir=made.workdir,
        )
    finally:
        shutil.rmtree(packages, ignore_errors=True)


def locked(lock: Path = _LOCK) -> Iterator[tuple[str, str]]:
    """Return name and version of every package of the image."""
    for line in lock.read_text().splitlines():
        if pin := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", line):
            yield pin[1], pin[2]


def install(folder: Path, lock: Path = _LOCK) -> None:
    """Make what ``pip install --target`` of the lock makes, without the scripts, which the
    Dockerfile removes.
    """
    for name, version in locked(lock):
        found = distribution(name)
        if found.version != version:
            raise ValueError(
                f"{name}: the lock says {version}, installed is {found.version}; make lock && make env"
            )
        for file in found.files or ():
            if ".." in file.parts or "__pycache__" in file.parts or file.name == "INSTALLER":
                continue
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(file.locate()), target)
