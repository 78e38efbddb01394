"""Disk space reserved for the end of a task, so that a full disk hides no end.

Standard library only: the supervisor loads it.
"""

from __future__ import annotations

import contextlib
import json
import os

SIZE = 64 * 1024


class Room:
    """A file with bytes in it, which becomes the record of the end: written over in place, it needs no more room."""

    def __init__(self, folder: str) -> None:
        """Never raises: without room the end is written as any other file is."""
        self._path = os.path.join(folder, "end.room")
        self._handle = -1
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(self._path, flags, 0o600)
            # Not zeros: a file system that packs or leaves out what is empty would keep nothing for us.
            os.pwrite(self._handle, os.urandom(SIZE), 0)
            os.fsync(self._handle)

    def become(self, path: str, data: object) -> bool:
        """Be the file of this name from now on, as a whole, unless there is one; whether there is one now.

        It is the file that we hold, whatever the crawler put in the place of its name.
        """
        handle, self._handle = self._handle, -1
        if handle < 0:
            return False
        try:
            raw = json.dumps(data).encode()
            os.pwrite(handle, raw, 0)
            os.ftruncate(handle, len(raw))
            os.fsync(handle)
            with contextlib.suppress(FileExistsError):
                # With a folder named, Python lets the kernel follow the link; the path is absolute and needs none.
                os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle, follow_symlinks=True)
        except OSError:  # the crawler removed it, or there is no /proc
            return False
        finally:
            os.close(handle)
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        return True
