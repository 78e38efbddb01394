"""Keeps unpacked code on this machine, so that later tasks need not fetch it.

Each task gets its own copy, whose digest is computed again, and uses the modules that were compiled
once. Everything here only saves time: what fails is fetched instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import py_compile
import shutil
import time
import uuid
from collections.abc import Iterator

from .tree import Leaf, files_below, tree_digest

#: The maximum number of cached versions, and the maximum size in bytes of each.
VERSIONS_MAX = 64
BYTES_MAX = 16 * 2**20
#: The maximum number of seconds for which modules are compiled when a version is added, and the
#: maximum size of a module in bytes.
COMPILE_S = 2.0
MODULE_MAX = 256 * 1024
_COMPILED = "__pycache__"


def copy_cached(cache: str, digest: str, target: str) -> bool:
    """Copy the code with this digest to an empty folder.

    Returns ``False`` if it is not cached, or is damaged; then the folder may have a rest of it.
    """
    source = _folder(cache, digest)
    with contextlib.suppress(OSError):
        if tree_digest(_copied(source, target)) == digest:
            _link_compiled(source, target)
            os.utime(source)
            return True
        shutil.rmtree(source)
    return False


def add_to_cache(cache: str, digest: str, code: str) -> None:
    """Add a copy of the code in a folder to the cache, compile its modules there, and let the
    folder use them.
    """
    part = os.path.join(cache, f".{uuid.uuid4().hex}")
    try:
        if sum(entry.stat().st_size for _, entry in files_below(code)) > BYTES_MAX:
            return
        os.makedirs(part)
        for _ in _copied(code, part):
            pass
        _compile(part)
        os.rename(part, _folder(cache, digest))
        _link_compiled(_folder(cache, digest), code)
        _remove_oldest(cache)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)


def _folder(cache: str, digest: str) -> str:
    return os.path.join(cache, digest.replace(":", "-"))


def _copied(source: str, target: str) -> Iterator[Leaf]:
    """Copy all files of code, and yield them."""
    for path, entry in files_below(source, lambda name, top: name == _COMPILED):
        copy = os.path.join(target, path)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        with open(entry.path, "rb") as file:
            content = file.read()
        status = entry.stat(follow_symlinks=False)
        with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, status.st_mode), "wb") as new:
            new.write(content)
            new.flush()
            # A compiled module names the time of its source.
            os.utime(new.fileno(), (status.st_atime, status.st_mtime))
        kind = b"x" if status.st_mode & 0o100 else b"-"
        yield Leaf(os.fsencode(path), kind, hashlib.sha256(content).digest())


def _link_compiled(source: str, target: str) -> None:
    """Let a copy use the compiled modules in the cache, because a link costs less than a copy.

    Their folders belong to the copy, because Python writes there what it compiles, and takes
    modules of one name, time and size for the same module, although each task may generate its own.
    It replaces a compiled module and never changes it. What cannot be linked is compiled again.
    """
    with contextlib.suppress(OSError):
        for path, entry in files_below(source):
            copy = os.path.join(target, path)
            folder = os.path.dirname(copy)
            if os.path.basename(folder) == _COMPILED:
                os.makedirs(folder, exist_ok=True)
                os.link(entry.path, copy)


def _compile(code: str) -> None:
    """Compile modules until the time is over. Nothing is executed."""
    until = time.monotonic() + COMPILE_S
    for path, entry in list(files_below(code)):
        small = path.endswith(".py") and entry.stat().st_size <= MODULE_MAX
        if small and time.monotonic() < until:
            py_compile.compile(entry.path, quiet=2)


def _remove_oldest(cache: str) -> None:
    """Remove the versions that no task used for the longest time."""
    with os.scandir(cache) as entries:
        oldest = sorted(entries, key=lambda entry: entry.stat().st_mtime)
    for entry in oldest[:-VERSIONS_MAX]:
        shutil.rmtree(entry.path)
