"""Checks of this machine: versions, limits of the process, disk space, and who holds our ports."""

from __future__ import annotations

import errno
import http.client
import os
import platform
import re
import resource
import shutil
import socket
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from crawler_lifecycle.cli.doctor.line import Line
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.clusters.kind import kind_of
from crawler_lifecycle.clusters.local.processes import cgroup
from crawler_lifecycle.store import sqlite_file

GIB, MIB = 1024**3, 1024**2
#: The gateway alone serves up to 1,000 connections; a local cluster has two pipes and a log for each task.
FILES_WARN, FILES_BAD = 4096, 512
DISK_WARN, DISK_BAD = 2 * GIB, 200 * MIB
MEMORY_WARN, MEMORY_BAD = 512 * MIB, 128 * MIB
#: Where crawls execute elsewhere: what is left is for this process alone, and the doctor's own 100 MiB are taken.
ALONE_WARN, ALONE_BAD = 96 * MIB, 32 * MIB

PACKAGE = "crawler-lifecycle"


# --- versions ------------------------------------------------------------------------------------------------------


def check_versions(context: Context) -> Sequence[Line]:
    """Python, and every package that ours asks for."""
    python = f"Python {platform.python_version()} at {sys.executable}"
    try:
        wanted = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        cure = "pip install it (make env in a checkout), so that its requirements are known"
        return [Line("versions", "warn", f"{python}; {PACKAGE} itself is not installed", cure)]
    lines = requirement_lines(wanted)
    if not lines:
        lines = [Line("versions", "ok", f"{python}, {PACKAGE} {metadata.version(PACKAGE)}, all its packages fit")]
    return lines


def requirement_lines(wanted: Sequence[str]) -> list[Line]:
    """What is wrong with the packages that are installed, by requirements such as ``boto3<2,>=1.40``.

    Known traps: without bounds a resolver falls back to boto3 0.0.3, and python-dateutil 3 breaks botocore.
    """
    lines = []
    for text in wanted:
        requirement, _, marker = text.partition(";")
        if "extra" in marker:
            continue
        found = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^)]*)", requirement)
        if found is None:
            continue
        name, bounds = found[1], found[2]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            cure = f"pip install '{requirement.strip()}', or install from requirements.lock"
            lines.append(Line("versions", "bad", f"{name} is not installed", cure))
            continue
        if not all(_fits(version, bound.strip()) for bound in bounds.split(",") if bound.strip()):
            cure = "install from requirements.lock (make env): resolvers without it pick versions that do not fit"
            lines.append(Line("versions", "bad", f"{name} {version} is installed, needed is {bounds}", cure))
    return lines


def _fits(version: str, bound: str) -> bool:
    found = re.fullmatch(r"(>=|<=|<|>|==|!=|~=)\s*([0-9][0-9.]*).*", bound)
    if found is None:
        return True
    have, want = _release(version), _release(found[2])
    width = max(len(have), len(want))
    have, want = have + (0,) * (width - len(have)), want + (0,) * (width - len(want))
    operator = found[1]
    if operator == "~=":
        return have >= want and have[0] == want[0]
    return {
        ">=": have >= want,
        "<=": have <= want,
        "<": have < want,
        ">": have > want,
        "==": have == want,
        "!=": have != want,
    }[operator]


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else (0,)


# --- limits --------------------------------------------------------------------------------------------------------


def check_limits(context: Context) -> Sequence[Line]:
    """Open files, processes and memory, of this user and this control group."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = files_line(soft, hard)
    alone = context.settings is not None and not kind_of(context.settings.cluster).on_this_machine
    return [files, memory_line(*_memory(), alone=alone), *_processes()]


def memory_line(available: int, why: str, *, alone: bool) -> Line:
    """What so many bytes of memory mean; ``alone``: for our process, and not for crawls beside it."""
    warn, bad = (ALONE_WARN, ALONE_BAD) if alone else (MEMORY_WARN, MEMORY_BAD)
    level = "bad" if available < bad else "warn" if available < warn else "ok"
    cure = "give it more memory" + ("" if alone else ", or run fewer tasks at once (LIFECYCLE_CLUSTER__SLOTS)")
    return Line("limits", level, f"{available // MIB:,} MiB of memory are left ({why})", cure)  # type: ignore[arg-type]


def files_line(soft: int, hard: int) -> Line:
    """What a limit of open files means."""
    infinite = soft == resource.RLIM_INFINITY
    level = "ok" if infinite or soft >= FILES_WARN else "warn" if soft >= FILES_BAD else "bad"
    most = "any number" if hard == resource.RLIM_INFINITY else f"up to {hard}"
    cure = f"ulimit -n {FILES_WARN if hard == resource.RLIM_INFINITY else min(hard, FILES_WARN)} (allowed: {most})"
    return Line("limits", level, "any number of open files" if infinite else f"{soft:,} open files", cure)  # type: ignore[arg-type]


def _processes() -> list[Line]:
    limits = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY:
        limits.append((soft, "ulimit -u"))
    if (group := _number(Path("/sys/fs/cgroup/pids.max"))) is not None:
        limits.append((group, "the control group's pids.max"))
    few = [(number, name) for number, name in limits if number < 512]
    return [
        Line("limits", "warn", f"{number} processes ({name})", "raise it: crawlers have threads")
        for number, name in few
    ]


def _memory() -> tuple[int, str]:
    """Bytes that can still be used, and by what they are limited."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    left = [(int(found[1]) * 1024, "of this machine")] if found else []
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, now = _number(Path(limit)), _number(Path(used))
        if most is not None and now is not None and most < 2**60:
            left.append((max(0, most - now), "of this control group"))
    return min(left, default=(0, "nothing is known about it"))


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def check_groups(context: Context) -> Sequence[Line]:
    """Whether the kernel can limit the tasks of a local cluster; proved by making a control group and removing it."""
    cluster = context.known.cluster
    try:
        return [Line("task limits", "ok", f"by the kernel: {cgroup.find(cluster.cgroup).describe()}")]
    except cgroup.Unavailable as why:
        text = f"memory of tasks is watched, their processors are not limited: no cgroups, {why}"
        if cluster.cgroup in ("auto", "off"):
            return [Line("task limits", "ok", text)]
        cure = "name a cgroup that was delegated to this user in LIFECYCLE_CLUSTER__CGROUP, or set it to auto"
        return [Line("task limits", "bad", text, cure)]


# --- disks ---------------------------------------------------------------------------------------------------------


def check_disks(context: Context) -> Sequence[Line]:
    """Room where the local cluster, the SQLite file, the archive folder and the file of events are."""
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
    """Room below a folder: bytes, and files."""
    free = shutil.disk_usage(folder).free
    stat = os.statvfs(folder)
    level = "bad" if free < DISK_BAD else "warn" if free < DISK_WARN else "ok"
    cure = "free some space, or move it to a larger disk"
    text = f"{free / GIB:,.1f} GiB are free at {folder} ({what})"
    if stat.f_files and stat.f_favail < 10_000:
        return Line(
            "disk", "bad" if stat.f_favail < 1000 else "warn", f"{text}, but for {stat.f_favail} files only", cure
        )
    return Line("disk", level, text, cure)  # type: ignore[arg-type]


# --- ports ---------------------------------------------------------------------------------------------------------


def check_ports(context: Context) -> Sequence[Line]:
    """Who listens where our services want to."""
    settings = context.known
    listening = [("scheduler", settings.scheduler.host, settings.scheduler.port, "LIFECYCLE_SCHEDULER")]
    listening.append(("gateway", settings.gateway.host, settings.gateway.port, "LIFECYCLE_GATEWAY"))
    listening.append(("worker", settings.worker.health_host, settings.worker.health_port, "LIFECYCLE_WORKER__HEALTH"))
    return [port_line(*one) for one in listening if one[2]]


def port_line(service: str, host: str, port: int, setting: str) -> Line:
    """Whether a service of ours has its port, could have it, or somebody else has it."""
    where = f"{host}:{port}"
    separator = "_" if setting.endswith("HEALTH") else "__"
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            cure = f"set {setting}{separator}HOST to an address of this machine"
            return Line("ports", "warn", f"{service} cannot listen on {where}: {error.strerror}", cure)
        if _is_ours(host, port):
            return Line("ports", "ok", f"{where}: our {service} listens")
        cure = f"end it and start the {service}; of another program: or set {setting}{separator}PORT to another port"
        return Line("ports", "warn", f"{where}: another program listens, or our {service} hangs", cure)
    return Line("ports", "ok", f"{where} is free for the {service}")


def _is_ours(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1" if host in ("", "0.0.0.0") else host, port, timeout=2)  # noqa: S104
    try:
        connection.request("GET", "/healthz")
        with connection.getresponse() as answer:
            return answer.status == 200 and b'"alive"' in answer.read(200)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
