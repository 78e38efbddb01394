"""Identity of a process: its number *and* its start time, in this boot of the machine.

A process id alone is reused sooner or later; together with the start time in clock ticks (field 22 of
``/proc/<pid>/stat``) and the boot id it names one process for ever. Standard library only and light on imports:
the supervisor loads it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from crawler_lifecycle.runner import signs

_GONE = (errno.ENOENT, errno.ESRCH)
#: The argument that only a supervisor has.
BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from crawler_lifecycle.clusters.local.supervisor import main; main(sys.argv[1:])"
)
#: ``PF_EXITING`` of the kernel's include/linux/sched.h, in field 9 of ``/proc/<pid>/stat``.
_PF_EXITING = 0x00000004


class Stat:
    """The facts of ``/proc/<pid>/stat`` about one process."""

    __slots__ = ("exit_status", "exiting", "group", "parent", "pid", "start", "state")

    def __init__(self, pid: int, fields: list[str]) -> None:
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.group = int(fields[2])
        #: The process has ended and lost its arguments and environment, but is no zombie yet.
        self.exiting = bool(int(fields[6]) & _PF_EXITING)
        self.start = int(fields[19])
        #: The wait status of a zombie, as ``waitpid`` would answer it; 0 for others.
        self.exit_status = int(fields[49]) if len(fields) > 49 else 0

    @property
    def ended(self) -> bool:
        """A zombie has ended: only its parent has not looked yet."""
        return self.state in ("Z", "X", "x")

    def send(self, number: int) -> bool:
        """See ``Identity.send``."""
        return Identity(self.pid, self.start, boot_id()).send(number)


def read_stat(pid: int) -> Stat | None:
    """The process with this number, or ``None`` when it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    # The name in brackets may contain any character, also spaces and brackets; the fields begin after the last bracket.
    fields = text[text.rfind(")") + 1 :].split()
    return Stat(pid, fields) if len(fields) >= 20 else None


def boot_id() -> str:
    """The id of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Identity(NamedTuple):
    """One process for ever: number, start time in clock ticks, boot id."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """The identity of a process that exists. Raises ``ProcessLookupError`` when it does not."""
        stat = read_stat(pid)
        if stat is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, stat.start, boot_id())

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Identity:
        """The identity in a record. Raises ``ValueError`` for any other text."""
        pid, start, boot = data.get("pid"), data.get("start"), data.get("boot")
        if type(pid) is int and type(start) is int and type(boot) is str and 1 < pid < 2**31 and start >= 0:
            return cls(pid, start, boot)
        raise ValueError("no pid, start and boot")

    def stat(self) -> Stat | None:
        """The process, zombie or not, or ``None`` when it is gone (its number may belong to another one by now)."""
        if self.boot != boot_id():
            return None
        stat = read_stat(self.pid)
        return stat if stat is not None and stat.start == self.start else None

    def alive(self) -> bool:
        """Return whether the process exists and has not ended."""
        stat = self.stat()
        return stat is not None and not stat.ended

    def can_be_asked(self) -> bool:
        """Return whether it lives and is not ending: then the kernel still tells its arguments and environment."""
        stat = self.stat()
        return stat is not None and not stat.ended and not stat.exiting

    def send(self, number: int) -> bool:
        """Send a signal to exactly this process; whether there was one to receive it.

        The file descriptor pins the process before its start time is compared, so no reuse of the number can slip in
        between. Kernels and sandboxes without pidfd, and a process without a descriptor left, check and then signal.
        """
        pinned = None
        try:
            with contextlib.suppress(OSError):
                pinned = os.pidfd_open(self.pid)
            if not self.alive():
                return False
            if pinned is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(pinned, number)
        except ProcessLookupError:
            return False
        finally:
            if pinned is not None:
                os.close(pinned)
        return True


def all_processes() -> Iterator[Stat]:
    """Every process, to be checked before the next one is requested.

    A process that forks and ends while we read hides its child from the earlier list. So the list is read again until
    it has no new process: then all processes of that moment were checked alive.
    """
    known: set[str] = set()
    while new := [name for name in os.listdir("/proc") if name.isdigit() and name not in known]:
        known.update(new)
        for name in new:
            stat = read_stat(int(name))
            if stat is not None:
                yield stat


def given_to(pid: int, name: str) -> list[bytes]:
    """The ``environ`` or ``cmdline`` that the process was executed with; empty when it is gone, or another user's."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def carries(pid: int, marks: list[bytes]) -> bool:
    """Return whether the environment that the process was executed with holds all these ``NAME=value`` entries."""
    entries = given_to(pid, "environ")
    return all(mark in entries for mark in marks)


def started_with(pid: int, *arguments: str) -> bool:
    """Return whether the process was executed with all these arguments. No file is needed for it."""
    given = given_to(pid, "cmdline")
    return all(os.fsencode(one) in given for one in arguments)


def is_of(folder: str, marks: list[bytes], pid: int) -> bool:
    """Return whether this process is of the task with this folder: its supervisor, a fork of it, or one with its marks.

    A crawler can write any number into a file of ours, and must not choose the processes that we signal.
    """
    if started_with(pid, folder) or carries(pid, marks[-1:]):
        return True
    stat = read_stat(pid)
    return stat is not None and started_with(stat.parent, folder)


def named(folder: str, marks: list[bytes], uid: str | None) -> tuple[list[Identity], list[Stat]]:
    """Supervisors and crawler processes of a task, by arguments and environment; with ``uid`` those of that object."""
    if uid is not None:
        marks = [*marks, os.fsencode(f"CRAWL_TASK_UID={uid}")]
    arguments = (BOOT, folder) if uid is None else (BOOT, folder, uid)
    living = [stat for stat in all_processes() if not stat.ended and stat.pid != os.getpid()]
    like_it = {stat.pid for stat in living if started_with(stat.pid, *arguments)}
    # One that it has just forked looks like itself, and is the crawler.
    watching = {stat.pid for stat in living if stat.pid in like_it and stat.parent not in like_it}
    crawlers = [s for s in living if s.pid not in watching and (s.pid in like_it or carries(s.pid, marks))]
    boot = boot_id()
    return [Identity(s.pid, s.start, boot) for s in living if s.pid in watching], crawlers


def still_alive(tasks: dict[str, list[bytes]]) -> set[str]:
    """The tasks of these (their marks by folder) that have a living process: one pass over all processes for all
    tasks.
    """
    folders = {marks[-1]: folder for folder, marks in tasks.items()}
    found: set[str] = set()
    for stat in all_processes():
        if stat.ended or stat.pid == os.getpid():
            continue
        entries = given_to(stat.pid, "environ")
        named = (folders[entry] for entry in entries if entry in folders)
        found.update(folder for folder in named if all(mark in entries for mark in tasks[folder]))
    return found


def wake_supervisors(tasks: str) -> None:
    """Continue every suspended supervisor of a task below this folder: a crawler of its user may have suspended it.

    It would keep its slot, or the head of the queue, for ever.
    """
    below_it = os.fsencode(tasks) + b"/"
    for stat in all_processes():
        if stat.state == "T":
            given = given_to(stat.pid, "cmdline")
            if os.fsencode(BOOT) in given and any(one.startswith(below_it) for one in given):
                with contextlib.suppress(PermissionError):  # another user's: no process of ours
                    stat.send(signal.SIGCONT)


def members(leader: Identity | None, marks: list[bytes]) -> list[Stat]:
    """The living processes of one task: the leader's group while the leader is there, and all that carry the marks.

    The marks also find what left the group and the session (double forks). The bare group number counts only while
    the leader, dead or alive, still holds it; afterwards it may be given to strangers. The leader itself belongs to
    them before it has made its group and executed.
    """
    held = leader.stat() if leader is not None else None
    own = os.getpid()
    return [
        stat
        for stat in all_processes()
        if not stat.ended
        and stat.pid != own
        and ((held is not None and held.pid in (stat.pid, stat.group)) or carries(stat.pid, marks))
    ]


def kill_all(victims: Iterable[Stat]) -> int:
    """SIGKILL each of them. Returns how many existed."""
    return sum(victim.send(signal.SIGKILL) for victim in victims)


def descendants(pid: int) -> list[int]:
    """The process and all its descendants. Orphans are among them when the process is a child subreaper."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return _descendants_by_parent(pid)  # a kernel without that file
    return [pid, *signs.below(pid)]


def _descendants_by_parent(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in all_processes():
        children.setdefault(stat.parent, []).append(stat.pid)
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo.extend(children.get(found[-1], ()))
    return found


def below(pid: int) -> list[Stat]:
    """The living descendants of the process, without itself."""
    stats = [read_stat(child) for child in descendants(pid) if child != pid]
    return [stat for stat in stats if stat is not None and not stat.ended]


def resident(pid: int) -> int:
    """Bytes of anonymous memory that the process holds now (0 when it is gone)."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")


def proportional(pid: int) -> int:
    """Bytes the process holds, shared pages divided among their users (0 when it is gone). Much slower to read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def memory_of(pid: int, limit: int | None) -> int:
    """Bytes held by the process and its descendants.

    Forked children count shared pages twice; only when that sum reaches the limit is it worth the exact reading.
    Processes that come or go between two readings shift what others share: then nothing exact was read, and it is
    read again, or left to the next time.
    """
    family = descendants(pid)
    total = sum(resident(member) for member in family)
    if limit is None:
        return total
    for _ in range(3):
        if total < limit:
            return total
        exact = sum(proportional(member) for member in family)
        before, family = family, descendants(pid)
        if sorted(family) == sorted(before):
            return exact or total
        total = sum(resident(member) for member in family)
    return min(total, limit - 1)
