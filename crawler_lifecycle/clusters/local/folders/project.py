"""The project folder of a crawler: its digest and its commit.

The supervisor reads the folder just before the crawler executes. Links are never followed. The
digests of files are kept in a file, by size, times and inode, so that an unchanged file is read
only once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time

from crawler_lifecycle.domain.code import is_left_out
from crawler_lifecycle.runner.safe_directory import SafeDirectory
from crawler_lifecycle.runner.tree import Leaf, files_below, tree_digest

FILES_MAX = 20_000
BYTES_MAX = 200 * 1024 * 1024
SECONDS_MAX = 2.0
#: A file that changed this recently is read again, because another change at the same time would
#: not be visible in its times.
SETTLED_NS = 2_000_000_000

_CACHE_MAX = 16 * 1024 * 1024
_BLOCK = 1024 * 1024
_GIT_FILE_MAX = 16 * 1024 * 1024
_FOLDERS_ABOVE = 40
_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
#: A name of a ref without parts such as ``..``, which would lead out of the repository.
_REF = re.compile(r"refs(/[^/.\s\0][^/\s\0]*)+")

Marks = list[int]


class NoDigest(Exception):
    """A folder without a digest. The text is the reason."""


class ProjectFolder:
    """A project folder, and the file in which the digests of its files are kept."""

    def __init__(self, folder: str, caches: str) -> None:
        """``caches`` is an existing folder for the kept digests of all projects."""
        self._folder = folder
        self._caches = caches
        self._cache = f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.json"
        self._now_ns = time.time_ns()
        self._deadline = time.monotonic() + SECONDS_MAX
        self._bytes = 0
        self._names = 0

    def digest(self) -> str:
        """Return the digest of the folder (``runner.tree``).

        Raises ``NoDigest`` for a folder that is too large or unreadable.
        """
        known = self._known()
        found: dict[str, tuple[Marks, str]] = {}
        leaves = []
        try:
            for name, entry in files_below(self._folder, self._leave_out):
                path = os.fsencode(name)
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    target = os.fsencode(os.readlink(entry.path))
                    leaves.append(Leaf(path, b"l", hashlib.sha256(target).digest()))
                elif stat.S_ISREG(status.st_mode):
                    self._count(status.st_size)
                    times = (status.st_mtime_ns, status.st_ctime_ns)
                    marks = [status.st_size, *times, status.st_ino]
                    kept = known.get(name)
                    content = kept[1] if kept and kept[0] == marks else self._read(entry.path)
                    if self._now_ns - max(times) > SETTLED_NS:
                        found[name] = (marks, content)
                    kind = b"x" if status.st_mode & stat.S_IXUSR else b"-"
                    leaves.append(Leaf(path, kind, bytes.fromhex(content)))
        except (OSError, ValueError) as error:
            raise NoDigest(f"the project folder cannot be read: {error}") from None
        if found != known:
            self._keep(found)
        return tree_digest(leaves)

    def _leave_out(self, name: str, top: bool) -> bool:
        """Return whether a file or folder is not code. Raises ``NoDigest`` if there are too
        many.
        """
        self._check_time()
        if is_left_out(name, top):
            return True
        self._names += 1
        if self._names > FILES_MAX:
            raise NoDigest(f"the project folder has more than {FILES_MAX} files")
        return False

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > BYTES_MAX:
            raise NoDigest(f"the project folder has more than {BYTES_MAX // 1024**2} MiB")

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise NoDigest(f"the project folder could not be read within {SECONDS_MAX:g} s")

    def _read(self, path: str) -> str:
        """Return the digest of a file's content. Raises ``OSError`` and ``NoDigest``."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        content = hashlib.sha256()
        left = BYTES_MAX
        with open(os.open(path, flags), "rb", buffering=0) as file:
            while left > 0 and (block := file.read(_BLOCK)):
                content.update(block)
                left -= len(block)
                self._check_time()
        return content.hexdigest()

    def _known(self) -> dict[str, tuple[Marks, str]]:
        """Return the kept marks and digests by path; empty if there are none."""
        try:
            kept = json.loads(SafeDirectory(self._caches).read(self._cache, _CACHE_MAX) or b"{}")
            known = {}
            for name, (marks, content) in kept.items():
                known[str(name)] = ([int(mark) for mark in marks], bytes.fromhex(content).hex())
            return known
        except Exception:  # a damaged file is the same as none
            return {}

    def _keep(self, found: dict[str, tuple[Marks, str]]) -> None:
        raw = json.dumps(found).encode()
        with contextlib.suppress(OSError):
            SafeDirectory(self._caches).replace(self._cache, raw, lasting=False)


def commit_of(folder: str) -> str | None:
    """Return the commit that this folder, or one above it, has checked out; ``None`` if there is no
    repository or it cannot be read.
    """
    with contextlib.suppress(OSError, ValueError):
        for _ in range(_FOLDERS_ABOVE):
            git = os.path.join(folder, ".git")
            if os.path.lexists(git):
                return _checked_out(git)
            if folder == os.path.dirname(folder):
                break
            folder = os.path.dirname(folder)
    return None


def _checked_out(git: str) -> str | None:
    """Return the commit of ``HEAD``. Raises ``OSError`` and ``ValueError``."""
    if not os.path.isdir(git):  # a worktree or a submodule
        named = _text(git).removeprefix("gitdir:").strip()
        git = os.path.join(os.path.dirname(git), named)
    head = _text(os.path.join(git, "HEAD")).strip()
    if not head.startswith("ref:"):
        return _hash(head)
    ref = head.removeprefix("ref:").strip()
    if not _REF.fullmatch(ref) or ".." in ref:
        return None
    common = git
    with contextlib.suppress(FileNotFoundError):
        common = os.path.join(git, _text(os.path.join(git, "commondir")).strip())
    for place in (git, common):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return _hash(_text(os.path.join(place, ref)).strip())
    packed = _text(os.path.join(common, "packed-refs")).splitlines()
    lines = (line.split(" ") for line in packed if line.endswith(f" {ref}"))
    return next((_hash(line[0]) for line in lines), None)


def _hash(text: str) -> str | None:
    return text if _HASH.fullmatch(text) else None


def _text(path: str) -> str:
    """Return the content of a small regular file. Raises ``OSError`` and ``ValueError``."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(path)
        return file.read(_GIT_FILE_MAX).decode()
