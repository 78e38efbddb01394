"""Names inside a zip: safe for every unpacker, and unique on every file system."""

from __future__ import annotations

import hashlib
import os
import unicodedata

#: What file systems take for one component.
_COMPONENT_BYTES_MAX = 255
_FORBIDDEN = frozenset('\\/:*?"<>|')
_RESERVED = frozenset(
    ("con", "prn", "aux", "nul", *(f"com{n}" for n in range(1, 10)), *(f"lpt{n}" for n in range(1, 10)))
)


def safe_component(name: bytes) -> str:
    """One path component that every unpacker takes as one.

    Bytes that are no text, control and direction characters, and signs with a meaning somewhere become ``%XX``; so
    does what Windows drops (dots and spaces at the end) or takes for a device. What becomes too long is cut and marked.
    """
    text = "".join(
        _escaped(char) if char in _FORBIDDEN or not char.isprintable() else char for char in os.fsdecode(name)
    )
    if text[-1:] in (".", " "):
        text = text[:-1] + _escaped(text[-1])
    if text.partition(".")[0].casefold() in _RESERVED:
        text = _escaped(text[0]) + text[1:]
    if len(text.encode()) > _COMPONENT_BYTES_MAX:
        mark = "~" + hashlib.sha256(name).hexdigest()[:12]
        text = _cut(text, _COMPONENT_BYTES_MAX - len(mark)) + mark
    return text


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in os.fsencode(char))


class Names:
    """The names already given in one zip. Keeps eight bytes of digest for each, not the name.

    Two digests that are equal by chance cost a needless number in a name and nothing else.
    """

    def __init__(self, *reserved: str) -> None:
        self._files = {_folded(name) for name in reserved}
        self._folders: set[int] = set()
        self._next: dict[int, int] = {}

    def file(self, path: str) -> str:
        """A name for a file that no file and no folder has."""
        unique, folded = self._unique(path, self._files, self._folders)
        self._files.add(folded)
        return unique

    def folder(self, path: str) -> str:
        """A name for a folder that no file has; folders may share one, their files get numbers."""
        unique, folded = self._unique(path, self._files)
        self._folders.add(folded)
        return unique

    def _unique(self, path: str, *taken: set[int]) -> tuple[str, int]:
        first = folded = _folded(path)
        unique = path
        while any(folded in names for names in taken):
            # Counting on from the last number keeps a folder of equal names from taking quadratic time.
            number = self._next[first] = self._next.get(first, 1) + 1
            unique = _numbered(path, number)
            folded = _folded(unique)
        return unique, folded


def _numbered(path: str, number: int) -> str:
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not stem:
        stem, dot, suffix = name, "", ""
    end = f"~{number}{dot}{suffix}"
    if (left := _COMPONENT_BYTES_MAX - len(end.encode())) < 1:
        stem, end = name, f"~{number}"
        left = _COMPONENT_BYTES_MAX - len(end)
    return f"{folder}{slash}{_cut(stem, left)}{end}"


def _cut(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")


def _folded(path: str) -> int:
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
