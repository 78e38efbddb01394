"""Build the programs of the fault tests that no package contains: toxiproxy and the production
Temporal server, both at pinned versions.

``python -m tools.faults.build`` builds what is missing. With ``short``, it builds only toxiproxy,
which takes seconds. The programs are in the cache folder for the programs of the test cluster,
under a key that is derived from the pins.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kubernetes.cluster import binaries
from tests.kubernetes.cluster.binaries import NoBinaries, Program

#: Relative to the other modules, because the builder searches there.
_MODULES = os.path.relpath(Path(__file__).with_name("programs"), binaries.MODULES)
_TEMPORAL = "go.temporal.io/server"
PROGRAMS = (
    Program(
        "toxiproxy-server", f"{_MODULES}/toxiproxy", "github.com/Shopify/toxiproxy/v2/cmd/server"
    ),
    Program("temporal-server", f"{_MODULES}/temporal", f"{_TEMPORAL}/cmd/server"),
    Program("temporal-sql", f"{_MODULES}/temporal", f"{_TEMPORAL}/cmd/tools/sql"),
)


def folder() -> Path:
    """Return the folder of the programs, which may not exist yet."""
    return binaries.cache_root().with_name("faults") / binaries.key(PROGRAMS)


def missing(short: bool = False) -> list[str]:
    """Return what is missing: programs, and the schema of Temporal's database.

    With ``short``, only the programs of a short test run count.
    """
    names = [*(program.name for program in PROGRAMS), "schema"][: 1 if short else None]
    return [name for name in names if not (folder() / name).exists()]


def available(short: bool = False) -> Path:
    """Return the folder with all programs.

    Raises NoBinaries if a program is missing. Building takes minutes, so it happens only on
    request.
    """
    if lacking := missing(short):
        raise NoBinaries(
            f"{', '.join(lacking)} not in {folder()}: run `python3 -m tools fault-programs` "
            "(minutes)"
        )
    return folder()


def build(short: bool = False) -> Path:
    """Build what is missing, and return the folder.

    Raises NoBinaries if Go is missing, or with the output of the compiler.
    """
    where = folder()
    if not missing(short):
        return where
    if shutil.which("go") is None:
        raise NoBinaries("the Go toolchain is not on PATH (go.mod says which; apt or go.dev)")
    os.nice(19)  # nobody waits for it
    where.mkdir(parents=True, exist_ok=True)
    with (where / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for program in PROGRAMS:
            if program.name in missing(short):
                binaries._build(program, where, binaries._say)
        if "schema" in missing(short):
            asked = ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", _TEMPORAL]
            at = binaries.MODULES / _MODULES / "temporal"
            told = subprocess.run(
                asked, cwd=at, env=binaries._env(), capture_output=True, text=True, check=True
            )
            source = Path(told.stdout.strip()) / "schema" / "postgresql" / "v12"
            shutil.copytree(
                source, where / ".schema", copy_function=shutil.copyfile, dirs_exist_ok=True
            )
            (where / ".schema").rename(where / "schema")
    return where


if __name__ == "__main__":
    try:
        print(build("short" in sys.argv))
    except NoBinaries as error:
        sys.exit(str(error))
