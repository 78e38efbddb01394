"""Install a lock file into ``.venv``, and say meanwhile what is fetched and how far it is: ``environment.py LOCK``.

Executed by the Python that ``make`` finds, so it needs nothing but the standard library. uv where it is at hand, plain
pip otherwise, also where uv fails: it does not read pip's settings. Always exactly the locked wheels.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"
PIP = (str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check")
#: The package itself, from this folder.
OURS = ("--no-deps", "--no-build-isolation", "-e", str(ROOT))
#: Seconds between two lines about how far it is, where lines cannot be written over.
TOLD_EVERY_S = 5.0


def main(lock: Path) -> int:
    """Make the environment if it is not there, and bring it to the lock. The exit code is the installer's."""
    begun = time.monotonic()
    number = sum(1 for line in lock.read_text().splitlines() if "==" in line)
    uv = shutil.which("uv")
    print(f"environment: .venv gets the {number} packages of {lock.name} (by {'uv' if uv else 'pip'})", flush=True)
    if not PYTHON.exists():
        venv.create(PYTHON.parents[1], with_pip=True, symlinks=True)
    if uv is None or (code := by_uv(uv, lock)) != 0:
        # Compiled are the modules that somebody imports, when they do: for all of them it takes longer than fetching.
        wanted = [*PIP, "--no-compile", "--progress-bar", "off", "--require-hashes", "-r", str(lock)]
        with subprocess.Popen(wanted, stdout=subprocess.PIPE, text=True) as pip:
            assert pip.stdout is not None
            tell(pip.stdout, number)
        code = pip.returncode or subprocess.call([*PIP, "--quiet", *OURS])
    if code == 0:
        print(f"environment: ready after {time.monotonic() - begun:.0f} s", flush=True)
    return code


def by_uv(uv: str, lock: Path, python: Path = PYTHON) -> int:
    """Install by uv into the environment of ``python``, with the certificates of the machine, as pip does. The exit
    code is uv's."""
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    env = {"UV_SYSTEM_CERTS": "1", **os.environ}
    code = subprocess.call([*install, "--require-hashes", "-r", str(lock)], env=env)
    return code or subprocess.call([*install, *OURS], env=env)


def tell(lines: Iterable[str], number: int) -> None:
    """How far pip is, from what it prints: over one line of a terminal, else a line now and then."""
    terminal, seen, told = sys.stdout.isatty(), 0, 0.0
    for line in lines:
        if found := re.match(r"(?:Collecting|Requirement already satisfied:) (\S+?)==(\S+)", line):
            seen += 1
            text = f"  {seen} of {number}: {found[1]} {found[2]}"
        elif found := re.match(r"\s+Downloading \S+ \((.+)\)", line):
            text = f"  {seen} of {number}: {found[1]} are fetched"
        elif line.startswith("Installing collected packages"):
            text, told = f"  {number} of {number}: all are here, and are being unpacked", 0.0
        else:
            continue
        if terminal:
            print(f"\r\033[K{text[:100]}", end="", flush=True)
        elif time.monotonic() - told >= TOLD_EVERY_S:
            print(text, flush=True)
            told = time.monotonic()
    if terminal:
        print("\r\033[K", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(ROOT / sys.argv[1]))
