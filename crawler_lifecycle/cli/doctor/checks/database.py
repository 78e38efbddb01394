"""Checks of the database: reachable, at our schema's version, and set up so that nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from crawler_lifecycle.cli.doctor.line import Level, Line
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.domain.errors import InvalidRequest, LifecycleError, NotInThisState, StoreUnavailable
from crawler_lifecycle.settings import Settings
from crawler_lifecycle.store import Diagnosis, diagnose, sqlite_file, try_writing, upgrade

from .clock import clock_line

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
            lines.append(Line("database", "ok", f"{found.server} answers"))
        lines.append(_schema(url, found, context.fix))
        if found.exists and file is not None:
            lines += _written(url, file)
    except InvalidRequest as error:
        return [*lines, Line("database", "bad", str(error), "set LIFECYCLE_DATABASE__URL")]
    except LifecycleError as error:
        cure = "check LIFECYCLE_DATABASE__URL, and that the database is there and lets this user in"
        return [*lines, Line("database", "bad", str(error), cure)]
    lines += variable_lines(found.variables, context.known)
    if found.now is not None:
        lines.append(clock_line("the database", found.now - (before + after) / 2, (after - before) / 2))
    return lines


def _schema(url: str, found: Diagnosis, fix: bool) -> Line:
    wrong = found.schema.problem
    if wrong is None:
        return Line("schema", "ok", f"version {found.schema}{'' if found.schema.newer else ', as this build needs it'}")
    if not fix:
        what = wrong.partition("; run:")[0] if found.exists else f"there is no database yet: {found.server}"
        if found.schema.newer:
            return Line("schema", "bad", what.partition("; ")[0], _NEWER)
        return Line("schema", "bad", what, "crawlctl doctor --fix, or crawlctl db upgrade")
    try:
        upgrade(url)
    except NotInThisState as error:
        return Line("schema", "bad", str(error).partition("; ")[0], _NEWER)
    return Line("schema", "ok", f"{found.schema.version or 'empty'} -> {diagnose(url).schema}")


# --- SQLite --------------------------------------------------------------------------------------------------------


def _written(url: str, file: Path) -> list[Line]:
    """Whoever only reads does not notice that nobody can write."""
    try:
        try_writing(url)
    except StoreUnavailable as error:
        cure = f"end the program that holds it (fuser {file}), or let this user write to it and its folder"
        return [Line("database", "bad", f"{file} can be read, but not written: {error}", cure)]
    return []


def _file(file: Path) -> list[Line]:
    folder = next(one for one in (file.parent, *file.parents) if one.exists())
    kind = file_system(folder)
    if kind in NETWORK or kind.startswith("fuse."):
        cure = "keep it on a disk of this machine, or use MySQL or MariaDB (LIFECYCLE_DATABASE__URL)"
        text = f"{file} is on {kind}, where locks and shared memory of SQLite cannot be relied on"
        return [Line("database", "bad", text, cure)]
    return []


def file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that a folder is on; empty when nothing is known."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    real, best, kind = folder.resolve(), -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = Path(fields[4].encode().decode("unicode_escape"))
        # The last mount on a point hides the ones before it.
        if (real == point or point in real.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), right.split(" ")[0]
    return kind


# --- MySQL and MariaDB ---------------------------------------------------------------------------------------------


def variable_lines(variables: Mapping[str, str], settings: Settings) -> list[Line]:
    """What the server's variables mean for us; nothing for SQLite."""
    if not variables:
        return []
    lines = [
        line for judge in (_binlog, _packet, _connections, _durability, _others) for line in judge(variables, settings)
    ]
    if not lines:
        lines = [Line("database", "ok", "its settings fit; its time zone does not matter, times are stored in UTC")]
    return lines


def _binlog(variables: Mapping[str, str], settings: Settings) -> list[Line]:
    on = variables.get("log_bin", "").upper() in ("ON", "1")
    if on and variables.get("binlog_format", "").upper() == "STATEMENT":
        text = "binlog_format is STATEMENT: InnoDB refuses every write of ours, which are READ COMMITTED"
        return [Line("database", "bad", text, "set binlog_format to ROW (or MIXED)")]
    return []


def _packet(variables: Mapping[str, str], settings: Settings) -> list[Line]:
    size = _number(variables, "max_allowed_packet")
    if size is None or size >= PACKET_WARN:
        return []
    level: Level = "bad" if size < PACKET_BAD else "warn"
    text = f"max_allowed_packet is {size / MIB:.1f} MiB: runs with many tasks cannot be stored"
    return [Line("database", level, text, f"set it to {PACKET_WARN // MIB} MiB or more")]


def _connections(variables: Mapping[str, str], settings: Settings) -> list[Line]:
    most, needed = _number(variables, "max_connections"), POOLS * settings.database.pool_size
    if most is None or most >= needed:
        return []
    text = f"max_connections is {most}; one worker and one gateway may open {needed}"
    return [Line("database", "warn", text, "raise it, or lower LIFECYCLE_DATABASE__POOL_SIZE")]


def _durability(variables: Mapping[str, str], settings: Settings) -> list[Line]:
    found = []
    if variables.get("innodb_flush_log_at_trx_commit", "1") != "1":
        found.append(f"innodb_flush_log_at_trx_commit is {variables['innodb_flush_log_at_trx_commit']}")
    if variables.get("innodb_doublewrite", "ON").upper() in ("OFF", "0"):
        found.append("innodb_doublewrite is OFF")
    cure = "set innodb_flush_log_at_trx_commit to 1 and innodb_doublewrite to ON"
    return [
        Line("database", "warn", f"{one}: a crash loses what was acknowledged, stops included", cure) for one in found
    ]


def _others(variables: Mapping[str, str], settings: Settings) -> list[Line]:
    lines = []
    if variables.get("read_only", "OFF").upper() not in ("OFF", "0"):
        lines.append(Line("database", "bad", "the server is read-only", "name the primary in LIFECYCLE_DATABASE__URL"))
    idle = _number(variables, "wait_timeout")
    if idle is not None and idle < IDLE_S:
        text = f"wait_timeout is {idle} s: connections are cut while they rest"
        lines.append(Line("database", "warn", text, f"set it to {IDLE_S} or more"))
    return lines


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else None
