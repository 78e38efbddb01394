"""The versions that requests name for runs that begin later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from crawler_lifecycle.features.managers.domain.jobs import options_of


@dataclass(frozen=True, slots=True)
class NamedVersion:
    """A version of code that a schedule, manager or graph names."""

    version: str
    crawler: str | None
    """``None`` if the crawler is unknown."""
    by: str
    """The schedule, manager or graph, such as ``schedule nightly``."""


def named_in(document: object, by: str) -> Iterator[NamedVersion]:
    """Yield the versions in a JSON document with requests for runs or command lines of managers."""
    todo = [document]
    while todo:  # a recursion could become too deep
        part = todo.pop()
        if isinstance(part, Mapping):
            todo += part.values()
            version = part.get("version")
            crawler = part.get("crawler")
            if isinstance(version, str) and isinstance(crawler, str):
                yield NamedVersion(version, crawler, by)
        elif isinstance(part, list):
            todo += part
            words = [word for word in part if isinstance(word, str)]
            version = options_of(words).get("--version")
            if version is not None:
                # The first word is the crawler, unless the manager is a class of a user.
                yield NamedVersion(version, words[0], by)
