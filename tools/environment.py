"""Install a lock file and this package into ``.venv``, by uv or pip: ``environment.py LOCK``."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"
UV = ("sync", "--quiet", "--require-hashes")
PIP = ("install", "--quiet", "--no-compile", "--no-deps", "--require-hashes", "-r")
OURS = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))


def run(program: tuple[str, ...], locked: tuple[str, ...], lock: Path, python: Path) -> bool:
    """Whether this program installs the lock, and then this package, for this Python."""
    env = os.environ | {"UV_PYTHON": str(python), "PIP_PYTHON": str(python)}
    env.setdefault("UV_SYSTEM_CERTS", "1")  # uv trusts the machine's certificates, as pip does.
    commands = ([*program, *locked, str(lock)], [*program, *OURS])
    return all(subprocess.call(command, env=env) == 0 for command in commands)


def install(lock: Path, python: Path = PYTHON) -> bool:
    """Install by uv. Where it is missing or fails, pip does: uv reads none of its settings."""
    uv = shutil.which("uv")
    if uv and run((uv, "pip"), UV, lock, python):
        return True
    print("environment: installing with pip, in a minute or two; uv takes seconds", flush=True)
    return run((str(PYTHON), "-m", "pip"), PIP, lock, python)


if __name__ == "__main__":
    if not PYTHON.exists():
        venv.create(PYTHON.parents[1], with_pip=True, symlinks=True)
    sys.exit(not install(ROOT / sys.argv[1]))
