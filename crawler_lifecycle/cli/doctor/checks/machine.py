"""Checks of this machine: environment, versions, memory, limits of local tasks, disk space."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

from crawler_lifecycle.cli.doctor.report import Context, Level, Line, bad, ok, warn
from crawler_lifecycle.clusters.kind import kind_of
from crawler_lifecycle.clusters.local.processes import cgroup
from crawler_lifecycle.settings import PREFIX, unread_variables
from crawler_lifecycle.store import sqlite_file

GIB, MIB = 1024**3, 1024**2
DISK_WARN, DISK_BAD = 2 * GIB, 200 * MIB
MEMORY_WARN, MEMORY_BAD = 512 * MIB, 128 * MIB
#: Limits if crawls execute on other machines. The doctor itself already uses 100 MiB.
ALONE_WARN, ALONE_BAD = 96 * MIB, 32 * MIB
INODES_WARN, INODES_BAD = 10_000, 1000

PACKAGE = "crawler-lifecycle"


def _level(left: float, warn_below: float, bad_below: float) -> Level:
    return "bad" if left < bad_below else "warn" if left < warn_below else "ok"


# --- environment and versions ---------------------------------------------------------------------------------------


def check_environment(context: Context) -> Sequence[Line]:
    """Report variables with our prefix that no setting reads. They are misspelt, or belong to another version."""
    environment = context.sources.environment
    own = [name for name in environment if name.upper().startswith(PREFIX)]
    unread = unread_variables(environment)
    lines = [bad("environment", f"{name} is set, but no setting reads it", cure) for name, cure in unread]
    number = f"{len(own)} {PREFIX}* variables are set, all are settings" if own else f"no {PREFIX}* variable is set"
    return lines or [ok("environment", number)]


def check_versions(context: Context) -> Sequence[Line]:
    """Check the versions of all packages that ours requires."""
    python = f"Python {platform.python_version()} at {sys.executable}"
    try:
        wanted = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        cure = "install it with pip (make env in a checkout), so that its requirements are known"
        return [warn("versions", f"{python}; {PACKAGE} itself is not installed", cure)]
    fine = f"{python}, {PACKAGE} {metadata.version(PACKAGE)}, all its packages have suitable versions"
    return requirement_lines(wanted) or [ok("versions", fine)]


def requirement_lines(wanted: Sequence[str]) -> list[Line]:
    """Return a finding for each missing or unsuitable package, by requirements such as ``boto3<2,>=1.40``.

    Known problems: without bounds a resolver may choose boto3 0.0.3, and botocore does not work with python-dateutil 3.
    """
    lines = []
    for needed in map(Requirement, wanted):
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            cure = f"pip install '{needed}', or install from requirements.lock"
            lines.append(bad("versions", f"{needed.name} is not installed", cure))
            continue
        if not needed.specifier.contains(version, prereleases=True):
            cure = "install from requirements.lock (make env), which has suitable versions"
            text = f"{needed.name} {version} is installed, but {needed.specifier} is needed"
            lines.append(bad("versions", text, cure))
    return lines


# --- memory --------------------------------------------------------------------------------------------------------


def check_memory(context: Context) -> Sequence[Line]:
    """Check the free memory of this machine, and of this control group if it has a limit."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    left = [(int(found[1]) * 1024, "of this machine")] if found else []
    try:
        most, used = (int(Path("/sys/fs/cgroup", name).read_text()) for name in ("memory.max", "memory.current"))
        left.append((max(0, most - used), "of this control group"))
    except (OSError, ValueError):
        pass  # there is no group, or it has no limit
    alone = context.settings is not None and not kind_of(context.settings.cluster).on_this_machine
    return [memory_line(*min(left), alone=alone)] if left else []


def memory_line(available: int, why: str, *, alone: bool) -> Line:
    """Return the finding about free memory. With ``alone``, only our process uses it, and no crawls on this machine."""
    level = _level(available, *((ALONE_WARN, ALONE_BAD) if alone else (MEMORY_WARN, MEMORY_BAD)))
    cure = "give it more memory" + ("" if alone else ", or run fewer tasks at once (LIFECYCLE_CLUSTER__SLOTS)")
    return Line("memory", level, f"{available // MIB:,} MiB of memory are free ({why})", cure)


def check_groups(context: Context) -> Sequence[Line]:
    """Check that the kernel can limit local tasks: create a control group and remove it."""
    cluster = context.known.cluster
    try:
        return [ok("task limits", f"by the kernel: {cgroup.find(cluster.cgroup).describe()}")]
    except cgroup.Unavailable as why:
        text = f"there are no cgroups ({why}): only the memory of tasks is watched, processors are not limited"
        if cluster.cgroup in ("auto", "off"):
            return [ok("task limits", text)]
        cure = "name a cgroup that was delegated to this user in LIFECYCLE_CLUSTER__CGROUP, or set it to auto"
        return [bad("task limits", text, cure)]


# --- disks ---------------------------------------------------------------------------------------------------------


def check_disks(context: Context) -> Sequence[Line]:
    """Check the free disk space for the local cluster, the SQLite file, the archive folder and the file of events."""
    settings = context.known
    beside_us = kind_of(settings.cluster).on_this_machine
    folders = {"state of the local cluster": settings.cluster.state_dir} if beside_us else {}
    if (database := sqlite_file(settings.database.url)) is not None:
        folders["database"] = database.parent
    for name, url in (("archive", settings.archive.url), ("events", settings.events.url)):
        if url.startswith("file:"):
            folders[name] = Path(unquote(urlsplit(url).path))
    by_disk: dict[int, tuple[Path, list[str]]] = {}
    for name, folder in folders.items():
        there = next(one for one in (folder, *folder.parents) if one.exists())
        by_disk.setdefault(there.stat().st_dev, (there, []))[1].append(name)
    return [disk_line(" and ".join(names), there) for there, names in by_disk.values()]


def disk_line(what: str, folder: Path) -> Line:
    """Return the finding about free bytes and free inodes on the disk of a folder."""
    free, stat = shutil.disk_usage(folder).free, os.statvfs(folder)
    text = f"{free / GIB:,.1f} GiB are free at {folder} ({what})"
    level = _level(free, DISK_WARN, DISK_BAD)
    if stat.f_files and stat.f_favail < INODES_WARN:
        text += f", but only for {stat.f_favail} files"
        level = _level(stat.f_favail, INODES_WARN, INODES_BAD)
    return Line("disk", level, text, "free some space, or move it to a larger disk")
