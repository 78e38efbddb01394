"""Chancy on PostgreSQL, with which graphs are compared. Neither is a dependency of ours.

PostgreSQL comes from Debian (``apt-get install postgresql``). Chancy is installed into an
environment for this run.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crawler_lifecycle.cli.stack import processes

#: What is measured, with its driver.
WANTED = ("chancy>=0.25,<1", "psycopg[binary]")
INSTALL_S, START_S, MEASURED_S = 300.0, 60.0, 1800.0
_CALL = "import sys, chancy_workload as w; w.main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))"


class Missing(Exception):
    """Something is missing here: what it is, and how to get it."""


def chancy_seconds(folder: Path, chain: int, fan: int) -> tuple[str, dict[str, dict[str, float]]]:
    """Return the versions of Chancy and PostgreSQL, and the seconds of a chain and of a fan-out and
    fan-in, each in processes and in its own event loop. Raises ``Missing``.
    """
    programs = _postgresql()
    python = _environment(folder / "chancy")
    workload = Path(__file__).with_name("chancy_workload.py")
    (folder / "workload").mkdir()
    shutil.copy(workload, folder / "workload")
    with _server(programs, folder) as (dsn, version):
        command = [str(python), "-c", _CALL, dsn, str(chain), str(fan)]
        env = os.environ | {"PYTHONPATH": str(folder / "workload")}
        done = _run(command, MEASURED_S, env=env, cwd=folder)
    named = "import importlib.metadata as m; print(m.version('chancy'))"
    chancy = _run([str(python), "-c", named], 60).stdout.strip()
    return f"Chancy {chancy} on {version}", json.loads(done.stdout.splitlines()[-1])


def _postgresql() -> Path:
    """Return the folder with PostgreSQL's programs."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: int(file.parts[-3])
    )
    if found:
        return found[-1].parent
    other = shutil.which("initdb")
    if other is None:
        raise Missing("PostgreSQL is not installed; apt-get install postgresql")
    return Path(other).resolve().parent


def _environment(folder: Path) -> Path:
    """Return the Python of a new environment with Chancy."""
    python = folder / "bin" / "python"
    try:
        _run([sys.executable, "-m", "venv", str(folder)], INSTALL_S)
        quiet = ["--quiet", "--disable-pip-version-check", "--retries", "1"]
        _run([str(python), "-m", "pip", "install", *quiet, *WANTED], INSTALL_S)
    except (subprocess.SubprocessError, OSError) as error:
        text = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1:]
        raise Missing(f"{WANTED[0]} cannot be installed: {' '.join(text)}") from None
    return python


@contextmanager
def _server(programs: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Start an empty server, never as root. Yields its address, and its name with version."""
    data, port, whose = folder / "postgresql", processes.free_port(), _somebody()
    data.mkdir()
    if whose is not None:
        folder.chmod(0o755)
        shutil.chown(data, whose)
    made = [
        str(programs / "initdb"),
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "-D",
        str(data),
    ]
    _run(made, START_S, user=whose, cwd=data)
    options = [
        "-D",
        str(data),
        "-p",
        str(port),
        "-c",
        "listen_addresses=127.0.0.1",
        "-k",
        str(data),
    ]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(
        [str(programs / "postgres"), *options], user=whose, cwd=data, **silent
    )
    try:
        asked = [
            str(programs / "psql"),
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "-U",
            "postgres",
            "-tAc",
        ]
        until = time.monotonic() + START_S
        while subprocess.run([*asked, "SELECT 1"], check=False, **silent).returncode:
            if server.poll() is not None or time.monotonic() > until:
                raise Missing(f"PostgreSQL of {programs} does not start")
            time.sleep(0.1)
        version = _run([*asked, "SHOW server_version"], START_S).stdout.split()[0]
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres", f"PostgreSQL {version}"
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _somebody() -> str | None:
    """Return the user who runs the server if we are root."""
    if os.geteuid() != 0:
        return None
    known = {one.pw_name for one in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


def _run(command: list[str], seconds: float, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=seconds, **more
    )
