"""Safe access to files in a folder that a crawler may change at any moment: nothing outside is touched.

The folder is opened once and kept open by its descriptor; each file in it is opened by its name, relative to that
descriptor. Links below the root are never followed; only regular files are read, without waiting for them; and a file
is written under another name and then renamed, replacing anything of its name. Standard library only and light on
imports: the runner, the supervisor and the readers of tasks use it.
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
#: Error numbers of an open for anything but a folder or a regular file.
_OTHER_KIND = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR)
#: Suffix of the name of a foreign file that had the name of a file of ours.
FORGED = ".forged"


class NotOurs(Exception):
    """A path of ours is occupied: by a link, a pipe, a folder instead of a file, or a file instead of a folder."""


class Held:
    """One folder, kept open. It is closed with the last reference to it, like an open file."""

    __slots__ = ("_handle", "path")

    def __init__(self, root: str, *names: str) -> None:
        """The folder that ``names`` lead to from ``root``, whose own path is followed as it is given.

        Raises ``NotOurs`` when one of the names is no folder, and ``OSError``.
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
        """Return whether the name exists. Raises ``OSError`` when this is unknown."""
        return self.stat(name) is not None

    def names(self, most: int) -> tuple[list[str], int]:
        """At most ``most`` names in the folder, and the number of the others. Raises ``OSError``."""
        with os.scandir(self._handle) as entries:
            found = [entry.name for entry in itertools.islice(entries, most)]
            return found, sum(1 for _ in entries)

    def stat(self, name: str) -> os.stat_result | None:
        """The status of the entry itself, for instance of a link; ``None`` without one. Raises ``OSError``."""
        try:
            return os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, name: str) -> int | None:
        """A descriptor of the regular file with this name; ``None`` without one. Raises ``NotOurs`` and ``OSError``."""
        try:
            return _opened(name, _FILE, self._handle)
        except FileNotFoundError:
            return None

    def read(self, name: str, most: int) -> bytes | None:
        """At most ``most`` bytes of the file's beginning; ``None`` without one. Raises ``NotOurs`` and ``OSError``."""
        handle = self.open(name)
        if handle is None:
            return None
        with open(handle, "rb") as file:
            return file.read(most)

    # --- writing

    def create(self, name: str, data: bytes) -> bool:
        """Write the file as a whole if nothing has its name; whether it was us. Raises ``OSError``."""
        beside = self._write_beside(name, data)
        try:
            os.link(beside, name, src_dir_fd=self._handle, dst_dir_fd=self._handle, follow_symlinks=False)
        except FileExistsError:
            return False
        finally:
            os.unlink(beside, dir_fd=self._handle)
        return True

    def replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """Write the whole file, replacing anything of its name. Raises ``OSError``.

        ``lasting``: it survives a machine that fails the next moment.
        """
        beside = self._write_beside(name, data, lasting=lasting)
        try:
            self._move_over(beside, name)
        except BaseException:
            os.unlink(beside, dir_fd=self._handle)
            raise

    def set_aside(self, name: str) -> None:
        """Free the name: an entry of this name is renamed to ``NAME.forged``. Raises ``OSError``."""
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
            to = f"{to}.{os.urandom(4).hex()}"  # of an earlier time
            os.replace(name, to, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def unlink(self, name: str) -> None:
        """Remove the file, link or pipe with this name, and set a folder aside. Raises ``OSError``."""
        try:
            os.unlink(name, dir_fd=self._handle)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            self.set_aside(name)

    def rotate(self, name: str, to: str) -> int:
        """Give the file another name and begin it anew: the descriptor of the new one, for appending.

        Nothing that has either name is opened. Raises ``OSError``.
        """
        with contextlib.suppress(FileNotFoundError):
            self._move_over(name, to)
        return self.new(name)

    def new(self, name: str) -> int:
        """A new file, for appending; an entry of its name is renamed.

        Raises ``OSError``. The file is renamed to its name when it is ready, so that a concurrent call does no harm.
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
        """A descriptor of the file with this name, made where there is none, to lock it. Raises as ``open``."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return _opened(name, flags, self._handle)

    def make(self, name: str) -> Held:
        """The folder with this name in this one, made where there is nothing. Raises ``NotOurs`` and ``OSError``."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=self._handle)
        return self.below(name)

    def below(self, *names: str) -> Held:
        """The folder that ``names`` lead to from this one. Raises ``NotOurs`` and ``OSError``."""
        inner = Held.__new__(Held)
        inner._handle, inner.path = os.dup(self._handle), self.path
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
    """A unique name for a file that is renamed later."""
    return f"{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


def _opened(name: str, flags: int, folder: int) -> int:
    """The folder, or else the regular file, opened without following a link or waiting for a pipe.

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
        raise NotOurs(f"{name} is no {kind} ({error.strerror})") from None
    if flags & os.O_DIRECTORY or stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise NotOurs(f"{name} is no file")


def _made_readable(name: str, folder: int) -> bool:
    """Restore the rights that a process of our own user removed. Returns whether the owner is our user."""
    mine = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(mine)
        ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
        if ours:
            os.chmod(f"/proc/self/fd/{mine}", 0o700 if stat.S_ISDIR(found.st_mode) else 0o600)
        return ours
    finally:
        os.close(mine)
