"""Checks of the database: reachable, at our schema's version, and set up so that nothing is lost."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from crawler_lifecycle.cli.doctor.report import Context, Level, Line, bad, clock_line, ok
from crawler_lifecycle.domain.errors import InvalidRequest, LifecycleError, NotInThisState, StoreUnavailable
from crawler_lifecycle.settings import Settings
from crawler_lifecycle.store import Diagnosis, diagnose, sqlite_file, try_writing, upgrade

MIB = 1024**2
#: One request may hold tasks and arguments of 2 MiB; as a statement that is several times more.
PACKET_BAD, PACKET_WARN = 4 * MIB, 16 * MIB
#: The four roles of a worker have connections of their own, and so has the gateway.
POOLS = 5
#: Connections of ours rest for less than this, and must still be there afterwards.
IDLE_S = 280
_NEWER = "run the newer version, or restore a backup from before"
NETWORK = ("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs")


def check_database(context: Context) -> Sequence[Line]:
    """Reach it, compare the schema (mended with ``--fix``), and read what is set."""
    url = context.known.database.url
    lines: list[Line] = []
    try:
        if (file := sqlite_file(url)) is not None:
            lines += _file(file)
        before = time.time()
        found = diagnose(url)
        after = time.time()
        if found.exists:
            lines.append(ok("database", f"{found.server} answers"))
        lines.append(_schema(url, found, context.fix))
        if found.exists and file is not None:
            lines += _written(url, file)
    except InvalidRequest as error:
        return [*lines, bad("database", str(error), "set LIFECYCLE_DATABASE__URL")]
    except LifecycleError as error:
        cure = "check LIFECYCLE_DATABASE__URL, and that the database is there and lets this user in"
        return [*lines, bad("database", str(error), cure)]
    lines += variable_lines(found.variables, context.known)
    if found.now is not None:
        lines.append(clock_line("the database", found.now - (before + after) / 2, (after - before) / 2))
    return lines


def _schema(url: str, found: Diagnosis, fix: bool) -> Line:
    wrong = found.schema.problem
    if wrong is None:
        return ok("schema", f"version {found.schema}{'' if found.schema.newer else ', as this build needs it'}")
    if fix:
        try:
            upgrade(url)
        except NotInThisState as error:
            return bad("schema", str(error).partition("; ")[0], _NEWER)
        return ok("schema", f"{found.schema.version or 'empty'} -> {diagnose(url).schema}")
    if found.schema.newer:
        return bad("schema", wrong.partition("; ")[0], _NEWER)
    what = wrong.partition("; run:")[0] if found.exists else f"there is no database yet: {found.server}"
    return bad("schema", what, "crawlctl doctor --fix, or crawlctl db upgrade")


# --- SQLite --------------------------------------------------------------------------------------------------------


def _written(url: str, file: Path) -> list[Line]:
    """Try to write: reading alone does not show that nobody can."""
    try:
        try_writing(url)
    except StoreUnavailable as error:
        cure = f"end the program that holds it (fuser {file}), or let this user write to it and its folder"
        return [bad("database", f"{file} can be read, but not written: {error}", cure)]
    return []


def _file(file: Path) -> list[Line]:
    kind = file_system(next(one for one in (file.parent, *file.parents) if one.exists()))
    if kind in NETWORK or kind.startswith("fuse."):
        cure = "keep it on a disk of this machine, or use MySQL or MariaDB (LIFECYCLE_DATABASE__URL)"
        text = f"{file} is on {kind}, where locks and shared memory of SQLite cannot be relied on"
        return [bad("database", text, cure)]
    return []


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The type of the file system that a folder is on; empty when nothing is known."""
    try:
        rows = [line.split(" ") for line in mounts.read_text(errors="replace").splitlines()]
    except OSError:
        return ""
    kinds = {Path(row[1].encode().decode("unicode_escape")): row[2] for row in rows if len(row) > 2}
    real = folder.resolve()
    # The last mount on a point hides the ones before it.
    return next((kinds[point] for point in (real, *real.parents) if point in kinds), "")


# --- MySQL and MariaDB ---------------------------------------------------------------------------------------------


def variable_lines(variables: Mapping[str, str], settings: Settings) -> list[Line]:
    """Lines about the server's variables; nothing for SQLite."""
    if not variables:
        return []
    is_on = {name: value.upper() not in ("OFF", "0") for name, value in variables.items()}
    packet, most, idle_s = (_number(variables, n) for n in ("max_allowed_packet", "max_connections", "wait_timeout"))
    flush, needed = variables.get("innodb_flush_log_at_trx_commit", "1"), POOLS * settings.database.pool_size
    lost = "a crash loses what was acknowledged, stops included"
    large = f"max_allowed_packet is {packet / MIB:.1f} MiB: runs with many tasks cannot be stored"
    rules: Sequence[tuple[bool, Level, str, str]] = (
        (
            is_on.get("log_bin", False) and variables.get("binlog_format", "").upper() == "STATEMENT",
            "bad",
            "binlog_format is STATEMENT: InnoDB refuses every write of ours, which are READ COMMITTED",
            "set binlog_format to ROW (or MIXED)",
        ),
        (packet < PACKET_WARN, "bad" if packet < PACKET_BAD else "warn", large, "set it to 16 MiB or more"),
        (
            most < needed,
            "warn",
            f"max_connections is {most:g}; one worker and one gateway may open {needed}",
            "raise it, or lower LIFECYCLE_DATABASE__POOL_SIZE",
        ),
        (flush != "1", "warn", f"innodb_flush_log_at_trx_commit is {flush}: {lost}", "set it to 1"),
        (not is_on.get("innodb_doublewrite", True), "warn", f"innodb_doublewrite is OFF: {lost}", "set it to ON"),
        (
            is_on.get("read_only", False),
            "bad",
            "the server is read-only",
            "name the primary in LIFECYCLE_DATABASE__URL",
        ),
        (
            idle_s < IDLE_S,
            "warn",
            f"wait_timeout is {idle_s:g} s: connections are cut while they rest",
            f"set it to {IDLE_S} or more",
        ),
    )
    lines = [Line("database", level, text, cure) for harmful, level, text, cure in rules if harmful]
    return lines or [ok("database", "its settings fit; its time zone does not matter, times are stored in UTC")]


def _number(variables: Mapping[str, str], name: str) -> float:
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else math.inf
