"""All stable codes of problem documents, read from ``problem_codes.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

#: The prefix of ``type`` in a problem document, which the code follows.
TYPE_PREFIX = "urn:problem-type:crawler-lifecycle:"


@dataclass(frozen=True, slots=True)
class Kind:
    """One code.

    ``retry`` states what a program should do automatically. By default, it repeats the request
    after 408, 429 and 503 only.
    """

    statuses: list[int]
    meaning: str
    fix: str
    retry: str = "As its status requires."
    title: str | None = None
    """The title, unless it is simply the words of the code."""


CODES = {
    code: Kind(**said)
    for code, said in tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    ).items()
}


def title(code: str) -> str:
    """Return the title of a code."""
    kind = CODES.get(code)
    return (kind and kind.title) or code.replace("_", " ").capitalize()
