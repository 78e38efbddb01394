"""Conditions: problems that currently need attention, derived from the recorded state, and the
fingerprint of a cause.

Each feature derives its own conditions. Incidents are the record of conditions over time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from .names import request_fingerprint

T = TypeVar("T")
Key = tuple[str, str, str, str]
#: The maximum number of characters that are read from a line.
LINE_MAX = 1000

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,15}://\S+")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
#: The last part of a host name has only lower-case letters, unlike the class in
#: ``shop.errors.PriceError``.
_HOST = re.compile(r"(?<![\w.-])(?:[\w-]{1,63}\.){1,10}[a-z]{2,24}(?![\w.-])(?::[0-9]{1,5})?")
#: A word with a digit. Each word is read at most twice.
_DIGITS = re.compile(r"(?<!\w)(?=[^\W\d]*\d)\w+")
_QUOTED = re.compile(r"(?<!\w)'[^']*'|\"[^\"]*\"|`[^`]*`")
_NUMBERS = re.compile(r"#(?:[\s#,.:;/_+-]*#)+")


@dataclass(frozen=True, slots=True)
class IncidentCondition:
    """A problem that currently needs attention."""

    kind: str
    """The noun for the subject, and its problem, such as ``crawler_failing``."""
    subject: str
    """The path of the subject's page, such as ``crawlers/shop-437``."""
    project: str
    cause: str
    """A sentence about the newest occurrence."""
    since: datetime
    """The time of the first occurrence."""
    at: datetime
    """The time of the newest occurrence."""
    fingerprint: str = ""
    """The hash of the cause, or empty if the kind has only one cause."""
    count: int = 1
    times: tuple[datetime, ...] = ()
    """The times of the occurrences that can still be read. An incident counts new occurrences by
    these times, because the oldest occurrences may no longer be readable."""
    first_run_id: int | None = None
    run_id: int | None = None
    """The run of the newest occurrence."""
    fix: str | None = None
    earlier: tuple[str, ...] = ()
    """The subjects of the earlier occurrences, if each occurrence has its own subject. Then
    ``subject`` is that of the newest one."""

    @property
    def key(self) -> Key:
        """The values by which two conditions are recognised as the same condition."""
        return self.kind, self.subject, self.project, self.fingerprint

    @property
    def keys(self) -> list[Key]:
        """The keys that this condition has had, newest first."""
        earlier = [replace(self, subject=subject).key for subject in self.earlier]
        return [self.key, *earlier]


def failed_since_good(
    ended: Iterable[T], name: Callable[[T], Hashable], is_good: Callable[[T], bool]
) -> list[list[T]]:
    """Return the failures since the last success with the same name, as one list for each name.

    ``ended`` is sorted, with the newest first.
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
    """Return the line, omitting the parts that differ between two occurrences of one cause:
    numbers, ids, addresses, hosts and quoted strings.
    """
    before = ""
    line = line[:LINE_MAX]
    # A replacement may make another pattern match. Each round reduces the letters, digits and
    # quotes.
    while line != before:
        before = line
        line = _UUID.sub("#", _URL.sub("~", line))
        line = _DIGITS.sub("#", _HOST.sub("~", line))
        line = _NUMBERS.sub("#", _QUOTED.sub("…", line))
        line = " ".join(line.split())
    return line


def fingerprint(*causes: str | None) -> str:
    """Return a hash of these strings that ignores their numbers, ids, hosts and quoted parts."""
    return request_fingerprint("\n".join(normalised(cause or "") for cause in causes))
