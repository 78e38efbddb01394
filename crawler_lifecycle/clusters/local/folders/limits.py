"""The limits of a task that the kernel enforces.

The supervisor sets them, and polls read their results.

``KernelLimits`` never prevents a crawl. If no control group can be created, the kernel enforces no
limits, and the supervisor checks the memory itself. This module uses only the standard library and
imports little, because the supervisor loads it.
"""

from __future__ import annotations

import contextlib
import sys

from crawler_lifecycle.clusters.local.processes.cgroup import Group
from crawler_lifecycle.runner.safe_directory import SafeDirectory

from . import folder as files

KILLED = "The kernel killed a process of the task because of the memory limit of its cgroup"


def failed_at_limit(peak: int | None, limit: int | None, finish_reason: object) -> str | None:
    """Return a sentence if a crawler failed without giving a reason after it had used all its
    memory; otherwise ``None``.

    This is for a crawler without a kernel limit. ``peak`` and ``limit`` are in bytes.
    """
    if limit is None or peak is None or peak < limit or finish_reason is not None:
        return None
    return f"It failed after it had used {peak} bytes of memory; the limit is {limit} bytes"


class KernelLimits:
    """The control group of a task while its supervisor is alive.

    If there is no group, the methods do nothing.
    """

    def __init__(self, folder: SafeDirectory, spec: files.Record) -> None:
        self._folder = folder
        self._spec = spec
        self._group: Group | None = None

    @property
    def in_force(self) -> bool:
        """True if the kernel limits the task."""
        return self._group is not None

    def prepare(self, memory: int | None) -> None:
        """Create the group if groups are available and the task has a limit.

        ``memory`` is in bytes.
        """
        cpu = self._spec.get("cpu_limit")
        share = float(cpu) if isinstance(cpu, (int, float)) and cpu > 0 else None
        if self._spec.get("cgroup") is None or (memory is None and share is None):
            return
        try:
            group = Group.of(self._spec)
            files.replace(self._folder, files.CGROUP, {"folder": group.folder})
            group.make(memory=memory, cpu=share)
        except (OSError, ValueError) as error:
            self._give_up(error)
            return
        self._group = group

    def admit(self, pid: int) -> None:
        """Move the crawler into the group, before it executes."""
        if self._group is not None:
            try:
                self._group.admit(pid)
            except OSError as error:
                self.remove()
                self._give_up(error)

    def _give_up(self, why: Exception) -> None:
        print(
            f"This task has no cgroup, so its supervisor checks the memory: {why}",
            file=sys.stderr,
            flush=True,
        )
        self._folder.unlink(files.CGROUP)

    def oom_kills(self) -> int:
        """Return the number of processes that the kernel killed because of the memory limit."""
        try:
            return 0 if self._group is None else self._group.oom_kills()
        except OSError:  # the group was removed, together with its counters
            return 0

    def peak(self) -> int:
        """Return the peak memory of the group in bytes, including the page cache; 0 if this is
        unknown.
        """
        return 0 if self._group is None else self._group.peak() or 0

    def kill(self) -> None:
        """Send SIGKILL to all processes in the group."""
        if self._group is not None:
            # The caller can also find these processes by their environment.
            with contextlib.suppress(OSError):
                self._group.kill()

    def remove(self) -> None:
        """Remove the group. If it is still in use, a later poll removes it."""
        group, self._group = self._group, None
        if group is not None and group.remove():
            self._folder.unlink(files.CGROUP)
