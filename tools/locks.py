"""Check that the locks can be installed on both kinds of machine: ``python -m tools.locks``.

For each lock and processor, pip reports which wheels it would install, without fetching them. The
tool reports pins without a wheel, wheels whose hash is not in the lock, and packages that only one
processor needs and that are not locked. It sends requests to the package index.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
#: The oldest Python for each lock: the Python of Debian 12 for images, and the Python that the
#: tools for our pages need.
LOCKS = {
    "locks/all.lock": "3.11.5",
    "locks/run.lock": "3.11.2",
    "locks/image.lock": "3.11.2",
    "images/crawler/requirements.lock": "3.11.2",
}
MACHINES = ("x86_64", "aarch64")
#: The C libraries whose wheels run on Debian 12 and newer. By itself, pip does not accept wheels
#: for older libraries.
_GLIBC = range(17, 37)


def pins(lock: str) -> dict[str, tuple[str, set[str]]]:
    """Return the version and the hashes of each package, by name."""
    found = {}
    for line in lock.replace("\\\n", " ").splitlines():
        if pin := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", line):
            found[canonicalize_name(pin[1])] = (
                pin[2],
                set(re.findall(r"sha256:([0-9a-f]{64})", line)),
            )
    return found


def report(
    known: Mapping[str, tuple[str, set[str]]], machine: str, python: str
) -> list[dict[str, Any]]:
    """Return the packages that pip would install on this kind of machine.

    Raises ``SystemExit`` with the output of pip if it finds no wheel.
    """
    with tempfile.TemporaryDirectory() as name:
        wanted = Path(name, "wanted.txt")
        wanted.write_text("".join(f"{one}=={version}\n" for one, (version, _) in known.items()))
        platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in reversed(_GLIBC)]
        platforms += [f"--platform=manylinux{year}_{machine}" for year in (2014, 2010, 1)]
        options = [
            "--dry-run",
            "--quiet",
            "--no-deps",
            "--ignore-installed",
            "--only-binary=:all:",
            "--report=-",
        ]
        where = [f"--target={name}/there", f"--python-version={python}", "--implementation=cp"]
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            *options,
            *platforms,
            *where,
            "-r",
            str(wanted),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{machine}: {done.stderr.strip()[-1500:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return found


def complaints(
    known: Mapping[str, tuple[str, set[str]]], found: list[dict[str, Any]], machine: str
) -> Iterator[str]:
    """Yield every problem that would prevent the installation of the lock on this kind of machine."""
    environment = {**default_environment(), "platform_machine": machine, "extra": ""}
    for one in found:
        name = canonicalize_name(one["metadata"]["name"])
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        if digest not in known[name][1]:
            yield (
                f"{name}: the hash of {one['download_info']['url'].rpartition('/')[2]} is "
                "not locked"
            )
        for line in one["metadata"].get("requires_dist", ()):
            needed = Requirement(line)
            if needed.marker is not None and not needed.marker.evaluate(environment):
                continue
            version = known.get(canonicalize_name(needed.name), (None,))[0]
            if version is None or not needed.specifier.contains(version, prereleases=True):
                yield f"{name} needs {needed} there, but {version} is locked"


def main() -> int:
    """Print a line for each lock and processor.

    The exit code is 1 if a lock cannot be installed.
    """
    bad = 0
    for lock, python in LOCKS.items():
        known = pins((ROOT / lock).read_text())
        for machine in MACHINES:
            found = report(known, machine, python)
            wrong = list(complaints(known, found, machine))
            own = sum(machine in one["download_info"]["url"] for one in found)
            print(
                f"{lock} on {machine}: {len(found)} of {len(known)} wheels, {own} made for it, "
                f"{len(wrong)} wrong"
            )
            print("".join(f"  {line}\n" for line in wrong), end="", flush=True)
            bad += bool(wrong) or len(found) != len(known)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
