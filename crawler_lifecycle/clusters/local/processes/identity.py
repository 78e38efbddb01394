"""The identity of a process: its id, its start time and the boot of the machine.

The system reuses process ids. Together with the start time in clock ticks (field 22 of
``/proc/<pid>/stat``) and the boot id, however, a process id identifies one process forever. This
module uses only the standard library and imports little, because the supervisor loads it.
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
#: The program text of a supervisor. Only supervisors have this argument.
BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from crawler_lifecycle.clusters.local.supervisor import main; main(sys.argv[1:])"
)
#: ``PF_EXITING`` of the kernel's include/linux/sched.h, in field 9 of ``/proc/<pid>/stat``.
_PF_EXITING = 0x00000004


class Stat:
    """The facts about a process in ``/proc/<pid>/stat``."""

    __slots__ = ("exit_status", "exiting", "group", "parent", "pid", "start", "state")

    def __init__(self, pid: int, fields: list[str]) -> None:
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.group = int(fields[2])
        #: True if the process is ending, so that it has lost its arguments and environment but is
        #: not a zombie yet.
        self.exiting = bool(int(fields[6]) & _PF_EXITING)
        self.start = int(fields[19])
        #: The wait status of a zombie, as ``waitpid`` returns it; 0 for other processes.
        self.exit_status = int(fields[49]) if len(fields) > 49 else 0

    @property
    def ended(self) -> bool:
        """True if the process has ended.

        A zombie has ended, but its parent has not reaped it yet.
        """
        return self.state in ("Z", "X", "x")

    def send(self, number: int) -> bool:
        """Send a signal to exactly this process; see ``Identity.send``."""
        return Identity(self.pid, self.start, boot_id()).send(number)


def read_stat(pid: int) -> Stat | None:
    """Read the process with this id; ``None`` if it does not exist. Raises ``OSError``."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    # The name in brackets can contain spaces and brackets, so the fields begin after the last
    # bracket.
    fields = text[text.rfind(")") + 1 :].split()
    return Stat(pid, fields) if len(fields) >= 20 else None


def boot_id() -> str:
    """Return the id of the current boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Identity(NamedTuple):
    """The identity of a process: its process id, its start time in clock ticks, and the boot id."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of an existing process.

        Raises ``ProcessLookupError`` if it does not exist.
        """
        stat = read_stat(pid)
        if stat is None:
            raise ProcessLookupError(f"there is no process {pid}")
        return cls(pid, stat.start, boot_id())

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Identity:
        """Read the identity from a record. Raises ``ValueError`` for any other data."""
        pid = data.get("pid")
        start = data.get("start")
        boot = data.get("boot")
        if (
            type(pid) is int
            and type(start) is int
            and type(boot) is str
            and 1 < pid < 2**31
            and start >= 0
        ):
            return cls(pid, start, boot)
        raise ValueError("it contains no valid pid, start time and boot id")

    def stat(self) -> Stat | None:
        """Return the facts about the process, even if it is a zombie; ``None`` if it is gone, even
        if another process has its id.
        """
        if self.boot != boot_id():
            return None
        stat = read_stat(self.pid)
        return stat if stat is not None and stat.start == self.start else None

    def alive(self) -> bool:
        """Return whether the process exists and has not ended."""
        stat = self.stat()
        return stat is not None and not stat.ended

    def can_be_asked(self) -> bool:
        """Return whether the process is alive and not ending, so that its arguments and environment
        can be read.
        """
        stat = self.stat()
        return stat is not None and not stat.ended and not stat.exiting

    def send(self, number: int) -> bool:
        """Send a signal to exactly this process, and return whether it was alive.

        A pidfd is opened before the start time is compared, so the signal cannot reach another
        process with the same id. Without a pidfd (on older kernels, in sandboxes, without a free
        descriptor, or with a Python that was built without it, such as uv's), a small risk remains.
        """
        pinned = None
        try:
            with contextlib.suppress(OSError, AttributeError):
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
    """Yield every process. The caller must check each process before it requests the next one.

    A process may fork and end while the list is being read, so that its child is not in the list.
    The list is therefore read again until it contains no new process.
    """
    known: set[str] = set()
    while new := [name for name in os.listdir("/proc") if name.isdigit() and name not in known]:
        known.update(new)
        for name in new:
            stat = read_stat(int(name))
            if stat is not None:
                yield stat


def given_to(pid: int, name: str) -> list[bytes]:
    """Return the ``environ`` or ``cmdline`` with which the process was executed; empty if it cannot
    be read.
    """
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def carries(pid: int, marks: list[bytes]) -> bool:
    """Return whether the process was executed with all these ``NAME=value`` entries in its
    environment.
    """
    entries = given_to(pid, "environ")
    return all(mark in entries for mark in marks)


def started_with(pid: int, *arguments: str) -> bool:
    """Return whether the process was executed with all these arguments."""
    given = given_to(pid, "cmdline")
    return all(os.fsencode(argument) in given for argument in arguments)


def is_of(folder: str, marks: list[bytes], pid: int) -> bool:
    """Return whether this process belongs to the task with this folder, according to its arguments,
    its marks or its parent.

    A crawler can write any process id into our files. This check prevents signals to unrelated
    processes.
    """
    if started_with(pid, folder) or carries(pid, marks[-1:]):
        return True
    stat = read_stat(pid)
    return stat is not None and started_with(stat.parent, folder)


def named(folder: str, marks: list[bytes], uid: str | None) -> tuple[list[Identity], list[Stat]]:
    """Return the supervisors and crawler processes of a task, found by their arguments and
    environment.

    If ``uid`` is given, only processes of the task with this uid are returned.
    """
    if uid is not None:
        marks = [*marks, os.fsencode(f"CRAWL_TASK_UID={uid}")]
    arguments = (BOOT, folder) if uid is None else (BOOT, folder, uid)
    living = [stat for stat in all_processes() if not stat.ended and stat.pid != os.getpid()]
    like_it = {stat.pid for stat in living if started_with(stat.pid, *arguments)}
    # A child that a supervisor has just forked has the same arguments, but will become the crawler.
    watching = {stat.pid for stat in living if stat.pid in like_it and stat.parent not in like_it}
    crawlers = [
        s for s in living if s.pid not in watching and (s.pid in like_it or carries(s.pid, marks))
    ]
    boot = boot_id()
    return [Identity(s.pid, s.start, boot) for s in living if s.pid in watching], crawlers


def still_alive(tasks: dict[str, list[bytes]]) -> set[str]:
    """Return the folders of the tasks that have a living process, in one pass over all processes.

    ``tasks`` maps folders to the marks of their processes.
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
    """Send SIGCONT to every suspended supervisor of a task below this folder.

    A crawler with the same user may have suspended it. The supervisor would then keep its slot or
    block the queue forever.
    """
    below_it = os.fsencode(tasks) + b"/"
    for stat in all_processes():
        if stat.state == "T":
            given = given_to(stat.pid, "cmdline")
            if os.fsencode(BOOT) in given and any(word.startswith(below_it) for word in given):
                # The process belongs to another user, so it is not ours.
                with contextlib.suppress(PermissionError):
                    stat.send(signal.SIGCONT)


def members(leader: Identity | None, marks: list[bytes]) -> list[Stat]:
    """Return the living processes of a task: the leader, its group, and all processes with the
    marks.

    The marks also find processes that left the group and the session (double forks). The group's
    number is valid only while the leader exists, even as a zombie; afterwards another group may get
    the number. The leader is checked separately, because it initially has no group of its own.
    """
    known = leader.stat() if leader is not None else None
    own = os.getpid()
    return [
        stat
        for stat in all_processes()
        if not stat.ended
        and stat.pid != own
        and (
            (known is not None and known.pid in (stat.pid, stat.group)) or carries(stat.pid, marks)
        )
    ]


def kill_all(victims: Iterable[Stat]) -> int:
    """Send SIGKILL to each process, and return how many of them were alive."""
    return sum(victim.send(signal.SIGKILL) for victim in victims)


def descendants(pid: int) -> list[int]:
    """Return the process and all its descendants.

    The descendants include orphans if the process is a child subreaper.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return _descendants_by_parent(pid)  # this kernel does not provide that file
    return [pid, *signs.below(pid)]


def _descendants_by_parent(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in all_processes():
        children.setdefault(stat.parent, []).append(stat.pid)
    found = []
    todo = [pid]
    while todo:
        found.append(todo.pop())
        todo.extend(children.get(found[-1], ()))
    return found


def below(pid: int) -> list[Stat]:
    """Return the living descendants of the process, excluding the process itself."""
    stats = [read_stat(child) for child in descendants(pid) if child != pid]
    return [stat for stat in stats if stat is not None and not stat.ended]


def resident(pid: int) -> int:
    """Return the bytes of anonymous memory that the process currently uses; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")


def proportional(pid: int) -> int:
    """Return the bytes that the process currently uses, with only its share of shared pages; 0 if
    it is gone.

    This is much slower than ``resident``.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def memory_of(pid: int, limit: int | None) -> int:
    """Return the bytes that the process and its descendants use.

    The fast sum counts pages that forked children share several times. The exact sum is therefore
    read only if the fast sum reaches the limit. If processes start or end in the meantime, the
    shares change, so the inexact reading is repeated. After three tries, a number below the limit
    is returned, and the next check decides.
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
