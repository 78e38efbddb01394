"""Verbs that make a webhook or change it: create, update."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from cyclopts import Parameter

from crawler_lifecycle.cli.named import By, Named
from crawler_lifecycle.cli.output import Document
from crawler_lifecycle.cli.problems import CommandFailed, Exit

from . import tables

KIND = Named("webhook", tables.WEBHOOKS, tables.facts)
Name = Annotated[str, Parameter(help="the webhook's name")]
#: An option -> the field of a definition.
_WORDS = {
    **{"secret": "secrets", "event": "events", "crawler": "crawlers", "tag": "tags", "flow": "flows"},
    **{"status": "statuses", "outcome": "outcomes"},
}


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Options that say what it is told of, and what signs that. Each may be repeated."""

    secret: Annotated[
        list[str] | None, Parameter(help="env:NAME, a variable of webhook workers; two while they change")
    ] = None
    event: Annotated[list[str] | None, Parameter(help="type of events, or run.* for a kind; default: all")] = None
    crawler: Annotated[list[str] | None, Parameter(help="only events of this crawler")] = None
    tag: Annotated[list[str] | None, Parameter(help="only events of runs with this tag")] = None
    flow: Annotated[list[str] | None, Parameter(help="only events of this flow")] = None
    status: Annotated[list[str] | None, Parameter(help="only events that tell this status")] = None
    outcome: Annotated[list[str] | None, Parameter(help="only events that tell this outcome")] = None

    def given(self) -> dict[str, list[str]]:
        """Those that were named, as a definition has them; an empty text stands for none."""
        named = {_WORDS[one.name]: getattr(self, one.name) for one in fields(self)}
        return {name: [one for one in value if one] for name, value in named.items() if value is not None}


_NONE = WebhookOptions()


def create(
    name: Name,
    /,
    *,
    url: Annotated[str, Parameter(help="https address of the receiver")],
    options: Annotated[WebhookOptions, Parameter(name="*")] = _NONE,
    by: By = None,
) -> int:
    """Make a webhook; one that is there gets this definition."""
    if not options.secret:
        raise CommandFailed(Exit.USAGE, "--secret is missing", None, "give --secret env:NAME; see crawlctl webhook -h")
    return KIND.put(name, {"url": url, **options.given()}, by, _following)


def update(
    name: Name,
    /,
    *,
    url: Annotated[str | None, Parameter(help="https address of the receiver")] = None,
    options: Annotated[WebhookOptions, Parameter(name="*")] = _NONE,
    by: By = None,
) -> int:
    """Change a webhook: what is named takes the place of what there was; an empty text stands for no filter."""
    given = {**({} if url is None else {"url": url}), **options.given()}
    return KIND.put(name, KIND.definition(name, given), by, _following)


def _following(found: Document) -> str:
    return f"{'resume' if found['state'] == 'paused' else 'test'} deliveries"
