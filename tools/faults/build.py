"""The programs of the fault tests that no package brings: toxiproxy and the production Temporal
server, built once, pinned.

``python -m tools.faults.build`` builds what is missing; with ``short`` toxiproxy alone, in seconds.
They lie in the cache folder of the test cluster's programs, under a key of what pins them.
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

#: Relative to the other modules, because that is where the builder polls.
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
    """Where they are, or will be."""
    return binaries.cache_root().with_name("faults") / binaries.key(PROGRAMS)


def missing(short: bool = False) -> list[str]:
    """What is not there: programs, and the schema of Temporal's database.

    ``short``: of what a short play needs.
    """
    names = [*(program.name for program in PROGRAMS), "schema"][: 1 if short else None]
    return [name for name in names if not (folder() / name).exists()]


def available(short: bool = False) -> Path:
    """The folder with all of them.

    Raises NoBinaries: building takes minutes, so it is asked for.
    """
    if lacking := missing(short):
        raise NoBinaries(
            f"{', '.join(lacking)} not in {folder()}: run `python3 -m tools fault-programs` "
            "(minutes)"
        )
    return folder()


def build(short: bool = False) -> Path:
    """Build what is missing; returns the folder.

    Raises NoBinaries without Go, or with the compiler's words.
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
