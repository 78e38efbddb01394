"""The code that a task executed: the digest of its image or project folder, and the names that its
author gave it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from .bounds import check_text, refusal, words
from .quick import quick_dataclass

#: The maximum number of characters of a version and of a note.
VERSION_MAX = 100
NOTE_MAX = 200
#: The minimum number of digits by which people can name a digest or a commit.
DIGITS_MIN = 6
#: The number of digits of a digest or a commit that people see.
DIGITS_SHOWN = 12
ALGORITHM = "sha256:"
#: The note about an image of which the node knows no digest of a manifest. Registries cannot find
#: an image by such an id.
IMAGE_ID = "the image's id, because the node knows no digest of its manifest"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DIGITS = re.compile(rf"[0-9a-f]{{{DIGITS_MIN},64}}")


@quick_dataclass(frozen=True, slots=True)
class Code:
    """The code of one task. ``None`` means unknown."""

    digest: str | None = None
    """``sha256:`` and 64 hexadecimal digits, of the image or of the project folder."""
    version: str | None = None
    """The version in the crawler's catalogue entry when the task was deployed."""
    commit: str | None = None
    """The commit in the catalogue entry, or else the one that the project folder has checked
    out."""
    note: str | None = None
    """The reason why there is no digest, or a fact about the digest."""

    @property
    def label(self) -> str:
        """The version or, if the author named none, the beginning of the digest."""
        return f"version {self.version}" if self.version else f"code {short_digest(self.digest)}"

    @classmethod
    def of(cls, said: object) -> Code | None:
        """Read a report or the value in a row, omitting impossible fields. Return ``None`` if
        nothing is left.
        """
        if not isinstance(said, Mapping):
            return None
        digest = said.get("digest")
        commit = said.get("commit")
        found = cls(
            digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None,
            words(said.get("version"), VERSION_MAX),
            commit if isinstance(commit, str) and _DIGITS.fullmatch(commit) else None,
            words(said.get("note"), NOTE_MAX),
        )
        return found if found != cls() else None


def short_digest(digest: str | None) -> str:
    """Return the digits of a digest that people see."""
    return (digest or "").removeprefix(ALGORITHM)[:DIGITS_SHOWN]


@lru_cache(1000)  # the tasks of a run have the same image
def code_of_image(image_id: str | None, version: str | None, commit: str | None) -> Code | None:
    """Return the code of a container. ``image_id`` is the ``imageID`` of its status: empty,
    ``repository@sha256:…`` with or without ``docker-pullable://``, or only the id of the image.
    """
    repository, _, digest = (image_id or "").rpartition("@")
    found = _DIGEST.search(digest)
    note = None if repository or found is None else IMAGE_ID
    return Code.of(
        {"digest": found and found.group(), "version": version, "commit": commit, "note": note}
    )


def check_names(version: object, commit: object) -> None:
    """Raise ``InvalidRequest`` unless these can be the version and the commit of an entry."""
    check_text("version", version, VERSION_MAX)
    if commit is not None and not (isinstance(commit, str) and _DIGITS.fullmatch(commit)):
        raise refusal("commit", commit, f"give {DIGITS_MIN} to 64 digits of 0-9 and a-f")


def full_prefix(text: str) -> str:
    """Return the beginning of a digest that a person named, with its algorithm.

    Raises ``InvalidRequest`` for a text that cannot be the beginning of a digest.
    """
    digits = text.strip().lower().removeprefix(ALGORITHM)
    if not _DIGITS.fullmatch(digits):
        raise refusal(
            "code", text, f"give the first {DIGITS_MIN} to 64 digits of a digest, such as 3f9a1c"
        )
    return ALGORITHM + digits


class Leaf(NamedTuple):
    """A file or a link in a project folder."""

    path: bytes
    """The path relative to the folder, with ``/``."""
    kind: bytes
    """``x`` for an executable file, ``-`` for another file, ``l`` for a link."""
    content: bytes
    """The SHA-256 of the file's content, or of the text of the link."""


def tree_digest(leaves: Iterable[Leaf]) -> str:
    """Return the digest of a folder. It depends on paths, contents and executable bits only, so
    that equal folders have equal digests on every machine.
    """
    total = hashlib.sha256()
    for leaf in sorted(leaves):
        total.update(b"%s %s %s\0" % (leaf.kind, leaf.content.hex().encode(), leaf.path))
    return f"{ALGORITHM}{total.hexdigest()}"
