"""Control groups: limits by the kernel, one group for each task, where this machine allows it.

A group is only ever made *inside* the group that we are in ourselves (or in the folder that a setting names, or in an
ancestor that was delegated to us), so that no limit set on us is left by what we start. Version 2 needs the memory
controller in the parent; version 1 needs its memory hierarchy writable; processors are limited where the cpu
controller is to be had too. Standard library only and light on imports: the supervisor loads it.

Source of the rules: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time

#: Microseconds over which the kernel adds up processor time, and the least share that it grants.
PERIOD = 100_000
_QUOTA_MIN = 1_000
_REMOVE_SECONDS = 2.0

_UNLIMITED = {"memory.max": "max", "memory.high": "max", "cpu.max": "max"}


class Unavailable(Exception):
    """No group can be made here; the text says why."""


def _read(*parts: str) -> str:
    with open(os.path.join(*parts), encoding="ascii", errors="replace") as file:
        return file.read().strip()


def _write(folder: str, name: str, text: str) -> None:
    """Write into a file that the kernel made; it is never created. Raises ``OSError``."""
    path = os.path.join(folder, name)
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(handle)


def _counter(folder: str, name: str, key: str) -> int:
    for line in _read(folder, name).splitlines():
        field, _, value = line.partition(" ")
        if field == key and value.isdecimal():
            return int(value)
    return 0


class Parents:
    """Where groups can be made: controller -> folder; in version 2 both controllers are in one."""

    __slots__ = ("cpu", "memory", "version")

    def __init__(self, version: int, memory: str, cpu: str | None) -> None:
        self.version, self.memory, self.cpu = version, memory, cpu

    def to_json(self) -> dict[str, object]:
        return {"version": self.version, "memory": self.memory, "cpu": self.cpu}

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Parents:
        """What ``to_json`` wrote. Raises ``ValueError`` for anything else."""
        version, memory, cpu = data.get("version"), data.get("memory"), data.get("cpu")
        if version not in (1, 2) or not isinstance(memory, str) or not (cpu is None or isinstance(cpu, str)):
            raise ValueError("no version, memory and cpu")
        return cls(1 if version == 1 else 2, memory, cpu)

    def describe(self) -> str:
        """For people."""
        cpu = "memory and cpu" if self.cpu else "memory alone"
        return f"cgroups of version {self.version} ({cpu}) in {self.memory}"


def find(setting: str = "auto", proc: str = "/proc/self") -> Parents:
    """The place for groups, proved by making one and removing it. Raises ``Unavailable`` saying why there is none.

    ``setting`` is ``auto``, ``off``, or the folder of a group that was prepared for us.
    """
    if setting == "off":
        raise Unavailable("switched off")
    try:
        parents = _named(setting) if setting != "auto" else _own(proc)
        _prove(parents)
    except OSError as error:
        raise Unavailable(f"{error.filename or 'cgroup'}: {error.strerror or error}") from None
    return parents


def _named(folder: str) -> Parents:
    if os.path.exists(os.path.join(folder, "cgroup.controllers")):
        return _version_2(folder)
    if not os.path.exists(os.path.join(folder, "memory.limit_in_bytes")):
        raise Unavailable(f"{folder} is no cgroup with a memory controller")
    return Parents(1, folder, folder if os.path.exists(os.path.join(folder, "cpu.cfs_quota_us")) else None)


def _own(proc: str) -> Parents:
    """The groups that this process is in."""
    mounts = _mounts(proc)
    own = {}
    for line in _read(proc, "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(",") if controllers else ("",):
            own[name] = path
    unified = _inside(mounts.get(""), own.get(""))
    if unified is not None and "memory" in _read(unified, "cgroup.controllers").split():
        return _version_2(_delegated(unified, mounts[""][0]))
    memory = _inside(mounts.get("memory"), own.get("memory"))
    if memory is None:
        raise Unavailable("no cgroup with a memory controller is mounted")
    return Parents(1, memory, _inside(mounts.get("cpu"), own.get("cpu")))


def _mounts(proc: str) -> dict[str, tuple[str, str]]:
    """Controller -> (mount point, the group that is mounted there); version 2 is the one with an empty name."""
    found: dict[str, tuple[str, str]] = {}
    for line in _read(proc, "mountinfo").splitlines():
        place, _, kind = line.partition(" - ")
        root, point = (_unescape(part) for part in place.split()[3:5])
        fields = kind.split()
        if fields[0] == "cgroup2":
            found[""] = (point, root)
        elif fields[0] == "cgroup":
            found.update({name: (point, root) for name in fields[2].split(",") if name in ("memory", "cpu")})
    return found


def _unescape(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _inside(mount: tuple[str, str] | None, path: str | None) -> str | None:
    """The folder of a group; ``None`` when it cannot be seen from here."""
    if mount is None or path is None:
        return None
    point, root = mount
    relative = os.path.relpath(path, root)
    if relative.startswith(".."):
        return None
    return os.path.normpath(os.path.join(point, relative))


def _delegated(own: str, top: str) -> str:
    """The group in which children may get controllers: ours, or an ancestor delegated to us with no limit in between.

    Version 2 forbids limits on children of a group that holds processes itself, as ours does; service managers
    therefore delegate a group and start us in one below it. A group is left only if it limits nothing.
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
    if "memory" in _read(folder, "cgroup.subtree_control").split():
        return True
    return not _read(folder, "cgroup.procs")


def _marked_delegated(folder: str) -> bool:
    """Service managers mark what they delegate (systemd, since version 251)."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _version_2(folder: str) -> Parents:
    enabled = _read(folder, "cgroup.subtree_control").split()
    if "memory" not in enabled:
        _write(folder, "cgroup.subtree_control", "+memory")
    if "cpu" not in enabled:
        with contextlib.suppress(OSError):  # not delegated: then processors are not limited
            _write(folder, "cgroup.subtree_control", "+cpu")
    enabled = _read(folder, "cgroup.subtree_control").split()
    if "memory" not in enabled:
        raise Unavailable(f"{folder} does not pass the memory controller on")
    return Parents(2, folder, folder if "cpu" in enabled else None)


def _prove(parents: Parents) -> None:
    """Put a process into a group with both limits. Where that fails, try without limiting processors."""
    try:
        _try_out(parents)
    except OSError:
        if parents.cpu is None:
            raise
        parents.cpu = None
        _try_out(parents)


def _try_out(parents: Parents) -> None:
    import subprocess  # whoever deploys has it loaded already, a supervisor needs none

    name = f"crawl-probe-{os.getpid()}-{os.urandom(4).hex()}"
    group = Group.create(parents, name, memory=2**30, cpu=1.0)
    try:
        waiting = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
        with subprocess.Popen(waiting, stdin=subprocess.PIPE) as process:
            group.admit(process.pid)
    finally:
        group.remove()


class Group:
    """The control group of one task; in version 1 one for each controller."""

    __slots__ = ("_folders", "_version")

    def __init__(self, version: int, folders: list[str]) -> None:
        """``folders``: the one with the memory controller first."""
        self._version = version
        self._folders = folders

    @classmethod
    def planned(cls, parents: Parents, name: str, *, cpu: float | None) -> Group:
        """The group that ``make`` will make, so that its name can be written down before it exists."""
        folders = [os.path.join(parents.memory, name)]
        if cpu is not None and parents.cpu not in (None, parents.memory):
            folders.append(os.path.join(str(parents.cpu), name))
        return cls(parents.version, folders)

    @classmethod
    def create(cls, parents: Parents, name: str, *, memory: int | None, cpu: float | None) -> Group:
        """Plan and make. Raises ``OSError``; nothing is left behind then."""
        cpu = cpu if parents.cpu else None
        group = cls.planned(parents, name, cpu=cpu)
        group.make(memory=memory, cpu=cpu)
        return group

    def make(self, *, memory: int | None, cpu: float | None) -> None:
        """Make the folders and set the limits (bytes; processors). Raises ``OSError``; nothing is left behind then."""
        try:
            for folder in self._folders:
                os.mkdir(folder, 0o755)
            self._limit_memory(memory)
            if cpu is not None:
                self._limit_cpu(cpu)
        except BaseException:
            self.remove(0)
            raise

    def _limit_memory(self, memory: int | None) -> None:
        folder = self._folders[0]
        if memory is None:
            return
        if self._version == 2:
            _write(folder, "memory.max", str(memory))
            more = {"memory.swap.max": "0", "memory.oom.group": "1"}
        else:
            _write(folder, "memory.limit_in_bytes", str(memory))
            more = {"memory.memsw.limit_in_bytes": str(memory)}
        for name, value in more.items():
            with contextlib.suppress(OSError):  # a kernel without accounting of swap; the supervisor ends the rest
                _write(folder, name, value)

    def _limit_cpu(self, cpu: float) -> None:
        quota = max(_QUOTA_MIN, round(cpu * PERIOD))
        if self._version == 2:
            _write(self._folders[0], "cpu.max", f"{quota} {PERIOD}")
        else:
            _write(self._folders[-1], "cpu.cfs_period_us", str(PERIOD))
            _write(self._folders[-1], "cpu.cfs_quota_us", str(quota))

    def admit(self, pid: int) -> None:
        """Move a process in, before it has children or memory. Raises ``OSError``; it is in no part of it then."""
        for number, folder in enumerate(self._folders):
            try:
                _write(folder, "cgroup.procs", str(pid))
            except OSError:
                for entered in self._folders[:number]:
                    _write(os.path.dirname(entered), "cgroup.procs", str(pid))
                raise

    def oom_kills(self) -> int:
        """How many processes of the group the kernel has killed for its limit. Raises ``OSError``."""
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        return _counter(self._folders[0], name, "oom_kill")

    def peak(self) -> int | None:
        """The most bytes the group ever held, page cache included, if the kernel tells."""
        name = "memory.peak" if self._version == 2 else "memory.max_usage_in_bytes"
        try:
            text = _read(self._folders[0], name)
        except OSError:
            return None
        return int(text) if text.isdecimal() else None

    def pids(self) -> list[int]:
        """Every process in the group, wherever it forked to and whatever its environment says."""
        found: dict[int, None] = {}
        for folder in self._folders:
            try:
                found.update(dict.fromkeys(int(word) for word in _read(folder, "cgroup.procs").split()))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if error.errno != errno.ENODEV:  # removed while it was open
                    raise
        return list(found)

    def kill(self) -> None:
        """SIGKILL to everything in the group. A number read from the group is pinned before it is checked again."""
        for pid in self.pids():
            try:
                pinned = os.pidfd_open(pid)
            except OSError:  # it ended
                continue
            try:
                if pid in self.pids():
                    signal.pidfd_send_signal(pinned, signal.SIGKILL)
            except ProcessLookupError:
                continue
            finally:
                os.close(pinned)

    def remove(self, seconds: float = _REMOVE_SECONDS) -> bool:
        """Remove the folders; whether none is left. The kernel refuses while a process, zombies aside, is in one."""
        until = time.monotonic() + seconds
        while True:
            self._folders = [folder for folder in self._folders if not _removed(folder)]
            if not self._folders or time.monotonic() >= until:
                return not self._folders
            time.sleep(0.02)

    # --- on file

    def to_json(self) -> dict[str, object]:
        return {"version": self._version, "folders": self._folders}

    @classmethod
    def from_json(cls, data: dict[str, object], name: str) -> Group:
        """The group that ``to_json`` wrote, if it is the one with this name. Raises ``ValueError`` for anything else.

        The file lies where a crawler can write, so what it names must be a cgroup of this task and nothing else.
        """
        version, folders = data.get("version"), data.get("folders")
        if version not in (1, 2) or not isinstance(folders, list) or not 1 <= len(folders) <= 2:
            raise ValueError("no version and folders")
        for folder in folders:
            if not isinstance(folder, str) or not os.path.isabs(folder) or os.path.basename(folder) != name:
                raise ValueError("it names a cgroup that is not this task's")
        return cls(1 if version == 1 else 2, list(folders))


def _removed(folder: str) -> bool:
    """Whether the group is gone now: the kernel lets a group's folder go with its files, and only an empty group's."""
    try:
        os.rmdir(folder)
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def group_name(task_name: str, uid: object) -> str:
    """The name of a task's group. The uid tells apart what other state folders of this machine call the same."""
    return f"{task_name}-{str(uid)[:8]}"
