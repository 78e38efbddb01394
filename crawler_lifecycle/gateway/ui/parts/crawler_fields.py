"""The fields of a crawler's arguments, which all forms that start a crawler have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, effective_args
from crawler_lifecycle.gateway.runs.crawlers import named

#: An argument's field is this prefix and the name of the argument.
PREFIX = "arg."


def args_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments in a form, without the empty ones."""
    return {
        name.removeprefix(PREFIX): text
        for name, text in given.items()
        if name.startswith(PREFIX) and text.strip()
    }


def fields_of(args: object) -> dict[str, str]:
    """Return the fields for stored arguments, without those that no field sends back unchanged."""
    if not isinstance(args, dict):
        return {}
    return {
        PREFIX + name: text
        for name, text in args.items()
        if isinstance(text, str) and text.strip() and not {"\r", "\0"} & set(text)
    }


def checks(
    known: Mapping[str, CrawlerDefinition], problem: str | None, given: Mapping[str, str]
) -> list[Callable[[], object]]:
    """Return the checks of the crawler and the arguments in a form.

    ``known`` and ``problem`` are the catalogue, and why it may be incomplete.
    """
    name = given.get("crawler", "").strip()
    if not name or not known:
        return []
    found: list[Callable[[], object]] = [partial(named, known, name, problem)]
    if name in known:
        found.append(partial(effective_args, known[name], args_of(given)))
    return found
