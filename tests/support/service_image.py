"""The image of the Dockerfile as an OCI archive, without an engine and without a registry.

The Dockerfile is read and carried out, so that both cannot drift apart; an instruction that is not
understood here is an error. In place of the base image stands the Python of this machine. In place
of ``pip install`` the very versions of the lock are taken from the environment that the tests run
in, and the wheel is built of this checkout and unpacked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from configparser import ConfigParser
from dataclasses import dataclass, field
from pathlib import Path

from tests.kubernetes.cluster import binaries, images
from tests.support.crawler_image import ROOT, install, steps
from tools.images.build import renamed

REFERENCE = "crawl.test/crawler-lifecycle:1"
BUILD_ID = "tested"
#: What the build stage makes.
VENV, STATE = "/opt/crawler-lifecycle", "/state"
LOCK = ROOT / "locks" / "image.lock"
#: What the build stage removes from the packages; done here exactly as it says.
SLIM = (
    'rm -r "$site/temporalio/bridge/sdk-core" "$site/temporalio/bridge/src" '
    '&& find "$site/botocore/data" -mindepth 1 -maxdepth 1 -type d '
    "! -name events ! -name s3 ! -name signin ! -name sso ! -name sso-oidc ! -name sts -exec rm -r {} + "
    '&& PYTHONHASHSEED=0 python -m compileall -q -j 0 -b --invalidation-mode unchecked-hash "$site/kubernetes" '
    "&& find \"$site/kubernetes\" -name '*.py' -delete"
)
#: The build stage, with the equivalent of each step here. A new step, or a changed one, needs an
#: equivalent here as well.
BUILD = (
    ("ENV", "PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore"),
    ("WORKDIR", "/build"),
    ("RUN", f'["python", "-m", "venv", "--without-pip", "{VENV}"]'),
    ("COPY", "locks/image.lock ./"),
    (
        "RUN",
        f"python -m pip --python {VENV}/bin/python install --no-compile --require-hashes "
        f"--only-binary :all: -r image.lock && find {VENV}/bin -type f -delete",
    ),
    ("RUN", f"site=$(echo {VENV}/lib/python3*/site-packages) && {SLIM}"),
    ("COPY", "dist/*.whl ./"),
    (
        "RUN",
        f"python -m pip --python {VENV}/bin/python install --no-compile --no-index --no-deps ./*.whl "
        f"&& PYTHONHASHSEED=0 python -m compileall -q -j 0 --invalidation-mode unchecked-hash {VENV}/lib "
        f"&& install -d -o 65532 -g 65532 -m 0750 {STATE}",
    ),
)
_OWNER, _MODE = (65532, 65532), 0o750
#: Instructions of the final stage that do not change what a container executes here.
_WITHOUT_EFFECT = ("LABEL", "STOPSIGNAL", "CMD", "EXPOSE")


@dataclass
class Recipe:
    """The final stage of the Dockerfile."""

    copies: dict[str, tuple[str, tuple[int, int]]] = field(default_factory=dict)
    """What the build stage made: place in the image, and owner."""
    env: dict[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    base: str = ""


def recipe(found: Sequence[tuple[str, str]] | None = None, build_id: str = BUILD_ID) -> Recipe:
    """Return what the Dockerfile says. Raises ``ValueError`` for an unknown instruction."""
    found = steps(ROOT / "Dockerfile") if found is None else found
    first, last = (n for n, (name, _) in enumerate(found) if name == "FROM")
    given = tuple((name, " ".join(rest.split())) for name, rest in found[first + 1 : last])
    if given != BUILD:
        other = next(
            (step for step, known in zip(given, BUILD, strict=False) if step != known),
            "more or fewer steps",
        )
        raise ValueError(
            f"build stage: {other}: not understood; carry it out in {__name__} as well"
        )
    made, arguments = Recipe(base=found[last][1]), {"BUILD_ID": build_id}
    for name, rest in found[last + 1 :]:
        if name == "ARG":
            key, _, default = rest.partition("=")
            arguments.setdefault(key, default)
        elif name == "COPY":
            source, place, owner = _copy(rest)
            made.copies[source] = place, owner
        elif name == "ENV":
            made.env |= {
                key: _filled(value, arguments) for key, value in re.findall(r"(\w+)=(\S+)", rest)
            }
        elif name == "USER":
            made.user = rest
        elif name == "WORKDIR":
            made.workdir = rest
        elif name == "ENTRYPOINT":
            made.entrypoint = json.loads(rest)
        elif name not in _WITHOUT_EFFECT:
            raise ValueError(f"{name} {rest}: not understood; carry it out in {__name__} as well")
    return made


def _copy(rest: str) -> tuple[str, str, tuple[int, int]]:
    found = re.fullmatch(r"--from=build (?:--chown=(\d+):(\d+) )?(\S+) (\S+)", rest)
    if found is None or found[3] not in (VENV, STATE):
        raise ValueError(f"COPY {rest}: not understood; carry it out in {__name__} as well")
    return found[3], found[4], (int(found[1] or 0), int(found[2] or 0))


def _filled(value: str, arguments: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda name: arguments[name[1]], value)


# --- the build stage ------------------------------------------------------------------------------


def packages() -> Path:
    """Return every package of the lock, compiled once for each interpreter and lock, and cached."""
    parts = (images.python_key(), LOCK.read_text(), Path(__file__).read_text())
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    kept = binaries.cache_root() / "images" / f"service-packages-{key}"
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=kept.parent))
    try:
        unfinished.chmod(0o755)
        install(unfinished, LOCK)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            ["sh", "-ec", SLIM],
            env={**os.environ, "PATH": path, "site": str(unfinished)},
            check=True,
        )
        compiled(unfinished)
        unfinished.rename(kept)
    except OSError:
        if not kept.is_dir():  # nobody else has made it meanwhile
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return kept


def compiled(folder: Path, jobs: int = 0) -> None:
    """Compile as the Dockerfile compiles ``lib``; compiled files name their path in the image."""
    options = [
        "-q",
        "-j",
        str(jobs),
        "--invalidation-mode",
        "unchecked-hash",
        "-s",
        str(folder),
        "-p",
        site_packages(),
    ]
    subprocess.run([sys.executable, "-m", "compileall", *options, str(folder)], check=True)


def site_packages() -> str:
    """Return where packages are in the image."""
    return f"{VENV}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


def environment(venv: Path) -> None:
    """Return what ``python -m venv`` leaves when pip is removed, links included."""
    (venv / "bin").mkdir(parents=True)
    base = Path("/usr/local/bin")
    (venv / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n")
    (venv / "bin" / "python").symlink_to(base / "python3")
    (venv / "bin" / "python3").symlink_to("python")


def unpacked(own: Path, venv: Path, site: Path) -> None:
    """Return what pip makes of a wheel without data files: the package and its commands."""
    with zipfile.ZipFile(own) as archive:
        archive.extractall(site)
    (entry_points,) = site.glob("crawler_lifecycle-*.dist-info/entry_points.txt")
    declared = ConfigParser()
    declared.read_string(entry_points.read_text())
    for name, target in declared["console_scripts"].items():
        module, _, function = target.partition(":")
        script = venv / "bin" / name
        body = f"import sys\nfrom {module} import {function}\nif __name__ == '__main__':\n    sys.exit({function}())\n"
        script.write_text(f"#!{VENV}/bin/python\n{body}")
        script.chmod(0o755)


# --- the image ------------------------------------------------------------------------------------


def assemble(path: Path, reference: str = REFERENCE, build_id: str = BUILD_ID) -> Path:
    """Write the archive; with ``CRAWL_IMAGES``, it is the one that ``make image`` built there."""
    if built := os.environ.get("CRAWL_IMAGES"):
        return renamed(Path(built, "crawler-lifecycle.oci.tar"), path, reference)
    made = recipe(build_id=build_id)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        venv, site, state = folder / "venv", folder / "site", folder / "state"
        environment(venv)
        site.mkdir()
        unpacked(wheel(folder / "dist"), venv, site)
        compiled(site)
        state.mkdir(mode=_MODE)
        os.chmod(state, _MODE)  # whatever the umask is
        inside = site_packages().lstrip("/")
        at, (place, owner) = made.copies[VENV][0].lstrip("/"), made.copies[STATE]
        if at != VENV.lstrip("/"):
            raise ValueError(
                f"an environment does not work at another place than {VENV}, where it was made"
            )
        layers = [
            images.Layer(((packages(), inside),), left_out=()),
            images.Layer(
                (
                    (venv, at),
                    *((child, f"{inside}/{child.name}") for child in sorted(site.iterdir())),
                ),
                (),
            ),
            images.Layer(((state, place.lstrip("/")),), owner=owner),
        ]
        settings = {
            "entrypoint": made.entrypoint,
            "env": made.env,
            "user": made.user,
            "workdir": made.workdir,
        }
        return images.with_python(path, reference, layers, **settings)  # type: ignore[arg-type]
