"""The digest of a project: the same for a folder, a zip and an egg with the same files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
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


def tree_digest(leaves: Iterable[Leaf]) -> str:
    """Return the digest of a project. It depends on paths, contents and executable bits only, so
    that equal projects have equal digests on every machine.
    """
    total = hashlib.sha256()
    for leaf in sorted(leaves):
        total.update(b"%s %s %s\0" % (leaf.kind, leaf.content.hex().encode(), leaf.path))
    return f"{ALGORITHM}{total.hexdigest()}"
