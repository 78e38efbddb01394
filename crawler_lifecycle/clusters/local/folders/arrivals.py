"""Arrivals: the kernel reports when an entry is moved into one of a few folders (inotify).

A file that is first written under another name, as ours are, arrives complete. The name of the
entry does not matter, because the woken code reads the folders. An overflow of the kernel's queue
is therefore harmless, because it also wakes the code.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
from pathlib import Path

logger = logging.getLogger(__name__)

#: ``IN_MOVED_TO`` of the kernel's include/uapi/linux/inotify.h.
_MOVED_TO = 0x00000080
#: The maximum number of bytes of notices that are read at once. The rest causes another wake-up.
_NOTICES = 65536


class Arrivals:
    """Waits for entries that are moved into one of these folders.

    The kernel may be unable to report this if the system is not Linux, or if the user has no
    inotify instance or watch left. In this case, ``wait`` always waits for the whole time, and
    returns that something may have arrived.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._system = ctypes.CDLL(None, use_errno=True)
        begin = getattr(self._system, "inotify_init1", None)
        self._handle: int = -1 if begin is None else begin(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        if self._handle >= 0:
            self._poll.register(self._handle, select.POLLIN)
        self._tells = True

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def renew(self) -> None:
        """Watch the folders that currently have these paths.

        Call this before each read, because a folder may have been replaced.

        Repeated calls are cheap, because a folder is not watched twice.
        """
        tells = self._handle >= 0 and all(
            self._system.inotify_add_watch(self._handle, os.fsencode(folder), _MOVED_TO) >= 0
            for folder in self._folders
        )
        if self._tells and not tells:
            why = os.strerror(ctypes.get_errno())
            logger.warning(
                "changes of folders are found only by reading them, because inotify cannot be "
                "used: %s",
                why,
            )
        self._tells = tells

    def wait(self, seconds: float) -> bool:
        """Wait at most this number of seconds for an arrival, and return whether something may have
        arrived.
        """
        if self._poll.poll(seconds * 1000):
            os.read(self._handle, _NOTICES)
            return True
        return not self._tells
