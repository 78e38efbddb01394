"""The files of a project, and its digest: the same for a folder, a zip and an egg with the same
files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

ALGORITHM = "sha256:"


class Leaf(NamedTuple):
    """A file or a link of a project."""

    path: bytes
    """The path relative to the folder, with ``/``."""
    kind: bytes
    """``x`` for an executable file, ``-`` for another file, ``l`` for a link."""
    content: bytes
    """The SHA-256 of the file's content, or of the text of the link."""


def files_below(
    folder: str, leave_out: Callable[[str, bool], bool] = lambda name, top: False
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the path of everything below a folder except folders, relative to it and with ``/``,
    and its entry. Links are not followed.

    ``leave_out`` gets each name, and whether it is directly in the folder. If it returns true, this
    file or folder is left out. Raises ``OSError``, and the errors of ``leave_out``.
    """
    todo = [""]
    while todo:
        below = todo.pop()
        with os.scandir(os.path.join(folder, below)) as entries:
            for entry in entries:
                if leave_out(entry.name, not below):
                    continue
                path = below + entry.name
                if entry.is_dir(follow_symlinks=False):
                    todo.append(f"{path}/")
                else:
                    yield path, entry


def tree_digest(leaves: Iterable[Leaf]) -> str:
    """Return the digest of a project. It depends on paths, contents and executable bits only, so
    that equal projects have equal digests on every machine.
    """
    total = hashlib.sha256()
    for leaf in sorted(leaves):
        total.update(b"%s %s %s\0" % (leaf.kind, leaf.content.hex().encode(), leaf.path))
    return f"{ALGORITHM}{total.hexdigest()}"
