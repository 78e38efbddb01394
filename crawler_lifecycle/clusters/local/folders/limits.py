"""Limits of one task that the kernel keeps: set by the supervisor, read by a look.

``KernelLimits`` never prevents a crawl: where no control group can be made, nothing is limited here and the supervisor
watches the memory itself. Standard library only and light on imports: the supervisor loads it.
"""

from __future__ import annotations

import contextlib
import sys

from crawler_lifecycle.clusters.local.processes.cgroup import Group
from crawler_lifecycle.runner.held import Held

from . import folder as files

KILLED = "The kernel killed a process of it for the memory limit of its cgroup"


def failed_at_limit(peak: int | None, limit: int | None, finish_reason: object) -> str | None:
    """Return a text for a crawler without a kernel limit that failed without a reason of its own after it had used all
    its memory; else ``None``.
    """
    if limit is None or peak is None or peak < limit or finish_reason is not None:
        return None
    return f"It failed after holding {peak} bytes, the limit is {limit} bytes"


class KernelLimits:
    """The control group of one task while its supervisor lives; empty when there is none."""

    def __init__(self, folder: Held, spec: dict[str, object]) -> None:
        self._folder = folder
        self._spec = spec
        self._group: Group | None = None

    @property
    def in_force(self) -> bool:
        """True when the kernel limits the task."""
        return self._group is not None

    def prepare(self, memory: int | None) -> None:
        """Make the group, if groups can be made here and there is a limit to set (``memory``: bytes)."""
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
        """Move the crawler in before it executes."""
        if self._group is not None:
            try:
                self._group.admit(pid)
            except OSError as error:
                self.remove()
                self._give_up(error)

    def _give_up(self, why: Exception) -> None:
        print(f"no cgroup for this task, its memory is watched instead: {why}", file=sys.stderr, flush=True)
        self._folder.unlink(files.CGROUP)

    def oom_kills(self) -> int:
        """Return the number of processes that the kernel killed for the memory limit."""
        try:
            return 0 if self._group is None else self._group.oom_kills()
        except OSError:  # somebody removed the group, and its counters with it
            return 0

    def peak(self) -> int:
        """The most bytes that were used, page cache included; 0 when this is unknown."""
        return 0 if self._group is None else self._group.peak() or 0

    def kill(self) -> None:
        """SIGKILL to everything in the group."""
        if self._group is not None:
            with contextlib.suppress(OSError):  # the environment marks lead to the same processes
                self._group.kill()

    def remove(self) -> None:
        """Remove the group; one that is still in use is left to the next look."""
        group, self._group = self._group, None
        if group is not None and group.remove():
            self._folder.unlink(files.CGROUP)
