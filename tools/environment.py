"""Install a lock file and this package into ``.venv``, by uv or pip: ``environment.py LOCK``.

Standard library only.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"
OURS = ("--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))


def by_uv(uv: str, lock: Path, python: Path = PYTHON) -> int:
    """Install by uv, which trusts the machine's certificates, as pip does.

    The exit code is uv's.
    """
    install = [uv, "pip", "install", "--python", str(python)]
    env = {"UV_SYSTEM_CERTS": "1", **os.environ}
    code = subprocess.call([*install, "--quiet", "--require-hashes", "-r", str(lock)], env=env)
    return code or subprocess.call([*install, *OURS], env=env)


def by_pip(lock: Path) -> int:
    """Install by pip, and show every twentieth package.

    Modules are compiled when first imported, which is faster.
    """
    install = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    total = lock.read_text().count("==")
    quiet = ["--no-compile", "--progress-bar", "off"]
    command = [*install, *quiet, "--require-hashes", "-r", str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pip:
        pins = (
            line.partition(" (from")[0]
            for line in pip.stdout or ()
            if "==" in line and not line.startswith(" ")
        )
        for number, pin in enumerate(pins, 1):
            if number % 20 == 0 or number == total:
                print(f"  {number} of {total}: {pin.strip()}", flush=True)
    return pip.returncode or subprocess.call([*install, *OURS])


if __name__ == "__main__":
    chosen = ROOT / sys.argv[1]
    program = shutil.which("uv")
    print(
        f"environment: installing {chosen.name} into .venv with {'uv' if program else 'pip'}",
        flush=True,
    )
    if not PYTHON.exists():
        venv.create(PYTHON.parents[1], with_pip=True, symlinks=True)
    # uv reads none of pip's settings, so pip tries what uv could not install.
    sys.exit(0 if program and by_uv(program, chosen) == 0 else by_pip(chosen))
