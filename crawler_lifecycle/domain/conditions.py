"""Conditions: what needs somebody now, derived from the recorded state, and the fingerprint of a
cause.

Each feature derives its own. Incidents are the record of conditions over time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeVar

from .names import request_fingerprint

T = TypeVar("T")
Level = Literal["bad", "warn"]
#: The most characters of a line that are read.
LINE_MAX = 1000

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,15}://\S+")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
#: The last part of a host has only small letters, unlike the class in ``shop.errors.PriceError``.
_HOST = re.compile(r"(?<![\w.-])(?:[\w-]{1,63}\.){1,10}[a-z]{2,24}(?![\w.-])(?::[0-9]{1,5})?")
#: A word with a digit. Each word is read at most twice.
_DIGITS = re.compile(r"(?<!\w)(?=[^\W\d]*\d)\w+")
_QUOTED = re.compile(r"(?<!\w)'[^']*'|\"[^\"]*\"|`[^`]*`")
_NUMBERS = re.compile(r"#(?:[\s#,.:;/_+-]*#)+")


@dataclass(frozen=True, slots=True)
class IncidentCondition:
    """Something that needs somebody now."""

    kind: str
    """Its noun and what is wrong with it: ``crawler_failing``."""
    subject: str
    """The path of its page: ``crawlers/shop-437``."""
    project: str
    cause: str
    """A sentence about the newest occurrence."""
    since: datetime
    """The time of the first occurrence."""
    at: datetime
    """The time of the newest occurrence."""
    fingerprint: str = ""
    """The hash of its cause; empty: the kind has only one."""
    level: Level = "bad"
    count: int = 1
    times: tuple[datetime, ...] = ()
    """The times of the occurrences that are known. Later ones are counted by them, because older
    ones may be out of sight."""
    first_run_id: int | None = None
    run_id: int | None = None
    """The run of the newest occurrence."""
    fix: str | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The parts that two conditions have in common if they are the same one."""
        return self.kind, self.subject, self.project, self.fingerprint


def failed_since_good(
    ended: Iterable[T], name: Callable[[T], Hashable], is_good: Callable[[T], bool]
) -> list[list[T]]:
    """Return what failed since the last good one of its name, a list for each name.

    ``ended``: the newest first.
    """
    streaks: dict[Hashable, list[T]] = {}
    recovered = set[Hashable]()
    for end in ended:
        if is_good(end):
            recovered.add(name(end))
        elif name(end) not in recovered:
            streaks.setdefault(name(end), []).append(end)
    return list(streaks.values())


def normalised(line: str) -> str:
    """Return the line without what differs between two occurrences of one cause: numbers, ids,
    addresses, hosts and quoted texts.
    """
    before = ""
    line = line[:LINE_MAX]
    # What is replaced may uncover a pattern. Each round leaves fewer letters, digits and quotes.
    while line != before:
        before = line
        line = _UUID.sub("#", _URL.sub("~", line))
        line = _DIGITS.sub("#", _HOST.sub("~", line))
        line = _NUMBERS.sub("#", _QUOTED.sub("…", line))
        line = " ".join(line.split())
    return line


def fingerprint(*causes: str | None) -> str:
    """Return the hash of these texts, whatever their numbers, ids, hosts and quotes are."""
    return request_fingerprint("\n".join(normalised(cause or "") for cause in causes))
