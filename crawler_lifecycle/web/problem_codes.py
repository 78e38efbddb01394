"""Every stable code of a problem document, out of ``problem_codes.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

#: What ``type`` begins with in a problem document; the code follows.
TYPE_PREFIX = "urn:problem-type:crawler-lifecycle:"


@dataclass(frozen=True, slots=True)
class Kind:
    """One code. ``retry`` is what a program should do without asking anybody."""

    statuses: list[int]
    meaning: str
    cure: str
    retry: str = "Do not repeat it unchanged."
    title: str | None = None
    """The title, where it differs from the code in words."""


CODES = {
    code: Kind(**said)
    for code, said in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}


def title(code: str) -> str:
    """The title of a code."""
    kind = CODES.get(code)
    return (kind and kind.title) or code.replace("_", " ").capitalize()
