"""The scope of a crawl: its checked arguments, and the decision about every address and redirect.

Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urldefrag, urljoin, urlsplit

#: A trap (a calendar without end, a query that grows) is left after so many addresses.
MAX_PAGES = 10_000
#: Longer addresses come from loops, and servers refuse them.
URL_MAX = 2_000
#: Redirects one after the other that are followed, as browsers do.
CHAIN_MAX = 20
#: Address, links from the start, where it was named.
Facts = tuple[str, int, "str | None"]
#: What may be kept of a page.
SAVES = ("html", "text")

#: Arguments by name, as text.
Given = Mapping[str, "str | None"]

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Scope:
    """One site, and which of its addresses are wanted."""

    start: str
    max_pages: int
    max_depth: int | None
    allow: re.Pattern[str] | None
    deny: re.Pattern[str] | None
    delay: float
    """Seconds."""
    save: str | None

    @classmethod
    def read(cls, start: str | None = None, **given: str | None) -> Scope:
        """From arguments as text; empty ones count as not given. Raises ``ValueError`` that names the argument."""
        return cls(
            start=_address(start),
            max_pages=_whole("max_pages", given, 1) or MAX_PAGES,
            max_depth=_whole("max_depth", given, 0),
            allow=_pattern("allow", given),
            deny=_pattern("deny", given),
            delay=_seconds("delay", given),
            save=_one_of("save", given, SAVES),
        )

    def target(self, base: str, link: str) -> str | None:
        """The absolute address behind a link, without its fragment; ``None`` for what is no web address."""
        try:
            address = urldefrag(urljoin(base, link.strip("\t\n\f\r "))).url
            parts = urlsplit(address)
            known = parts.scheme in _PORTS and bool(parts.hostname) and _port(parts) > 0
        except ValueError:  # "http://[", a port that is no number
            return None
        return address if known else None

    def inside(self, address: str) -> bool:
        """Return whether the address is on the start's host and port. Both schemes are one site when no port is
        named.
        """
        one, other = urlsplit(address), urlsplit(self.start)
        if one.hostname != other.hostname:
            return False
        return _port(one) == _port(other) or (one.port is None and other.port is None)

    def wanted(self, address: str) -> bool:
        """Return whether the address is inside and passes ``allow`` and ``deny``, which the start itself need not."""
        if len(address) > URL_MAX or not self.inside(address):
            return False
        if self.allow is not None and not self.allow.search(address):
            return False
        return self.deny is None or not self.deny.search(address)


class Redirects:
    """Every address that was asked for and its target, kept in the crawl's state."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._to: dict[bytes, bytes] = state.setdefault("redirects", {})
        self._into: dict[bytes, list[tuple[bytes, Facts]]] = state.setdefault("redirected_from", {})
        self._caught: set[bytes] = state.setdefault("caught", set())

    def add(self, mark: bytes, target: bytes, facts: Facts) -> list[Facts]:
        """One more redirect; those of which it shows that they lead into a loop, each told once."""
        self._to[mark] = target
        self._into.setdefault(target, []).append((mark, facts))
        place = target
        while place != mark and place in self._to and place not in self._caught:
            place = self._to[place]
        if place != mark and place not in self._caught:
            return []
        found, todo = [], [(mark, facts)]
        while todo:
            one, its = todo.pop()
            if one not in self._caught:
                self._caught.add(one)
                found.append(its)
                todo.extend(self._into.get(one, ()))
        return found


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def _address(text: str | None) -> str:
    if not text:
        raise ValueError("start: missing; give the address at which the crawl begins, like http://127.0.0.1:8400/")
    try:
        parts = urlsplit(text)
        good = parts.scheme in _PORTS and bool(parts.hostname) and _port(parts) > 0
    except ValueError:
        good = False
    if not good or any(c.isspace() for c in text):
        raise ValueError(f"start: {text!r} is no address of a page; give one like http://127.0.0.1:8400/")
    address = urldefrag(text).url
    return address if parts.path else parts._replace(path="/", fragment="").geturl()


def _whole(name: str, given: Given, least: int) -> int | None:
    text = given.get(name)
    if not text:
        return None
    # isdecimal alone would let other scripts' digits and endless numbers through to int().
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) >= least):
        raise ValueError(f"{name}: {text!r} is not allowed; give a whole number of {least} or more")
    return int(text)


def _seconds(name: str, given: Given) -> float:
    text = given.get(name)
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 3600:
        raise ValueError(f"{name}: {text!r} is not allowed; give seconds from 0 to 3600")
    return seconds


def _one_of(name: str, given: Given, known: tuple[str, ...]) -> str | None:
    text = given.get(name)
    if text and text not in known:
        raise ValueError(f"{name}: {text!r} is not allowed; give {' or '.join(known)}, or leave it out")
    return text or None


def _pattern(name: str, given: Given) -> re.Pattern[str] | None:
    text = given.get(name)
    if not text:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"{name}: {text!r} is no regular expression ({error}); correct it") from None
