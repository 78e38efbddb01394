"""All stable codes of problem documents, read from ``problem_codes.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

#: The beginning of ``type`` in a problem document. The code follows it.
TYPE_PREFIX = "urn:problem-type:crawler-lifecycle:"

#: What a program does where the table says nothing: it repeats the request after 408, 429 and 503, else it does not.
BY_STATUS = "As its status says."


@dataclass(frozen=True, slots=True)
class Kind:
    """One code. ``retry`` says what a program should do by itself."""

    statuses: list[int]
    meaning: str
    cure: str
    retry: str = BY_STATUS
    title: str | None = None
    """The title, if it is not simply the words of the code."""


CODES = {
    code: Kind(**said)
    for code, said in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}


def title(code: str) -> str:
    """Return the title of a code."""
    kind = CODES.get(code)
    return (kind and kind.title) or code.replace("_", " ").capitalize()
