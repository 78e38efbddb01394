"""The fields of a crawler's arguments, which all forms that start a crawler have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, effective_args, unknown
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.gateway.runs.crawlers import named

from .forms import Wrong

#: An argument's field is this prefix and the name of the argument.
PREFIX = "arg."

#: Returns the versions of a crawler, newest first, of which one is ``current``. It blocks.
Versions = Callable[[str, CrawlerDefinition | None], Sequence[Mapping[str, Any]]]


def args_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments in a form, without the empty ones."""
    typed = [name for name in given if name.startswith(PREFIX) and given[name].strip()]
    return {name.removeprefix(PREFIX): given[name] for name in typed}


def fields_of(args: object) -> dict[str, str]:
    """Return the fields for stored arguments, except those that no field would send back
    unchanged."""
    if not isinstance(args, dict):
        return {}
    texts = {name: text for name, text in args.items() if isinstance(text, str) and text.strip()}
    kept = [name for name, text in texts.items() if not {"\r", "\0"} & set(text)]
    return {PREFIX + name: texts[name] for name in kept}


async def version_choices(
    versions: Versions, crawler: CrawlerDefinition | None
) -> dict[str, Any] | None:
    """Return the choices and the default of the field that names the version of a crawler.
    ``None`` means that it has no versions, or that the database does not answer.
    """
    if crawler is None:
        return None
    try:
        rows = await run_in_threadpool(versions, crawler.name, crawler)
    except LifecycleError:  # the form keeps what a person has typed
        return None
    if not rows:
        return None
    current = next((row["version"] for row in rows if row["current"]), None)
    choices = [row["version"] for row in rows]
    return {"choices": choices, "default": current, "required": False}


def hint(
    known: Mapping[str, CrawlerDefinition],
    away: str | None,
    given: Mapping[str, str],
    field: str = "crawler",
) -> Wrong | None:
    """Return the error for a form whose crawler is unknown, or ``None``. ``away`` states why the
    catalogue may be incomplete, and ``field`` names the field of the crawler.
    """
    name = given.get(field, "").strip()
    if not name or not known or name in known:
        return None
    text = f"No crawler has this name; {unknown(name, known, away)}"
    return Wrong(text, {field: text})


def checks(
    known: Mapping[str, CrawlerDefinition], problem: str | None, given: Mapping[str, str]
) -> list[Callable[[], object]]:
    """Return the checks of the crawler and the arguments in a form.

    ``known`` is the catalogue, and ``problem`` states why it may be incomplete.
    """
    name = given.get("crawler", "").strip()
    if not name or not known:
        return []
    found: list[Callable[[], object]] = [partial(named, known, name, problem)]
    if name in known:
        found.append(partial(effective_args, known[name], args_of(given)))
    return found
