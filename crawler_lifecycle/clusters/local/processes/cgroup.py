"""Control groups of version 2: limits by the kernel, one group for each task, where this machine allows it.

A group is made only *inside* our own group (or in the folder that a setting names, or in an ancestor that was delegated
to us), so that our own limits also apply to our tasks. The memory controller is needed; processors are limited where
the cpu controller is available too. Standard library only and light on imports: the supervisor loads it. Source of the
rules: the kernel's Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from typing import NamedTuple

#: Microseconds over which the kernel adds up processor time, and the least share that it grants.
PERIOD = 100_000
_QUOTA_MIN = 1_000
_REMOVE_SECONDS = 2.0

_UNLIMITED = {"memory.max": "max", "memory.high": "max", "cpu.max": "max"}


class Unavailable(Exception):
    """No group can be made here; the text says why."""


class Parent(NamedTuple):
    """The group in which tasks get groups of their own."""

    folder: str
    cpu: bool
    """True if processors can be limited there, too."""

    def describe(self) -> str:
        """For people."""
        return f"cgroups ({'memory and cpu' if self.cpu else 'memory alone'}) in {self.folder}"


def _read(*parts: str) -> str:
    with open(os.path.join(*parts), encoding="ascii", errors="replace") as file:
        return file.read().strip()


def _write(folder: str, name: str, text: str) -> None:
    """Write into a file of the kernel; the file is never created. Raises ``OSError``."""
    path = os.path.join(folder, name)
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(handle)


def find(setting: str = "auto", proc: str = "/proc/self") -> Parent:
    """The folder for groups, tested by making one and removing it. Raises ``Unavailable`` with the reason why there is
    none.

    ``setting`` is ``auto``, ``off``, or the folder of a group that was prepared for us.
    """
    if setting == "off":
        raise Unavailable("switched off")
    try:
        folder = _own(proc) if setting == "auto" else setting
        if not os.path.exists(os.path.join(folder, "cgroup.controllers")):
            raise Unavailable(f"{folder} is no cgroup of version 2")
        return _proved(folder, cpu=_controllers(folder))
    except OSError as error:
        raise Unavailable(f"{error.filename or 'cgroup'}: {error.strerror or error}") from None


def _own(proc: str) -> str:
    """The group that this process is in, or the one above it that was delegated to us."""
    own = [line[3:] for line in _read(proc, "cgroup").splitlines() if line.startswith("0::")]
    for line in _read(proc, "mountinfo").splitlines():
        place, _, kind = line.partition(" - ")
        root, top = (part.replace("\\040", " ") for part in place.split()[3:5])
        if kind.startswith("cgroup2 ") and own and not (inner := os.path.relpath(own[0], root)).startswith(".."):
            folder = os.path.normpath(os.path.join(top, inner))
            if "memory" in _read(folder, "cgroup.controllers").split():
                return _delegated(folder, top)
    raise Unavailable("no cgroup of version 2 with a memory controller is mounted")


def _delegated(own: str, top: str) -> str:
    """The group in which children may get controllers: ours, or an ancestor delegated to us with no limit in between.

    Limits on children of a group that holds processes itself, as ours does, are forbidden; service managers therefore
    delegate a group and start us in one below it. We leave a group only if it limits nothing.
    """
    folder = own
    while folder != top and not _may_limit_children(folder):
        for name, free in _UNLIMITED.items():
            with contextlib.suppress(FileNotFoundError):
                if not _read(folder, name).startswith(free):
                    raise Unavailable(f"{folder} has a limit of its own ({name}), which tasks must not leave")
        folder = os.path.dirname(folder)
        if not _marked_delegated(folder):
            raise Unavailable(f"{own} holds processes, and {folder} above it was not delegated to us")
    return folder


def _may_limit_children(folder: str) -> bool:
    return "memory" in _read(folder, "cgroup.subtree_control").split() or not _read(folder, "cgroup.procs")


def _marked_delegated(folder: str) -> bool:
    """Service managers mark what they delegate (systemd, since version 251)."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _controllers(folder: str) -> bool:
    """Pass the controllers on to children; whether cpu is among them. Raises ``Unavailable`` where memory is not."""
    enabled = _read(folder, "cgroup.subtree_control").split()
    if "memory" not in enabled:
        _write(folder, "cgroup.subtree_control", "+memory")
    if "cpu" not in enabled:
        with contextlib.suppress(OSError):  # not delegated: then processors are not limited
            _write(folder, "cgroup.subtree_control", "+cpu")
    enabled = _read(folder, "cgroup.subtree_control").split()
    if "memory" not in enabled:
        raise Unavailable(f"{folder} does not pass the memory controller on")
    return "cpu" in enabled


def _proved(folder: str, *, cpu: bool) -> Parent:
    """The parent in which a process can be put into a group with these limits; without cpu where that fails."""
    import subprocess  # already loaded in the process that deploys, not needed in a supervisor

    group = Group(os.path.join(folder, f"crawl-probe-{os.getpid()}-{os.urandom(4).hex()}"))
    try:
        group.make(memory=2**30, cpu=1.0 if cpu else None)
        waiting = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
        with subprocess.Popen(waiting, stdin=subprocess.PIPE) as process:
            group.admit(process.pid)
    except OSError:
        if cpu:
            return _proved(folder, cpu=False)
        raise
    finally:
        group.remove()
    return Parent(folder, cpu)


class Group:
    """The control group of one task."""

    __slots__ = ("folder",)

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @classmethod
    def of(cls, spec: dict[str, object]) -> Group:
        """The group of the task with this spec, whether it exists or not.

        Raises ``ValueError`` where the spec names no folder. A crawler can write into the spec. The uid distinguishes
        tasks of the same name in other state folders.
        """
        parent, name = spec.get("cgroup"), f"{spec.get('name')}-{str(spec.get('uid'))[:8]}"
        if not isinstance(parent, str) or not os.path.isabs(parent) or "/" in name or not name.startswith("crawl-"):
            raise ValueError("the spec names no cgroup of this task")
        return cls(os.path.join(parent, name))

    def make(self, *, memory: int | None, cpu: float | None) -> None:
        """Make the group with limits (bytes; processors). Raises ``OSError``; nothing is left behind then."""
        try:
            os.mkdir(self.folder, 0o755)
            if memory is not None:
                _write(self.folder, "memory.max", str(memory))
                _write(self.folder, "memory.oom.group", "1")
                with contextlib.suppress(OSError):  # a kernel without accounting of swap
                    _write(self.folder, "memory.swap.max", "0")
            if cpu is not None:
                _write(self.folder, "cpu.max", f"{max(_QUOTA_MIN, round(cpu * PERIOD))} {PERIOD}")
        except BaseException:
            self.remove(0)
            raise

    def admit(self, pid: int) -> None:
        """Move a process in, before it has children or memory. Raises ``OSError``."""
        _write(self.folder, "cgroup.procs", str(pid))

    def oom_kills(self) -> int:
        """Processes of the group that the kernel has killed for its limit. Raises ``OSError``."""
        events = dict(line.split() for line in _read(self.folder, "memory.events").splitlines())
        return int(events.get("oom_kill", 0))

    def peak(self) -> int | None:
        """The most bytes that the group ever used, page cache included, if the kernel reports it."""
        try:
            return int(_read(self.folder, "memory.peak"))
        except (OSError, ValueError):
            return None

    def pids(self) -> list[int]:
        """Every process in the group, including forks, whatever their environment. Raises ``OSError``."""
        try:
            return [int(word) for word in _read(self.folder, "cgroup.procs").split()]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):  # removed
                return []
            raise

    def kill(self) -> None:
        """SIGKILL to all processes in the group at once. Raises ``OSError``, also on a kernel before 5.14."""
        _write(self.folder, "cgroup.kill", "1")

    def remove(self, seconds: float = _REMOVE_SECONDS) -> bool:
        """Remove the group. Returns whether it is gone. The kernel refuses while a process other than a zombie is in
        it.
        """
        until = time.monotonic() + seconds
        while True:
            try:
                os.rmdir(self.folder)
                return True
            except OSError as error:
                if error.errno == errno.ENOENT or time.monotonic() >= until:
                    return error.errno == errno.ENOENT
            time.sleep(0.02)
