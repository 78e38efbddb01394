"""The code that a task executed: the digest of its image or project folder, and the names that its
author gave it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

from crawler_lifecycle.runner.tree import ALGORITHM

from .bounds import check_text, refusal, words
from .quick import quick_dataclass

#: The maximum number of characters of a version and of a note.
VERSION_MAX = 100
NOTE_MAX = 200
#: The minimum number of digits by which people can name a digest or a commit.
DIGITS_MIN = 6
#: A digest, with its digits as a group.
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
#: The number of digits of a digest or a commit that people see.
DIGITS_SHOWN = 12
#: The maximum number of seconds for which a deploy waits for its inspection.
INSPECTION_S = 90.0
#: The word for the current version of a package.
NEWEST = "newest"
#: The note about an image of which the node knows no digest of a manifest. Registries cannot find
#: an image by such an id.
IMAGE_ID = "the image's id, because the node knows no digest of its manifest"

#: Names of caches and of installed code, and endings of such names.
_NO_CODE = frozenset(("__pycache__", "node_modules", "venv"))
_NO_CODE_ENDINGS = (".egg-info", ".pyc", ".pyo")
#: Names of logs and data that crawls write into the folder itself, and endings of such names. Below
#: it, they are code, such as a Python package ``shop/storage`` or its ``seeds.jsonl``.
_DATA = frozenset(("logs", "storage"))
_DATA_ENDINGS = (".jl", ".jsonl", ".log", ".pid")
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
            digest if isinstance(digest, str) and DIGEST.fullmatch(digest) else None,
            words(said.get("version"), VERSION_MAX),
            commit if isinstance(commit, str) and _DIGITS.fullmatch(commit) else None,
            words(said.get("note"), NOTE_MAX),
        )
        return found if found != cls() else None


def short_digest(digest: str | None) -> str:
    """Return the digits of a digest that people see."""
    return (digest or "").removeprefix(ALGORITHM)[:DIGITS_SHOWN]


class CodeVersions(Protocol):
    """The versions of deployed packages, and of entries in the database."""

    def find(self, package: str, version: str | None) -> Code:
        """Return the code of a version, by default of the current one.

        Raises ``InvalidRequest``, which names the newest versions, if there is none.
        """

    def open_canary(self, name: str, *, of_entry: bool = False) -> int | None:
        """Return the number of the canary of a package or of an entry of the database, if one is
        open.
        """

    def check_entry(self, name: str, version: str) -> None:
        """Raise ``InvalidRequest``, which names the newest versions, unless an entry of the
        database has this version.
        """


@lru_cache(1000)  # the tasks of a run have the same image
def code_of_image(image_id: str | None, version: str | None, commit: str | None) -> Code | None:
    """Return the code of a container. ``image_id`` is the ``imageID`` of its status: empty,
    ``repository@sha256:…`` with or without ``docker-pullable://``, or only the id of the image.
    """
    repository, _, digest = (image_id or "").rpartition("@")
    found = DIGEST.search(digest)
    note = None if repository or found is None else IMAGE_ID
    return Code.of(
        {"digest": found and found.group(), "version": version, "commit": commit, "note": note}
    )


def check_names(version: object, commit: object) -> None:
    """Raise ``InvalidRequest`` unless these can be the version and the commit of an entry."""
    check_text("version", version, VERSION_MAX)
    if commit is not None and not (isinstance(commit, str) and _DIGITS.fullmatch(commit)):
        raise refusal("commit", commit, f"give {DIGITS_MIN} to 64 digits of 0-9 and a-f")


def is_left_out(name: str, top: bool) -> bool:
    """Return whether a file or folder with this name is not part of a project's code.

    ``top`` is true if the project's folder contains it directly.
    """
    if top and (name in _DATA or name.endswith(_DATA_ENDINGS)):
        return True
    return name.startswith(".") or name in _NO_CODE or name.endswith(_NO_CODE_ENDINGS)


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
