"""Checks of the database: connection, schema version, and settings that can lead to data loss."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.admin.services import DATABASE_FIX
from crawler_lifecycle.cli.doctor.report import (
    Context,
    Level,
    Line,
    bad,
    clock_line,
    of_error,
    ok,
    old,
)
from crawler_lifecycle.domain.errors import LifecycleError, NotInThisState, StoreUnavailable
from crawler_lifecycle.settings import Settings
from crawler_lifecycle.store.diagnosis import Diagnosis, diagnose, sqlite_file, try_writing
from crawler_lifecycle.store.engine import StoreDamaged
from crawler_lifecycle.store.migrations.schema_version import upgrade

MIB = 1024**2
#: Limits for ``max_allowed_packet``. A request can contain 2 MiB of tasks and arguments, and the
#: SQL statement for it is larger.
PACKET_BAD = 4 * MIB
PACKET_WARN = 16 * MIB
#: The number of connection pools: one for each of a worker's four roles, and one for the gateway.
POOLS = 5
#: The oldest supported server versions, and the problem with older versions.
LEAST = {"MySQL": (8, 0), "MariaDB": (10, 11)}
LACKS = "it does not skip locked rows, so tasks wait for each other"
#: Our connections are idle for at most this many seconds. The server must keep idle connections
#: open for this long.
IDLE_S = 280
_NEWER = "run the newer version, or restore a backup from before the upgrade"
NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb",
    "smb2",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "gpfs",
)


def check_database(context: Context) -> Sequence[Line]:
    """Check connection, schema (which ``--fix`` upgrades), server variables and clock."""
    url = context.known.database.url
    lines: list[Line] = []
    try:
        if (file := sqlite_file(url)) is not None:
            lines += _file(file)
            if sqlite_files.damage(file, context.call_s) is not None:
                raise StoreDamaged
        before = time.time()
        found = diagnose(url)
        after = time.time()
        if found.exists:
            product, _, version = found.server.partition(" ")
            lines.append(ok("database", f"{found.server} answers"))
            if product in LEAST:
                lines += old("database", product, version.split(" ")[0], LEAST[product], LACKS)
        lines.append(_schema(url, found, context.fix))
        if found.exists and file is not None:
            lines += _written(url, file)
    except LifecycleError as error:
        return [*lines, of_error("database", error, fix=DATABASE_FIX)]
    lines += variable_lines(found.variables, context.known)
    if found.now is not None:
        lines.append(
            clock_line("the database", found.now - (before + after) / 2, (after - before) / 2)
        )
    return lines


def _schema(url: str, found: Diagnosis, fix: bool) -> Line:
    wrong = found.schema.problem
    if wrong is None:
        return ok(
            "schema",
            f"version {found.schema}{'' if found.schema.newer else ', which this build needs'}",
        )
    if fix:
        try:
            upgrade(url)
        except NotInThisState as error:
            return bad("schema", str(error).partition("; ")[0], _NEWER)
        return ok("schema", f"{found.schema.version or 'empty'} -> {diagnose(url).schema}")
    if found.schema.newer:
        return bad("schema", wrong.partition("; ")[0], _NEWER)
    what = (
        wrong.partition("; run:")[0]
        if found.exists
        else f"there is no database yet: {found.server}"
    )
    return bad("schema", what, "crawlctl doctor --fix, or crawlctl db upgrade")


# --- SQLite ---------------------------------------------------------------------------------------


def _written(url: str, file: Path) -> list[Line]:
    """Return a finding if the database cannot be written to: a readable database may still refuse
    writes.
    """
    try:
        try_writing(url)
    except StoreUnavailable as error:
        fix = (
            f"end the program that locks it (fuser {file}), or let this user write to it and "
            "its folder"
        )
        return [bad("database", f"{file} can be read, but not written: {error}", fix)]
    return []


def _file(file: Path) -> list[Line]:
    kind = file_system(next(folder for folder in (file.parent, *file.parents) if folder.exists()))
    if kind in NETWORK or kind.startswith("fuse."):
        fix = "keep it on a disk of this machine, or use MySQL or MariaDB (LIFECYCLE_DATABASE__URL)"
        text = f"{file} is on {kind}, where locks and shared memory of SQLite are not reliable"
        return [bad("database", text, fix)]
    return []


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the type of a folder's file system; empty if it is unknown."""
    try:
        rows = [line.split(" ") for line in mounts.read_text(errors="replace").splitlines()]
    except OSError:
        return ""
    kinds = {Path(row[1].encode().decode("unicode_escape")): row[2] for row in rows if len(row) > 2}
    real = folder.resolve()
    # If several file systems are mounted at one mount point, the last one counts.
    return next((kinds[point] for point in (real, *real.parents) if point in kinds), "")


# --- MySQL and MariaDB ----------------------------------------------------------------------------


def variable_lines(variables: Mapping[str, str], settings: Settings) -> list[Line]:
    """Return findings about the server's variables. SQLite has no such variables."""
    if not variables:
        return []
    is_on = {name: value.upper() not in ("OFF", "0") for name, value in variables.items()}
    packet, most, idle_s = (
        _number(variables, n) for n in ("max_allowed_packet", "max_connections", "wait_timeout")
    )
    flush = variables.get("innodb_flush_log_at_trx_commit", "1")
    needed = POOLS * settings.database.pool_size
    lost = "a crash may lose acknowledged data, for example stops"
    large = f"max_allowed_packet is {packet / MIB:.1f} MiB: runs with many tasks cannot be stored"
    rules: Sequence[tuple[bool, Level, str, str]] = (
        (
            is_on.get("log_bin", False)
            and variables.get("binlog_format", "").upper() == "STATEMENT",
            "bad",
            "binlog_format is STATEMENT: InnoDB refuses our writes, which are READ COMMITTED",
            "set binlog_format to ROW (or MIXED)",
        ),
        (
            packet < PACKET_WARN,
            "bad" if packet < PACKET_BAD else "warn",
            large,
            "set it to 16 MiB or more",
        ),
        (
            most < needed,
            "warn",
            f"max_connections is {most:g}; one worker and one gateway may open {needed}",
            "raise it, or lower LIFECYCLE_DATABASE__POOL_SIZE",
        ),
        (flush != "1", "warn", f"innodb_flush_log_at_trx_commit is {flush}: {lost}", "set it to 1"),
        (
            not is_on.get("innodb_doublewrite", True),
            "warn",
            f"innodb_doublewrite is OFF: {lost}",
            "set it to ON",
        ),
        (
            is_on.get("read_only", False),
            "bad",
            "the server is read-only",
            "set LIFECYCLE_DATABASE__URL to the primary server",
        ),
        (
            idle_s < IDLE_S,
            "warn",
            f"wait_timeout is {idle_s:g} s: the server closes idle connections too early",
            f"set it to {IDLE_S} or more",
        ),
    )
    lines = [Line("database", level, text, fix) for harmful, level, text, fix in rules if harmful]
    return lines or [
        ok("database", "its settings are suitable; times are stored in UTC, whatever its time zone")
    ]


def _number(variables: Mapping[str, str], name: str) -> float:
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else math.inf
