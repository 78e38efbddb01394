"""The scope of a crawl: checks the crawl's arguments, and decides which addresses and redirects the
crawl follows.

This module imports only the standard library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urldefrag, urljoin, urlsplit

#: The default limit on the number of URLs. This limit ends a crawl that is caught in a trap, such
#: as an endless calendar or a query string that gets longer and longer.
MAX_PAGES = 10_000
#: The maximum length of an address. Addresses that exceed this length come from loops, and servers
#: refuse them.
URL_MAX = 2_000
#: The maximum number of redirects in a row, as in browsers.
CHAIN_MAX = 20
#: An address, the number of links from the start to the address, and the page that links to the
#: address.
Facts = tuple[str, int, "str | None"]
#: The values of the argument ``save``: keep the HTML or the text of each page.
SAVES = ("html", "text")

#: Arguments by name, as strings.
Given = Mapping[str, "str | None"]

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Scope:
    """One site, and the limits and filters for its addresses."""

    start: str
    max_pages: int
    max_depth: int | None
    allow: re.Pattern[str] | None
    deny: re.Pattern[str] | None
    delay: float
    """Seconds between two requests."""
    save: str | None

    @classmethod
    def read(cls, start: str | None = None, **given: str | None) -> Scope:
        """Return the scope for these arguments. An empty string counts as a missing argument.

        Raises ``ValueError`` that names the argument.
        """
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
        """Return the absolute address of a link without the fragment; ``None`` if the link does not
        lead to a web address.
        """
        try:
            address = urldefrag(urljoin(base, link.strip("\t\n\f\r "))).url
            parts = urlsplit(address)
            known = parts.scheme in _PORTS and bool(parts.hostname) and _port(parts) > 0
        except ValueError:  # such as "http://[", or a port that is not a number
            return None
        return address if known else None

    def inside(self, address: str) -> bool:
        """Return whether the address has the same host and port as the start.

        ``http`` and ``https`` are the same site if neither address has a port.
        """
        one = urlsplit(address)
        other = urlsplit(self.start)
        if one.hostname != other.hostname:
            return False
        return _port(one) == _port(other) or (one.port is None and other.port is None)

    def wanted(self, address: str) -> bool:
        """Return whether the address is on the site, is not too long, and passes ``allow`` and
        ``deny``.

        This check does not apply to the start address.
        """
        if len(address) > URL_MAX or not self.inside(address):
            return False
        if self.allow is not None and not self.allow.search(address):
            return False
        return self.deny is None or not self.deny.search(address)


class Redirects:
    """The redirects that a crawl has encountered. They are stored in the crawl's state."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._to: dict[bytes, bytes] = state.setdefault("redirects", {})
        self._into: dict[bytes, list[tuple[bytes, Facts]]] = state.setdefault("redirected_from", {})
        self._caught: set[bytes] = state.setdefault("caught", set())

    def add(self, mark: bytes, target: bytes, facts: Facts) -> list[Facts]:
        """Record a redirect from ``mark`` to ``target``.

        Return the addresses that, as this redirect shows, lead into a redirect loop. Each of them
        is returned only once.
        """
        self._to[mark] = target
        self._into.setdefault(target, []).append((mark, facts))
        reached = target
        while reached != mark and reached in self._to and reached not in self._caught:
            reached = self._to[reached]
        if reached != mark and reached not in self._caught:
            return []
        found = []
        todo = [(mark, facts)]
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
        raise ValueError(
            "start: missing; give the first address of the crawl, such as http://127.0.0.1:8400/"
        )
    try:
        parts = urlsplit(text)
        good = parts.scheme in _PORTS and bool(parts.hostname) and _port(parts) > 0
    except ValueError:
        good = False
    if not good or any(c.isspace() for c in text):
        raise ValueError(
            f"start: {text!r} is not the address of a page; give one such as http://127.0.0.1:8400/"
        )
    address = urldefrag(text).url
    return address if parts.path else parts._replace(path="/", fragment="").geturl()


def _whole(name: str, given: Given, least: int) -> int | None:
    text = given.get(name)
    if not text:
        return None
    # ``isdecimal`` alone would also accept digits of other scripts and very long numbers.
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
        raise ValueError(
            f"{name}: {text!r} is not allowed; give {' or '.join(known)}, or leave it out"
        )
    return text or None


def _pattern(name: str, given: Given) -> re.Pattern[str] | None:
    text = given.get(name)
    if not text:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(
            f"{name}: {text!r} is not a valid regular expression ({error}); correct it"
        ) from None
