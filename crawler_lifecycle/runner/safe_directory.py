"""Safe access to files in a folder that a crawler may change at any moment.

Nothing outside the folder is touched.

The folder is opened once, and its descriptor stays open. Each file is opened by its name, relative
to that descriptor. Links below the root are never followed. Only regular files are read, and an
open never waits. A file is written under a temporary name and then renamed, which replaces any
entry with the final name. This module uses only the standard library and imports little, because
the runner, the supervisor and the readers of tasks share it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterable

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors of opening a name that belongs to something other than the expected folder or regular
#: file.
_OTHER_KIND = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR)
#: Suffix for an entry that was renamed because we need its name.
FORGED = ".forged"


class NotOurs(Exception):
    """A path that we need belongs to an entry of the wrong type: a link, a pipe, a folder instead
    of a file, or a file instead of a folder.
    """


class SafeDirectory:
    """One folder that stays open until the last reference to this object is gone."""

    __slots__ = ("_handle", "path")

    def __init__(self, root: str, *names: str) -> None:
        """Open the folder at the path ``root``/``names``.

        Links are followed in ``root``, but not in ``names``.

        Raises ``NotOurs`` when one of the names is not a folder, and ``OSError``.
        """
        self._handle = -1
        self.path = root
        self._handle = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
        self._enter(names)

    def _enter(self, names: Iterable[str]) -> None:
        for name in names:
            inner = _opened(name, _FOLDER, self._handle)
            os.close(self._handle)
            self._handle, self.path = inner, os.path.join(self.path, name)

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def fileno(self) -> int:
        return self._handle

    # --- reading

    def has(self, name: str) -> bool:
        """Return whether an entry with this name exists. Raises ``OSError`` if this cannot be
        determined.
        """
        return self.stat(name) is not None

    def names(self, most: int) -> tuple[list[str], int]:
        """Return at most ``most`` names in the folder, and the number of remaining names.

        Raises ``OSError``.
        """
        with os.scandir(self._handle) as entries:
            found = [entry.name for entry in itertools.islice(entries, most)]
            return found, sum(1 for _ in entries)

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of the entry; ``None`` if it does not exist.

        A link is not followed. Raises ``OSError``.
        """
        try:
            return os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, name: str) -> int | None:
        """Return a descriptor for this regular file; ``None`` if the file does not exist.

        Raises ``NotOurs`` and ``OSError``.
        """
        try:
            return _opened(name, _FILE, self._handle)
        except FileNotFoundError:
            return None

    def read(self, name: str, most: int) -> bytes | None:
        """Return the first ``most`` bytes of the file; ``None`` if the file does not exist.

        Raises ``NotOurs`` and ``OSError``.
        """
        handle = self.open(name)
        if handle is None:
            return None
        with open(handle, "rb") as file:
            return file.read(most)

    # --- writing

    def create(self, name: str, data: bytes) -> bool:
        """Write the whole file if its name is free.

        Return whether the file was written. Raises ``OSError``.
        """
        beside = self._write_beside(name, data)
        try:
            os.link(
                beside,
                name,
                src_dir_fd=self._handle,
                dst_dir_fd=self._handle,
                follow_symlinks=False,
            )
        except FileExistsError:
            return False
        finally:
            os.unlink(beside, dir_fd=self._handle)
        return True

    def replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """Write the whole file, and replace any entry with its name. Raises ``OSError``.

        If ``lasting`` is true, sync the data to disk before the file is renamed, so that the file
        is complete after a crash of the machine.
        """
        beside = self._write_beside(name, data, lasting=lasting)
        try:
            self._move_over(beside, name)
        except BaseException:
            os.unlink(beside, dir_fd=self._handle)
            raise

    def set_aside(self, name: str) -> None:
        """Rename any entry with this name to ``NAME.forged``, so that the name is free.

        Raises ``OSError``.
        """
        with contextlib.suppress(FileNotFoundError):
            self._rename(name, name[:200] + FORGED)

    def _move_over(self, source: str, name: str) -> None:
        try:
            os.replace(source, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        except IsADirectoryError:
            self.set_aside(name)
            os.replace(source, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def _rename(self, name: str, to: str) -> None:
        try:
            os.replace(name, to, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR):
                raise
            to = f"{to}.{os.urandom(4).hex()}"  # an earlier entry has the name without a number
            os.replace(name, to, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def unlink(self, name: str) -> None:
        """Remove the file, link or pipe with this name; rename a folder to ``NAME.forged``.

        Raises ``OSError``.
        """
        try:
            os.unlink(name, dir_fd=self._handle)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            self.set_aside(name)

    def rotate(self, name: str, to: str) -> int:
        """Rename the file to ``to``, create an empty one, and return its descriptor for appending.

        Existing entries of the two names are renamed or replaced, never opened. Raises ``OSError``.
        """
        with contextlib.suppress(FileNotFoundError):
            self._move_over(name, to)
        return self.new(name)

    def new(self, name: str) -> int:
        """Create an empty file, and return its descriptor for appending.

        An existing entry with its name is renamed. The file is created under a temporary name and
        then renamed, so that concurrent calls do no harm. Raises ``OSError``.
        """
        beside = _beside(name)
        handle = os.open(beside, _NEW | os.O_APPEND, 0o600, dir_fd=self._handle)
        try:
            self.set_aside(name)
            self._move_over(beside, name)
        except BaseException:
            os.close(handle)
            os.unlink(beside, dir_fd=self._handle)
            raise
        return handle

    def lockable(self, name: str) -> int:
        """Return a descriptor for locking this file, and create the file if needed.

        Raises ``NotOurs`` and ``OSError``.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return _opened(name, flags, self._handle)

    def make(self, name: str) -> SafeDirectory:
        """Open the folder with this name in this folder, and create it if needed.

        Raises ``NotOurs`` and ``OSError``.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=self._handle)
        return self.below(name)

    def below(self, *names: str) -> SafeDirectory:
        """Open the folder at the path ``names`` below this folder.

        Raises ``NotOurs`` and ``OSError``.
        """
        inner = SafeDirectory.__new__(SafeDirectory)
        inner._handle = os.dup(self._handle)
        inner.path = self.path
        inner._enter(names)
        return inner

    def _write_beside(self, name: str, data: bytes, *, lasting: bool = True) -> str:
        beside = _beside(name)
        handle = os.open(beside, _NEW, 0o600, dir_fd=self._handle)
        try:
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                if lasting:
                    os.fsync(file.fileno())
        except BaseException:
            os.unlink(beside, dir_fd=self._handle)
            raise
        return beside


def _beside(name: str) -> str:
    """Return a unique name for a file that will be renamed to ``name``."""
    return f"{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


def _opened(name: str, flags: int, folder: int) -> int:
    """Open the folder or regular file, depending on ``flags``, and return its descriptor.

    Links are not followed.

    Raises ``NotOurs`` for any other type, and ``OSError``.
    """
    try:
        try:
            handle = os.open(name, flags, 0o600, dir_fd=folder)
        except PermissionError:
            if not _made_readable(name, folder):
                raise
            handle = os.open(name, flags, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in _OTHER_KIND:
            raise
        kind = "folder" if flags & os.O_DIRECTORY else "file"
        raise NotOurs(f"{name} is not a {kind} ({error.strerror})") from None
    if flags & os.O_DIRECTORY or stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise NotOurs(f"{name} is not a regular file")


def _made_readable(name: str, folder: int) -> bool:
    """Restore our access permissions to an entry if our user owns it, and return whether our user
    owns it.

    A process of the same user, such as the crawler, may have removed these permissions.
    """
    mine = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(mine)
        ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
        if ours:
            os.chmod(f"/proc/self/fd/{mine}", 0o700 if stat.S_ISDIR(found.st_mode) else 0o600)
        return ours
    finally:
        os.close(mine)
