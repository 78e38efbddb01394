"""The versions and pools that requests name for runs that begin later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crawler_lifecycle.features.managers.domain.jobs import options_of

#: The objects in requests whose keys have only the crawler's own meaning.
_OF_CRAWLERS = {"args", "settings", "spider_args", "job_settings"}


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
    for part in _parts(document):
        if isinstance(part, Mapping):
            version = part.get("version")
            crawler = part.get("crawler")
            if isinstance(version, str) and isinstance(crawler, str):
                yield NamedVersion(version, crawler, by)
        else:
            words = _words(part)
            version = options_of(words).get("--version")
            if version is not None:
                # The first word is the crawler, unless the manager is a class of a user.
                yield NamedVersion(version, words[0], by)


def names_pool(document: object, pool: str) -> bool:
    """Return whether a JSON document with requests for runs or command lines of managers names a
    pool.
    """
    return any(
        pool == (part if isinstance(part, Mapping) else options_of(_words(part))).get(key)
        for part in _parts(document)
        for key in ("pool", "--pool")
    )


def _parts(document: object) -> Iterator[Mapping[Any, Any] | list[Any]]:
    """Yield all objects and lists in a JSON document, without arguments and settings of
    crawlers.
    """
    todo = [document]
    while todo:  # a recursion could become too deep
        part = todo.pop()
        if isinstance(part, Mapping):
            todo += [
                value
                for key, value in part.items()
                if key not in _OF_CRAWLERS or not isinstance(value, Mapping)
            ]
            yield part
        elif isinstance(part, list):
            todo += part
            yield part


def _words(part: list[Any]) -> list[str]:
    return [word for word in part if isinstance(word, str)]
