"""Control groups of version 2, in which the kernel limits each task separately if this machine
allows it.

A group is created only inside our own group, in the folder that a setting names, or in an ancestor
that was delegated to us. Our own limits therefore also apply to our tasks. The memory controller is
required. Processors are limited only if the cpu controller is also available. The rules come from
the kernel's Documentation/admin-guide/cgroup-v2.rst. This module uses only the standard library and
imports little, because the supervisor loads it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from typing import NamedTuple

#: The period in microseconds for which the kernel limits processor time, and the smallest limit
#: that it accepts.
PERIOD = 100_000
_QUOTA_MIN = 1_000
_REMOVE_SECONDS = 2.0

_UNLIMITED = {"memory.max": "max", "memory.high": "max", "cpu.max": "max"}


class Unavailable(Exception):
    """No control group can be created here. The text is the reason."""


class Parent(NamedTuple):
    """The group in which the groups of tasks are created."""

    folder: str
    cpu: bool
    """True if processors can also be limited."""

    def describe(self) -> str:
        """Return a description for people."""
        return f"cgroups ({'memory and cpu' if self.cpu else 'only memory'}) in {self.folder}"


def _read(*parts: str) -> str:
    with open(os.path.join(*parts), encoding="ascii", errors="replace") as file:
        return file.read().strip()


def _write(folder: str, name: str, text: str) -> None:
    """Write into an existing file of the kernel. Raises ``OSError``."""
    path = os.path.join(folder, name)
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(handle)


def find(setting: str = "auto", proc: str = "/proc/self") -> Parent:
    """Return the parent of groups after testing it by creating and removing a group.

    ``setting`` is ``auto``, ``off``, or the folder of a group that was prepared for us. Raises
    ``Unavailable`` with the reason.
    """
    if setting == "off":
        raise Unavailable("the setting is off")
    try:
        folder = _own(proc) if setting == "auto" else setting
        if not os.path.exists(os.path.join(folder, "cgroup.controllers")):
            raise Unavailable(f"{folder} is not a cgroup of version 2")
        return _proved(folder, cpu=_controllers(folder))
    except OSError as error:
        raise Unavailable(f"{error.filename or 'cgroup'}: {error.strerror or error}") from None


def _own(proc: str) -> str:
    """Return the group of this process, or a group above it that was delegated to us."""
    own = [line[3:] for line in _read(proc, "cgroup").splitlines() if line.startswith("0::")]
    for line in _read(proc, "mountinfo").splitlines():
        mount, _, kind = line.partition(" - ")
        root, top = (part.replace("\\040", " ") for part in mount.split()[3:5])
        if (
            kind.startswith("cgroup2 ")
            and own
            and not (inner := os.path.relpath(own[0], root)).startswith("..")
        ):
            folder = os.path.normpath(os.path.join(top, inner))
            if "memory" in _read(folder, "cgroup.controllers").split():
                return _delegated(folder, top)
    raise Unavailable("no cgroup of version 2 with a memory controller is mounted")


def _delegated(own: str, top: str) -> str:
    """Return the group whose children can have limits: ours, or a delegated ancestor if no group
    below it, down to ours, has a limit.

    The kernel forbids limits on the children of a group that contains processes, as ours does.
    Service managers therefore delegate a group, and start us in a group below it. We move up from a
    group only if it has no limit.
    """
    folder = own
    while folder != top and not _may_limit_children(folder):
        for name, free in _UNLIMITED.items():
            with contextlib.suppress(FileNotFoundError):
                if not _read(folder, name).startswith(free):
                    raise Unavailable(
                        f"{folder} has its own limit ({name}), which must also apply to tasks"
                    )
        folder = os.path.dirname(folder)
        if not _marked_delegated(folder):
            raise Unavailable(
                f"{own} contains processes, and {folder} above it was not delegated to us"
            )
    return folder


def _may_limit_children(folder: str) -> bool:
    return "memory" in _read(folder, "cgroup.subtree_control").split() or not _read(
        folder, "cgroup.procs"
    )


def _marked_delegated(folder: str) -> bool:
    """Return whether the group is marked as delegated (systemd sets the mark since version 251)."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _controllers(folder: str) -> bool:
    """Enable the controllers for child groups, and return whether cpu is enabled.

    Raises ``Unavailable`` if memory cannot be enabled, and ``OSError``.
    """
    enabled = _read(folder, "cgroup.subtree_control").split()
    if "memory" not in enabled:
        _write(folder, "cgroup.subtree_control", "+memory")
    if "cpu" not in enabled:
        with contextlib.suppress(OSError):  # cpu was not delegated, so processors have no limit
            _write(folder, "cgroup.subtree_control", "+cpu")
    enabled = _read(folder, "cgroup.subtree_control").split()
    if "memory" not in enabled:
        raise Unavailable(f"{folder} does not give its children the memory controller")
    return "cpu" in enabled


def _proved(folder: str, *, cpu: bool) -> Parent:
    """Test a group with limits and a process in it, and return the parent. If the test fails with
    cpu, it is repeated without cpu.
    """
    import subprocess  # imported here, because a supervisor does not need this

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
        """Return the group of the task with this spec. The group might not exist.

        Its name contains the uid, because tasks in other state folders may have the same name.
        Raises ``ValueError`` if the spec does not name a valid group, because a crawler can write
        the spec.
        """
        parent = spec.get("cgroup")
        name = f"{spec.get('name')}-{str(spec.get('uid'))[:8]}"
        if (
            not isinstance(parent, str)
            or not os.path.isabs(parent)
            or "/" in name
            or not name.startswith("crawl-")
        ):
            raise ValueError("the spec names no cgroup of this task")
        return cls(os.path.join(parent, name))

    def make(self, *, memory: int | None, cpu: float | None) -> None:
        """Create the group with limits in bytes and processors.

        If this raises ``OSError``, no group remains.
        """
        try:
            os.mkdir(self.folder, 0o755)
            if memory is not None:
                _write(self.folder, "memory.max", str(memory))
                _write(self.folder, "memory.oom.group", "1")
                with contextlib.suppress(OSError):  # this kernel does not account for swap
                    _write(self.folder, "memory.swap.max", "0")
            if cpu is not None:
                _write(self.folder, "cpu.max", f"{max(_QUOTA_MIN, round(cpu * PERIOD))} {PERIOD}")
        except BaseException:
            self.remove(0)
            raise

    def admit(self, pid: int) -> None:
        """Move a process into the group, before it has children or uses memory.

        Raises ``OSError``.
        """
        _write(self.folder, "cgroup.procs", str(pid))

    def oom_kills(self) -> int:
        """Return the number of processes that the kernel killed because of the group's limit.

        Raises ``OSError``.
        """
        events = dict(line.split() for line in _read(self.folder, "memory.events").splitlines())
        return int(events.get("oom_kill", 0))

    def peak(self) -> int | None:
        """Return the peak memory of the group in bytes, including the page cache; ``None`` if
        unknown.
        """
        try:
            return int(_read(self.folder, "memory.peak"))
        except (OSError, ValueError):
            return None

    def pids(self) -> list[int]:
        """Return the ids of all processes in the group, including forks. Raises ``OSError``."""
        try:
            return [int(word) for word in _read(self.folder, "cgroup.procs").split()]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):  # the group was removed
                return []
            raise

    def kill(self) -> None:
        """Send SIGKILL to all processes in the group at once.

        Raises ``OSError``, including on kernels before 5.14, which do not support this.
        """
        _write(self.folder, "cgroup.kill", "1")

    def remove(self, seconds: float = _REMOVE_SECONDS) -> bool:
        """Remove the group, and return whether it is gone.

        The kernel refuses this while the group contains a living process.
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
